//! How requests for state, and for what is like it, are tried, and tried again.

use std::time::Duration;

use baton_election::StoreError;
use tokio::time::{Instant, sleep, timeout};

use crate::jitter::doubled;

/// How long one try may take: several megabytes go over a slow line.
const TRY: Duration = Duration::from_secs(4);
/// From one try to the next; each further wait is twice as long, up to the longest.
const RETRY: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(1));
/// Tries that the store refuses without having written, before it is given up.
const TRIES: u32 = 10;
/// An edit has no further try from then on: with the last one it takes less than the ten seconds that people wait for, who
/// then read what the store has said, and not that it was late.
const LONGEST_EDIT: Duration = Duration::from_secs(5);

/// One try, which is unknown if it takes too long.
pub(crate) async fn tried<T>(request: impl Future<Output = Result<T, StoreError>>) -> Result<T, StoreError> {
    timeout(TRY, request).await.unwrap_or_else(|_| Err(StoreError::Unknown(format!("no response within {TRY:?}"))))
}

/// The pace of repeated tries.
pub(crate) struct Pace<'a> {
    begun: Instant,
    tries: u32,
    tell: &'a (dyn Fn(&StoreError) + Send + Sync),
}

impl<'a> Pace<'a> {
    /// `tell` hears of the first error.
    pub fn new(tell: &'a (dyn Fn(&StoreError) + Send + Sync)) -> Self {
        Self { begun: Instant::now(), tries: 0, tell }
    }

    /// Waits before the next try; or says why there should be none.
    pub async fn wait(&mut self, error: &StoreError) -> Result<(), String> {
        if self.tries == 0 {
            (self.tell)(error);
        }
        sleep(doubled(RETRY, self.tries)).await;
        self.tries += 1;
        if self.tries >= TRIES { Err(error.to_string()) } else { Ok(()) }
    }

    /// The same for an edit, whose sender waits for the answer: a store that is not there or refuses this host is
    /// left alone, since that can be mended. Returns the error if there should be no next try.
    pub async fn wait_to_edit(&mut self, error: StoreError) -> Result<(), StoreError> {
        let is_late = self.begun.elapsed() >= LONGEST_EDIT;
        let given_up = is_late || matches!(error, StoreError::Misconfigured(_)) || self.wait(&error).await.is_err();
        if given_up { Err(error) } else { Ok(()) }
    }
}
