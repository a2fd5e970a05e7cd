//! Tests of the election's rules, with one scene for each rule. A scene passes inputs to the elector, and checks the
//! effects. The simulation finds cases that nobody thought of. These scenes document what each rule means.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test may end by a panic")]
#![allow(missing_docs, reason = "nobody links against a test")]

use std::collections::BTreeSet;
use std::time::Duration;

use baton_election::eligibility::longest_deferral;
use baton_election::{
    Chosen, Effect, ElectionName, Elector, Eligibility, End, HIGHEST_TERM, Hint, Ineligibility, IneligibleCause, Input,
    LeaseId, LeaseState, ModuleVersion, Now, OnDone, Op, Outcome, Plan, Random, Recalled, Record, Reply, Report,
    RequestId, Settings, Snapshot, SteeringVersion, StopReason, StoreError, Term, Time, Timing, Version, Word,
};

const D: Duration = Duration::from_secs(15);
const SECOND: Duration = Duration::from_secs(1);
const RANGE: (Duration, Duration) = (Duration::from_secs(15), Duration::from_secs(60));

#[test]
fn released_lease_is_acquired_at_once_with_next_term() {
    let mut scene = Scene::new();
    let id = scene.acquires(object(LeaseState::Free, Some(record(6, "other"))));
    let written = scene.answer(Ok(Reply::Done));
    let Op::Write { id: under, version, record } = only_request(&written) else { panic!("{written:?}") };
    assert_eq!((under, version.0.as_str(), record.term, record.failures), (id, "v1", 7, 0));
    // Both times count from the moment the acquire was sent, not from the answer to the acquire or from the write.
    let (deadline, abort_at) = (scene.sent + D * 8 / 10, scene.sent + D * 93 / 100);
    let started = scene.answer(Ok(Reply::Version(Version("v2".to_string()))));
    assert_eq!(started, [Effect::Start { term: 7, version: module(0), run: None, deadline, abort_at }]);
}

#[test]
fn host_creates_unknown_election_and_starts_at_once() {
    let mut scene = Scene::new();
    let created = scene.reads(Snapshot::Nothing);
    let Op::Create { record } = only_request(&created) else { panic!("{created:?}") };
    assert_eq!((record.term, record.node.clone()), (0, None));
    scene.answer(Ok(Reply::Version(Version("v1".to_string()))));
    scene.acquires(object(LeaseState::Free, Some(record)));
    assert_eq!(written_term(&scene.answer(Ok(Reply::Done))), Some(1));
}

#[test]
fn new_holder_waits_recorded_length_after_broken_lease() {
    let mut scene = Scene::new();
    let mut of_another = record(3, "other");
    of_another.lease = Duration::from_secs(30);
    scene.acquires(object(LeaseState::Broken, Some(of_another)));
    let acquired = scene.now;
    scene.answer(Ok(Reply::Done));
    assert_eq!(scene.run_until_written().term, 4);
    assert!(scene.now.since(acquired) >= Duration::from_secs(30), "{:?}", scene.now.since(acquired));
}

#[test]
fn waiting_holder_keeps_failures_and_outcome_of_old_module() {
    for (planned_by_then, failures) in [(0, 2), (1, 0)] {
        let mut scene = Scene::new();
        let mut of_another = record(3, "other");
        of_another.failures = 2;
        scene.acquires(object(LeaseState::Broken, Some(of_another)));
        let note = written_record(&scene.answer(Ok(Reply::Done)));
        assert_eq!((note.term, note.node, note.module.as_deref(), note.failures), (3, None, Some("sha256:0"), 2));
        scene.input(Input::Plan(plan(planned_by_then, None)));
        assert_eq!(scene.run_until_written().failures, failures, "{planned_by_then}");
    }
    let mut scene = Scene::new();
    scene.input(Input::Plan(plan(1, None)));
    scene.acquires(object(LeaseState::Broken, Some(over(3))));
    let note = written_record(&scene.answer(Ok(Reply::Done)));
    assert_eq!((note.node, note.module.as_deref(), note.outcome), (None, Some("sha256:0"), Some(Outcome::Done)));
    scene.answer(Ok(Reply::Version(Version("v2".to_string()))));
    // The election ended with this module, so no node starts the module again.
    scene.input(Input::Plan(plan(0, None)));
    assert!(matches!(scene.told[..], [.., Report::NotReleased { .. }, Report::Standby { .. }]), "{:?}", scene.told);
}

#[test]
fn failures_are_dropped_when_their_module_is_unknown() {
    let mut scene = Scene::new();
    let mut of_nobody = record(3, "other");
    (of_nobody.node, of_nobody.module, of_nobody.failures) = (None, None, 2);
    scene.acquires(object(LeaseState::Expired, Some(of_nobody)));
    assert_eq!(written_record(&scene.answer(Ok(Reply::Done))).failures, 0);
}

#[test]
fn new_holder_waits_a_minute_when_free_lease_has_no_record() {
    let mut scene = Scene::new();
    scene.acquires(object(LeaseState::Free, None));
    let acquired = scene.now;
    scene.answer(Ok(Reply::Done));
    scene.run_until_written();
    assert!(scene.now.since(acquired) >= Duration::from_secs(60), "{:?}", scene.now.since(acquired));
}

#[test]
fn deleted_record_continues_from_highest_term_after_wait() {
    let mut scene = Scene::new();
    scene.reads(object(LeaseState::Held, Some(record(9, "other"))));
    let created = scene.reads(Snapshot::Nothing);
    let Op::Create { record } = only_request(&created) else { panic!("{created:?}") };
    assert_eq!((record.term, record.node.clone()), (9, None));
    scene.answer(Ok(Reply::Version(Version("v9".to_string()))));
    // The new record is not marked as released, so every node that reads it, including this one, waits before it leads.
    scene.acquires(freed(record));
    let acquired = scene.now;
    scene.answer(Ok(Reply::Done));
    assert_eq!(scene.run_until_written().term, 10);
    assert!(scene.now.since(acquired) >= D);
}

#[test]
fn new_holder_waits_a_minute_when_unwritten_record_disappears() {
    let mut scene = Scene::new();
    let mut before = record(9, "other");
    before.outcome = Some(Outcome::Done);
    scene.reads(object(LeaseState::Free, Some(before.clone())));
    // The lease is held, but the record is still the previous holder's, so the length of the new holder's lease is
    // unknown.
    scene.reads(object(LeaseState::Held, Some(before)));
    let Op::Create { record } = only_request(&scene.reads(Snapshot::Nothing)) else { panic!("nothing is created") };
    assert_eq!((record.term, record.lease), (9, SECOND * 60));
    scene.answer(Ok(Reply::Version(Version("v9".to_string()))));
    // The new record is not marked as released, so every node that reads it, including this one, waits before it leads.
    scene.acquires(freed(record));
    let acquired = scene.now;
    scene.answer(Ok(Reply::Done));
    assert_eq!(scene.run_until_written().term, 10);
    assert!(scene.now.since(acquired) >= SECOND * 60, "{:?}", scene.now.since(acquired));
}

#[test]
fn record_with_highest_term_is_left_alone_and_reported_once() {
    let mut scene = Scene::new();
    for term in [u64::MAX, u64::MAX, HIGHEST_TERM] {
        assert_eq!(scene.reads(object(LeaseState::Expired, Some(record(term, "other")))), []);
    }
    let told = |report: &&Report| matches!(report, Report::StoreTrouble { error: StoreError::Misconfigured(_), .. });
    assert_eq!(scene.told.iter().filter(told).count(), 2, "{:?}", scene.told);
    // Once somebody corrects the term in the record, the election continues from the corrected term.
    scene.acquires(object(LeaseState::Expired, Some(record(7, "other"))));
    assert_eq!(written_term(&scene.answer(Ok(Reply::Done))), Some(8));
}

#[test]
fn new_holder_waits_a_minute_when_record_names_endless_lease() {
    let mut scene = Scene::new();
    let endless = Record { lease: Duration::MAX, ..record(3, "other") };
    scene.acquires(object(LeaseState::Broken, Some(endless)));
    let acquired = scene.now;
    scene.answer(Ok(Reply::Done));
    assert_eq!(scene.run_until_written().term, 4);
    assert!(scene.now.since(acquired) < Duration::from_secs(61), "{:?}", scene.now.since(acquired));
}

#[test]
fn failure_count_saturates_at_its_maximum() {
    let mut scene = Scene::new();
    let failed = Record { module: Some(module(0).digest), failures: u32::MAX, ..record(1, "other") };
    scene.acquires(object(LeaseState::Free, Some(failed)));
    scene.answer(Ok(Reply::Done));
    scene.answer(Ok(Reply::Version(Version("v2".to_string()))));
    let noted = scene.input(Input::Gone { end: End::Failed("again".to_string()) });
    assert!(scene.told.iter().any(|report| matches!(report, Report::Elected { .. })), "{:?}", scene.told);
    // The failure count needs no write of its own: it is saved by the write that marks the record as released.
    assert_eq!(written_record(&noted).failures, u32::MAX);
    assert!(matches!(only_request(&scene.marks(&noted)), Op::Release { .. }));
}

#[test]
fn acquire_repeats_id_and_version_after_unknown_outcome() {
    let mut scene = Scene::new();
    let id = scene.acquires(object(LeaseState::Expired, Some(record(1, "other"))));
    let version = Version("v1".to_string());
    for error in [unknown(), unknown(), StoreError::Misconfigured("no such container".to_string())] {
        scene.answer(Err(error));
        let again = scene.wakes();
        assert_eq!(only_request(&again), Op::Acquire { id, length: D, version: version.clone(), instead_of: None });
    }
}

#[test]
fn acquire_in_doubt_is_given_up_after_d() {
    let mut scene = Scene::new();
    scene.acquires(object(LeaseState::Expired, Some(record(1, "other"))));
    let began = scene.now;
    while !scene.asked_to_read {
        if scene.pending.is_some() {
            scene.answer(Err(unknown()))
        } else {
            scene.wakes()
        };
    }
    assert!((D..D + SECOND * 3).contains(&scene.now.since(began)), "{:?}", scene.now.since(began));
}

#[test]
fn refused_acquire_is_followed_by_reading_and_new_id() {
    let mut scene = Scene::new();
    let first = scene.acquires(object(LeaseState::Expired, Some(record(1, "other"))));
    scene.answer(Err(StoreError::Held));
    let second = scene.acquires(object(LeaseState::Expired, Some(record(1, "other"))));
    assert_ne!(first, second);
}

#[test]
fn unsent_acquire_changes_nothing() {
    // No node has ever led this election, so the first holder need not wait. If the host sent an acquire and got no
    // clear answer, the first holder would have to wait, because another node might have led. In this test, the host
    // holds the first acquires back, so the first holder need not wait.
    let mut scene = Scene::new();
    let created = scene.reads(Snapshot::Nothing);
    let Op::Create { record } = only_request(&created) else { panic!("{created:?}") };
    scene.answer(Ok(Reply::Version(Version("v1".to_string()))));
    let mut ids = BTreeSet::new();
    for _ in 0..3 {
        ids.insert(scene.acquires(freed(record.clone())).as_u128());
        let id = scene.pending.take().unwrap();
        assert_eq!(scene.input(Input::NotSent { id, reason: String::new() }), []);
        let wait = scene.elector.next_wakeup().unwrap().since(scene.now);
        assert!((SECOND * 3 / 4..=SECOND * 5 / 4).contains(&wait), "it looks again after {wait:?}");
    }
    ids.insert(scene.acquires(freed(record)).as_u128());
    assert_eq!(
        scene.input(Input::NotSent { id: RequestId(0), reason: String::new() }),
        [],
        "another request is pending"
    );
    assert_eq!(written_term(&scene.answer(Ok(Reply::Done))), Some(1), "{:?}", scene.told);
    assert_eq!(ids.len(), 4);
    let told = &scene.told[..];
    assert!(matches!(told, [Report::Standby { .. }, Report::Deferring { .. }]), "it is reported once: {told:?}");
}

#[test]
fn write_is_read_and_repeated_after_unknown_outcome() {
    let mut scene = Scene::new();
    let id = scene.acquires(object(LeaseState::Free, Some(record(1, "other"))));
    scene.answer(Ok(Reply::Done));
    scene.answer(Err(unknown()));
    assert_eq!(only_request(&scene.wakes()), Op::Read);
    let again = scene.answer(Ok(Reply::Read(held("v1", record(1, "other")))));
    let Op::Write { id: under, version, record } = only_request(&again) else { panic!("{again:?}") };
    assert_eq!((under, version.0.as_str(), record.term), (id, "v1", 2));
}

#[test]
fn refused_write_is_read_first() {
    let mut scene = Scene::leading();
    scene.input(Input::Plan(plan(1, None)));
    assert_eq!(only_request(&scene.answer(Err(StoreError::Conflict))), Op::Read);
}

#[test]
fn superseding_write_uses_new_version_after_first_arrived() {
    let mut scene = Scene::leading();
    let first = written_record(&scene.input(Input::Plan(plan(1, None))));
    assert_eq!(only_request(&scene.input(Input::Plan(plan(2, None)))), Op::Read);
    let second = scene.answer(Ok(Reply::Read(held("v3", first.clone()))));
    let Op::Write { version, record, .. } = only_request(&second) else { panic!("{second:?}") };
    assert_eq!((version.0.as_str(), record.term, record.module), ("v3", first.term + 1, Some(module(2).digest)));
}

#[test]
fn lease_is_lost_when_another_client_wrote_the_record() {
    let planted = Snapshot::Object { lease: LeaseState::Held, version: Version("v5".to_string()), record: None };
    for found in [held("v5", record(1, "other")), held("v5", record(2, "this")), planted] {
        let mut scene = Scene::leading();
        scene.input(Input::Plan(plan(1, None)));
        scene.answer(Err(unknown()));
        while !scene.asked_to_read {
            scene.wakes();
        }
        let effects = scene.answer(Ok(Reply::Read(found)));
        assert!(
            matches!(effects[..], [Effect::Stop { reason: StopReason::LeaseLost, .. }, Effect::Kill { .. }]),
            "{effects:?}"
        );
    }
}

#[test]
fn write_is_recognized_when_its_answer_was_lost() {
    let mut scene = Scene::new();
    scene.acquires(object(LeaseState::Free, Some(record(1, "other"))));
    let written = scene.answer(Ok(Reply::Done));
    let Op::Write { record, .. } = only_request(&written) else { panic!("{written:?}") };
    scene.answer(Err(unknown()));
    scene.wakes();
    let started = scene.answer(Ok(Reply::Read(held("v2", record))));
    assert!(matches!(started[..], [Effect::Start { term: 2, .. }]), "{started:?}");
}

#[test]
fn record_is_rewritten_while_earlier_write_may_arrive() {
    let mut scene = Scene::leading();
    scene.input(Input::Gone { end: End::Failed("no".to_string()) });
    assert_eq!(scene.run_until_started(), module(0));
    let failed_once = loop {
        // After 60 s without a failure, the host writes a failure count of 0. The test does not answer this write.
        let effects = if scene.pending.is_some() { scene.answer(Ok(Reply::Done)) } else { scene.wakes() };
        if scene.asked_to_write {
            let reset = written_record(&effects);
            assert_eq!(reset.failures, 0);
            break Record { failures: 1, ..reset };
        }
    };
    assert_eq!(only_request(&scene.input(Input::Gone { end: End::Failed("no".to_string()) })), Op::Read);
    // The record already has the desired content, but the host writes it again. The second write changes the object's
    // version, so the earlier write, which would reset the count, can no longer succeed.
    let again = scene.answer(Ok(Reply::Read(held("v9", failed_once.clone()))));
    let Op::Write { version, record, .. } = only_request(&again) else { panic!("{again:?}") };
    assert_eq!((version.0.as_str(), record), ("v9", failed_once));
}

#[test]
fn failed_renewals_extend_nothing_until_deadline_kills() {
    for error in [unknown(), StoreError::Misconfigured("no rights".to_string())] {
        renewals_fail_until_host_aborts(&error);
    }
}

