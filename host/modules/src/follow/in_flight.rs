//! Work that runs concurrently with other work in the same task.

use std::future::pending;

use futures::future::BoxFuture;

/// Work in progress, if any. The work progresses only while a caller awaits [`InFlight::done`]. Dropping this value
/// cancels the work.
pub(super) struct InFlight<T>(Option<BoxFuture<'static, T>>);

impl<T> InFlight<T> {
    pub fn none() -> Self {
        Self(None)
    }

    pub fn is_idle(&self) -> bool {
        self.0.is_none()
    }

    /// Begins this work. Cancels the previous work if it is still in progress.
    pub fn begin(&mut self, work: impl Future<Output = T> + Send + 'static) {
        self.0 = Some(Box::pin(work));
    }

    pub fn stop(&mut self) {
        self.0 = None;
    }

    /// Waits until the work is done, or forever if there is no work. Cancel-safe.
    pub async fn done(&mut self) -> T {
        match &mut self.0 {
            Some(work) => {
                let done = work.await;
                self.0 = None;
                done
            }
            None => pending().await,
        }
    }
}
