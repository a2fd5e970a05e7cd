//! `baton doctor` on stores that work, hang, deny access or are unreachable. Unit tests cover stores that misbehave.

use std::process::{Command, Stdio};

use azure_storage::shared_access_signature::service_sas::BlobSasPermissions;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::fleet::{ELECTION, Fleet};
use crate::node::{Finished, baton, finish, until, wait_for_end, with_mounts};
use crate::proxy::Mode;
use crate::skipped::skipped;
use crate::store::Store;
use crate::{modules, scenarios};

#[track_caller]
fn finding<'a>(diagnosis: &'a Value, check: &str) -> &'a Value {
    let findings = diagnosis["findings"].as_array().expect("an array");
    findings.iter().find(|finding| finding["check"] == check).unwrap_or_else(|| panic!("no {check}: {diagnosis:#}"))
}

/// Ignores the finding that the store is slow, because the machine may be busy.
#[track_caller]
fn diagnosis(finished: &Finished, code: i32) -> Value {
    let diagnosis: Value =
        serde_json::from_str(&finished.stdout).unwrap_or_else(|error| panic!("{error}: {finished:?}"));
    let findings = diagnosis["findings"].as_array().expect("an array");
    let problems: Vec<_> = findings.iter().filter(|finding| finding["level"] == "problem").collect();
    assert_eq!(finished.code, Some(i32::from(!problems.is_empty())), "{finished:?}");
    assert_eq!(diagnosis["passed"], problems.is_empty(), "{diagnosis:#}");
    let is_slow = problems.iter().all(|problem| problem["check"] == "latency");
    assert!(finished.code == Some(code) || is_slow, "{diagnosis:#}");
    diagnosis
}

fn doctor_tests_store_without_disturbing_election(fleet: Fleet) {
    let (mut alpha, term) = fleet.leader("alpha");
    let lease = format!("{}s", fleet.store.lease().as_secs().max(15));
    let diagnosis = diagnosis(&fleet.command(&["doctor", "--output=json", "--lease", &lease]), 0);
    assert_eq!(diagnosis["complete"], true, "{diagnosis:#}");
    assert_eq!(diagnosis["store"], fleet.store.url());
    assert!(diagnosis["latency"]["p99_ms"].as_f64().is_some(), "{diagnosis:#}");
    // If the machine paused at about the time when the lease expired, the doctor reports no value here.
    let free_after = &diagnosis["free_after_ms"];
    assert!(free_after.is_null() || free_after.as_f64().is_some(), "{diagnosis:#}");
    for check in ["lease-taken-over", "lease-expired", "write-version", "removed"] {
        assert_eq!(finding(&diagnosis, check)["level"], "ok", "{diagnosis:#}");
    }
    let expired = finding(&diagnosis, "lease-expired")["found"].as_str().expect("a text");
    assert_eq!(expired.contains("emulator"), !fleet.store.is_sqlite(), "{expired}");
    let all = fleet.command(&["status", "--output=json"]).json();
    assert_eq!(all.as_array().map(Vec::len), Some(1), "{all:#}");
    assert_eq!((&all[0]["election"], &all[0]["term"]), (&ELECTION.into(), &term.into()), "{all:#}");
    assert_eq!(alpha.terminate().code(), Some(0));
    fleet.check_promises();
}

scenarios! {
    on_both_stores: [
        doctor_tests_store_without_disturbing_election,
    ],
}

#[test]
fn doctor_prints_findings_and_checks_module() {
    let fleet = Fleet::new(Store::sqlite());
    let file = fleet.home.path().join("none.wasm");
    std::fs::write(&file, b"\0asm no module").expect("written");
    let finished = fleet.command(&["doctor", "--quick", file.to_str().expect("a path")]);
    assert_eq!((finished.code, finished.stderr.as_str()), (Some(1), ""), "{finished:?}");
    for word in ["ok", "lease-exclusive", "problem  module", "it means: ", "to do: ", "isolation"] {
        assert!(finished.stdout.contains(word), "`{word}` is missing: {}", finished.stdout);
    }
    assert!(!finished.stdout.contains("lease-length"), "{}", finished.stdout);

    std::fs::write(&file, modules::command(1)).expect("written");
    let checked = fleet.command(&["doctor", "--quick", "--output=json", file.to_str().expect("a path")]);
    assert_eq!(finding(&checked.json(), "module")["level"], "ok", "{checked:?}");
}