fn renewals_fail_until_host_aborts(error: &StoreError) {
    let mut scene = Scene::leading();
    let renewed = scene.sent;
    let (mut stopped, mut killed, mut last_try) = (None, None, scene.now);
    while killed.is_none() {
        let effects = scene.wakes();
        for effect in &effects {
            match effect {
                Effect::Request { op: Op::Renew { .. }, .. } => {
                    let waited = scene.now.since(last_try);
                    let is_retry = last_try.since(renewed) >= D / 6;
                    assert!(!is_retry || (D / 60..=D / 15).contains(&waited), "a try after {waited:?}");
                }
                Effect::Extend { .. } => panic!("doubt extends"),
                Effect::Stop { reason, .. } => stopped = Some((*reason, scene.now)),
                Effect::Kill { .. } => killed = Some(scene.now),
                _ => {}
            }
        }
        if scene.pending.is_some() {
            scene.answer(Err(error.clone()));
            last_try = scene.now;
        }
    }
    assert_eq!(stopped, Some((StopReason::LeaseAtRisk, renewed + D * 7 / 10)));
    assert_eq!(killed, Some(renewed + D * 8 / 10));
    // The killed instance still exists, so the host aborts its own process.
    let aborted = std::iter::repeat_with(|| scene.wakes())
        .find(|effects| effects.iter().any(|effect| matches!(effect, Effect::Abort { .. })));
    assert!(aborted.is_some());
    assert_eq!(scene.now, renewed + D * 93 / 100);
}

#[test]
fn kill_gets_its_time_again_once_after_pause() {
    let mut scene = Scene::leading();
    scene.wakes();
    scene.answer(Err(StoreError::Lost("taken".to_string())));
    // The host is paused, so it does not know yet whether the instance has exited.
    scene.now = scene.now + D * 2;
    let woken = scene.now;
    let aborts = |effects: &[Effect]| effects.iter().any(|effect| matches!(effect, Effect::Abort { .. }));
    assert!(!aborts(&scene.input(Input::Tick)), "it was paused");
    while !aborts(&scene.wakes()) {}
    assert_eq!(scene.now, woken + D * 13 / 100);

    // After a second pause, the host gets no more time: it aborts its own process.
    let mut scene = Scene::leading();
    scene.wakes();
    scene.answer(Err(StoreError::Lost("taken".to_string())));
    let killed = scene.now;
    loop {
        scene.now = scene.now + D;
        if aborts(&scene.input(Input::Tick)) {
            break;
        }
        assert!(scene.now <= killed + D, "it was paused before");
    }
}

#[test]
fn kill_that_follows_pause_gets_no_more_time() {
    // The host wakes up after the deadline, kills the instance, and is paused again.
    let mut scene = Scene::leading();
    scene.now = scene.sent + D * 85 / 100;
    let woken = scene.input(Input::Tick);
    assert!(woken.iter().any(|effect| matches!(effect, Effect::Kill { .. })), "{woken:?}");
    scene.now = scene.now + D;
    let overdue = scene.input(Input::Tick);
    assert!(overdue.iter().any(|effect| matches!(effect, Effect::Abort { .. })), "{overdue:?}");
}

#[test]
fn hanging_instance_gets_no_more_time_after_pause() {
    let mut scene = Scene::leading();
    scene.input(Input::StepDown { reason: "asked".to_string() });
    let killed_at = scene.now + SECOND * 5;
    scene.goes_on_for(SECOND * 5 + D * 13 / 100);
    assert!(scene.now >= killed_at + D * 13 / 100);
    scene.now = scene.now + D;
    assert!(matches!(scene.input(Input::Tick)[..], [Effect::Abort { .. }]));
}

#[test]
fn clock_that_is_set_forward_gives_kill_no_more_time() {
    let mut scene = Scene::leading();
    scene.wakes();
    scene.answer(Err(StoreError::Lost("taken".to_string())));
    scene.now = scene.now + D;
    scene.set_forward = D;
    assert!(matches!(scene.input(Input::Tick)[..], [Effect::Abort { .. }]));
}

#[test]
fn dying_process_is_left_to_system_and_lease_expires() {
    let is_abort = |effect: &Effect| matches!(effect, Effect::Abort { .. });
    // The instance's process exits by itself, or is killed after a step-down. In both cases, the kernel never finishes
    // removing the process.
    for ends in [Input::Dying, Input::StepDown { reason: "it asked for it".to_string() }] {
        let mut scene = Scene::leading();
        let (began, mut renewed) = (scene.now, scene.sent);
        scene.input(ends.clone());
        let mut lost = None;
        while scene.elector.next_wakeup().is_some_and(|wakeup| wakeup < began + D * 5) {
            let effects = scene.wakes();
            assert!(!effects.iter().any(is_abort), "{effects:?}");
            if effects.iter().any(|effect| matches!(effect, Effect::Kill { .. })) {
                scene.input(Input::Dying);
            }
            if scene.pending.is_some() {
                renewed = scene.sent;
                scene.answer(Ok(Reply::Done));
            }
            if scene.told.iter().any(|report| matches!(report, Report::Lost { .. })) {
                lost.get_or_insert(scene.now);
            }
        }
        // The node gives up the lease in the end. Otherwise it would lead forever with an instance that it cannot end.
        assert_eq!(lost, Some(renewed + D * 93 / 100), "{ends:?}");
        let before = scene.told.len();
        assert!(scene.input(Input::Gone { end: End::Killed }).is_empty());
        assert!(matches!(scene.told[before..], [Report::Standby { .. }]), "{:?}", &scene.told[before..]);
    }
}

#[test]
fn shutdown_does_not_wait_for_dying_process() {
    let mut scene = Scene::leading();
    let mut effects = scene.input(Input::Shutdown);
    loop {
        assert!(!effects.iter().any(|effect| matches!(effect, Effect::Abort { .. })), "{effects:?}");
        if effects.iter().any(|effect| matches!(effect, Effect::Kill { .. })) {
            effects = scene.input(Input::Dying);
        } else if scene.pending.is_some() {
            effects = scene.answer(Ok(Reply::Done));
        } else if effects.contains(&Effect::Finished) {
            break;
        } else {
            effects = scene.wakes();
        }
    }
    assert_eq!(scene.now, scene.sent + D * 93 / 100);
}

#[test]
fn renewals_coincide_within_host_and_differ_between_hosts() {
    let [moments, others] = ["this/1", "other/1"].map(|incarnation| {
        let mut moments = Vec::new();
        for late in 0..12 {
            let mut scene = Scene::of(incarnation, OnDone::Repeat);
            scene.now = Time::default() + D / 12 / 6 * late;
            scene.acquires(object(LeaseState::Free, Some(record(1, "other"))));
            scene.answer(Ok(Reply::Done));
            scene.answer(Ok(Reply::Version(Version("v2".to_string()))));
            for renewal in 0..3 {
                let last = scene.sent;
                while scene.sent == last {
                    scene.wakes();
                }
                let waited = scene.sent.since(last);
                assert!(waited <= D / 6 && waited > D / 12, "renewed after {waited:?}");
                assert!(renewal == 0 || waited > D / 6 - SECOND / 10, "renewed after {waited:?}");
                moments.push(scene.sent.0.as_nanos() % (D / 12).as_nanos());
                scene.answer(Ok(Reply::Done));
            }
        }
        moments.dedup();
        moments
    });
    assert_eq!((moments.len(), others.len()), (1, 1), "{moments:?} {others:?}");
    assert_ne!(moments, others);
}

#[test]
fn known_loss_kills_at_once() {
    let mut scene = Scene::leading();
    scene.wakes();
    let effects = scene.answer(Err(StoreError::Lost("taken".to_string())));
    assert!(
        matches!(effects[..], [Effect::Stop { reason: StopReason::LeaseLost, .. }, Effect::Kill { .. }]),
        "{effects:?}"
    );
    // If the lease is lost during the grace period, the elector kills the instance immediately.
    let mut scene = Scene::leading();
    scene.input(Input::StepDown { reason: "asked".to_string() });
    scene.wakes();
    let effects = scene.answer(Err(StoreError::Lost("taken".to_string())));
    assert!(matches!(effects[..], [Effect::Kill { .. }]), "{effects:?}");
}

#[test]
fn renewal_during_grace_extends() {
    let mut scene = Scene::leading();
    scene.input(Input::StepDown { reason: "asked".to_string() });
    assert!(matches!(only_request(&scene.wakes()), Op::Renew { .. }));
    let (deadline, abort_at) = (scene.sent + D * 8 / 10, scene.sent + D * 93 / 100);
    assert_eq!(scene.answer(Ok(Reply::Done)), [Effect::Extend { deadline, abort_at }]);
}

#[test]
fn known_loss_kills_at_once_when_superseded_write_fails() {
    let mut scene = Scene::leading();
    scene.input(Input::Plan(plan(1, None)));
    let superseded = scene.pending;
    // Another version is planned before the first write is answered. The elector therefore reads the record before it
    // writes again.
    let asked = scene.input(Input::Plan(plan(2, None)));
    assert_eq!(only_request(&asked), Op::Read);
    scene.pending = superseded;
    let effects = scene.answer(Err(StoreError::Lost("taken".to_string())));
    assert!(
        matches!(effects[..], [Effect::Stop { reason: StopReason::LeaseLost, .. }, Effect::Kill { .. }]),
        "{effects:?}"
    );
}

#[test]
fn lease_is_lost_when_reading_shows_it_not_renewable() {
    for (lease, is_lost) in [
        (LeaseState::Free, true),
        (LeaseState::Breaking, true),
        (LeaseState::Broken, true),
        (LeaseState::HeldForever, true),
        (LeaseState::Expired, false),
        (LeaseState::Held, false),
    ] {
        let mut scene = Scene::leading();
        let claimed = written_record(&scene.input(Input::Plan(plan(1, None))));
        scene.answer(Err(unknown()));
        while !scene.asked_to_read {
            scene.wakes();
        }
        // The host got no clear answer to the write of the next term, but the store has carried out the write.
        let found = Snapshot::Object { lease, version: Version("v3".to_string()), record: Some(claimed) };
        let effects = scene.answer(Ok(Reply::Read(found)));
        let is_stopped =
            matches!(effects[..], [Effect::Stop { reason: StopReason::LeaseLost, .. }, Effect::Kill { .. }]);
        assert_eq!(is_stopped, is_lost, "{lease:?}: {effects:?}");
    }
}

#[test]
fn note_keeps_its_term_when_later_lease_length_is_unknown() {
    let mut scene = Scene::new();
    let of_another = Record { lease: SECOND * 10, ..record(5, "other") };
    scene.acquires(object(LeaseState::Broken, Some(of_another.clone())));
    let mut effects = scene.answer(Ok(Reply::Done));
    let mut is_told = false;
    loop {
        let written = effects.iter().find_map(|effect| match effect {
            Effect::Request { op: Op::Write { record, .. }, .. } => Some(record),
            _ => None,
        });
        if let Some(note) = written {
            assert_eq!((note.term, note.lease), (5, SECOND * 10), "the lease of term 9 is not known");
            if is_told {
                return;
            }
        }
        effects = match scene.pending {
            Some(_) if scene.asked_to_recall => {
                is_told = true;
                scene.answer(Ok(Reply::Recalled(recalled(9))))
            }
            Some(_) if scene.asked_to_read => scene.answer(Ok(Reply::Read(held("v1", of_another.clone())))),
            Some(_) if scene.asked_to_write => scene.answer(Err(unknown())),
            Some(_) => scene.answer(Ok(Reply::Done)),
            None => scene.wakes(),
        };
    }
}

#[test]
fn mark_names_whole_term_when_shutdown_follows_its_write() {
    let mut scene = Scene::new();
    scene.wall = SECOND * 7;
    let of_another = Record { lease: SECOND * 10, failures: 2, ..record(1, "other") };
    scene.acquires(object(LeaseState::Free, Some(Record { released: true, ..of_another.clone() })));
    let begun = written_record(&scene.answer(Ok(Reply::Done)));
    assert_ne!((&begun.node, begun.lease, begun.since), (&of_another.node, SECOND * 10, of_another.since));
    // The store has carried out the write, but the host has not received the answer.
    assert_eq!(only_request(&scene.input(Input::Shutdown)), Op::Read);
    let mark = written_record(&scene.answer(Ok(Reply::Read(held("v2", begun.clone())))));
    assert_eq!(mark, Record { released: true, ..begun });
}

#[test]
fn release_stands_when_superseded_write_is_refused() {
    let mut scene = Scene::new();
    scene.acquires(object(LeaseState::Free, Some(record(1, "other"))));
    scene.answer(Ok(Reply::Done));
    let claim = scene.pending;
    assert_eq!(only_request(&scene.input(Input::Shutdown)), Op::Read);
    let mark = scene.answer(Ok(Reply::Read(held("v1", record(1, "other")))));
    let released = scene.marks(&mark);
    assert!(matches!(only_request(&released), Op::Release { .. }), "{released:?}");
    let release = scene.pending;
    scene.pending = claim;
    scene.answer(Err(StoreError::Lost("the lease was released".to_string())));
    scene.pending = release;
    scene.answer(Ok(Reply::Done));
    assert_eq!(scene.told.last(), Some(&Report::Released));
}

#[test]
fn record_with_shorter_lease_than_wait_loses_lease() {
    for (found, is_enough) in [(D, false), (SECOND * 30, true), (SECOND * 60, true)] {
        let mut scene = Scene::new();
        let mut of_another = record(3, "other");
        of_another.lease = SECOND * 30;
        scene.acquires(object(LeaseState::Broken, Some(of_another)));
        let note = written_record(&scene.answer(Ok(Reply::Done)));
        assert_eq!(note.lease, SECOND * 30);
        scene.answer(Err(unknown()));
        while !scene.asked_to_read {
            scene.wakes();
        }
        // The record was deleted. Then this holder's earlier request to create the record, with a shorter lease,
        // reached the store.
        scene.answer(Ok(Reply::Read(held("v2", Record { lease: found, ..note.clone() }))));
        let is_lost = matches!(scene.told.last(), Some(Report::Standby { .. }));
        assert_eq!(is_lost, !is_enough, "{found:?}: {:?}", scene.told);
    }
}

#[test]
fn shutdown_asks_waits_and_releases_last() {
    let mut scene = Scene::leading();
    let effects = scene.input(Input::Shutdown);
    assert!(matches!(effects[..], [Effect::Stop { reason: StopReason::Shutdown, .. }]), "{effects:?}");
    let effects = scene.input(Input::Gone { end: End::Done });
    assert!(matches!(only_request(&scene.marks(&effects)), Op::Release { .. }));
    assert_eq!(scene.answer(Ok(Reply::Done)), [Effect::Finished]);
}

#[test]
fn node_follows_only_after_release_is_carried_out() {
    let mut scene = Scene::leading();
    assert!(!scene.elector.follows() && scene.elector.holds_lease());
    assert_eq!(scene.elector.deadline(), Some(scene.sent + D * 8 / 10));
    scene.input(Input::Plan(Plan::default()));
    let marks = scene.input(Input::Gone { end: End::Done });
    assert!(written_record(&marks).released);
    // The store is busy. No request is pending between two attempts, but the lease is not released yet.
    scene.answer(Err(unknown()));
    assert!(!scene.elector.follows() && scene.pending.is_none());
    let Op::Read = only_request(&scene.wakes()) else { panic!("it reads what became of the mark") };
    scene.answer(Ok(Reply::Read(held("v2", record(2, "this")))));
    let effects = scene.answer(Ok(Reply::Version(Version("v3".to_string()))));
    assert!(matches!(only_request(&effects), Op::Release { .. }), "{effects:?}");
    scene.answer(Err(unknown()));
    assert!(!scene.elector.follows());
    scene.wakes();
    scene.answer(Ok(Reply::Done));
    assert!(scene.elector.follows() && !scene.elector.holds_lease(), "{:?}", scene.told);
    assert_eq!(scene.elector.deadline(), None);
    // The node gets no clear answer to its acquire, so it may hold the lease without knowing.
    scene.input(Input::Plan(plan(0, None)));
    scene.acquires(object(LeaseState::Free, Some(record(2, "this"))));
    scene.answer(Err(unknown()));
    assert!(!scene.elector.follows());
}

#[test]
fn standby_ends_at_once_when_shut_down() {
    let mut scene = Scene::new();
    assert_eq!(scene.input(Input::Shutdown), [Effect::Finished]);
}

#[test]
fn next_term_exceeds_term_in_state() {
    let mut scene = Scene::leading();
    let claimed = scene.input(Input::Gone { end: End::Superseded { term: 9 } });
    assert_eq!(written_term(&claimed), Some(10));
}

