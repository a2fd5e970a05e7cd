//! Drives an elector by hand, with a minimal store: `cargo run -p baton-election --example drive`.
//!
//! The example shows everything that a caller has to do: pass each input in, carry out the effects, and wake the
//! elector when it asks to be woken. The example advances the time itself, and uses no network.
#![allow(clippy::expect_used, reason = "an example ends at the first mistake")]

use std::time::Duration;

use baton_election::{
    Effect, Elector, End, Input, LeaseState, ModuleVersion, Now, OnDone, Op, Plan, Random, Recalled, Record, Reply,
    Settings, Snapshot, StoreError, Time, Timing, Version,
};

/// A store with a single client. The store never fails, and no other client ever holds the lease.
#[derive(Default)]
struct Store {
    record: Option<Record>,
    held: bool,
    writes: u64,
}

impl Store {
    fn request(&mut self, op: Op) -> Result<Reply, StoreError> {
        match op {
            Op::Read => Ok(Reply::Read(self.read())),
            // This store keeps terms only in the record.
            Op::Recall => Ok(Reply::Recalled(Recalled { term: self.read().term(), progress: None })),
            Op::Survey => Ok(Reply::Surveyed {
                recalled: Recalled { term: self.read().term(), progress: None },
                read: self.read(),
                steering: None,
            }),
            Op::Write { version, .. } | Op::Acquire { version, .. } | Op::Reclaim { version, .. }
                if version != self.version() =>
            {
                Err(StoreError::Conflict)
            }
            Op::Create { record } | Op::Write { record, .. } => {
                (self.record, self.writes) = (Some(record), self.writes + 1);
                Ok(Reply::Version(self.version()))
            }
            Op::Acquire { .. } | Op::Reclaim { .. } | Op::Renew { .. } => {
                self.held = true;
                Ok(Reply::Done)
            }
            Op::Release { .. } => {
                self.held = false;
                Ok(Reply::Done)
            }
        }
    }

    fn read(&self) -> Snapshot {
        let Some(record) = &self.record else { return Snapshot::Nothing };
        let lease = if self.held { LeaseState::Held } else { LeaseState::Free };
        Snapshot::Object { lease, version: self.version(), record: Some(record.clone()) }
    }

    fn version(&self) -> Version {
        Version(self.writes.to_string())
    }
}

fn main() {
    let lease_range = (Duration::from_secs(2), Duration::from_secs(60));
    let timing = Timing::new(Duration::from_secs(15), lease_range, Duration::from_secs(5), 64 << 20);
    let settings = Settings {
        node: "web-1".to_owned(),
        incarnation: "web-1/1".to_owned(),
        timing: timing.expect("15 s are within the range"),
        lease_range,
        pause: Duration::from_secs(30),
        on_done: OnDone::Finish,
        probation: Duration::from_secs(60),
        schedule: None,
    };
    let mut clock = Duration::ZERO;
    let now =
        |clock: Duration| Now { time: Time(clock), least: clock, wall: Duration::from_secs(1_700_000_000) + clock };
    // A real host takes its random numbers from the operating system: no two acquisitions, on this node or any other,
    // may use the same lease id.
    let random = Random {
        state: [7; 32],
        next: |state| {
            state[0] = state[0].wrapping_add(1);
            u64::from(state[0]) << 56 | 1
        },
    };
    let mut elector = Elector::new(settings, now(clock), random);
    let mut store = Store::default();
    let module = ModuleVersion { digest: format!("sha256:{}", "0".repeat(64)), serial: 1 };
    let mut inputs = vec![Input::Plan(Plan { module: Some(module), ..Plan::default() })];
    loop {
        for input in std::mem::take(&mut inputs) {
            elector.handle(now(clock), input);
        }
        while let Some(effect) = elector.poll_effect() {
            match effect {
                Effect::Request { id, op, .. } => {
                    println!("{clock:>9.3?}  asks: {op}");
                    inputs.push(Input::Answer { id, result: store.request(op) });
                }
                Effect::Start { term, deadline, .. } => {
                    println!("{clock:>9.3?}  term {term} begins, and is safe until {deadline:?}");
                    clock += Duration::from_secs(4);
                    println!("{clock:>9.3?}  its work is done");
                    inputs.push(Input::Gone { end: End::Done });
                }
                Effect::Report(report) => println!("{clock:>9.3?}  {report:?}"),
                Effect::Finished => return,
                other => println!("{clock:>9.3?}  {other:?}"),
            }
        }
        // With `OnDone::Finish`, the election is over once the record contains an outcome. The host only has to shut
        // down.
        if store.record.as_ref().is_some_and(|record| record.outcome.is_some()) && !store.held {
            inputs.push(Input::Shutdown);
        }
        if inputs.is_empty()
            && let Some(Time(wakeup)) = elector.next_wakeup()
        {
            clock = clock.max(wakeup);
            inputs.push(Input::Tick);
        }
    }
}
