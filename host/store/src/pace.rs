//! Timeouts and retries of requests for versioned objects such as the state.

use std::time::Duration;

use baton_election::StoreError;
use tokio::time::{Instant, sleep, timeout};

use baton_base::jitter::doubled;

/// Timeout for one attempt. Long enough to transfer several megabytes over a slow connection.
const TRY: Duration = Duration::from_secs(4);
/// The first and the longest wait between attempts. Each wait is twice as long as the previous one, up to the longest.
const RETRY: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(1));
const TRIES: u32 = 10;
/// Age after which an edit is not retried. Commands wait 10 s for an answer. With this limit, an edit usually ends
/// earlier, so the user sees the store's error instead of a timeout.
const LONGEST_EDIT: Duration = Duration::from_secs(5);

pub(crate) async fn tried<T>(request: impl Future<Output = Result<T, StoreError>>) -> Result<T, StoreError> {
    timeout(TRY, request).await.unwrap_or_else(|_| Err(StoreError::Unknown(format!("no response within {TRY:?}"))))
}

pub(crate) struct RetryPacer<'a> {
    begun: Instant,
    tries: u32,
    tell: &'a (dyn Fn(&StoreError) + Send + Sync),
}

impl<'a> RetryPacer<'a> {
    /// Creates a pacer that calls `tell` with the first error.
    pub fn new(tell: &'a (dyn Fn(&StoreError) + Send + Sync)) -> Self {
        Self { begun: Instant::now(), tries: 0, tell }
    }

    /// Waits before the next attempt. Returns an error after [`TRIES`] attempts.
    pub async fn wait(&mut self, error: &StoreError) -> Result<(), String> {
        if self.tries == 0 {
            (self.tell)(error);
        }
        sleep(doubled(RETRY, self.tries)).await;
        self.tries += 1;
        if self.tries >= TRIES { Err(error.to_string()) } else { Ok(()) }
    }

    /// Waits before the next attempt of an edit. Returns the error after [`LONGEST_EDIT`], after [`TRIES`] attempts, or
    /// if only an operator can fix the problem, for example because the store does not exist.
    pub async fn wait_to_edit(&mut self, error: StoreError) -> Result<(), StoreError> {
        let is_late = self.begun.elapsed() >= LONGEST_EDIT;
        let given_up = is_late || matches!(error, StoreError::Misconfigured(_)) || self.wait(&error).await.is_err();
        if given_up { Err(error) } else { Ok(()) }
    }
}