#[test]
fn standby_polls_every_second_and_not_in_step() {
    let mut scene = Scene::new();
    let held = || Ok(Reply::Read(object(LeaseState::Held, Some(record(6, "other")))));
    let mut waits = BTreeSet::new();
    scene.wakes();
    assert!(scene.now <= Time::default() + SECOND, "{:?}", scene.now);
    for _ in 0..20 {
        assert_eq!(scene.answer(held()), []);
        let read = scene.now;
        scene.wakes();
        waits.insert(scene.now.since(read));
    }
    assert!(waits.first() >= Some(&(SECOND * 3 / 4)) && waits.last() <= Some(&(SECOND * 5 / 4)), "{waits:?}");
    assert!(waits.len() > 10, "{waits:?}");
}

#[test]
fn second_signal_skips_grace_and_keeps_order() {
    let mut scene = Scene::leading();
    scene.input(Input::Shutdown);
    assert!(matches!(scene.input(Input::SkipGrace)[..], [Effect::Kill { .. }]));
    let effects = scene.input(Input::Gone { end: End::Killed });
    assert!(matches!(only_request(&scene.marks(&effects)), Op::Release { .. }));
}

#[test]
fn lease_counts_as_released_when_release_answer_was_lost() {
    for (doubts, is_released) in [(0, false), (1, true), (2, true)] {
        let mut scene = Scene::leading();
        scene.input(Input::Shutdown);
        let marked = scene.input(Input::Gone { end: End::Done });
        scene.marks(&marked);
        for _ in 0..doubts {
            scene.answer(Err(unknown()));
            scene.wakes();
        }
        assert_eq!(scene.answer(Err(StoreError::Lost("nobody holds it".to_string()))), [Effect::Finished]);
        let told = scene.told.last();
        assert_eq!(matches!(told, Some(Report::Released)), is_released, "{doubts}: {told:?}");
        assert_eq!(matches!(told, Some(Report::NotReleased { .. })), !is_released, "{doubts}: {told:?}");
    }
}

#[test]
fn lease_that_is_lost_before_its_mark_is_not_released() {
    let mut scene = Scene::leading();
    scene.input(Input::Shutdown);
    scene.input(Input::Gone { end: End::Done });
    assert_eq!(scene.answer(Err(StoreError::Lost("taken".to_string()))), [Effect::Finished]);
    assert!(matches!(scene.told.last(), Some(Report::NotReleased { .. })), "{:?}", scene.told);
}

#[test]
fn second_signal_allows_one_more_try_during_release() {
    for is_marked in [false, true] {
        let ending = || {
            let mut scene = Scene::leading();
            scene.input(Input::Shutdown);
            let marked = scene.input(Input::Gone { end: End::Done });
            if is_marked {
                scene.marks(&marked);
            }
            scene
        };
        // If an attempt to release the lease is in progress, the host makes no further attempt.
        let mut scene = ending();
        assert_eq!(scene.input(Input::SkipGrace), []);
        assert_eq!(scene.answer(Err(unknown())), [Effect::Finished]);
        assert!(matches!(scene.told.last(), Some(Report::NotReleased { .. })), "{:?}", scene.told);

        // If no attempt to release the lease is in progress, the host immediately makes one last attempt.
        let mut scene = ending();
        assert_eq!(scene.answer(Err(unknown())), []);
        let hurried = only_request(&scene.input(Input::SkipGrace));
        if is_marked {
            assert!(matches!(hurried, Op::Release { .. }), "{hurried:?}");
            assert_eq!(scene.answer(Ok(Reply::Done)), [Effect::Finished]);
        } else {
            // The elector first reads whether the record was marked as released.
            assert_eq!(hurried, Op::Read);
            assert_eq!(scene.answer(Err(unknown())), [Effect::Finished]);
        }
    }
}

#[test]
fn refusal_is_reported_once_and_retried_less_often() {
    let refused = || Err(StoreError::Misconfigured("not allowed".to_string()));
    for nothing in [true, false] {
        let mut scene = Scene::with(OnDone::Repeat);
        let mut waits = Vec::new();
        for _ in 0..7 {
            let asked_at = scene.now;
            let free = object(LeaseState::Free, Some(record(1, "other")));
            scene.reads(if nothing { Snapshot::Nothing } else { free });
            waits.push(scene.now.since(asked_at));
            assert_eq!(scene.answer(refused()), []);
        }
        assert!(waits[1] < SECOND * 2 && waits[6] > SECOND * 20, "{waits:?}");
        let troubles = |scene: &Scene| {
            let trouble = |report: &&Report| matches!(report, Report::StoreTrouble { .. } | Report::StoreBack { .. });
            scene.told.iter().filter(trouble).count()
        };
        assert_eq!(troubles(&scene), 1, "{:?}", scene.told);
        // Another node holds the lease. The object therefore exists, so an earlier failure to create the object no
        // longer matters. An earlier failure to acquire the lease still matters.
        scene.reads(object(LeaseState::Held, Some(record(2, "other"))));
        assert_eq!(troubles(&scene), if nothing { 2 } else { 1 }, "{:?}", scene.told);
        scene.acquires(object(LeaseState::Free, Some(record(2, "other"))));
        scene.answer(Ok(Reply::Done));
        let is_back = |report: &Report| matches!(report, Report::StoreBack { .. });
        assert_eq!(scene.told.iter().filter(|report| is_back(report)).count(), 1, "{:?}", scene.told);
    }
}

#[test]
fn misconfiguration_is_reported_once_for_all_requests() {
    for (error, told) in [(StoreError::Misconfigured("no rights".to_owned()), 1), (unknown(), 2)] {
        let mut scene = Scene::with(OnDone::Repeat);
        scene.reads(Snapshot::Nothing);
        assert_eq!(scene.answer(Err(error.clone())), []);
        // Another node has created the object, but has not acquired the lease yet.
        scene.acquires(object(LeaseState::Free, Some(record(0, "other"))));
        assert_eq!(scene.answer(Err(error)), []);
        let troubles: Vec<_> =
            scene.told.iter().filter(|report| matches!(report, Report::StoreTrouble { .. })).collect();
        assert_eq!(troubles.len(), told, "{troubles:?}");
    }
}

#[test]
fn failed_reading_is_reported_after_same_acquire_failure() {
    let refused = || Err(StoreError::Misconfigured("no rights".to_owned()));
    let mut scene = Scene::with(OnDone::Repeat);
    scene.acquires(object(LeaseState::Free, Some(record(1, "other"))));
    scene.answer(refused());
    scene.reads(object(LeaseState::Held, Some(record(2, "other"))));
    assert_eq!(only_request(&scene.wakes()), Op::Read);
    scene.answer(refused());
    let refused_at = scene.now;
    scene.reads(object(LeaseState::Held, Some(record(2, "other"))));
    let told: Vec<_> = scene
        .told
        .iter()
        .filter_map(|report| match report {
            Report::StoreTrouble { asked, .. } => Some(Ok(*asked)),
            Report::StoreBack { after } => Some(Err(*after)),
            _ => None,
        })
        .collect();
    assert_eq!(told, [Ok("acquire"), Ok("read"), Err(scene.now.since(refused_at))]);
}

#[test]
fn node_does_not_acquire_when_readings_are_too_slow() {
    let mut scene = Scene::new();
    let free = object(LeaseState::Free, Some(record(1, "other")));
    let slow = D / 12 + SECOND / 10;
    for _ in 0..3 {
        while scene.pending.is_none() {
            scene.wakes();
        }
        scene.now = scene.now + slow;
        assert_eq!(scene.answer(Ok(Reply::Read(free.clone()))), []);
    }
    let troubles = |scene: &Scene| {
        let is_read = |report: &&Report| matches!(report, Report::StoreTrouble { asked: "read", .. });
        scene.told.iter().filter(is_read).count()
    };
    assert_eq!(troubles(&scene), 1, "{:?}", scene.told);
    scene.acquires(free);
    assert!(matches!(scene.told.last(), Some(Report::StoreBack { .. })), "{:?}", scene.told);
}

#[test]
fn unable_node_steps_down_and_judges_no_version() {
    let mut scene = Scene::on_probation();
    let unable = || Input::Gone { end: End::Unable("no secret".to_string()) };
    let rejects = |effects: &[Effect]| effects.iter().any(|effect| matches!(effect, Effect::Reject { .. }));
    for number in 1..3 {
        assert!(!rejects(&scene.input(unable())));
        let waits = |report: &Report| matches!(report, Report::Resting { failures, .. } if *failures == number);
        assert!(scene.told.last().is_some_and(waits), "{:?}", scene.told);
        assert_eq!(scene.run_until_started(), module(1));
    }
    assert!(!rejects(&scene.input(unable())));
    assert!(scene.told.iter().any(|report| matches!(report, Report::CoolOff { .. })), "{:?}", scene.told);
}

#[test]
fn shutdown_does_not_release_reclaim_in_doubt() {
    let mut scene = Scene::new();
    let dead = object(LeaseState::Reclaimable { holder: LeaseId::from_random(7) }, Some(record(6, "this")));
    assert!(matches!(only_request(&scene.reads(dead)), Op::Reclaim { .. }));
    scene.answer(Err(unknown()));
    assert_eq!(scene.input(Input::Shutdown), [Effect::Finished]);
}

#[test]
fn holder_without_record_is_reported_after_two_leases() {
    let mut scene = Scene::new();
    let bare = Snapshot::Object { lease: LeaseState::Held, version: Version("v1".to_string()), record: None };
    assert_eq!(scene.reads(bare.clone()), []);
    let began = scene.now;
    while !matches!(scene.told.last(), Some(Report::HeldOutside { .. })) {
        assert_eq!(scene.reads(bare.clone()), []);
    }
    let waited = scene.now.since(began);
    assert!((D * 2..D * 2 + SECOND * 2).contains(&waited), "{waited:?}");
}

#[test]
fn outside_client_is_reported_again_after_another_holder() {
    let mut scene = Scene::new();
    // While a node waits for another node's instance to end, the record that the waiting node has written names no
    // holder.
    let waits = Record { node: None, ..record(3, "other") };
    for lease in [LeaseState::HeldForever, LeaseState::HeldForever, LeaseState::Held, LeaseState::HeldForever] {
        assert_eq!(scene.reads(object(lease, Some(waits.clone()))), []);
    }
    let told = |report: &&Report| matches!(report, Report::HeldOutside { .. });
    assert_eq!(scene.told.iter().filter(told).count(), 2, "{:?}", scene.told);
}

#[test]
fn finished_election_is_recorded_before_release_and_stays_over() {
    let mut scene = Scene::leading_with(OnDone::Finish);
    let noted = scene.input(Input::Gone { end: End::Done });
    let Op::Write { record, .. } = only_request(&noted) else { panic!("{noted:?}") };
    assert_eq!(record.outcome, Some(Outcome::Done));
    let effects = scene.answer(Ok(Reply::Version(Version("v3".to_string()))));
    assert!(matches!(only_request(&effects), Op::Release { .. }));
    scene.answer(Ok(Reply::Done));
    assert_eq!(scene.reads(object(LeaseState::Free, Some(record))), []);
    assert!(matches!(scene.told.last(), Some(Report::ElectionOver { .. })), "{:?}", scene.told);
}

#[test]
fn acquire_in_doubt_is_repeated_when_election_is_over() {
    let mut scene = Scene::new();
    scene.input(Input::Plan(plan(1, None)));
    let id = scene.acquires(object(LeaseState::Free, Some(over(3))));
    scene.answer(Err(unknown()));
    scene.input(Input::Plan(plan(0, None)));
    let again = scene.wakes();
    assert!(matches!(only_request(&again), Op::Acquire { id: same, .. } if same == id), "{again:?}");
    assert_eq!(
        scene.answer(Ok(Reply::Done)),
        [Effect::Request { id: scene.pending.unwrap(), op: Op::Release { id }, timeout: D / 12, within_quota: false }]
    );
    scene.answer(Ok(Reply::Done));
    assert_eq!(scene.reads(object(LeaseState::Free, Some(over(3)))), []);
}

#[test]
fn rests_grow_until_fifth_failure_steps_down() {
    let mut scene = Scene::leading();
    for (failures, shortest, longest) in [(1, 1.0, 1.25), (2, 1.5, 2.5), (3, 3.0, 5.0), (4, 6.0, 10.0)] {
        let ended = scene.now;
        let noted = scene.input(Input::Gone { end: End::Failed("no".to_string()) });
        assert_eq!(written_record(&noted).failures, failures);
        // A plan for the same module never shortens the rest period after a failure, even if the plan arrives while the
        // host is still writing the failure into the record.
        if failures > 2 {
            scene.answer(Ok(Reply::Version(Version("v3".to_string()))));
        }
        scene.input(Input::Plan(plan(0, None)));
        scene.run_until_started();
        let rested = scene.now.since(ended).as_secs_f64();
        assert!((shortest..longest + 0.5).contains(&rested), "{rested} s after {failures} failures");
    }
    let noted = written_record(&scene.input(Input::Gone { end: End::Failed("no".to_string()) }));
    assert_eq!((noted.failures, noted.released), (5, true));
    assert!(matches!(scene.told.last(), Some(Report::CoolOff { .. })), "{:?}", scene.told);
}

#[test]
fn free_lease_ends_cool_off_after_fatal_failure() {
    let mut scene = Scene::leading();
    let noted = scene.input(Input::Gone { end: End::Fatal("no".to_string()) });
    let Op::Write { record, .. } = only_request(&noted) else { panic!("{noted:?}") };
    assert_eq!(record.failures, 1);
    scene.answer(Ok(Reply::Version(Version("v3".to_string()))));
    scene.answer(Ok(Reply::Done));
    let free = object(LeaseState::Free, Some(record));
    let released = scene.now;
    assert_eq!(scene.reads(free.clone()), []);
    let mut effects = Vec::new();
    while effects.is_empty() {
        effects = scene.reads(free.clone());
    }
    assert!(matches!(only_request(&effects), Op::Acquire { .. }));
    let waited = scene.now.since(released);
    assert!(waited >= SECOND * 7 && waited <= SECOND * 13, "{waited:?}");
}

#[test]
fn other_module_ends_cool_off() {
    let mut scene = Scene::leading();
    scene.input(Input::Gone { end: End::Fatal("no".to_string()) });
    scene.answer(Ok(Reply::Version(Version("v3".to_string()))));
    scene.answer(Ok(Reply::Done));
    scene.input(Input::Plan(plan(1, None)));
    scene.acquires(object(LeaseState::Free, Some(record(2, "this"))));
}

#[test]
fn cool_off_and_its_growth_outlast_time_without_module() {
    let mut scene = Scene::leading();
    let wait = |scene: &mut Scene| {
        scene.input(Input::StepDown { reason: "asked".to_string() });
        scene.input(Input::Gone { end: End::Killed });
        let told = scene.told.iter().rev();
        told.filter_map(|report| if let Report::CoolOff { wait, .. } = report { Some(*wait) } else { None }).next()
    };
    let first = wait(&mut scene).expect("it cools off");
    scene.answer(Ok(Reply::Version(Version("v3".to_string()))));
    scene.answer(Ok(Reply::Done));
    // This node has no module for a moment, and then the same module again. This does not end the cool-off.
    scene.input(Input::Plan(Plan::default()));
    scene.input(Input::Plan(plan(0, None)));
    let free = object(LeaseState::Free, Some(record(2, "this")));
    assert_eq!(scene.reads(free.clone()), [], "it does not contend before {first:?} have passed");
    while !matches!(scene.reads(free.clone())[..], [Effect::Request { op: Op::Acquire { .. }, .. }]) {}
    scene.run_until_started();
    let second = wait(&mut scene).expect("it cools off");
    assert!(first < SECOND * 13 && second > SECOND * 14, "{first:?}, {second:?}");
    // The cool-off ends early if no other node has acquired the free lease after 10 s.
    scene.answer(Ok(Reply::Version(Version("v4".to_string()))));
    scene.answer(Ok(Reply::Done));
    assert_eq!(scene.reads(free.clone()), []);
    let free_since = scene.now;
    while scene.elector.next_wakeup() < Some(free_since + SECOND * 9) {
        assert_eq!(scene.reads(free.clone()), []);
    }
    scene.wakes();
    scene.now = free_since + SECOND * 10 - SECOND / 100;
    assert_eq!(only_request(&scene.answer(Ok(Reply::Read(free)))), Op::Recall);
}

#[test]
fn new_version_takes_over_once_its_term_is_written() {
    let mut scene = Scene::leading();
    let asked = scene.input(Input::Plan(plan(1, None)));
    let Op::Write { record, .. } = only_request(&asked) else { panic!("{asked:?}") };
    assert_eq!((record.term, record.module.as_deref()), (3, Some("sha256:1")));
    let stopped = scene.answer(Ok(Reply::Version(Version("v3".to_string()))));
    assert!(matches!(stopped[..], [Effect::Stop { reason: StopReason::Replaced, next: Some(3), .. }]), "{stopped:?}");
    // The host sends no request to the store before it starts the new version.
    let started = scene.input(Input::Gone { end: End::Done });
    assert!(matches!(&started[..], [Effect::Start { term: 3, version, .. }] if *version == module(1)), "{started:?}");
}

