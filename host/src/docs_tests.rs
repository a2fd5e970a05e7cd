//! What the docs say of times, held against the code.

#![allow(clippy::unwrap_used, reason = "a test may panic")]
use std::time::Duration;

use baton_election::Timing;

use baton_modules::Pace;
use baton_store::{azure, sqlite};

const TIMING: &str = include_str!("../../docs/limits-and-timing.md");

const DOCS: [&str; 4] = [
    TIMING,
    include_str!("../../docs/modules.md"),
    include_str!("../../docs/azure.md"),
    include_str!("../../docs/settings.md"),
];

fn timing(lease: Duration) -> Timing {
    Timing::new(lease, (lease, lease), Duration::ZERO, 256 << 20).unwrap()
}

/// Their lines are joined before.
fn says(what: &str) {
    let text = DOCS.concat().split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(text.contains(what), "the docs do not say: {what}");
}

#[test]
fn the_moments_of_a_lease_are_as_the_table_has_them() {
    let table = TIMING.split("\n## When the store is away\n").nth(1).unwrap();
    for (moment, at) in [
        ("D/6", Timing::renew_after as fn(&Timing) -> Duration),
        ("0.7 D", Timing::at_risk_after),
        ("0.8 D", Timing::deadline_after),
        ("0.93 D", Timing::abort_after),
        ("D", Timing::lease),
    ] {
        let [short, long] = [15, 60].map(|seconds| at(&timing(Duration::from_secs(seconds))).as_secs_f64());
        let row = format!("| {moment} | {short} s | {long} s |");
        assert!(table.contains(&row), "the table has no {row}");
    }
}

/// By then there was time to drop an instance that uses all of the default `--max-memory`.
#[test]
fn an_instance_is_gone_by_0_85_d() {
    says("| 0.85 D | 12.75 s | 51 s | it is gone, where D is 15 s or more |");
    let lease = Duration::from_secs(15);
    let drop = Duration::from_millis(150) + Duration::from_millis(200) / 4;
    assert!(timing(lease).deadline_after() + drop <= lease * 85 / 100);
}

#[test]
fn an_outage_and_a_push_take_what_is_said() {
    says(&format!(
        "a leader rides out {} s without the store",
        timing(Duration::from_secs(15)).tolerated_outage().as_secs()
    ));
    let (least, most) = Pace::default().poll;
    says(&format!("They look every {} to {} s", least.as_secs(), most.as_secs()));
    says("nodes notice one within 5 s");
    assert!(most < Duration::from_secs(5));
}

#[test]
fn the_lengths_of_leases_are_those_of_the_stores() {
    let [(least, most), (on_sqlite, _)] = [azure::LEASE_RANGE, sqlite::LEASE_RANGE];
    says(&format!("Azure allows leases of {} to {} s", least.as_secs(), most.as_secs()));
    says(&format!(
        "D: {} to {} s on Azure, {} to {} s on SQLite",
        least.as_secs(),
        most.as_secs(),
        on_sqlite.as_secs(),
        most.as_secs()
    ));
}
