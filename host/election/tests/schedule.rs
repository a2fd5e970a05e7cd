//! Tests of scheduled runs: one node, a store that carries out each request at once, and clocks that the test moves.
//! Time 0 of the host's clock is second 0 of the wall clock, and a run is due in each minute.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test may end by a panic")]
#![allow(missing_docs, reason = "nobody links against a test")]

use std::time::Duration;

use baton_election::{
    Effect, Elector, End, Input, LeaseId, LeaseState, Missed, ModuleVersion, Now, OnDone, Op, Outcome, Plan, Progress,
    Random, Recalled, Record, Reply, Report, Schedule, ScheduleCommands, ScheduledRun, Settings, Snapshot, StopReason,
    StoreError, Time, Timing, Version,
};

const D: Duration = Duration::from_secs(15);
const MINUTE: u64 = 60;

#[test]
fn new_election_waits_for_its_first_due_time() {
    let mut node = Node::new(every_minute(Missed::RunOnce), None);
    node.runs_until(59);
    assert_eq!((node.last_run(), node.awaited), (None, Some(60)));
    assert!(node.elected, "standbys must see that this node leads");
    node.runs_until(61);
    assert_eq!(node.running, Some(run(60, None)));
}

#[test]
fn completed_run_is_recorded_and_not_repeated() {
    let mut node = Node::running_since(60);
    node.ends(End::Done);
    assert_eq!(node.recorded(), (60, 60));
    node.runs_until(119);
    assert_eq!((node.running, node.awaited), (None, Some(120)));
    node.runs_until(121);
    assert_eq!(node.running, Some(run(120, Some(60))));
}

#[test]
fn failing_run_keeps_its_due_time_and_then_runs_latest() {
    let mut node = Node::running_since(60);
    node.ends(End::Failed("no".to_string()));
    node.runs_until(200);
    assert_eq!(node.running, Some(run(60, None)));
    node.ends(End::Done);
    node.runs_until(201);
    assert_eq!(node.running, Some(run(180, Some(60))), "the run of second 120 is dropped");
}

#[test]
fn next_leader_repeats_unfinished_run_and_only_that() {
    for (completed, expected) in [(0, Some(run(60, None))), (60, None)] {
        let record = Record { progress: progress(0, 60, completed), ..record(4) };
        let mut node = Node::new(every_minute(Missed::RunOnce), Some(record));
        node.starts_at(70);
        node.runs_until(80);
        assert_eq!(node.running, expected, "{completed}");
    }
}

#[test]
fn missed_run_begins_once_or_is_skipped() {
    let [once, skip] = [Missed::RunOnce, Missed::Skip];
    for (missed, takeover, expected, skipped) in [
        (once, 315, Some(300), None),
        (once, 303, Some(300), None),
        (skip, 303, Some(300), None),
        (skip, 315, None, Some(300)),
    ] {
        let mut node = Node::new(every_minute(missed), Some(Record { progress: progress(0, 60, 60), ..record(4) }));
        node.starts_at(takeover);
        node.runs_until(takeover + 4);
        let due = node.running.map(|run| run.due.as_secs());
        assert_eq!((due, node.skipped), (expected, skipped), "{missed:?} {takeover}");
        let from = node.record().progress.as_ref().unwrap().from.as_secs();
        assert_eq!(from, skipped.unwrap_or(0), "a skipped run is recorded");
    }
}

#[test]
fn due_time_during_run_is_skipped_if_missed_runs_are() {
    let mut node = Node::new(every_minute(Missed::Skip), None);
    node.runs_until(61);
    node.runs_until(125);
    node.ends(End::Done);
    node.runs_until(179);
    assert_eq!((node.running, node.awaited), (None, Some(180)));
}

#[test]
fn changed_schedule_counts_from_now_and_keeps_completed_run() {
    let mut progress = progress(0, 60, 60);
    progress.as_mut().unwrap().schedule = "other".to_string();
    let mut node = Node::new(every_minute(Missed::RunOnce), Some(Record { progress, ..record(4) }));
    node.starts_at(200);
    node.runs_until(239);
    assert_eq!((node.last_run(), node.awaited), (None, Some(240)), "second 180 was due under another schedule");
    let recorded = node.record().progress.clone().unwrap();
    assert_eq!((recorded.revision, recorded.completed.as_secs(), recorded.from.as_secs()), (2, 60, 200));
}

