//! Time limits and retries of requests for state and similar objects.

use std::time::Duration;

use baton_election::StoreError;
use tokio::time::{Instant, sleep, timeout};

use crate::jitter::doubled;

/// Limit on one try: long enough for several megabytes on a slow line.
const TRY: Duration = Duration::from_secs(4);
/// The first and the longest wait between tries. Each wait is twice as long as the previous one.
const RETRY: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(1));
/// Number of failed tries after which the request is given up.
const TRIES: u32 = 10;
/// Age of an edit from which it is not retried. With its last try it takes less than the 10 s that people wait for, so
/// they read the store's error and not that the edit was late.
const LONGEST_EDIT: Duration = Duration::from_secs(5);

/// Makes one try. Its outcome is unknown if it takes too long.
pub(crate) async fn tried<T>(request: impl Future<Output = Result<T, StoreError>>) -> Result<T, StoreError> {
    timeout(TRY, request).await.unwrap_or_else(|_| Err(StoreError::Unknown(format!("no response within {TRY:?}"))))
}

pub(crate) struct RetryPacer<'a> {
    begun: Instant,
    tries: u32,
    tell: &'a (dyn Fn(&StoreError) + Send + Sync),
}

impl<'a> RetryPacer<'a> {
    /// `tell` is called with the first error.
    pub fn new(tell: &'a (dyn Fn(&StoreError) + Send + Sync)) -> Self {
        Self { begun: Instant::now(), tries: 0, tell }
    }

    /// Waits before the next try. Fails if there should be none.
    pub async fn wait(&mut self, error: &StoreError) -> Result<(), String> {
        if self.tries == 0 {
            (self.tell)(error);
        }
        sleep(doubled(RETRY, self.tries)).await;
        self.tries += 1;
        if self.tries >= TRIES { Err(error.to_string()) } else { Ok(()) }
    }

    /// Waits before the next try of an edit, whose sender waits for the answer. Returns the error if the edit should be
    /// given up: also if the store does not exist or refuses this host, which the operator can fix.
    pub async fn wait_to_edit(&mut self, error: StoreError) -> Result<(), StoreError> {
        let is_late = self.begun.elapsed() >= LONGEST_EDIT;
        let given_up = is_late || matches!(error, StoreError::Misconfigured(_)) || self.wait(&error).await.is_err();
        if given_up { Err(error) } else { Ok(()) }
    }
}