#[test]
fn last_of_ten_planned_versions_is_served() {
    let mut scene = Scene::leading();
    for number in 1..=5 {
        scene.input(Input::Plan(plan(number, None)));
    }
    let mut effects = scene.answer(Err(unknown()));
    while !effects.iter().any(|effect| matches!(effect, Effect::Stop { .. })) {
        effects = match scene.pending {
            Some(_) if scene.asked_to_write => scene.answer(Ok(Reply::Version(Version("v3".to_string())))),
            Some(_) => scene.answer(Ok(Reply::Read(held("v2", record(2, "this"))))),
            None => scene.wakes(),
        };
    }
    // These plans arrive during the swap. The host writes the next term only once the old instance has exited.
    for number in 6..=10 {
        let effects = scene.input(Input::Plan(plan(number, None)));
        assert!(!effects.iter().any(|effect| matches!(effect, Effect::Request { .. })), "{effects:?}");
    }
    scene.input(Input::Gone { end: End::Done });
    let started = scene.answer(Ok(Reply::Version(Version("v4".to_string()))));
    assert!(matches!(&started[..], [Effect::Start { version, .. }] if *version == module(10)), "{started:?}");
}

#[test]
fn term_begins_only_with_half_of_lease_left() {
    let mut scene = Scene::new();
    scene.acquires(object(LeaseState::Free, Some(record(1, "other"))));
    scene.answer(Ok(Reply::Done));
    // The host was paused for more than half of D, so it renews the lease before it starts the term.
    scene.now = scene.sent + D * 6 / 10;
    let renews = scene.answer(Ok(Reply::Version(Version("v2".to_string()))));
    assert!(matches!(renews[..], [Effect::Request { op: Op::Renew { .. }, .. }]), "{renews:?}");
    assert!(matches!(scene.answer(Ok(Reply::Done))[..], [Effect::Start { term: 2, .. }]));
    // The host was paused again, so it also renews the lease before it writes the term of the next version.
    scene.now = scene.sent + D * 6 / 10;
    let renews = scene.input(Input::Plan(plan(1, None)));
    assert!(matches!(only_request(&renews), Op::Renew { .. }), "{renews:?}");
    assert_eq!(written_term(&scene.answer(Ok(Reply::Done))), Some(3));
}

#[test]
fn new_version_waits_while_renewals_fail() {
    let mut scene = Scene::leading();
    while scene.pending.is_none() {
        scene.wakes();
    }
    scene.answer(Err(unknown()));
    assert_eq!(scene.input(Input::Plan(plan(1, None))), []);
    scene.wakes();
    let renewed = scene.answer(Ok(Reply::Done));
    assert!(renewed.iter().any(|effect| matches!(effect, Effect::Request { op: Op::Write { .. }, .. })), "{renewed:?}");
}

#[test]
fn aborted_swap_keeps_failure_count() {
    let failed = || Input::Gone { end: End::Failed("no".to_string()) };
    // The instance ends either before or after the plan returns to the first version.
    for is_gone_first in [false, true] {
        let mut scene = Scene::leading();
        scene.input(failed());
        assert_eq!(scene.run_until_started(), module(0));
        let asked = scene.input(Input::Plan(plan(1, None)));
        let Op::Write { record, .. } = only_request(&asked) else { panic!("{asked:?}") };
        assert_eq!((record.module.as_deref(), record.failures), (Some("sha256:1"), 0));
        if is_gone_first {
            scene.input(failed());
        } else {
            scene.answer(Ok(Reply::Version(Version("v4".to_string()))));
        }
        scene.input(Input::Plan(plan(0, None)));
        let asked = if is_gone_first {
            scene.answer(Ok(Reply::Version(Version("v4".to_string()))))
        } else {
            scene.input(failed())
        };
        // An instance that ends during a swap does not change the failure count of either version.
        let Op::Write { record, .. } = only_request(&asked) else { panic!("{asked:?}") };
        assert_eq!((record.module.as_deref(), record.failures), (Some("sha256:0"), 1));
    }
}

#[test]
fn late_health_is_noted_when_another_version_follows() {
    let mut scene = Scene::leading();
    scene.input(Input::Gone { end: End::Failed("no".to_string()) });
    scene.run_until_started();
    let started = scene.now;
    while scene.now.since(started) < SECOND * 55 {
        match scene.pending {
            Some(_) => scene.answer(Ok(Reply::Done)),
            None => scene.wakes(),
        };
    }
    while scene.pending.is_none() {
        scene.wakes();
    }
    // While renewals fail, the host does not write the next term before the instance has ended.
    scene.answer(Err(unknown()));
    scene.input(Input::Plan(plan(1, None)));
    assert!(scene.now.since(started) < SECOND * 60);
    scene.now = started + SECOND * 61;
    let noted = written_record(&scene.input(Input::Gone { end: End::Killed }));
    assert_eq!((noted.term, noted.failures), (3, 0));
}

#[test]
fn bad_version_is_rolled_back_under_same_lease() {
    let failed = |why: &str| End::Failed(why.to_string());
    for (ends, reason) in [
        (vec![End::Crashed("unreachable".to_string())], "unreachable"),
        (vec![End::Fatal("no".to_string())], "no"),
        (vec![failed("a"), failed("b"), failed("c")], "3 failures within its probation, most recently: c"),
    ] {
        let mut scene = Scene::on_probation();
        let (last, first) = ends.split_last().unwrap();
        for end in first {
            let effects = scene.input(Input::Gone { end: end.clone() });
            assert!(!effects.iter().any(|effect| matches!(effect, Effect::Reject { .. })), "{effects:?}");
            scene.run_until_started();
        }
        let effects = scene.input(Input::Gone { end: last.clone() });
        let rejected = effects.iter().find_map(|effect| match effect {
            Effect::Reject { version, reason, instead, .. } => {
                Some((version.clone(), reason.as_str(), instead.clone()))
            }
            _ => None,
        });
        assert_eq!(rejected, Some((module(1), reason, Some(module(0)))));
        // A plan from before the rollback does not bring the bad version back.
        scene.input(Input::Plan(plan(1, Some(0))));
        assert_eq!(scene.elector.plan(), &plan(0, None));
        assert_eq!(scene.run_until_started(), module(0));
    }
}

#[test]
fn stall_replaces_version_only_within_probation() {
    let mut scene = Scene::on_probation();
    let stopped = scene.input(Input::Stalled { reason: "no progress".to_string() });
    assert!(matches!(stopped[..], [Effect::Stop { reason: StopReason::Replaced, next: None, .. }]), "{stopped:?}");
    let rejected = scene.input(Input::Gone { end: End::Done });
    assert!(matches!(&rejected[0], Effect::Reject { reason, .. } if reason == "no progress"), "{rejected:?}");
    assert_eq!(scene.run_until_started(), module(0));
    let stopped = scene.input(Input::Stalled { reason: "no progress".to_string() });
    assert!(matches!(stopped[..], [Effect::Stop { reason: StopReason::StepDown, .. }]), "{stopped:?}");
}

#[test]
fn stall_during_swap_keeps_lease() {
    let mut scene = Scene::leading();
    scene.input(Input::Plan(plan(1, Some(0))));
    let stopped = scene.answer(Ok(Reply::Version(Version("v3".to_string()))));
    assert!(matches!(stopped[..], [Effect::Stop { reason: StopReason::Replaced, .. }]), "{stopped:?}");
    let effects = scene.input(Input::Stalled { reason: "no progress".to_string() });
    assert!(effects.is_empty(), "{effects:?}");
    let effects = scene.input(Input::Gone { end: End::Killed });
    assert!(matches!(effects[..], [Effect::Start { term: 3, .. }]), "{effects:?}");
}

#[test]
fn version_is_proven_after_thirty_good_seconds() {
    let mut scene = Scene::on_probation();
    let started = scene.now;
    let proven = loop {
        let effects = if scene.pending.is_some() { scene.answer(Ok(Reply::Done)) } else { scene.wakes() };
        if effects.iter().any(|effect| matches!(effect, Effect::Prove { version, .. } if *version == module(1))) {
            break scene.now.since(started);
        }
    };
    assert!((SECOND * 30..SECOND * 31).contains(&proven), "{proven:?}");
    // A failure after the probation does not make the host reject the version.
    let effects = scene.input(Input::Gone { end: End::Fatal("late".to_string()) });
    assert!(!effects.iter().any(|effect| matches!(effect, Effect::Reject { .. })), "{effects:?}");
}

#[test]
fn probation_counts_from_begin_of_instance() {
    let is_proof = |effect: &Effect| matches!(effect, Effect::Prove { version, .. } if *version == module(1));
    // If the instance starts to run late, its probation also ends later.
    let mut scene = Scene::about_to_begin();
    assert_eq!(scene.goes_on_for(SECOND * 50), []);
    assert_eq!(scene.input(Input::Begun), []);
    assert_eq!(scene.goes_on_for(SECOND * 29), []);
    // A second `Begun` does not postpone the end of the probation.
    scene.input(Input::Begun);
    assert!(scene.goes_on_for(SECOND).iter().any(is_proof));

    // A crash before the instance runs also counts against the version.
    let mut scene = Scene::about_to_begin();
    scene.goes_on_for(SECOND * 50);
    let effects = scene.input(Input::Gone { end: End::Crashed("it had not begun".to_string()) });
    assert!(matches!(&effects[0], Effect::Reject { reason, .. } if reason == "it had not begun"), "{effects:?}");
}

#[test]
fn failed_version_is_not_proven_before_next_instance_begins() {
    let mut scene = Scene::on_probation();
    scene.goes_on_for(SECOND * 5);
    scene.input(Input::Gone { end: End::Failed("busy".to_string()) });
    assert_eq!(scene.run_until_started(), module(1));
    assert_eq!(scene.goes_on_for(SECOND * 40), []);
    // As soon as this instance runs, the running time of the previous instance counts as well.
    let effects = scene.input(Input::Begun);
    assert!(matches!(&effects[0], Effect::Prove { version, .. } if *version == module(1)), "{effects:?}");
}

#[test]
fn begun_is_ignored_without_instance() {
    let mut scene = Scene::on_probation();
    scene.input(Input::Gone { end: End::Failed("busy".to_string()) });
    assert_eq!(scene.input(Input::Begun), []);
    assert_eq!(scene.run_until_started(), module(1));
    assert_eq!(scene.goes_on_for(SECOND * 40), []);
    let mut scene = Scene::new();
    assert_eq!(scene.input(Input::Begun), []);
}

#[test]
fn probation_ends_before_plan_of_same_moment() {
    for planned in [plan(1, Some(0)), plan(2, Some(1))] {
        let mut scene = Scene::on_probation();
        let proven_at = scene.now + SECOND * 30;
        while scene.pending.is_some() || scene.elector.next_wakeup().is_some_and(|at| at < proven_at) {
            if scene.pending.is_some() {
                scene.answer(Ok(Reply::Done))
            } else {
                scene.wakes()
            };
        }
        scene.now = proven_at;
        let effects = scene.input(Input::Plan(planned));
        assert!(matches!(&effects[0], Effect::Prove { version, .. } if *version == module(1)), "{effects:?}");
    }
}

#[test]
fn node_without_module_gives_lease_up_and_does_not_contend() {
    let mut scene = Scene::leading();
    let stopped = scene.input(Input::Plan(Plan::default()));
    assert!(matches!(stopped[..], [Effect::Stop { reason: StopReason::StepDown, .. }]), "{stopped:?}");
    let marked = scene.input(Input::Gone { end: End::Done });
    let released = scene.marks(&marked);
    assert!(matches!(only_request(&released), Op::Release { .. }), "{released:?}");
    scene.answer(Ok(Reply::Done));
    assert_eq!(scene.reads(object(LeaseState::Free, Some(record(2, "this")))), []);
    scene.input(Input::Plan(plan(1, None)));
    scene.acquires(object(LeaseState::Free, Some(record(2, "this"))));
}

#[test]
fn pause_of_one_version_does_not_delay_another() {
    let mut scene = Scene::leading();
    assert!(written_record(&scene.input(Input::Gone { end: End::Done })).paused_until.is_some());
    assert!(matches!(scene.told.last(), Some(Report::Pausing { .. })), "{:?}", scene.told);
    assert_eq!(scene.answer(Ok(Reply::Version(Version("v3".to_string())))), []);
    let asked = scene.input(Input::Plan(plan(1, None)));
    assert_eq!(written_term(&asked), Some(3));

    // The new version is planned while the host is still recording that the old version is done.
    let mut scene = Scene::leading();
    scene.input(Input::Gone { end: End::Done });
    scene.input(Input::Plan(plan(1, None)));
    assert_eq!(written_term(&scene.answer(Ok(Reply::Version(Version("v3".to_string()))))), Some(3));

    // The next leader has written its term, and waits for the old version's pause to end.
    let mut scene = Scene::new();
    scene.acquires(object(LeaseState::Free, Some(Record { paused_until: Some(SECOND * 9), ..record(6, "other") })));
    scene.answer(Ok(Reply::Done));
    assert_eq!(scene.answer(Ok(Reply::Version(Version("v2".to_string())))), []);
    let asked = scene.input(Input::Plan(plan(1, None)));
    assert_eq!(written_term(&asked), Some(8));
    assert!(matches!(scene.answer(Ok(Reply::Version(Version("v3".to_string()))))[..], [Effect::Start { .. }]));
}

#[test]
fn pause_continues_at_next_leader_and_death_is_no_failure() {
    let paused = |until: u64| Record { paused_until: Some(SECOND * until as u32), ..record(6, "other") };
    let holder = LeaseId::from_random(7);
    for (lease, until, wait) in [
        (LeaseState::Free, 4, SECOND * 4),
        (LeaseState::Expired, 4, SECOND * 4),
        (LeaseState::Abandoned { holder }, 4, SECOND * 4),
        // The clock of the node that wrote `paused_until` may be years ahead.
        (LeaseState::Free, 1_000_000, SECOND * 10),
        (LeaseState::Free, 0, Duration::ZERO),
    ] {
        let mut scene = Scene::new();
        let found = Record { released: lease == LeaseState::Free, ..paused(until) };
        scene.acquires(object(lease, Some(found)));
        let taken = scene.now;
        let claimed = written_record(&scene.answer(Ok(Reply::Done)));
        let remaining = Some(SECOND * until as u32).filter(|_| !wait.is_zero());
        assert_eq!(claimed.paused_until, remaining, "the next leader continues the pause too");
        assert_eq!(scene.run_until_started(), module(0));
        let waited = scene.now.since(taken);
        assert!((wait..wait + SECOND * 2).contains(&waited), "{lease:?}, {until}: {waited:?}");
        let failed = |report: &Report| matches!(report, Report::Elected { record } if record.failures > 0);
        assert!(!scene.told.iter().any(failed), "{:?}", scene.told);
    }
}

#[test]
fn free_lease_is_taken_at_once_only_if_record_is_marked() {
    for (found, wait) in [
        (object(LeaseState::Free, Some(record(3, "other"))), Duration::ZERO),
        (object(LeaseState::Expired, Some(record(3, "other"))), Duration::ZERO),
        // Any write without a lease id frees a broken or expired lease. A free lease is therefore no proof that its
        // holder released it.
        (freed(record(3, "other")), D),
        (freed(Record { node: None, ..record(0, "other") }), D),
        (object(LeaseState::Broken, Some(Record { released: true, ..record(3, "other") })), D),
    ] {
        let mut scene = Scene::new();
        scene.acquires(found.clone());
        let acquired = scene.now;
        let begun = scene.answer(Ok(Reply::Done));
        if wait.is_zero() {
            assert_eq!(written_term(&begun), Some(4), "{found:?}");
        } else {
            scene.run_until_written();
        }
        assert!(scene.now.since(acquired) >= wait, "{found:?}: {:?}", scene.now.since(acquired));
    }
}

#[test]
fn recreated_record_does_not_prove_release() {
    let created = || Some(Record { node: None, ..record(0, "other") });
    let mut scene = Scene::new();
    scene.reads(object(LeaseState::Held, created()));
    scene.acquires(object(LeaseState::Free, created()));
    let acquired = scene.now;
    scene.answer(Ok(Reply::Done));
    scene.run_until_written();
    assert!(scene.now.since(acquired) >= D, "{:?}", scene.now.since(acquired));
}