#[test]
fn removed_schedule_is_recorded_and_begins_again_later() {
    let found = Record { progress: progress(0, 60, 60), ..record(4) };
    let mut node = Node::with(None, Some(found));
    node.starts_at(200);
    node.runs_until(210);
    let recorded = node.record().progress.clone().unwrap();
    assert_eq!((recorded.revision, recorded.schedule.as_str(), recorded.completed.as_secs()), (2, "", 60));
    assert!(node.is_serving, "without a schedule, the coordinator runs at once");

    let mut node = Node::new(every_minute(Missed::RunOnce), node.record);
    node.starts_at(300);
    node.runs_until(359);
    assert_eq!((node.last_run(), node.awaited), (None, Some(360)));
}

#[test]
fn completed_run_survives_a_fork_of_the_schedule() {
    // This node has completed the run of second 120 under revision 1. Another node announces a later revision, and does
    // not know of the run.
    let mut node =
        Node::new(every_minute(Missed::RunOnce), Some(Record { progress: progress(0, 120, 120), ..record(4) }));
    let fork = Progress { revision: 2, schedule: "other".to_string(), ..*progress(100, 60, 60).unwrap() };
    node.announced = Recalled { term: 4, progress: Some(Box::new(fork)) };
    node.starts_at(130);
    node.runs_until(179);
    assert_eq!((node.last_run(), node.recorded(), node.awaited), (None, (120, 120), Some(180)));
}

#[test]
fn clock_set_back_is_noticed_and_new_schedule_sets_record_back() {
    let mut node = Node::new(every_minute(Missed::RunOnce), None);
    node.runs_until(30);
    node.wall_ahead = Duration::from_secs(100_000);
    node.runs_until(31);
    assert!(node.running.is_some());
    node.ends(End::Done);
    node.wall_ahead = Duration::ZERO;
    node.runs_until(119);
    assert_eq!((node.running, node.ahead), (None, Some(100_020)));

    let schedule = Schedule { text: "changed".to_string(), ..every_minute(Missed::RunOnce) };
    let mut node = Node::new(schedule, node.record);
    node.starts_at(130);
    node.runs_until(181);
    assert_eq!(node.running, Some(run(180, None)), "the run of the wrong clock is not the last completed one");
}

#[test]
fn unfinished_run_of_wrong_clock_is_dropped_by_new_schedule() {
    let schedule = Schedule { text: "changed".to_string(), ..every_minute(Missed::RunOnce) };
    let mut node = Node::new(schedule, Some(Record { progress: progress(0, 9000, 60), ..record(4) }));
    node.starts_at(130);
    node.runs_until(179);
    assert_eq!((node.last_run(), node.awaited), (None, Some(180)));
    node.runs_until(181);
    assert_eq!(node.running, Some(run(180, Some(60))));
}

#[test]
fn finished_election_runs_again_with_a_schedule() {
    let over = Record { outcome: Some(Outcome::Done), released: true, ..record(4) };
    let mut node = Node::new(every_minute(Missed::RunOnce), Some(over));
    node.runs_until(61);
    assert_eq!(node.running, Some(run(60, None)));
}

#[test]
fn run_that_ends_well_after_a_stop_is_completed() {
    let mut node = Node::running_since(60);
    node.input(Input::StepDown { reason: "asked".to_string() });
    assert_eq!(node.stopped, Some(StopReason::StepDown));
    node.ends(End::Done);
    assert_eq!((node.recorded(), node.record().released), ((60, 60), true));
}

#[test]
fn push_waits_for_end_of_run_or_for_step_down() {
    for (end, expected) in [(End::Failed("no".to_string()), Some(run(60, None))), (End::Done, None)] {
        let mut node = Node::running_since(60);
        node.plans(2);
        assert_eq!(node.stopped, None);
        node.ends(end);
        node.runs_until(66);
        assert_eq!((node.running, node.version), (expected, if expected.is_some() { 2 } else { 1 }));
    }

    // A step-down replaces the version sooner: the next term repeats the run with the new version.
    let mut node = Node::running_since(60);
    node.plans(2);
    node.input(Input::StepDown { reason: "asked".to_string() });
    node.ends(End::Killed);
    node.runs_until(100);
    assert_eq!((node.running, node.version), (Some(run(60, None)), 2));
}

#[test]
fn triggered_run_begins_at_once_and_only_once() {
    let mut node = Node::new(every_minute(Missed::RunOnce), None);
    node.runs_until(20);
    node.input(triggered(19));
    node.runs_until(21);
    assert_eq!(node.running, Some(run(19, None)));
    node.ends(End::Done);
    node.input(triggered(19));
    node.runs_until(59);
    assert_eq!((node.running, node.awaited), (None, Some(60)));
}

