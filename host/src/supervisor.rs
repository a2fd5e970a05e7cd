//! The supervisor of one coordinator: carries out what its elector decides.
//!
//! It alone knows both the lease and the instance. It decides nothing: requests go to the store side by
//! side, each with its timeout; the instance is started, asked, killed; and everything that happens goes
//! back to the elector as an input. It runs on the control runtime, which no guest ever runs on.

use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use baton_election::{Effect, ElectionName, Elector, End, Input, Now, Op, Refusal, Reply, RequestId, Settings, StopReason};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::clock::Clock;
use crate::runtime::{Instance, Launcher};
use crate::store::LeaseStore;
use crate::telemetry::ElectionLog;

/// While a node leads, nothing waits longer than this without reading the clock: timers stop while a
/// machine sleeps.
const LONGEST_WAIT_LEADING: Duration = Duration::from_millis(250);

/// How urgently the host is asked to end. A level: it only rises.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Shutdown {
    /// Not at all.
    No,
    /// In order.
    Requested,
    /// In order, but without grace.
    Impatient,
}

/// What the supervisor of one coordinator is given.
pub struct Supervisor {
    /// The election that it takes part in.
    pub election: ElectionName,
    /// What its elector is told.
    pub settings: Settings,
    /// Where the lease is.
    pub store: Arc<dyn LeaseStore>,
    /// Starts instances of the module.
    pub launcher: Launcher,
    /// How long a running instance may stay silent.
    pub stall_after: Option<Duration>,
    /// The host's clock.
    pub clock: Clock,
    /// Where it tells of itself.
    pub log: ElectionLog,
}

impl Supervisor {
    /// Takes part in the election until the host is asked to end, and ends in order: the instance gone,
    /// then the lease released.
    ///
    /// # Errors
    /// Only where the system cannot give it random numbers to start with.
    pub async fn run(self, shutdown: watch::Receiver<Shutdown>) -> Result<(), getrandom::Error> {
        let random = seeded_random()?;
        let now = Now { time: self.clock.now(), wall: self.clock.wall() };
        let elector = Elector::new(self.settings.clone(), now, random);
        let mut run = Run { elector, instance: None, requests: JoinSet::new(), stalled: false, given: self };
        run.until_finished(shutdown).await;
        Ok(())
    }
}

/// A supervisor at work.
struct Run {
    given: Supervisor,
    elector: Elector,
    requests: JoinSet<(RequestId, Result<Reply, Refusal>)>,
    instance: Option<Instance>,
    /// Whether the instance has already been reported as stalled.
    stalled: bool,
}

/// What the elector is waiting for, as it arrives.
enum Arrival {
    Input(Input),
    Shutdown(Shutdown),
}

impl Run {
    async fn until_finished(&mut self, mut shutdown: watch::Receiver<Shutdown>) {
        let mut asked = Shutdown::No;
        loop {
            while let Some(effect) = self.elector.poll_effect() {
                if effect == Effect::Finished {
                    // What is still under way can change nothing any more: nothing runs, nothing is held.
                    self.requests.shutdown().await;
                    return;
                }
                self.carry_out(effect);
            }
            let input = match self.next(&mut shutdown, asked).await {
                Arrival::Input(input) => input,
                Arrival::Shutdown(level) => {
                    asked = level;
                    if level == Shutdown::Impatient { Input::SkipGrace } else { Input::Shutdown }
                }
            };
            let now = Now { time: self.given.clock.now(), wall: self.given.clock.wall() };
            self.elector.handle(now, input);
        }
    }

    /// Waits for whatever comes first.
    async fn next(&mut self, shutdown: &mut watch::Receiver<Shutdown>, asked: Shutdown) -> Arrival {
        let wait = self.wait();
        let stalled = self.stalled_after_wait();
        let instance = async {
            match &mut self.instance {
                Some(instance) => instance.next_event().await,
                None => pending().await,
            }
        };
        tokio::select! {
            // A host that must end and an instance that is gone come before the store's answers.
            biased;
            Ok(level) = shutdown.wait_for(|level| *level > asked) => Arrival::Shutdown(*level),
            event = instance => Arrival::Input(self.instance_event(event)),
            Some(answer) = self.requests.join_next() => Arrival::Input(match answer {
                Ok((id, result)) => Input::Answer { id, result },
                // A request that panicked or was cancelled has no id to answer with; its elector waits for
                // the lease's own moments.
                Err(_) => Input::Tick,
            }),
            () = sleep(wait) => Arrival::Input(Input::Tick),
        }
    }
}