#[test]
fn record_with_lower_term_does_not_prove_release() {
    // A host cannot distinguish a restored object from an old record that was written again.
    for lease in [LeaseState::Free, LeaseState::Expired] {
        let older = || object(lease, Some(record(3, "other")));
        let mut scene = Scene::new();
        scene.reads(object(LeaseState::Held, Some(record(5, "other"))));
        scene.acquires(older());
        let acquired = scene.now;
        scene.answer(Ok(Reply::Done));
        assert_eq!(scene.run_until_written().term, 6);
        assert!(scene.now.since(acquired) >= D);

        // If the record does not contain the latest term, the length of that term's lease is unknown.
        let mut scene = Scene::new();
        assert!(matches!(
            only_request(&scene.reads_and_recalls(older(), Ok(Reply::Recalled(recalled(5))))),
            Op::Acquire { .. }
        ));
        let acquired = scene.now;
        scene.answer(Ok(Reply::Done));
        assert_eq!(scene.run_until_written().term, 6);
        assert!(scene.now.since(acquired) >= SECOND * 60);
    }
}

#[test]
fn election_is_new_only_if_nothing_names_a_term() {
    let mut scene = Scene::new();
    let Op::Create { record } = only_request(&scene.reads(Snapshot::Nothing)) else { panic!("nothing is created") };
    assert_eq!((record.term, record.lease, record.released), (0, D, true));
    scene.answer(Ok(Reply::Version(Version("v1".to_string()))));
    scene.acquires(object(LeaseState::Free, Some(record)));
    assert_eq!(written_term(&scene.answer(Ok(Reply::Done))), Some(1));

    let mut scene = Scene::new();
    let created = scene.reads_and_recalls(Snapshot::Nothing, Ok(Reply::Recalled(recalled(7))));
    let Op::Create { record } = only_request(&created) else { panic!("{created:?}") };
    assert_eq!((record.term, record.lease, record.released), (7, SECOND * 60, false));
    scene.answer(Ok(Reply::Version(Version("v1".to_string()))));
    // This node must wait before it leads, and so must any other node that reads this record.
    for mut scene in [scene, Scene::new()] {
        scene.acquires(freed(record.clone()));
        let acquired = scene.now;
        scene.answer(Ok(Reply::Done));
        assert_eq!(scene.run_until_written().term, 8);
        assert!(scene.now.since(acquired) >= SECOND * 60);
    }
}

#[test]
fn failed_recall_is_reported_once_with_its_wait() {
    let is_missing = || StoreError::Misconfigured("a file is missing".to_string());
    for comes_back in [false, true] {
        let mut scene = Scene::new();
        let effects = scene.reads_and_recalls(object(LeaseState::Free, Some(record(3, "other"))), Err(is_missing()));
        assert!(matches!(only_request(&effects), Op::Acquire { .. }), "{effects:?}");
        // The store carries out all requests except recalls, because only a recall reads the missing file.
        scene.answer(Ok(Reply::Done));
        let acquired = scene.now;
        scene.recalled = Err(is_missing());
        loop {
            let effects = scene.goes_on();
            if comes_back && scene.now.since(acquired) > SECOND * 30 {
                scene.recalled = Ok(3);
            }
            if written_term(&effects).is_some() {
                break;
            }
        }
        let told: Vec<_> = scene.told.iter().filter(|report| !matches!(report, Report::Standby { .. })).collect();
        let wait = SECOND * 60;
        match (comes_back, &told[..]) {
            (false, [Report::StoreTrouble { asked: "recall", .. }, Report::Settling { wait: told, .. }]) => {
                assert_eq!(*told, wait);
                assert!(scene.now.since(acquired) >= wait && scene.now.since(acquired) < wait + SECOND * 5);
            }
            (
                true,
                [
                    Report::StoreTrouble { asked: "recall", .. },
                    Report::Settling { wait: told, .. },
                    Report::StoreBack { after },
                ],
            ) => assert!(*told == wait && (SECOND * 30..SECOND * 40).contains(after), "{after:?}"),
            _ => panic!("{comes_back}: {told:?}"),
        }
    }
}

#[test]
fn failed_recall_is_repeated_or_waited_out() {
    let free = || object(LeaseState::Free, Some(record(3, "other")));
    let mut scene = Scene::new();
    assert_eq!(scene.reads_and_recalls(free(), Err(unknown())), []);
    assert!(matches!(scene.told.last(), Some(Report::StoreTrouble { asked: "recall", .. })), "{:?}", scene.told);
    assert_eq!(only_request(&scene.wakes()), Op::Read);

    // If the node gets no answer to its recalls for D, it requests the lease anyway. The node must then wait before it
    // leads.
    let contends = || {
        let mut scene = Scene::new();
        loop {
            let effects = scene.reads_and_recalls(free(), Err(unknown()));
            if !effects.is_empty() {
                assert!(matches!(only_request(&effects), Op::Acquire { .. }), "{effects:?}");
                break scene;
            }
        }
    };
    let may_not = || StoreError::Misconfigured("the rights do not include listing".to_string());
    let may_not_ask = || {
        let mut scene = Scene::new();
        let effects = scene.reads_and_recalls(free(), Err(may_not()));
        assert!(matches!(only_request(&effects), Op::Acquire { .. }), "{effects:?}");
        scene
    };
    assert!(contends().now >= Time::default() + D);
    // The node waits for the length of the recorded lease (D), and then sends another recall. If this recall returns no
    // later term, the record's term was the latest. If this recall fails, the node waits until the longest possible
    // lease has expired, and the next term skips all terms that may have begun. The elector computes the number of
    // these terms from the wall clock, which may be slow or far ahead.
    let beyond = |seconds: u64| seconds.max(1) * (1 << 20) + if seconds == 0 { 3 } else { 0 } + 1;
    for (mut scene, told, least, (wall, term)) in [
        (contends(), Ok(3), D, (0, 4)),
        (contends(), Err(unknown()), SECOND * 60, (0, beyond(0))),
        (contends(), Err(unknown()), SECOND * 60, (1_800_000_000, beyond(1_800_000_000))),
        (may_not_ask(), Err(may_not()), SECOND * 60, (0, beyond(0))),
        (may_not_ask(), Err(may_not()), SECOND * 60, (u64::MAX, beyond(1 << 40))),
        (may_not_ask(), Ok(3), D, (1_800_000_000, 4)),
    ] {
        scene.wall = Duration::from_secs(wall);
        let acquired = scene.now;
        scene.answer(Ok(Reply::Done));
        scene.recalled = told.clone();
        assert_eq!(scene.run_until_written().term, term);
        let waited = scene.now.since(acquired);
        assert!((least..least + D).contains(&waited), "{told:?}: {waited:?}");
    }
    // If one recall returns a later term, the node uses that term, even if its next recall fails.
    let mut scene = may_not_ask();
    scene.answer(Ok(Reply::Done));
    scene.recalled = Ok(8);
    while scene.told.iter().filter(|report| matches!(report, Report::Settling { .. })).count() < 2 {
        scene.goes_on();
    }
    scene.recalled = Err(may_not());
    assert_eq!(scene.run_until_written().term, 9);
}

#[test]
fn term_announced_during_wait_is_exceeded() {
    let mut scene = Scene::new();
    scene.reads(object(LeaseState::Held, Some(record(7, "other"))));
    // Term 8 began, and the record was deleted before the leader of term 8 announced the term.
    let Op::Create { record } = only_request(&scene.reads(Snapshot::Nothing)) else { panic!("nothing is created") };
    scene.answer(Ok(Reply::Version(Version("v1".to_string()))));
    scene.acquires(freed(record));
    let acquired = scene.now;
    scene.answer(Ok(Reply::Done));
    scene.recalled = Ok(8);
    assert_eq!(scene.run_until_written().term, 9);
    // The lease of term 8 may be longer than any lease in a record that this node has read.
    assert!(scene.now.since(acquired) >= SECOND * 60, "{:?}", scene.now.since(acquired));
}

#[test]
fn lease_is_shortened_to_d_before_term_begins() {
    let longer = SECOND * 45;
    let broken = object(LeaseState::Broken, Some(Record { lease: longer, ..record(3, "other") }));
    for answers in [vec![Ok(Reply::Done)], vec![Err(unknown()), Ok(Reply::Done)], vec![Err(StoreError::Conflict)]] {
        let mut scene = Scene::new();
        let effects = scene.reads(broken.clone());
        let Op::Acquire { id, length, .. } = only_request(&effects) else { panic!("{effects:?}") };
        assert_eq!(length, longer);
        let acquired = scene.now;
        scene.answer(Ok(Reply::Done));
        let mut effects = loop {
            let effects = match scene.pending {
                Some(_) if scene.asked_to_write => scene.answer(Ok(Reply::Version(Version("v2".to_string())))),
                Some(_) if scene.asked_to_recall => scene.answer(Ok(Reply::Recalled(recalled(3)))),
                Some(_) => scene.answer(Ok(Reply::Done)),
                None => scene.wakes(),
            };
            assert_eq!(written_term(&effects), None, "a term begins under a lease that is longer");
            if effects.iter().any(|effect| matches!(effect, Effect::Request { op: Op::Acquire { .. }, .. })) {
                break effects;
            }
        };
        assert!(scene.now.since(acquired) >= longer);
        for answer in answers {
            let op = Op::Acquire { id, length: D, version: Version("v2".to_string()), instead_of: None };
            assert_eq!(only_request(&effects), op);
            effects = scene.answer(answer.clone());
            match answer {
                Err(StoreError::Unknown(_)) => effects = scene.wakes(),
                Err(_) => assert!(matches!(scene.told.last(), Some(Report::Standby { .. })), "{:?}", scene.told),
                Ok(_) => assert_eq!(written_record(&effects).lease, D),
            }
        }
    }
}

#[test]
fn dead_holder_is_replaced_at_once_and_counts_as_failure() {
    let mut scene = Scene::new();
    let holder = LeaseId::from_random(7);
    let effects = scene.reads(object(LeaseState::Abandoned { holder }, Some(record(6, "other"))));
    let Op::Acquire { id, version, instead_of, .. } = only_request(&effects) else { panic!("{effects:?}") };
    assert_eq!((version.0.as_str(), instead_of), ("v1", Some(holder)));
    let written = scene.answer(Ok(Reply::Done));
    let Op::Write { id: under, record, .. } = only_request(&written) else { panic!("{written:?}") };
    assert_eq!((under, record.term, record.failures), (id, 7, 1));
    let started = scene.answer(Ok(Reply::Version(Version("v2".to_string()))));
    assert!(matches!(started[..], [Effect::Start { term: 7, .. }]), "{started:?}");
    // The death of the previous holder was the first failure, and this is the second.
    let effects = scene.input(Input::Gone { end: End::Failed("again".to_string()) });
    assert_eq!(written_record(&effects).failures, 2);
}

#[test]
fn host_death_does_not_count_for_another_module() {
    let mut scene = Scene::new();
    scene.input(Input::Plan(plan(1, None)));
    let holder = LeaseId::from_random(7);
    let of_another = Record { failures: 3, ..record(6, "other") };
    scene.acquires(object(LeaseState::Abandoned { holder }, Some(of_another)));
    assert_eq!(written_record(&scene.answer(Ok(Reply::Done))).failures, 0);
}

#[test]
fn takeover_waits_when_hosts_die_in_succession() {
    for failures in [1, 2, 10, u32::MAX] {
        let mut scene = Scene::new();
        let holder = LeaseId::from_random(7);
        let dead = object(LeaseState::Abandoned { holder }, Some(Record { failures, ..record(6, "other") }));
        let nothing = scene.reads(dead.clone());
        assert_eq!(nothing, [], "after {failures} failures");
        let seen = scene.now;
        let acquired = loop {
            let effects = scene.reads(dead.clone());
            if !effects.is_empty() {
                break effects;
            }
        };
        assert!(matches!(only_request(&acquired), Op::Acquire { instead_of: Some(_), .. }), "{acquired:?}");
        let waited = scene.now.since(seen);
        assert!((SECOND..SECOND * 12).contains(&waited), "{waited:?} after {failures} failures");
        assert_eq!(written_record(&scene.answer(Ok(Reply::Done))).failures, failures.saturating_add(1));
    }
}

#[test]
fn dead_waiting_holder_is_not_replaced_before_expiry() {
    for record in [None, Some(Record { node: None, ..record(6, "other") })] {
        let mut scene = Scene::new();
        let holder = LeaseId::from_random(7);
        for _ in 0..20 {
            assert_eq!(scene.reads(object(LeaseState::Abandoned { holder }, record.clone())), []);
        }
        // The record does not show that the dead holder's term had begun. The holder may have been waiting for another
        // instance, which may still be running. So a standby waits until the lease has expired.
        scene.acquires(object(LeaseState::Expired, record));
    }
}

fn reclaims(scene: &mut Scene, failures: u32) -> (LeaseId, Vec<Effect>) {
    let holder = LeaseId::from_random(7);
    let record = Record { failures, ..record(6, "this") };
    let effects = scene.reads(object(LeaseState::Reclaimable { holder }, Some(record)));
    let Op::Reclaim { from, id, version } = only_request(&effects) else { panic!("{effects:?}") };
    assert_eq!((from, version.0.as_str()), (holder, "v1"));
    assert_ne!(id, holder, "the dead holder's id is no fence against it");
    (id, scene.answer(Ok(Reply::Done)))
}

#[test]
fn reclaimed_lease_has_fresh_id_and_death_is_a_failure() {
    let mut scene = Scene::new();
    let (reclaimed, written) = reclaims(&mut scene, 0);
    assert!(
        matches!(&scene.told[..], [.., Report::TookOver { from }] if from.incarnation == "this/1"),
        "{:?}",
        scene.told
    );
    let Op::Write { id, version, record } = only_request(&written) else { panic!("{written:?}") };
    assert_eq!((id, version.0.as_str()), (reclaimed, "v1"));
    assert_eq!((record.term, record.failures, record.lease), (7, 1, D));
    let started = scene.answer(Ok(Reply::Version(Version("v2".to_string()))));
    assert!(matches!(started[..], [Effect::Start { term: 7, .. }]), "{started:?}");
}

#[test]
fn host_that_dies_repeatedly_steps_down() {
    for failures in [1, 4, u32::MAX] {
        let mut scene = Scene::new();
        let (reclaimed, written) = reclaims(&mut scene, failures);
        let record = written_record(&written);
        assert_eq!((record.term, record.failures, record.released), (6, failures.saturating_add(1), true));
        assert!(matches!(scene.told.last(), Some(Report::CoolOff { .. })), "{:?}", scene.told);
        let released = scene.answer(Ok(Reply::Version(Version("v2".to_string()))));
        assert_eq!(only_request(&released), Op::Release { id: reclaimed });
        scene.answer(Ok(Reply::Done));
        assert_eq!(scene.reads(object(LeaseState::Free, Some(record))), [], "it stays out for a while");
    }
}

#[test]
fn repeated_deaths_do_not_count_for_another_module() {
    let mut scene = Scene::new();
    scene.input(Input::Plan(plan(1, None)));
    assert_eq!(written_record(&reclaims(&mut scene, 3).1).failures, 0);
}

#[test]
fn refused_reclaim_waits_for_expiry() {
    for refused in [StoreError::Held, StoreError::Lost("it is another's".to_string())] {
        let mut scene = Scene::new();
        let holder = LeaseId::from_random(7);
        let dead = object(LeaseState::Reclaimable { holder }, Some(record(6, "this")));
        assert!(matches!(only_request(&scene.reads(dead.clone())), Op::Reclaim { .. }));
        // The first request may have been lost on the way to the store, so the node repeats it.
        scene.answer(Err(unknown()));
        assert!(matches!(only_request(&scene.wakes()), Op::Reclaim { .. }));
        assert_eq!(only_request(&scene.answer(Err(refused))), Op::Read);
        for _ in 0..20 {
            assert_eq!(scene.reads(dead.clone()), []);
        }
        scene.acquires(object(LeaseState::Expired, Some(record(6, "this"))));
    }
}

