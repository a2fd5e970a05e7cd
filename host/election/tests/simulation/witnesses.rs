//! Tests of the simulation itself. A faulty witness reports a death that has not happened. No elector can compensate
//! for such a report, so the simulation must notice the violation. A replay must repeat all events of the original run.

use std::path::Path;
use std::time::Duration;

use crate::invariants::Violation;
use crate::plan::{Aimed, Ask, Fault, Moment, Outage, Plan, Witness};
use crate::replay;
use crate::world::World;

/// Number of runs within which the simulation must notice each kind of faulty witness. The last kind to be noticed
/// takes 103 runs.
const RUNS: u64 = 500;

#[test]
fn witness_that_errs_is_noticed() {
    for witness in [Witness::ForgetsTheRunner, Witness::LooksElsewhere, Witness::NotesForgetTheRunner] {
        breaks_a_promise(witness, |seed| Plan { witness, ..Plan::from_seed(seed) });
    }
    let witness = Witness::NotesForgetTheRecord;
    breaks_a_promise(witness, |seed| dies_while_broken_lease_may_run(seed, witness));
    for seed in 0..50 {
        let right = dies_while_broken_lease_may_run(seed, Witness::Notes);
        assert_eq!(World::new(right).run(), Ok(()), "seed {seed}");
    }
}

fn breaks_a_promise(witness: Witness, plan: impl Fn(u64) -> Plan) {
    let mut violations = (0..RUNS).filter_map(|seed| World::new(plan(seed)).run().err());
    let is_two_leaders = |violation: &Violation| ["one_at_a_time", "gone_in_time"].contains(&violation.rule);
    assert!(violations.any(|violation| is_two_leaders(&violation)), "{witness:?} is not noticed");
}

#[test]
fn kept_run_repeats_its_events() {
    let run = |plan| {
        let mut world = World::new(plan);
        world.trace = Some(Vec::new());
        world.run().unwrap();
        world
    };
    let violation = Violation { rule: "a_rule", what: "it was broken".to_string() };
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("replays");
    let _absent = std::fs::remove_dir_all(&folder);
    for seed in 0..3 {
        let world = run(Plan::from_seed(seed));
        let path = folder.join(format!("a_rule-{seed}.txt"));
        let message = replay::keep(&folder, seed, &world, &violation);
        for part in ["a_rule", "it was broken", &format!("BATON_SIM_SEED={seed} "), path.to_str().unwrap()] {
            assert!(message.contains(part), "`{part}` is missing: {message}");
        }
        let plan = replay::read(&std::fs::read_to_string(path).unwrap()).unwrap();
        assert_eq!(run(plan).trace, world.trace, "seed {seed}");
    }
}

/// One host is cut off from the store when its lease is broken. A second host acquires the lease. The second host must
/// wait until the instance of the first host has ended, but crashes right away. The record still names the first host,
/// although the second host held the lease.
fn dies_while_broken_lease_may_run(seed: u64, witness: Witness) -> Plan {
    let cut = Duration::from_secs(20);
    let mut plan = Plan { witness, ..Plan::from_seed(seed) };
    while plan.hosts.len() < 3 {
        plan.hosts.push(plan.hosts[0].clone());
    }
    let cut_off = usize::try_from(seed % 3).unwrap();
    let dies = (cut_off + 1) % 3;
    let outage = Fault::Outage { host: Some(cut_off), length: 5 * cut, kind: Outage::Hang, of: None };
    plan.faults = vec![(cut, outage), (cut, Fault::Break { period: Duration::ZERO })];
    let crash = Fault::Crash { host: dies, down: 3 * cut };
    let moment = Moment::Asks(Ask::Acquire);
    // By this time, the acquire has reached the store, but the next write has not.
    let after = Duration::from_millis(8);
    plan.aimed = vec![Aimed { from: cut, host: dies, moment, after, fault: crash }];
    plan.heal_at = plan.heal_at.max(6 * cut);
    plan
}
