//! Waits for work that is usually fast, and calls a function if the work is slow.

use std::pin::pin;
use std::time::Duration;

use tokio::time::timeout;

/// Delay after which slow work on a module is reported.
const SOON: Duration = Duration::from_secs(1);

pub(crate) async fn notify_if_slow<T>(work: impl Future<Output = T>, say: impl FnOnce()) -> T {
    notify_after(SOON, work, say).await
}

/// Calls `late` once if the work takes longer than `limit`.
pub(crate) async fn notify_after<T>(limit: Duration, work: impl Future<Output = T>, late: impl FnOnce()) -> T {
    let mut work = pin!(work);
    match timeout(limit, &mut work).await {
        Ok(done) => done,
        Err(_) => {
            late();
            work.await
        }
    }
}
