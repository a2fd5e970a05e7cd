//! A scheduled run on real nodes: the leader is killed during the run, and the next leader repeats the run.

use std::time::UNIX_EPOCH;

use crate::fleet::{ELECTION, Fleet};
use crate::guests::Guest;
use crate::scenarios;

scenarios! {
    on_both_stores: [
        killed_run_is_repeated_by_next_leader_and_completed_once,
    ],
}

fn killed_run_is_repeated_by_next_leader_and_completed_once(fleet: Fleet) {
    // The schedule is due only on February 29. The test triggers the run.
    const SCHEDULE: &[(&str, &str)] = &[("--schedule", "0 0 29 2 *")];
    let fleet = fleet.with(Guest::WaitsForEver);
    let alpha = fleet.launch_with("alpha", SCHEDULE).start();
    alpha.after(0, "next_run");
    let triggered = fleet.command(&["trigger", ELECTION, "--reason", "the data was late"]);
    assert!(triggered.code == Some(0) && triggered.stdout.starts_with("alpha has begun a run"), "{triggered:?}");
    let term = alpha.after(0, "started").term;
    let refused = fleet.command(&["trigger", ELECTION]);
    assert!(refused.code == Some(1) && refused.stderr.contains("is carrying out the run"), "{refused:?}");
    let schedule = fleet.status()["schedule"].clone();
    assert_eq!((&schedule["begun"], &schedule["last_completed"]), (&true.into(), &().into()), "{schedule}");

    let fleet = fleet.with(Guest::TellsConfig);
    let beta = fleet.standby_with("beta", &alpha, SCHEDULE);
    drop(alpha);
    let due = schedule["next"].as_str().unwrap();
    let seconds = humantime::parse_rfc3339(due).unwrap().duration_since(UNIX_EPOCH).unwrap().as_secs();
    let by_variable = format!("variable BATON_SCHEDULED_FOR={due}");
    let by_interface = format!("scheduled for {seconds}");
    let knows_due_time = |line: &str| line.contains(&by_variable) && line.contains(&by_interface);
    fleet.beat("the repeated run", |event| event.term > term && knows_due_time(event.text("line")));
    let completed = fleet.status_until("the completed run", |status| status["schedule"]["last_completed"] == due);
    assert_eq!(completed["schedule"]["begun"], false, "{completed}");
    let next = beta.event("the next run", |event| event.name == "next_run" && event.text("due") > due);
    assert!(next.term > term, "{next:?}");

    fleet.command(&["trigger", ELECTION]);
    let last_completed = format!("last completed {seconds}");
    let again = fleet.beat("another run", |event| event.text("line").contains(&last_completed));
    beta.event("the end of that run", |event| event.term == again.term && event.name == "next_run");

    // 2020 had a February 29, so a run is missed, and begins at once. The commands accept a time of any zone.
    let from = fleet.command(&["schedule", ELECTION, "--from", "2020-01-01T00:00:00+01:00"]);
    assert_eq!(from.code, Some(0), "{from:?}");
    fleet.beat("a missed run", |event| event.term > again.term && event.text("line").contains("-02-29T00:00:00Z"));
    let refused = fleet.command(&["schedule", ELECTION, "--from", "yesterday"]);
    assert!(refused.code == Some(2) && refused.stderr.contains("is not a time"), "{refused:?}");
    fleet.check_promises();
}