#[test]
fn lease_is_reclaimed_only_if_nothing_is_unclear() {
    let of = |change: fn(Record) -> Record| Some(change(record(6, "this")));
    let known = || Ok(Reply::Recalled(recalled(0)));
    for (what, record, recalled) in [
        ("no record", None, known()),
        ("it waited for another", of(|record| Record { node: None, ..record }), known()),
        ("it is longer", of(|record| Record { lease: D + SECOND, ..record }), known()),
        ("it is shorter", of(|record| Record { lease: D - SECOND / 2, ..record }), known()),
        ("a later term is named", of(|record| record), Ok(Reply::Recalled(recalled(8)))),
        ("what else is named cannot be told", of(|record| record), Err(StoreError::Misconfigured("no".to_string()))),
    ] {
        let mut scene = Scene::new();
        let lease = LeaseState::Reclaimable { holder: LeaseId::from_random(7) };
        let dead = Snapshot::Object { lease, version: Version("v1".to_string()), record: record.clone() };
        for _ in 0..20 {
            assert_eq!(scene.reads_and_recalls(dead.clone(), recalled.clone()), [], "{what}");
        }
        scene.acquires(object(LeaseState::Expired, record));
    }
}

#[test]
fn new_plan_triggers_reading_when_holder_was_dead() {
    for lease in [LeaseState::Held, LeaseState::Reclaimable { holder: LeaseId::from_random(7) }] {
        let mut scene = Scene::new();
        scene.input(Input::Plan(Plan::default()));
        assert_eq!(scene.reads(object(lease, Some(record(6, "this")))), []);
        let effects = scene.input(Input::Plan(plan(0, None)));
        assert_eq!(effects.is_empty(), lease == LeaseState::Held, "{lease:?}: {effects:?}");
    }
}

#[test]
fn reset_record_stays_unclear_when_holder_is_dead() {
    let mut scene = Scene::new();
    scene.reads(object(LeaseState::Held, Some(record(9, "other"))));
    let holder = LeaseId::from_random(7);
    scene.acquires(object(LeaseState::Abandoned { holder }, Some(record(6, "other"))));
    let acquired = scene.now;
    scene.answer(Ok(Reply::Done));
    assert_eq!(scene.run_until_written().term, 10);
    assert!(scene.now.since(acquired) >= D);
}

#[test]
fn hints_make_readings_earlier_at_limited_rate() {
    let mut scene = Scene::new();
    let held = object(LeaseState::Held, Some(record(6, "other")));
    scene.reads(held.clone());
    let mut readings = 0;
    let began = scene.now;
    while scene.now.since(began) < SECOND {
        let effects = scene.input(Input::Hint(Hint::Look));
        if !effects.is_empty() {
            assert_eq!(only_request(&effects), Op::Read);
            readings += 1;
            assert_eq!(scene.answer(Ok(Reply::Read(held.clone()))), []);
        }
        scene.now = scene.now + Duration::from_millis(1);
    }
    assert!((10..=20).contains(&readings), "{readings}");
    // While requests to the store fail, a hint does not bring the next read forward.
    scene.now = scene.now + SECOND;
    assert_eq!(only_request(&scene.input(Input::Tick)), Op::Read);
    scene.answer(Err(unknown()));
    scene.now = scene.now + SECOND / 2;
    assert_eq!(scene.input(Input::Hint(Hint::Look)), []);
}

#[test]
fn three_hints_are_each_followed_by_reading_at_once() {
    let mut scene = Scene::new();
    let held = object(LeaseState::Held, Some(record(6, "other")));
    scene.reads(held.clone());
    for _ in 0..3 {
        assert_eq!(only_request(&scene.input(Input::Hint(Hint::Look))), Op::Read);
        assert_eq!(scene.answer(Ok(Reply::Read(held.clone()))), []);
    }
    assert_eq!(scene.input(Input::Hint(Hint::Look)), []);
}

#[test]
fn hint_during_reading_triggers_another() {
    let mut scene = Scene::new();
    let held = object(LeaseState::Held, Some(record(6, "other")));
    scene.reads(held.clone());
    scene.wakes();
    assert_eq!(scene.input(Input::Hint(Hint::Look)), []);
    assert_eq!(only_request(&scene.answer(Ok(Reply::Read(held)))), Op::Read);
}

#[test]
fn hints_make_renewals_earlier_at_limited_rate() {
    let mut scene = Scene::leading();
    scene.now = scene.now + SECOND;
    let hint = || Input::Hint(Hint::Look);
    assert!(matches!(only_request(&scene.input(hint())), Op::Renew { .. }));
    // The pending renewal may have been sent before the change that this hint reports, so another renewal must follow
    // it.
    assert_eq!(scene.input(hint()), []);
    let sent = scene.sent;
    scene.answer(Ok(Reply::Done));
    assert!(matches!(only_request(&scene.wakes()), Op::Renew { .. }));
    assert!(scene.now.since(sent) < SECOND / 10, "{:?}", scene.now.since(sent));
    scene.answer(Ok(Reply::Done));
    let (mut renewals, began) = (0, scene.now);
    while scene.now.since(began) < SECOND {
        if !scene.input(hint()).is_empty() {
            renewals += 1;
            scene.answer(Ok(Reply::Done));
        }
        scene.now = scene.now + Duration::from_millis(1);
    }
    assert!((10..=17).contains(&renewals), "{renewals}");
    // While renewals fail, a hint does not bring the next attempt forward.
    scene.now = scene.now + SECOND;
    scene.input(hint());
    scene.answer(Err(unknown()));
    assert_eq!(scene.input(hint()), []);
    // The next attempt finds that the lease is lost. The node handles this answer as usual.
    assert!(matches!(only_request(&scene.wakes()), Op::Renew { .. }));
    let effects = scene.answer(Err(StoreError::Lost("the file was moved".to_string())));
    assert!(matches!(effects[..], [Effect::Stop { .. }, Effect::Kill { .. }]), "{effects:?}");
}

fn following() -> Scene {
    let mut scene = Scene::new();
    scene.reads(object(LeaseState::Held, Some(record(6, "other"))));
    assert_eq!(scene.told.last(), Some(&Report::Following { leader: record(6, "other") }));
    scene
}

fn leads(term: Term, age: Duration, place: Option<u32>) -> Input {
    Input::Hint(Hint::Leads { from: record(6, "other").incarnation, term, age, place })
}

impl Scene {
    /// Answers every read that is due before `end` with the same snapshot. Returns the times of the reads.
    fn reads_until(&mut self, end: Time) -> Vec<Time> {
        let mut readings = Vec::new();
        while self.elector.next_wakeup().is_some_and(|wakeup| wakeup < end) || self.pending.is_some() {
            if self.pending.is_none() {
                assert_eq!(only_request(&self.wakes()), Op::Read);
            }
            readings.push(self.now);
            let then = self.sees(object(LeaseState::Held, Some(record(6, "other"))), 6);
            assert!(then.is_empty() || only_request(&then) == Op::Read, "{then:?}");
        }
        self.now = end.max(self.now);
        readings
    }

    /// Passes a hint to the elector, and checks that the hint causes nothing but a read or a survey.
    fn hears(&mut self, hint: Input) {
        let effects = self.input(hint);
        assert!(effects.is_empty() || matches!(only_request(&effects), Op::Read | Op::Survey), "{effects:?}");
    }

    fn sees(&mut self, read: Snapshot, term: Term) -> Vec<Effect> {
        let is_survey = self.asked_to_survey;
        self.answer(Ok(if is_survey {
            Reply::Surveyed { read, recalled: recalled(term), steering: None }
        } else {
            Reply::Read(read)
        }))
    }
}

#[test]
fn standby_reads_rarely_while_it_hears_its_leader() {
    let mut scene = following();
    let mut readings = 0;
    for _ in 0..60 {
        scene.hears(leads(6, Duration::ZERO, None));
        readings += scene.reads_until(scene.now + D / 6).len();
    }
    // The standby reads about every 10 s.
    assert!((12..=20).contains(&readings), "{readings} in 150 s");
    let last = scene.now - D / 6;
    let after = scene.reads_until(scene.now + SECOND * 20);
    assert!(after[0] <= last + D / 3 + SECOND, "{last:?}, {after:?}");
    assert!(after.windows(2).all(|two| two[1].since(two[0]) <= SECOND * 3 / 2), "{after:?}");
    // A hint that reports an old renewal does not delay the next reads.
    scene.hears(leads(6, D / 3, None));
    assert!(scene.reads_until(scene.now + SECOND * 5).len() >= 3);
}

#[test]
fn standby_reads_at_once_when_link_ends() {
    let mut scene = following();
    scene.hears(leads(6, Duration::ZERO, None));
    assert_eq!(scene.elector.listens_until(), Some(scene.now + D / 3));
    scene.now = scene.now + SECOND / 2;
    let ended = scene.now;
    let from = record(6, "other").incarnation;
    scene.hears(Input::Hint(Hint::Silent { from }));
    let readings = scene.reads_until(ended + SECOND * 5);
    assert!(readings[0] == ended && readings.len() >= 4, "{ended:?}, {readings:?}");
}

#[test]
fn first_successors_read_at_once_when_lease_is_given_up() {
    let from = record(6, "other").incarnation;
    for (place, first, least, most) in
        [(Some(0), 0, 8, 13), (Some(2), 0, 8, 13), (Some(3), 1000, 1, 2), (None, 1000, 1, 2)]
    {
        let mut scene = following();
        scene.hears(leads(6, Duration::ZERO, place));
        scene.now = scene.now + SECOND / 2;
        let heard = scene.now;
        for _ in 0..10 {
            scene.hears(Input::Hint(Hint::GivesUp { from: from.clone(), place }));
        }
        let readings = scene.reads_until(heard + SECOND * 2 + SECOND / 100);
        let waited = readings[0].since(heard).as_millis();
        assert!(waited >= first && waited <= 2 * first, "{place:?}: {waited}");
        let in_a_second = readings.iter().filter(|at| **at <= readings[0] + SECOND).count();
        assert!((least..=most).contains(&in_a_second), "{place:?}: {readings:?}");
    }
}

#[test]
fn survey_is_judged_like_reading_and_recall() {
    let called = || {
        let mut scene = following();
        let from = record(6, "other").incarnation;
        assert!(!scene.elector.surveys());
        assert_eq!(only_request(&scene.input(Input::Hint(Hint::GivesUp { from, place: Some(0) }))), Op::Survey);
        assert!(scene.elector.surveys());
        scene
    };
    let version = Version("v1".to_string());
    for lease in [LeaseState::Held, LeaseState::Free, LeaseState::Expired] {
        let asks = called().sees(marked(lease), 6);
        assert!(matches!(only_request(&asks), Op::Acquire { version: read, .. } if read == version), "{asks:?}");
    }
    // In the first case, the record is not marked as released yet. In the second case, a later term exists, so somebody
    // has restored an old record.
    for (read, term) in [(object(LeaseState::Held, Some(record(6, "other"))), 6), (marked(LeaseState::Held), 7)] {
        let mut scene = called();
        assert_eq!(scene.sees(read, term), []);
        assert_eq!(only_request(&scene.wakes()), Op::Read);
    }
    let mut scene = called();
    let acquired = scene.sees(marked(LeaseState::Free), 7);
    assert!(matches!(only_request(&acquired), Op::Acquire { length, .. } if length == SECOND * 60), "{acquired:?}");
    // If the survey fails, the node falls back to a read and a recall, and reports their errors.
    for error in [unknown(), StoreError::Misconfigured("no right to list".to_string())] {
        let mut scene = called();
        let told = scene.told.len();
        assert_eq!(only_request(&scene.answer(Err(error.clone()))), Op::Read);
        assert_eq!(only_request(&scene.answer(Ok(Reply::Read(marked(LeaseState::Free))))), Op::Recall);
        assert_eq!(scene.told.len(), told);
        scene.answer(Err(error));
        assert!(matches!(scene.told[told..], [Report::StoreTrouble { asked: "recall", .. }]), "{:?}", scene.told);
    }
    // A node without a module never surveys: it only reads.
    let mut scene = following();
    scene.input(Input::Plan(Plan::default()));
    let from = record(6, "other").incarnation;
    scene.input(Input::Hint(Hint::GivesUp { from, place: Some(0) }));
    while scene.pending.is_none() {
        scene.wakes();
    }
    assert!(scene.asked_to_read && !scene.elector.surveys());
}

#[test]
fn leader_is_not_heard_after_its_record_is_marked() {
    let mut scene = following();
    scene.hears(leads(6, Duration::ZERO, None));
    scene.acquires(marked(LeaseState::Held));
    scene.answer(Err(StoreError::Held));
    assert_eq!(scene.elector.leader(), None, "its renewals no longer delay readings");
}

#[test]
fn leader_that_leads_again_has_not_given_up() {
    let mut scene = following();
    let from = record(6, "other").incarnation;
    scene.hears(Input::Hint(Hint::GivesUp { from, place: None }));
    scene.wakes();
    assert_eq!(scene.answer(Ok(Reply::Read(object(LeaseState::Held, Some(record(7, "other")))))), []);
    scene.hears(leads(7, Duration::ZERO, None));
    assert_eq!(scene.reads_until(scene.now + D / 3 - SECOND), []);
}

#[test]
fn first_successors_read_when_lease_must_have_expired() {
    let mut scene = following();
    scene.reads_until(scene.now + D);
    scene.hears(leads(6, SECOND, Some(1)));
    let runs_out = scene.now + D - SECOND;
    scene.reads_until(runs_out);
    let readings = scene.reads_until(runs_out + SECOND * 2);
    assert!(readings[0] == runs_out, "{runs_out:?}, {readings:?}");
    assert!((9..=13).contains(&readings.len()), "{readings:?}");
}

#[test]
fn hints_of_others_cause_readings_and_nothing_else() {
    let of_nobody = || "somebody".to_string();
    let hints = [
        Hint::Leads { from: of_nobody(), term: 6, age: Duration::ZERO, place: Some(0) },
        Hint::GivesUp { from: of_nobody(), place: None },
        Hint::Silent { from: of_nobody() },
    ];
    for hint in hints.map(Input::Hint).into_iter().chain([leads(HIGHEST_TERM, Duration::MAX, None)]) {
        let mut scene = following();
        scene.reads_until(scene.now + D);
        let heard = scene.now;
        for _ in 0..100 {
            scene.hears(hint.clone());
        }
        let readings = scene.reads_until(heard + SECOND * 5);
        assert!(readings[0] == heard && (4..=8).contains(&readings.len()), "{hint:?}: {readings:?}");
        assert_eq!(scene.elector.written_term(), 6);
    }
}

#[test]
fn leader_announces_renewals_and_release_once_marked() {
    let mut scene = Scene::leading();
    assert_eq!(scene.words, [Word::Leads { term: 2, renewed: scene.sent }]);
    while scene.pending.is_none() {
        scene.wakes();
    }
    let renewed = scene.sent;
    scene.answer(Ok(Reply::Done));
    assert_eq!(scene.words[1..], [Word::Leads { term: 2, renewed }]);
    scene.input(Input::Shutdown);
    let gone = scene.input(Input::Gone { end: End::Done });
    assert_eq!(scene.words.len(), 2);
    scene.marks(&gone);
    assert_eq!(scene.words[2..], [Word::GivesUp], "the release is under way");
    scene.answer(Ok(Reply::Done));
    assert_eq!(scene.words[3..], [Word::GivesUp], "it is done");
}

#[test]
fn given_up_lease_is_requested_once_before_it_is_free() {
    // In the second case, the lease belongs to this node's previous process, which may have sent a release before it
    // died.
    for held in [LeaseState::Held, LeaseState::Reclaimable { holder: LeaseId::from_random(7) }] {
        let mut scene = Scene::new();
        let used = scene.acquires(marked(held));
        // The acquire arrived before the release, so the store refused the acquire. The lease may have been released
        // since then.
        let looks = scene.answer(Err(StoreError::Held));
        assert_eq!(only_request(&looks), Op::Read);
        for _ in 0..20 {
            let nothing = scene.reads(marked(held));
            assert!(nothing.iter().all(|effect| matches!(effect, Effect::Report(_))), "{nothing:?}");
        }
        assert_ne!(scene.acquires(marked(LeaseState::Free)), used);
        let begins = scene.answer(Ok(Reply::Done));
        assert_eq!(written_record(&begins).term, 7, "there is nothing to wait for");
    }
}

