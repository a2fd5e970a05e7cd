//! The term for coordinators that wait for several things at once.

use std::future::poll_fn;
use std::ops::Deref;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use crate::{Result, Stop, Term};

/// The term that this instance serves, for a coordinator that is an async function.
///
/// It is a [`Term`] whose waiting is done by futures, so that other futures of the coordinator go on
/// meanwhile. Saving to the [state](Term::state) is a call of the host in which everything waits.
#[derive(Debug)]
pub struct AsyncTerm {
    term: Term,
}

impl AsyncTerm {
    pub(crate) fn new(term: Term) -> Self {
        Self { term }
    }

    /// What requests are sent with.
    pub fn http(&self) -> crate::http::Client {
        crate::http::Client::new(self.term.host().clone())
    }

    /// Sleeps, but not past a request to stop.
    ///
    /// # Errors
    /// [`Stop`] once this instance is asked to stop, also when it was before.
    pub async fn sleep(&self, length: Duration) -> Result<(), Stop> {
        self.term.host().wait(Some(length)).await;
        self.term.unless_stopped()
    }

    /// Waits for the request to stop.
    pub async fn stopped(&self) -> Stop {
        loop {
            self.term.host().wait(None).await;
            if let Err(stop) = self.term.unless_stopped() {
                return stop;
            }
        }
    }

    /// Goes on with a future, but not past a request to stop: then the future is dropped, and what it had
    /// under way is cut off.
    ///
    /// # Errors
    /// [`Stop`] if this instance is asked to stop before the future has ended.
    pub async fn until_stop<F: Future>(&self, future: F) -> Result<F::Output, Stop> {
        match either(future, self.stopped()).await {
            Either::First(output) => Ok(output),
            Either::Second(stop) => Err(stop),
        }
    }
}

impl Deref for AsyncTerm {
    type Target = Term;

    fn deref(&self) -> &Term {
        &self.term
    }
}

pub(crate) enum Either<A, B> {
    First(A),
    Second(B),
}

/// Waits for one of two; of two that are ready, for the first.
pub(crate) async fn either<A: Future, B: Future>(first: A, second: B) -> Either<A::Output, B::Output> {
    let (mut first, mut second) = (pin!(first), pin!(second));
    poll_fn(|cx| {
        if let Poll::Ready(output) = first.as_mut().poll(cx) {
            return Poll::Ready(Either::First(output));
        }
        second.as_mut().poll(cx).map(Either::Second)
    })
    .await
}