#[test]
fn next_leader_begins_triggered_run_that_crashed_leader_did_not() {
    let mut node =
        Node::new(every_minute(Missed::RunOnce), Some(Record { progress: progress(0, 60, 60), ..record(4) }));
    node.starts_at(100);
    node.input(triggered(90));
    node.runs_until(103);
    assert_eq!(node.running, Some(run(90, Some(60))));
}

#[test]
fn progress_of_higher_epoch_replaces_recorded_one() {
    let mut node =
        Node::new(every_minute(Missed::RunOnce), Some(Record { progress: progress(0, 9000, 9000), ..record(4) }));
    node.starts_at(100);
    node.runs_until(110);
    assert_eq!((node.awaited, node.ahead), (Some(9060), Some(9000)));
    let order = Progress { epoch: 1, ..*progress(60, 60, 60).unwrap() };
    node.input(Input::Schedule(ScheduleCommands { progress: Some(Box::new(order)), trigger: None }));
    node.runs_until(121);
    assert_eq!(node.running, Some(run(120, Some(60))));
}

#[test]
fn progress_survives_deleted_record_in_announcements() {
    let mut node = Node::new(every_minute(Missed::RunOnce), None);
    node.announced = Recalled { term: 4, progress: progress(0, 120, 60) };
    node.starts_at(200);
    node.runs_until(300);
    assert_eq!(node.running, Some(run(120, Some(60))));
}

#[test]
fn recorded_progress_is_known_without_recall() {
    let mut node =
        Node::new(every_minute(Missed::RunOnce), Some(Record { progress: progress(0, 120, 60), ..record(4) }));
    node.can_recall = false;
    node.starts_at(200);
    node.runs_until(300);
    assert_eq!(node.running, Some(run(120, Some(60))));
}

#[test]
fn run_is_recorded_again_if_progress_changes_before_its_start() {
    let mut node = Node::new(every_minute(Missed::RunOnce), None);
    node.runs_until(59);
    node.is_slow = true;
    node.runs_until(61);
    let order = Progress { epoch: 1, ..*progress(0, 30, 0).unwrap() };
    node.input(Input::Schedule(ScheduleCommands { progress: Some(Box::new(order)), trigger: None }));
    node.is_slow = false;
    node.runs_until(62);
    assert_eq!(node.running, Some(run(30, None)));
}

#[test]
fn death_of_waiting_leader_is_no_failure() {
    for (completed, failures) in [(60, 1), (0, 2)] {
        let found = Record { progress: progress(0, 60, completed), failures: 1, ..record(4) };
        let mut node = Node::new(every_minute(Missed::RunOnce), Some(found));
        node.lease = LeaseState::Abandoned { holder: LeaseId::from_random(7) };
        node.starts_at(119);
        node.runs_until(130);
        assert_eq!(node.record().failures, failures, "{completed}");
    }
}

#[test]
fn leader_waits_only_with_a_lease_of_length_d() {
    let mut node =
        Node::new(every_minute(Missed::RunOnce), Some(Record { lease: Duration::from_secs(45), ..record(4) }));
    node.lease = LeaseState::Broken;
    node.starts_at(100);
    node.runs_until(400);
    assert_eq!(node.length, D);
}

#[test]
fn merged_progress_does_not_depend_on_order() {
    let all =
        [progress(0, 60, 60), progress(30, 120, 60), progress(0, 0, 0), progress(500, 60, 120)].map(Option::unwrap);
    let revised = Progress { revision: 2, schedule: "other".to_string(), ..*progress(40, 40, 40).unwrap() };
    let reset = Progress { epoch: 1, ..*progress(20, 20, 20).unwrap() };
    for one in &all {
        for other in all.iter().map(|one| &**one).chain([&revised, &reset]) {
            let merged = |first: &Progress, second: &Progress| {
                let mut first = first.clone();
                first.merge(second);
                first
            };
            assert_eq!(merged(one, other), merged(other, one));
            assert_eq!(merged(&merged(one, other), other), merged(one, other));
        }
    }
}

