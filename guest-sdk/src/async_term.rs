//! The term of an async coordinator.

use std::future::poll_fn;
use std::ops::Deref;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use crate::{Result, Stop, Term};

/// The term that this instance serves, for a coordinator that is an async function.
///
/// An `AsyncTerm` is a [`Term`] whose waits are futures. While one of the coordinator's futures waits, the others can
/// run. A save to the [state](Term::state), however, blocks all of them.
#[derive(Debug)]
pub struct AsyncTerm {
    term: Term,
}

impl AsyncTerm {
    pub(crate) fn new(term: Term) -> Self {
        Self { term }
    }

    /// Returns a client for HTTP requests.
    pub fn http(&self) -> crate::http::Client {
        crate::http::Client::new(self.term.host().clone())
    }

    /// Sleeps for this time, or until the host asks this instance to stop.
    ///
    /// # Errors
    /// [`Stop`] if the host has asked this instance to stop, now or earlier.
    pub async fn sleep(&self, length: Duration) -> Result<(), Stop> {
        self.term.host().wait(Some(length)).await;
        self.term.unless_stopped()
    }

    /// Waits until the host asks this instance to stop.
    pub async fn stopped(&self) -> Stop {
        loop {
            self.term.host().wait(None).await;
            if let Err(stop) = self.term.unless_stopped() {
                return stop;
            }
        }
    }

    /// Runs a future, and drops the future if the host asks this instance to stop. Dropping a future cancels its
    /// request in flight, if any.
    ///
    /// # Errors
    /// [`Stop`] if the host asked the instance to stop before the future completed.
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

/// Waits until the first of two futures completes. If both are ready, the first argument wins.
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
