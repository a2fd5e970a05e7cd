//! What is mostly done before anybody wonders.

use std::pin::pin;
use std::time::Duration;

use tokio::time::timeout;

/// Who waits longer for a module is told for which.
const SOON: Duration = Duration::from_secs(1);

/// Waits for what is mostly done soon. Where it is not, says so.
pub(crate) async fn unless_soon<T>(work: impl Future<Output = T>, say: impl FnOnce()) -> T {
    unless_within(SOON, work, say).await
}

/// Waits for what is mostly done within that time. Where it is not, does that and goes on waiting.
pub(crate) async fn unless_within<T>(limit: Duration, work: impl Future<Output = T>, late: impl FnOnce()) -> T {
    let mut work = pin!(work);
    match timeout(limit, &mut work).await {
        Ok(done) => done,
        Err(_) => {
            late();
            work.await
        }
    }
}