#[test]
fn progress_survives_writing_and_reading() {
    let progress = *progress(1, 2, 3).unwrap();
    assert_eq!(progress.to_string().parse(), Ok(progress.clone()));
    let none = Progress { schedule: String::new(), ..progress };
    assert_eq!((none.to_string().parse(), none.to_string().trim()), (Ok(none.clone()), &*none.to_string()));
    let long = format!("0 1 2 3 4 {}", "x".repeat(300));
    for damaged in [
        "",
        "1",
        "1 2 3 4 5",
        "-1 1 2 3 4 x",
        "0 1 2 3 4 x\n",
        "0 1 2 3 4 ü",
        "0 1 2 3 4  x",
        "0 1 2 3 9999999999999 x",
        "9999999999999999999 1 2 3 4 x",
        &long,
    ] {
        assert!(damaged.parse::<Progress>().is_err(), "{damaged}");
    }
}

struct Node {
    elector: Elector,
    now: Duration,
    wall_ahead: Duration,
    inputs: u32,
    record: Option<Record>,
    lease: LeaseState,
    length: Duration,
    version: u64,
    writes: u64,
    can_recall: bool,
    /// True if the store carries out requests, but does not answer yet.
    is_slow: bool,
    unanswered: Vec<Input>,
    /// The terms and the progress that the store adds to those in the record when it answers a recall.
    announced: Recalled,
    is_serving: bool,
    running: Option<ScheduledRun>,
    runs: Vec<ScheduledRun>,
    elected: bool,
    stopped: Option<StopReason>,
    /// The due times, in seconds, in the last `AwaitingRun`, `RunSkipped` and `ProgressAhead` reports.
    awaited: Option<u64>,
    skipped: Option<u64>,
    ahead: Option<u64>,
}

impl Node {
    fn new(schedule: Schedule, record: Option<Record>) -> Self {
        Self::with(Some(schedule), record)
    }

    fn with(schedule: Option<Schedule>, record: Option<Record>) -> Self {
        let range = (Duration::from_secs(15), Duration::from_secs(60));
        let settings = Settings {
            node: "this".to_string(),
            incarnation: "this/1".to_string(),
            timing: Timing::new(D, range, Duration::from_secs(5), 64 << 20).unwrap(),
            lease_range: range,
            pause: Duration::ZERO,
            on_done: OnDone::Repeat,
            probation: Duration::from_secs(30),
            schedule,
        };
        let random = Random {
            state: [0; 32],
            next: |state| {
                state[0] = state[0].wrapping_add(1);
                u64::from(state[0]).wrapping_mul(0x9e37_79b9_7f4a_7c15)
            },
        };
        Self {
            elector: Elector::new(settings, at(Duration::ZERO), random),
            now: Duration::ZERO,
            wall_ahead: Duration::ZERO,
            inputs: 0,
            lease: if record.is_some() { LeaseState::Expired } else { LeaseState::Free },
            record,
            length: D,
            version: 1,
            writes: 0,
            can_recall: true,
            is_slow: false,
            unanswered: Vec::new(),
            announced: Recalled::default(),
            is_serving: false,
            running: None,
            runs: Vec::new(),
            elected: false,
            stopped: None,
            awaited: None,
            skipped: None,
            ahead: None,
        }
    }

    fn running_since(due: u64) -> Self {
        let mut node = Self::new(every_minute(Missed::RunOnce), None);
        node.runs_until(due + 1);
        assert_eq!(node.running, Some(run(due, None)));
        node
    }

    fn starts_at(&mut self, second: u64) {
        self.now = Duration::from_secs(second);
        self.input(Input::Tick);
    }

    /// Lets time pass until this second. Plans a module first if none is planned yet.
    fn runs_until(&mut self, second: u64) {
        if self.elector.plan().module.is_none() {
            self.plans(1);
        }
        let end = Duration::from_secs(second);
        while let Some(at) = self.elector.next_wakeup().filter(|at| at.0 < end) {
            self.now = self.now.max(at.0);
            self.input(Input::Tick);
        }
        self.now = end.max(self.now);
        self.input(Input::Tick);
    }

    fn plans(&mut self, version: u64) {
        let module = Some(ModuleVersion { digest: format!("sha256:{version}"), serial: version });
        self.input(Input::Plan(Plan { module, fallback: None }));
    }

    fn ends(&mut self, end: End) {
        self.running = None;
        self.input(Input::Gone { end });
    }

    fn record(&self) -> &Record {
        self.record.as_ref().unwrap()
    }

    fn recorded(&self) -> (u64, u64) {
        let progress = self.record().progress.as_ref().unwrap();
        (progress.begun.as_secs(), progress.completed.as_secs())
    }

    fn last_run(&self) -> Option<ScheduledRun> {
        self.runs.last().copied()
    }

