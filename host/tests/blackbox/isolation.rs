//! Hosts on kernels without one of the features that confine runners. Such a host reports the missing feature, and
//! refuses settings that need the feature, unless the operator accepts weaker isolation. With other settings, the host
//! runs.

use std::fs;

use rustix::process::Signal;
use serde_json::Value;

use crate::fleet::Fleet;
use crate::guests::Guest;
use crate::kernel::{Lacks, without};
use crate::node::{Event, finish};
use crate::store::Store;

fn reports_lack_of(fleet: &Fleet, node: &str, what: &str) {
    fleet.journal.event("the report of weaker isolation", |event| {
        event.from == node && event.name == "weaker_isolation" && event.text("missing").contains(what)
    });
}

#[test]
fn folders_are_refused_without_landlock_unless_accepted() {
    let fleet = Fleet::new(Store::sqlite()).with(Guest::UsesFiles);
    let folder = fleet.home.path().join("granted");
    fs::create_dir(&folder).expect("a folder");
    fs::write(folder.join("a"), "there").expect("a file");
    let granted = format!("{}::/data", folder.display());
    let flags = [("--dir", granted.as_str()), ("--env", "SCRIPT=read /data/a")];

    let mut refused = fleet.launch_with("alpha", &flags).without(Lacks::Landlock).start();
    assert_eq!(refused.wait().code(), Some(2));
    let is_refusal = |event: &Event| event.raw.contains("--allow-weaker-isolation") && event.raw.contains("/granted");
    fleet.journal.event("the refusal, which names the flag", is_refusal);

    let accepting = fleet.launch_with("beta", &flags).arg("--allow-weaker-isolation");
    let mut beta = accepting.without(Lacks::Landlock).start();
    reports_lack_of(&fleet, "beta", "Landlock");
    fleet.beat("the file to be read", |event| event.text("line") == "read /data/a: there");
    assert_eq!(beta.terminate().code(), Some(0));

    // A host that grants no folder starts without `--allow-weaker-isolation`.
    let mut gamma = fleet.launch_with("gamma", &[("--env", "SCRIPT=read /data/a")]).without(Lacks::Landlock).start();
    fleet.beat("no file to be read", |event| {
        event.from == "gamma" && event.text("line").starts_with("read /data/a: error")
    });
    assert_eq!(gamma.terminate().code(), Some(0));
    fleet.check_promises();
}

#[test]
fn standby_waits_for_expiry_when_kernel_lacks_seccomp() {
    let fleet = Fleet::new(Store::sqlite());
    let alpha = fleet.launch("alpha").without(Lacks::Seccomp).start();
    reports_lack_of(&fleet, "alpha", "seccomp");
    let term = fleet.beat_above(0).term;
    let beta = fleet.standby("beta", &alpha);
    alpha.signal(Signal::KILL);
    // Without seccomp, a runner could release its lock while it still runs. A released lock then does not prove that
    // the runner is dead, so beta must wait until the lease expires, and must not reclaim it.
    let elected = beta.after(term, "elected");
    let settled = |event: &Event| event.from == "beta" && event.name == "reclaimed";
    assert!(!fleet.journal.events().iter().any(settled), "{elected:?}");
    fleet.beat_above(term);
    fleet.check_promises();
}

#[test]
fn doctor_names_what_the_kernel_lacks() {
    let fleet = Fleet::new(Store::sqlite());
    for (lacks, level, found, remedy) in [
        (Lacks::Landlock, "warning", "does not provide Landlock", "--allow-weaker-isolation"),
        (Lacks::Seccomp, "warning", "does not provide seccomp filters", "profile that allows both"),
        (Lacks::Pidfds, "problem", "pidfd_open", "Linux 5.4"),
    ] {
        let mut doctor = fleet.baton(&["doctor", "--quick", "--output=json"]);
        without(&mut doctor, lacks);
        let finished = finish(doctor);
        let findings = finished.json()["findings"].as_array().expect("an array").clone();
        let problems = || findings.iter().filter(|finding| finding["level"] == "problem");
        assert_eq!(finished.code, Some(i32::from(problems().count() > 0)), "{finished:?}");
        // On a busy machine, `doctor` may also report the store's latency as a problem.
        assert_eq!(problems().any(|finding| finding["check"] != "latency"), level == "problem", "{finished:?}");
        let isolation = |finding: &&Value| finding["check"] == "isolation";
        let lacking = findings.iter().find(isolation).expect("a finding about isolation");
        assert_eq!(lacking["level"], level, "{lacking:#}");
        let contains = |field: &str, word: &str| lacking[field].as_str().is_some_and(|text| text.contains(word));
        assert!(contains("found", found) && contains("remedy", remedy), "{lacking:#}");
    }
}