#[test]
fn given_up_lease_is_left_alone_after_unclear_or_unsent_try() {
    let unclear = |scene: &mut Scene| {
        let recalls = scene.answer(Ok(Reply::Read(marked(LeaseState::Held))));
        assert_eq!(only_request(&recalls), Op::Recall);
        assert_eq!(scene.answer(Ok(Reply::Recalled(recalled(7)))), [], "it is lower than what else is named");
    };
    let unwanted = |scene: &mut Scene| {
        scene.acquires(marked(LeaseState::Held));
        let id = scene.pending.take().unwrap();
        assert_eq!(scene.input(Input::NotSent { id, reason: String::new() }), []);
    };
    for judged in [unclear as fn(&mut Scene), unwanted] {
        let mut scene = Scene::new();
        scene.wakes();
        judged(&mut scene);
        for _ in 0..20 {
            scene.wakes();
            assert_eq!(scene.answer(Ok(Reply::Read(marked(LeaseState::Held)))), []);
        }
        scene.acquires(marked(LeaseState::Free));
    }
}

#[test]
fn early_successor_reads_when_lease_is_released() {
    let mut scene = following();
    scene.hears(leads(6, Duration::ZERO, Some(0)));
    let gives_up = |place| Input::Hint(Hint::GivesUp { from: record(6, "other").incarnation, place: Some(place) });
    scene.hears(gives_up(0));
    scene.acquires(marked(LeaseState::Held));
    assert_eq!(only_request(&scene.answer(Err(StoreError::Held))), Op::Read);
    assert_eq!(scene.elector.leader(), Some(record(6, "other").incarnation.as_str()), "it goes on to listen");
    for _ in 0..5 {
        assert_eq!(scene.answer(Ok(Reply::Read(marked(LeaseState::Held)))), []);
        let rested = scene.now;
        assert_eq!(only_request(&scene.wakes()), Op::Read);
        assert!(scene.now.since(rested) <= SECOND / 10);
    }
    assert_eq!(scene.answer(Ok(Reply::Read(marked(LeaseState::Held)))), []);
    // A later message puts this node at place 7, but the place from the first message stays valid.
    scene.now = scene.now + SECOND / 100;
    scene.hears(gives_up(7));
    assert!(scene.pending.is_some(), "it is released");
    scene.acquires(marked(LeaseState::Free));
}

#[test]
fn early_acquire_in_doubt_is_repeated_while_lease_is_held() {
    let mut scene = Scene::new();
    let asked = scene.acquires(marked(LeaseState::Held));
    assert_eq!(scene.answer(Err(unknown())), []);
    // The store may still carry out the earlier request once the lease is released. The lease would then have the id in
    // that request, so the node must repeat the request with that id.
    for _ in 0..3 {
        let again = only_request(&scene.wakes());
        assert!(matches!(again, Op::Acquire { id, .. } if id == asked), "{again:?}");
        assert_eq!(scene.answer(Err(StoreError::Held)), []);
    }
    scene.wakes();
    let begins = scene.answer(Ok(Reply::Done));
    assert_eq!(written_record(&begins).term, 7);
}

#[test]
fn term_written_ahead_is_not_served_after_lease_doubt() {
    let mut scene = Scene::leading();
    scene.input(Input::Plan(plan(1, None)));
    // The next term is written. The old instance has been asked to stop, but has not exited yet.
    let stopped = scene.answer(Ok(Reply::Version(Version("v3".to_string()))));
    assert!(matches!(stopped[..], [Effect::Stop { next: Some(3), .. }]), "{stopped:?}");
    // A renewal is sent in time, but its answer is so late that the lease may have expired by then.
    while scene.pending.is_none() {
        scene.wakes();
    }
    scene.now = scene.sent + D * 9 / 10;
    scene.answer(Ok(Reply::Done));
    scene.input(Input::Gone { end: End::Killed });
    assert_eq!(scene.run_until_written().term, 4);
}

#[test]
fn lease_length_read_in_doubt_is_remembered() {
    let mut scene = Scene::new();
    scene.acquires(object(LeaseState::Expired, Some(record(1, "other"))));
    scene.answer(Ok(Reply::Done));
    scene.answer(Err(unknown()));
    assert_eq!(only_request(&scene.wakes()), Op::Read);
    let longer = Record { lease: SECOND * 45, ..record(2, "other") };
    // The node reads a record with a longer lease. The object is then deleted, and its replacement does not contain
    // this lease.
    scene.answer(Ok(Reply::Read(held("v5", longer))));
    assert_eq!(scene.reads(held("v9", record(3, "other"))), []);
    let Op::Create { record } = only_request(&scene.reads(Snapshot::Nothing)) else { panic!("nothing is created") };
    assert_eq!((record.lease, record.released), (SECOND * 45, false));
}

#[test]
fn tried_term_may_have_been_anothers() {
    let tries_term_4 = || {
        let mut scene = Scene::new();
        scene.acquires(object(LeaseState::Expired, Some(record(3, "other"))));
        scene.answer(Ok(Reply::Done));
        scene.answer(Err(StoreError::Lost("the lease was broken".to_string())));
        scene
    };
    // Another node led term 4, under a longer lease than any recorded lease. The record was then deleted, or replaced
    // by an older record.
    let mut scene = tries_term_4();
    scene.acquires(object(LeaseState::Broken, Some(record(3, "other"))));
    let acquired = scene.now;
    let note = written_record(&scene.answer(Ok(Reply::Done)));
    assert_eq!(note.lease, SECOND * 60, "the next holder waits as long");
    assert_eq!(scene.run_until_written().term, 5);
    assert!(scene.now.since(acquired) >= SECOND * 60);
    let mut scene = tries_term_4();
    let Op::Create { record } = only_request(&scene.reads(Snapshot::Nothing)) else { panic!("nothing is created") };
    assert_eq!((record.lease, record.released), (SECOND * 60, false));
}

#[test]
fn holder_that_cannot_write_gives_up_and_cools_off() {
    let mut scene = Scene::new();
    scene.acquires(object(LeaseState::Expired, Some(record(1, "other"))));
    scene.answer(Ok(Reply::Done));
    let began = scene.now;
    while !matches!(scene.told.last(), Some(Report::Standby { reason }) if reason.contains("could not be written")) {
        assert!(scene.now.since(began) <= D + SECOND, "{:?}", scene.told);
        match scene.pending {
            Some(_) if scene.asked_to_write => drop(scene.answer(Err(unknown()))),
            Some(_) if scene.asked_to_read => drop(scene.answer(Ok(Reply::Read(held("v1", record(1, "other")))))),
            Some(_) => drop(scene.answer(Ok(Reply::Done))),
            None => drop(scene.wakes()),
        }
    }
    assert!(scene.told.iter().any(|report| matches!(report, Report::CoolOff { .. })), "{:?}", scene.told);
    assert!(scene.told.iter().any(|report| matches!(report, Report::NotReleased { .. })), "{:?}", scene.told);
}

#[test]
fn lease_expires_when_record_cannot_be_marked() {
    let mut scene = Scene::leading();
    scene.input(Input::Shutdown);
    scene.input(Input::Gone { end: End::Done });
    let mut asked = Vec::new();
    loop {
        let effects = match scene.pending {
            Some(_) => scene.answer(Err(unknown())),
            None => scene.wakes(),
        };
        if effects.contains(&Effect::Finished) {
            break;
        }
        asked.extend(effects);
    }
    assert!(scene.now.since(scene.sent) >= D, "{:?}", scene.now.since(scene.sent));
    assert!(!asked.iter().any(|effect| matches!(effect, Effect::Request { op: Op::Release { .. }, .. })), "{asked:?}");
    assert!(matches!(scene.told.last(), Some(Report::NotReleased { .. })), "{:?}", scene.told);
}

#[test]
fn times_follow_from_lease() {
    let millis = Duration::from_millis;
    let timing = |lease| Timing::new(lease, (SECOND * 2, SECOND * 60), SECOND * 5, 128 << 20).unwrap();
    let table = |lease| {
        let it = timing(lease);
        let (soonest, latest) = it.retry_range();
        let within = [it.renew_after(), it.try_timeout(), soonest, latest, it.at_risk_after(), it.deadline_after()];
        let ending = [it.abort_after(), it.kill_timeout(), it.noticed_pause(), it.last_words(), it.tolerated_pause()];
        (within, ending, it.takeover_after_crash(), it.tolerated_outage(), it.tolerated_drift())
    };
    assert_eq!(
        table(SECOND * 60),
        (
            [SECOND * 10, SECOND * 2, SECOND, SECOND * 4, SECOND * 42, SECOND * 48],
            [millis(55_800), millis(7_800), millis(1_950), millis(1_400), millis(2_200)],
            millis(61_250),
            SECOND * 26,
            37
        )
    );
    assert_eq!(timing(SECOND * 12).try_timeout(), SECOND);
    // A lease is long enough if the store answers within half of the lease's request timeout. If no lease meets this
    // condition, an answer within the longest request timeout is enough.
    for (took, lease) in [(50, Some(2)), (500, Some(12)), (1_000, Some(24)), (1_999, Some(24)), (2_000, None)] {
        assert_eq!(
            Timing::lease_for(millis(took), (SECOND * 2, SECOND * 60)),
            lease.map(Duration::from_secs),
            "{took}"
        );
    }
    for (lease, memory) in [(SECOND, 0), (SECOND * 61, 0), (SECOND * 2, 1 << 30)] {
        let timing = Timing::new(lease, (SECOND * 2, SECOND * 60), SECOND, memory);
        assert!(timing.is_err(), "{lease:?}, {memory}");
    }
}

#[test]
fn lease_id_is_uuid_of_version_4() {
    for (bits, id) in [(0, "00000000-0000-4000-8000-000000000000"), (u128::MAX, "ffffffff-ffff-4fff-bfff-ffffffffffff")]
    {
        assert_eq!(LeaseId::from_random(bits).to_string(), id);
    }
}

#[test]
fn election_name_has_1_to_63_safe_characters() {
    let longest = "a".repeat(63);
    for name in ["a", "a-1", &longest] {
        assert_eq!(ElectionName::new(name).unwrap().to_string(), name);
    }
    for name in ["", "1a", "-a", "A", "aB", "a_b", "a.b", &format!("{longest}a")] {
        assert!(ElectionName::new(name).is_err(), "{name}");
    }
}

#[test]
fn snapshot_names_terms_up_to_its_record() {
    let read = object(LeaseState::Held, Some(record(6, "other")));
    assert!(read.covers(&recalled(5)) && !read.covers(&recalled(7)) && !Snapshot::Nothing.covers(&recalled(1)));
}

// ---- eligibility ----

#[test]
fn node_with_lower_priority_defers_a_free_lease() {
    for (priority, wait) in [(0, SECOND * 2), (50, SECOND), (100, Duration::ZERO)] {
        let mut scene = Scene::new();
        scene.input(Input::Eligibility(Eligibility { priority, ..Eligibility::default() }));
        scene.reads(object(LeaseState::Held, Some(record(6, "other"))));
        let (requested, seen_free) = scene.polls_until_requested();
        let waited = requested.since(seen_free);
        assert!((wait..wait + SECOND / 10).contains(&waited), "priority {priority} waits {waited:?}");
        let deferring = scene.told.iter().filter(|report| matches!(report, Report::Deferring { .. })).count();
        assert_eq!(deferring, usize::from(priority < 100), "{:?}", scene.told);
    }
}

#[test]
fn node_with_more_shards_defers_only_a_released_lease() {
    for (lease, wait) in [(LeaseState::Free, SECOND), (LeaseState::Expired, Duration::ZERO)] {
        let mut scene = Scene::new();
        scene.input(Input::Eligibility(Eligibility { yields: true, ..Eligibility::default() }));
        scene.reads(object(LeaseState::Held, Some(record(6, "other"))));
        let record = Record { released: lease == LeaseState::Free, ..record(6, "other") };
        let (requested, seen_free) = scene.polls_until_requested_with(object(lease, Some(record)));
        let waited = requested.since(seen_free);
        assert!((wait..wait + SECOND / 10).contains(&waited), "{lease:?}: waits {waited:?}");
    }
}

#[test]
fn node_does_not_defer_first_term_or_when_chosen() {
    let chosen = |by_operator| Some(Chosen { until: Time(SECOND * 60), by_operator });
    for (term, chosen) in [(0, None), (6, chosen(true)), (6, chosen(false))] {
        let mut scene = Scene::new();
        scene.input(Input::Eligibility(Eligibility { priority: 0, chosen, ..Eligibility::default() }));
        let free = if term == 0 { Record { node: None, ..record(0, "other") } } else { record(term, "other") };
        scene.acquires(object(LeaseState::Free, Some(free)));
    }
}

#[test]
fn acquire_may_be_withheld_only_before_it_is_sent() {
    let chosen = |by_operator| Some(Chosen { until: Time(SECOND * 60), by_operator });
    for (chosen, may_be) in [(None, true), (chosen(false), true), (chosen(true), false)] {
        let mut scene = Scene::new();
        scene.input(Input::Eligibility(Eligibility { chosen, ..Eligibility::default() }));
        let effects = scene.reads(object(LeaseState::Expired, Some(record(6, "other"))));
        assert_eq!(within_quota(&effects), may_be, "{chosen:?}");
        scene.answer(Err(unknown()));
        assert!(!within_quota(&scene.wakes()), "the lease may be held under this id");
    }
    // If no other node takes the lease, this node requests the lease in the end, even if its host already leads its
    // maximum number of elections.
    let mut scene = Scene::new();
    let free = object(LeaseState::Free, Some(record(6, "other")));
    let mut effects = scene.reads(free.clone());
    let since = scene.now;
    while within_quota(&effects) {
        let id = scene.pending.take().unwrap();
        scene.input(Input::NotSent { id, reason: String::new() });
        effects = scene.reads(free.clone());
    }
    let waited = scene.now.since(since);
    assert!((SECOND * 10..SECOND * 12).contains(&waited), "{waited:?}");
}

#[test]
fn leader_stops_for_ineligibility_and_tells_guest_why() {
    for cause in [IneligibleCause::Maintenance, IneligibleCause::Suspended, IneligibleCause::SteppedDown] {
        let mut scene = Scene::leading();
        let effects = scene.input(Input::Eligibility(ineligible(cause.clone(), None)));
        let is_stop = |effect: &Effect| matches!(effect, Effect::Stop { reason: StopReason::StepDown, message, .. } if message == "asked");
        assert!(effects.iter().any(is_stop), "{effects:?}");
        assert_eq!(scene.elector.ineligible(), Some(&cause));
        let marking = scene.input(Input::Gone { end: End::Done });
        assert!(matches!(only_request(&scene.marks(&marking)), Op::Release { .. }));
        scene.answer(Ok(Reply::Done));
        assert_eq!(scene.reads(object(LeaseState::Free, Some(record(7, "this")))), [], "{cause:?}");
        // Once nothing keeps the node from leading, the node requests the lease again.
        scene.input(Input::Eligibility(Eligibility::default()));
        assert_eq!(scene.elector.ineligible(), None);
        scene.acquires(object(LeaseState::Free, Some(record(7, "this"))));
    }
}

#[test]
fn maintenance_hides_no_command() {
    let suspended = ineligible(IneligibleCause::Suspended, None);
    let maintenance = ineligible(IneligibleCause::Maintenance, None);
    let both = Eligibility { commands: suspended.commands.clone(), ..maintenance.clone() };
    let mut scene = Scene::new();
    for given in [&suspended, &both, &suspended, &both, &maintenance] {
        scene.input(Input::Eligibility(given.clone()));
    }
    assert_eq!(scene.elector.ineligible(), Some(&IneligibleCause::Maintenance));
    let [command] = &suspended.commands[..] else { unreachable!() };
    let changes = [
        Report::Ineligible { ineligibility: command.clone(), wait: None },
        Report::Eligible { before: command.clone() },
    ];
    let is_change = |report: &&Report| matches!(report, Report::Ineligible { .. } | Report::Eligible { .. });
    assert!(scene.told.iter().filter(is_change).eq(&changes), "{:?}", scene.told);
}

#[test]
fn node_defers_again_after_an_ineligibility() {
    let mut scene = Scene::new();
    let low = Eligibility { priority: 0, ..Eligibility::default() };
    scene.input(Input::Eligibility(low.clone()));
    let free = object(LeaseState::Free, Some(record(6, "other")));
    assert_eq!(scene.reads(free.clone()), [], "it defers");
    scene.input(Input::Eligibility(ineligible(IneligibleCause::Suspended, None)));
    scene.now = scene.now + SECOND * 3600;
    assert_eq!(scene.reads(free.clone()), [], "it is suspended");
    scene.input(Input::Eligibility(low));
    assert_eq!(scene.reads(free), [], "other nodes become eligible at the same time");
}