    fn input(&mut self, input: Input) {
        let mut inputs = vec![input];
        if !self.is_slow {
            inputs.append(&mut self.unanswered);
        }
        while let Some(input) = inputs.pop() {
            self.inputs += 1;
            assert!(self.inputs < 10_000, "the elector never rests");
            self.elector.handle(Now { wall: self.now + self.wall_ahead, ..at(self.now) }, input);
            while let Some(effect) = self.elector.poll_effect() {
                match effect {
                    Effect::Request { id, op, .. } => {
                        let answer = Input::Answer { id, result: self.carry_out(op) };
                        if self.is_slow { &mut self.unanswered } else { &mut inputs }.push(answer);
                    }
                    Effect::Start { run, version, .. } => {
                        self.is_serving = true;
                        let Some(run) = run else { continue };
                        assert_eq!(self.recorded().0, run.due.as_secs(), "the run is recorded before it begins");
                        assert_ne!(self.recorded().1, run.due.as_secs(), "a completed run does not begin again");
                        (self.running, self.version, self.stopped) = (Some(run), version.serial, None);
                        self.runs.push(run);
                    }
                    Effect::Stop { reason, .. } => self.stopped = Some(reason),
                    Effect::Report(Report::Elected { .. }) => self.elected = true,
                    Effect::Report(Report::AwaitingRun { due }) => self.awaited = due.map(|due| due.as_secs()),
                    Effect::Report(Report::RunSkipped { due }) => self.skipped = Some(due.as_secs()),
                    Effect::Report(Report::ProgressAhead { recorded, .. }) => self.ahead = Some(recorded.as_secs()),
                    _ => {}
                }
            }
        }
    }

    fn carry_out(&mut self, op: Op) -> Result<Reply, StoreError> {
        let version = |writes: u64| Version(writes.to_string());
        Ok(match op {
            Op::Recall if !self.can_recall => return Err(StoreError::Misconfigured("no permission".to_string())),
            Op::Read if self.record.is_none() => Reply::Read(Snapshot::Nothing),
            Op::Read => Reply::Read(Snapshot::Object {
                lease: self.lease,
                version: version(self.writes),
                record: self.record.clone(),
            }),
            Op::Recall => {
                let mut recalled = Recalled::from_record(self.record.as_ref());
                recalled.merge(&self.announced);
                Reply::Recalled(recalled)
            }
            Op::Create { record } | Op::Write { record, .. } => {
                self.record = Some(record);
                self.writes += 1;
                Reply::Version(version(self.writes))
            }
            Op::Acquire { length, .. } => {
                (self.lease, self.length) = (LeaseState::Held, length);
                Reply::Done
            }
            Op::Release { .. } => {
                self.lease = LeaseState::Free;
                Reply::Done
            }
            Op::Reclaim { .. } | Op::Renew { .. } => Reply::Done,
            Op::Survey => unreachable!("no other node announces that it gives up the lease"),
        })
    }
}

fn every_minute(missed: Missed) -> Schedule {
    Schedule {
        text: "every minute".to_string(),
        next: |_, after| Some(Duration::from_secs((after.as_secs() / MINUTE + 1) * MINUTE)),
        latest: |_, until| Some(Duration::from_secs(until.as_secs() / MINUTE * MINUTE)),
        missed,
        missed_after: Duration::from_secs(10),
    }
}

fn run(due: u64, last_completed: Option<u64>) -> ScheduledRun {
    ScheduledRun { due: Duration::from_secs(due), last_completed: last_completed.map(Duration::from_secs) }
}

fn triggered(second: u64) -> Input {
    Input::Schedule(ScheduleCommands { progress: None, trigger: Some(Duration::from_secs(second)) })
}

fn progress(from: u64, begun: u64, completed: u64) -> Option<Box<Progress>> {
    let [from, begun, completed] = [from, begun, completed].map(Duration::from_secs);
    Some(Box::new(Progress { epoch: 0, revision: 1, schedule: "every minute".to_string(), from, begun, completed }))
}

fn record(term: u64) -> Record {
    Record {
        term,
        node: Some("other".to_string()),
        incarnation: "other/1".to_string(),
        since: Duration::ZERO,
        lease: D,
        module: Some("sha256:1".to_string()),
        outcome: None,
        failures: 0,
        released: false,
        paused_until: None,
        progress: None,
    }
}

fn at(now: Duration) -> Now {
    Now { time: Time(now), least: now, wall: now }
}