#[test]
fn interrupted_doctor_leaves_nothing_behind() {
    for store in [Store::sqlite(), Store::azurite()] {
        let fleet = Fleet::new(store);
        let mut command = fleet.baton(&["doctor", "--output=json"]);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut doctor = command.spawn().expect("the command starts");
        let listed = || {
            let all = fleet.command(&["status", "--output=json"]);
            let all: Value = serde_json::from_str(&all.stdout).unwrap_or_default();
            all.as_array().map(Vec::len).filter(|count| *count == 1).ok_or(all)
        };
        until("the election of the doctor", listed);
        kill_process(Pid::from_child(&doctor), Signal::INT).expect("the signal is sent");
        // The output fits into the pipe, so the doctor can exit before the test reads it.
        wait_for_end(&mut doctor).expect("the doctor exits");
        let output = doctor.wait_with_output().expect("the output");
        let diagnosis: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        assert_eq!((output.status.code(), &diagnosis["complete"]), (Some(1), &false.into()), "{diagnosis:#}");
        assert_eq!(finding(&diagnosis, "removed")["level"], "ok", "{diagnosis:#}");
        assert_eq!(fleet.command(&["status", "--output=json"]).json(), Value::Array(vec![]));
    }
}

#[test]
fn doctor_reports_unreachable_store_and_skips_lease_checks() {
    let fleet = Fleet::new(Store::azurite());
    let Store::Azurite { proxy, .. } = &fleet.store else { unreachable!("the store was chosen above") };
    for mode in [Mode::Hang, Mode::Cut] {
        proxy.set(mode);
        let diagnosis = diagnosis(&fleet.command(&["doctor", "--output=json"]), 1);
        let reached = finding(&diagnosis, "reachable");
        assert_eq!(reached["level"], "problem", "{diagnosis:#}");
        assert!(reached["remedy"].as_str().is_some_and(|remedy| remedy.contains("network")), "{diagnosis:#}");
        let of_store = diagnosis["findings"].as_array().expect("an array").iter();
        let others = of_store.filter(|finding| finding["check"].as_str().is_some_and(|name| name.contains("lease")));
        assert_eq!(others.count(), 0, "{diagnosis:#}");
    }
    proxy.set(Mode::Through);
    let elsewhere = fleet.store.url().replace("/fleet", "/nowhere");
    let mut command = baton(fleet.home.path());
    command.args(["doctor", "--quick", "--output=json", "--store", &elsewhere]);
    let missing = diagnosis(&finish(command), 1);
    let reached = finding(&missing, "reachable");
    assert!(reached["found"].as_str().is_some_and(|found| found.contains("--create")), "{missing:#}");
    let mut command = baton(fleet.home.path());
    command.args(["doctor", "--quick", "--output=json", "--create", "--store", &elsewhere]);
    diagnosis(&finish(command), 0);
}

/// An operator who has lost a file of the store may run the doctor first, and restore the file afterwards. So the
/// doctor must not recreate the file.
#[test]
fn missing_store_file_is_reported_and_not_recreated() {
    let fleet = Fleet::new(Store::sqlite());
    let Store::Sqlite(folder) = &fleet.store else { unreachable!("the store was chosen above") };
    fleet.leader("alpha");
    let file = folder.path().join("control.db");
    let away = fleet.home.path().join("control.db");
    std::fs::rename(&file, &away).expect("the file exists");
    let doctor = fleet.command(&["doctor", "--quick", "--output=json"]);
    assert_eq!(doctor.code, Some(1), "{doctor:?}");
    assert!(doctor.stdout.contains("control.db: is missing, unlike the store's other files"), "{doctor:?}");
    let status = fleet.command(&["status"]);
    assert_eq!(status.code, Some(1), "{status:?}");
    assert!(status.stdout.contains("alpha") && status.stderr.contains("cannot read whether"), "{status:?}");
    assert!(!file.exists(), "the file was recreated");
    std::fs::rename(&away, &file).expect("the file is restored");
    diagnosis(&fleet.command(&["doctor", "--quick", "--output=json"]), 0);
    // Only a starting host recreates the file, and it reports that it has done so.
    std::fs::remove_file(&file).expect("the file exists");
    let beta = fleet.node("beta");
    let lost = "control.db was missing and was created again, empty";
    beta.event("the lost file", |event| event.name == "error" && event.text("error").contains(lost));
    fleet.check_promises();
}