#[test]
fn ineligibility_ends_at_its_time_without_an_input() {
    let mut scene = Scene::new();
    let until = scene.now + SECOND * 30;
    scene.input(Input::Eligibility(ineligible(IneligibleCause::SteppedDown, Some(until))));
    let free = object(LeaseState::Free, Some(record(6, "other")));
    while scene.now < until {
        assert_eq!(scene.reads(free.clone()), [], "it is ineligible until {until:?}");
        while scene.pending.is_none() && scene.now < until {
            scene.wakes();
        }
    }
    assert_eq!(scene.now, until, "it wakes at the end");
    assert!(scene.told.iter().any(|report| matches!(report, Report::Eligible { .. })), "{:?}", scene.told);
}

#[test]
fn transfer_without_successor_ends_early_and_is_taken_back() {
    let to = || IneligibleCause::Transferring { to: "other".to_string() };
    for is_taken in [false, true] {
        let mut scene = Scene::leading();
        let mut transfer = ineligible(to(), Some(scene.now + SECOND * 60));
        (transfer.priority, transfer.commands[0].after_release) = (0, Some(SECOND * 4));
        scene.input(Input::Eligibility(transfer.clone()));
        let marking = scene.input(Input::Gone { end: End::Done });
        let given_up = scene.now;
        scene.marks(&marking);
        scene.answer(Ok(Reply::Done));
        if is_taken {
            scene.reads(held("v8", record(8, "other")));
        }
        let free = object(LeaseState::Free, Some(record(8, "other")));
        while scene.elector.ineligible() == Some(&to()) {
            assert_eq!(scene.reads(free.clone()), []);
            while scene.pending.is_none() && scene.elector.ineligible().is_some() {
                scene.wakes();
            }
        }
        assert_eq!(scene.now, given_up + SECOND * 4);
        // The transfer command is still in force, but it no longer makes this node ineligible.
        scene.input(Input::Eligibility(transfer));
        assert_eq!(scene.elector.ineligible(), None);
        let effects = scene.reads(free);
        assert_eq!(effects.is_empty(), is_taken, "it defers only to others if one of them took the lease: {effects:?}");
    }
}

#[test]
fn survey_counts_only_under_known_steering() {
    let version = |name: &str| Version(name.to_string());
    for (steering, counts) in [
        (SteeringVersion::Unread, false),
        (SteeringVersion::Absent, false),
        (SteeringVersion::Read(version("s1")), false),
        (SteeringVersion::Read(version("s2")), true),
    ] {
        let mut scene = Scene::new();
        scene.input(Input::Eligibility(Eligibility { steering, ..Eligibility::default() }));
        scene.reads(object(LeaseState::Held, Some(record(6, "other"))));
        let from = record(6, "other").incarnation;
        let asked = scene.input(Input::Hint(Hint::GivesUp { from, place: Some(0) }));
        assert_eq!(only_request(&asked), Op::Survey);
        let read = marked(LeaseState::Held);
        let surveyed = scene.answer(Ok(Reply::Surveyed { read, recalled: recalled(6), steering: Some(version("s2")) }));
        let next = if surveyed.is_empty() { scene.wakes() } else { surveyed };
        assert_eq!(matches!(only_request(&next), Op::Acquire { .. }), counts, "{next:?}");
        assert!(counts || only_request(&next) == Op::Read, "{next:?}");
    }
}

#[test]
fn standby_reads_dead_holder_again_once_it_is_eligible() {
    let mut scene = Scene::new();
    scene.input(Input::Eligibility(ineligible(IneligibleCause::Suspended, None)));
    let holder = LeaseId::from_random(9);
    assert_eq!(scene.reads(object(LeaseState::Abandoned { holder }, Some(record(6, "other")))), []);
    assert_eq!(only_request(&scene.input(Input::Eligibility(Eligibility::default()))), Op::Read);
}

#[test]
fn longest_deferral_of_quota_includes_a_poll() {
    let millis = |priority, has_quota| longest_deferral(priority, has_quota).as_millis();
    let cases = [(100, false, 0), (50, false, 1_000), (0, false, 2_000), (100, true, 11_250), (0, true, 11_250)];
    for (priority, has_quota, longest) in cases {
        assert_eq!(millis(priority, has_quota), longest, "{priority} {has_quota}");
    }
}

fn ineligible(cause: IneligibleCause, until: Option<Time>) -> Eligibility {
    if cause == IneligibleCause::Maintenance {
        return Eligibility { maintenance: Some("asked".to_string()), ..Eligibility::default() };
    }
    let reason = Ineligibility { id: "1".to_string(), cause, reason: "asked".to_string(), until, after_release: None };
    Eligibility { commands: vec![reason], ..Eligibility::default() }
}

fn within_quota(effects: &[Effect]) -> bool {
    only_request(effects);
    effects.iter().any(|effect| matches!(effect, Effect::Request { within_quota: true, .. }))
}

struct Scene {
    elector: Elector,
    now: Time,
    /// The amount by which the host's clock was set forward.
    set_forward: Duration,
    wall: Duration,
    inputs: u32,
    pending: Option<RequestId>,
    asked_to_write: bool,
    asked_to_read: bool,
    /// True if the pending request is a recall. [`Scene::goes_on`] answers it with `recalled`.
    asked_to_recall: bool,
    asked_to_survey: bool,
    recalled: Result<Term, StoreError>,
    /// The time at which the last acquire or renewal was sent.
    sent: Time,
    told: Vec<Report>,
    words: Vec<Word>,
}

impl Scene {
    fn new() -> Self {
        Self::with(OnDone::Repeat)
    }

    fn with(on_done: OnDone) -> Self {
        Self::of("this/1", on_done)
    }

    fn of(incarnation: &str, on_done: OnDone) -> Self {
        let settings = Settings {
            node: "this".to_string(),
            incarnation: incarnation.to_string(),
            timing: Timing::new(D, RANGE, SECOND * 5, 256 << 20).unwrap(),
            lease_range: RANGE,
            pause: SECOND * 10,
            on_done,
            probation: SECOND * 30,
            schedule: None,
        };
        // Multiples of the golden ratio are spread evenly over all numbers of 64 bits.
        let spread = |state: &mut [u8; 32]| {
            state[0] = state[0].wrapping_add(1);
            u64::from(state[0]).wrapping_mul(0x9e37_79b9_7f4a_7c15)
        };
        let random = Random { state: [0; 32], next: spread };
        let now = Now { time: Time::default(), least: Duration::ZERO, wall: Duration::ZERO };
        let mut elector = Elector::new(settings, now, random);
        elector.handle(now, Input::Plan(plan(0, None)));
        Self {
            elector,
            now: Time::default(),
            set_forward: Duration::ZERO,
            wall: Duration::ZERO,
            inputs: 0,
            pending: None,
            asked_to_write: false,
            asked_to_read: false,
            asked_to_recall: false,
            asked_to_survey: false,
            recalled: Ok(0),
            sent: Time::default(),
            told: Vec::new(),
            words: Vec::new(),
        }
    }

    fn leading() -> Self {
        Self::leading_with(OnDone::Repeat)
    }

    fn leading_with(on_done: OnDone) -> Self {
        let mut scene = Self::with(on_done);
        scene.acquires(object(LeaseState::Free, Some(record(1, "other"))));
        scene.answer(Ok(Reply::Done));
        let effects = scene.answer(Ok(Reply::Version(Version("v2".to_string()))));
        assert!(matches!(effects[..], [Effect::Start { term: 2, .. }]), "{effects:?}");
        scene
    }

    fn on_probation() -> Self {
        let mut scene = Self::about_to_begin();
        scene.input(Input::Begun);
        scene
    }

    /// A leader with a version on probation, whose instance does not run yet.
    fn about_to_begin() -> Self {
        let mut scene = Self::leading();
        scene.input(Input::Plan(plan(1, Some(0))));
        scene.answer(Ok(Reply::Version(Version("v3".to_string()))));
        let effects = scene.input(Input::Gone { end: End::Done });
        assert!(matches!(effects[..], [Effect::Start { term: 3, .. }]), "{effects:?}");
        scene
    }

    /// Lets `length` pass while all renewals succeed. Returns the effects other than requests and extended deadlines.
    fn goes_on_for(&mut self, length: Duration) -> Vec<Effect> {
        let until = self.now + length;
        let mut done = Vec::new();
        while self.pending.is_some() || self.elector.next_wakeup().is_some_and(|at| at < until) {
            done.extend(if self.pending.is_some() { self.answer(Ok(Reply::Done)) } else { self.wakes() });
        }
        self.now = until.max(self.now);
        done.extend(self.input(Input::Tick));
        done.retain(|effect| !matches!(effect, Effect::Request { .. } | Effect::Extend { .. }));
        done
    }

    fn run_until_started(&mut self) -> ModuleVersion {
        loop {
            let effects = match self.pending {
                Some(_) if self.asked_to_write => self.answer(Ok(Reply::Version(Version("v9".to_string())))),
                Some(_) => self.answer(Ok(Reply::Done)),
                None => self.wakes(),
            };
            if let Some(Effect::Start { version, .. }) =
                effects.iter().find(|effect| matches!(effect, Effect::Start { .. }))
            {
                return version.clone();
            }
        }
    }

    /// Returns the effects, without reports and messages.
    fn input(&mut self, input: Input) -> Vec<Effect> {
        self.inputs += 1;
        assert!(self.inputs < 20_000, "the scene never ends: {:?}", self.told);
        let least = self.now.0 - self.set_forward;
        self.elector.handle(Now { time: self.now, least, wall: self.wall }, input);
        let mut effects: Vec<_> = std::iter::from_fn(|| self.elector.poll_effect()).collect();
        for effect in effects.extract_if(.., |effect| matches!(effect, Effect::Report(_) | Effect::Tell(_))) {
            match effect {
                Effect::Report(report) => self.told.push(report),
                Effect::Tell(word) => self.words.push(word),
                _ => unreachable!(),
            }
        }
        for effect in &effects {
            if let Effect::Request { id, op, .. } = effect {
                self.pending = Some(*id);
                self.asked_to_write = matches!(op, Op::Write { .. });
                self.asked_to_read = *op == Op::Read;
                self.asked_to_recall = *op == Op::Recall;
                self.asked_to_survey = *op == Op::Survey;
                if matches!(op, Op::Acquire { .. } | Op::Renew { .. }) {
                    self.sent = self.now;
                }
            }
        }
        effects
    }

    fn answer(&mut self, result: Result<Reply, StoreError>) -> Vec<Effect> {
        let id = self.pending.take().expect("a request is pending");
        self.now = self.now + Duration::from_millis(10);
        self.input(Input::Answer { id, result })
    }

    /// Checks that the only request marks the record as released. Answers this request, and returns the effects of the
    /// answer.
    fn marks(&mut self, effects: &[Effect]) -> Vec<Effect> {
        only_request(effects);
        assert!(written_record(effects).released, "{effects:?}");
        self.answer(Ok(Reply::Version(Version("v-marked".to_string()))))
    }

    fn wakes(&mut self) -> Vec<Effect> {
        self.now = self.elector.next_wakeup().expect("something is due").max(self.now);
        self.input(Input::Tick)
    }

    /// Passes a snapshot to the standby as the answer to its read. If the standby then sends a recall, answers that the
    /// store contains no term.
    fn reads(&mut self, snapshot: Snapshot) -> Vec<Effect> {
        self.reads_and_recalls(snapshot, Ok(Reply::Recalled(recalled(0))))
    }

    fn reads_and_recalls(&mut self, snapshot: Snapshot, recalled: Result<Reply, StoreError>) -> Vec<Effect> {
        while self.pending.is_none() {
            self.wakes();
        }
        if self.asked_to_survey {
            if let Ok(Reply::Recalled(recalled)) = recalled {
                return self.answer(Ok(Reply::Surveyed { read: snapshot, recalled, steering: None }));
            }
            self.answer(recalled.clone());
        }
        let effects = self.answer(Ok(Reply::Read(snapshot)));
        let is_recall = |effect: &Effect| matches!(effect, Effect::Request { op: Op::Recall, .. });
        if effects.iter().any(is_recall) { self.answer(recalled) } else { effects }
    }

    fn acquires(&mut self, snapshot: Snapshot) -> LeaseId {
        let effects = self.reads(snapshot);
        let Op::Acquire { id, .. } = only_request(&effects) else { panic!("{effects:?}") };
        id
    }

    /// Makes a standby read a free lease again and again, until the standby requests the lease. Returns the time of the
    /// request and the time of the first read that showed the lease as free.
    fn polls_until_requested(&mut self) -> (Time, Time) {
        self.polls_until_requested_with(object(LeaseState::Free, Some(record(6, "other"))))
    }

    fn polls_until_requested_with(&mut self, free: Snapshot) -> (Time, Time) {
        let mut seen_free = None;
        loop {
            let effects = self.reads(free.clone());
            let seen_free = *seen_free.get_or_insert(self.now);
            if !effects.is_empty() {
                assert!(matches!(only_request(&effects), Op::Acquire { .. }), "{effects:?}");
                return (self.now, seen_free);
            }
        }
    }

    /// Answers a pending recall with `recalled`, and any other pending request with success. If no request is pending,
    /// advances time to the next wake-up.
    fn goes_on(&mut self) -> Vec<Effect> {
        match self.pending {
            Some(_) if self.asked_to_write => self.answer(Ok(Reply::Version(Version("v2".to_string())))),
            Some(_) if self.asked_to_recall => {
                self.answer(self.recalled.clone().map(|term| Reply::Recalled(recalled(term))))
            }
            Some(_) => self.answer(Ok(Reply::Done)),
            None => self.wakes(),
        }
    }

    fn run_until_written(&mut self) -> Record {
        loop {
            let effects = self.goes_on();
            assert!(!effects.iter().any(|effect| matches!(effect, Effect::Start { .. })));
            if written_term(&effects).is_some() {
                return written_record(&effects);
            }
        }
    }
}

/// Marks the record as released if the lease is free.
fn object(lease: LeaseState, record: Option<Record>) -> Snapshot {
    let record = record.map(|record| Record { released: lease == LeaseState::Free, ..record });
    Snapshot::Object { lease, version: Version("v1".to_string()), record }
}

fn marked(lease: LeaseState) -> Snapshot {
    let record = Some(Record { released: true, ..record(6, "other") });
    Snapshot::Object { lease, version: Version("v1".to_string()), record }
}

/// Leaves the record's `released` mark as it is, unlike [`object`].
fn freed(record: Record) -> Snapshot {
    Snapshot::Object { lease: LeaseState::Free, version: Version("v1".to_string()), record: Some(record) }
}

fn held(version: &str, record: Record) -> Snapshot {
    Snapshot::Object { lease: LeaseState::Held, version: Version(version.to_string()), record: Some(record) }
}

fn record(term: Term, node: &str) -> Record {
    Record {
        term,
        node: Some(node.to_string()),
        incarnation: format!("{node}/1"),
        since: Duration::ZERO,
        lease: D,
        module: Some("sha256:0".to_string()),
        outcome: None,
        failures: 0,
        released: false,
        paused_until: None,
        progress: None,
    }
}

fn over(term: Term) -> Record {
    Record { outcome: Some(Outcome::Done), ..record(term, "other") }
}

fn module(number: u64) -> ModuleVersion {
    ModuleVersion { digest: format!("sha256:{number}"), serial: number }
}

fn recalled(term: Term) -> Recalled {
    Recalled { term, progress: None }
}

fn plan(number: u64, fallback: Option<u64>) -> Plan {
    Plan { module: Some(module(number)), fallback: fallback.map(module) }
}

fn unknown() -> StoreError {
    StoreError::Unknown("timeout".to_string())
}

fn only_request(effects: &[Effect]) -> Op {
    let mut requests = effects.iter().filter_map(|effect| match effect {
        Effect::Request { op, .. } => Some(op.clone()),
        _ => None,
    });
    match (requests.next(), requests.next()) {
        (Some(op), None) => op,
        other => panic!("not one request: {other:?}"),
    }
}

fn written_record(effects: &[Effect]) -> Record {
    effects
        .iter()
        .find_map(|effect| match effect {
            Effect::Request { op: Op::Write { record, .. }, .. } => Some(record.clone()),
            _ => None,
        })
        .unwrap_or_else(|| panic!("nothing is written: {effects:?}"))
}

fn written_term(effects: &[Effect]) -> Option<Term> {
    effects.iter().find_map(|effect| match effect {
        // A record without a node does not begin a term: the writer of the record waits for another instance to end.
        Effect::Request { op: Op::Write { record, .. }, .. } if record.node.is_some() => Some(record.term),
        _ => None,
    })
}
