//! Work that is under way beside other work, in one task.

use std::future::pending;

use futures::future::BoxFuture;

/// At most one piece of work. It goes on only while [`InFlight::done`] is awaited, and ends when it is dropped.
pub(super) struct InFlight<T>(Option<BoxFuture<'static, T>>);

impl<T> InFlight<T> {
    pub fn none() -> Self {
        Self(None)
    }

    pub fn is_idle(&self) -> bool {
        self.0.is_none()
    }

    /// Begins it, instead of whatever was under way.
    pub fn begin(&mut self, work: impl Future<Output = T> + Send + 'static) {
        self.0 = Some(Box::pin(work));
    }

    pub fn stop(&mut self) {
        self.0 = None;
    }

    /// Waits for its end; for ever if there is nothing. May be dropped, and then nothing is lost.
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