#[test]
fn machine_problems_are_reported_with_remedies() {
    let fleet = Fleet::new(Store::sqlite());
    let doctor = fleet.baton(&["doctor", "--quick", "--output=json"]);
    let setup = "for folder in \"$HOME/.cache\" \"$HOME/.local/state\"; do \
                 mkdir -p \"$folder\"; mount -t tmpfs -o ro tmpfs \"$folder\"; done; ulimit -n 64";
    let without = diagnosis(&finish(with_mounts(&doctor, setup)), 1);
    for (check, level, remedy) in [
        ("cache", "warning", "no promise depends on the cache"),
        ("state-folder", "warning", "XDG_STATE_HOME"),
        ("descriptors", "problem", "LimitNOFILE="),
    ] {
        let lacking = finding(&without, check);
        assert_eq!(lacking["level"], level, "{without:#}");
        assert!(lacking["remedy"].as_str().is_some_and(|text| text.contains(remedy)), "{without:#}");
    }
    // Runs the doctor in a time namespace whose boot clock differs from the machine's.
    if !rustix::process::getuid().is_root() {
        return skipped("only root may create the required time namespace");
    }
    let mut unshare = Command::new("unshare");
    unshare.args(["--time", "--fork", "--kill-child", "--boottime", "100"]).arg(doctor.get_program());
    unshare.args(doctor.get_args()).env_clear();
    unshare.envs(doctor.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let shifted = diagnosis(&finish(unshare), 0);
    let clocks = finding(&shifted, "time-namespace");
    assert_eq!(clocks["level"], "warning", "{shifted:#}");
    assert!(clocks["found"].as_str().is_some_and(|found| found.contains("boottime 100")), "{shifted:#}");
}

#[test]
fn permission_that_signature_lacks_is_reported() {
    let fleet = Fleet::new(Store::azurite());
    let all =
        || BlobSasPermissions { read: true, write: true, create: true, list: true, delete: true, ..Default::default() };
    let doctor = |rights, code| {
        let signature = fleet.store.signature(rights);
        let mut command = baton(fleet.home.path());
        command.args(["doctor", "--quick", "--output=json", "--store", "azure://devstoreaccount1/fleet"]);
        let string = format!("BlobEndpoint={};SharedAccessSignature={signature}", fleet.store.endpoint());
        let finished = finish({
            command.env("AZURE_STORAGE_CONNECTION_STRING", string);
            command
        });
        assert!(!format!("{finished:?}").contains(&signature), "a signature is never shown");
        diagnosis(&finished, code)
    };
    for (rights, code, check, level, right) in [
        (BlobSasPermissions { read: false, ..all() }, 1, "reachable", "problem", "(r)"),
        (BlobSasPermissions { list: false, ..all() }, 0, "list", "warning", "(l)"),
        (BlobSasPermissions { create: false, write: false, ..all() }, 1, "create", "problem", "(c)"),
        (BlobSasPermissions { delete: false, ..all() }, 0, "removal", "warning", "(d)"),
    ] {
        let diagnosis = doctor(rights, code);
        let lacking = finding(&diagnosis, check);
        assert_eq!(lacking["level"], level, "{diagnosis:#}");
        assert!(lacking["remedy"].as_str().is_some_and(|remedy| remedy.contains(right)), "{diagnosis:#}");
    }
    doctor(all(), 0);
}
