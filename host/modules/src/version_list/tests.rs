//! Tests of the rules for pushes, rollbacks and judgements.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on fails")]

use baton_election::ModuleVersion;

use super::*;

const AT: &str = "2026-11-21T12:00:00.000000Z";

fn digest(name: &str) -> Digest {
    Digest::of(name.as_bytes())
}

fn publication(name: &str) -> Publication {
    let (by, at) = ("ann@desk".to_owned(), AT.to_owned());
    Publication { digest: digest(name), size: name.len() as u64, by, at, signature: None }
}

fn signed(name: &str, signature: &str) -> Publication {
    Publication { signature: Some(signature.to_owned()), ..publication(name) }
}

fn pushed(names: &[&str]) -> VersionList {
    let mut control = VersionList::default();
    for name in names {
        assert_eq!(control.push(publication(name)), Ok(Pushed::Current));
    }
    control
}

fn judgement(name: &str, serial: u64, verdict: Verdict) -> Judgement {
    Judgement { version: ModuleVersion { digest: digest(name).to_string(), serial }, term: 7, verdict }
}

fn bad() -> Verdict {
    Verdict::Rejected { reason: "it trapped".to_owned() }
}

impl VersionList {
    fn rejects(&mut self, name: &str, serial: u64) -> bool {
        self.judge(&judgement(name, serial, bad()), "alpha", AT)
    }

    fn proves(&mut self, name: &str, serial: u64) -> bool {
        self.judge(&judgement(name, serial, Verdict::Good), "alpha", AT)
    }

    fn rolls_back_to(&mut self, name: &str) -> Result<RolledBack, RollbackError> {
        self.rollback(Some(&digest(name).hex()[..8].parse().unwrap()))
    }

    fn runs(&self) -> Option<(Digest, u64)> {
        self.current().map(|entry| (entry.digest, entry.serial))
    }

    fn falls_back_on(&self) -> Option<Digest> {
        self.fallback().map(|entry| entry.digest)
    }
}

#[test]
fn new_list_can_be_read_whatever_the_clock_says() {
    for now in [Duration::ZERO, Duration::from_secs(1_800_000_000), Duration::MAX] {
        let mut control = VersionList::begun(now);
        let before = control.serial;
        assert!(u128::from(before) == now.as_micros() || now == Duration::MAX);
        control.push(publication("a")).unwrap();
        assert_eq!(control.current().unwrap().serial, before + 1);
        assert_eq!(VersionList::decode(&control.encode()), Ok(control));
    }
}

#[test]
fn list_is_unchanged_when_no_serial_is_left() {
    let mut control = pushed(&["one", "two"]);
    control.serial = HIGHEST_SERIAL;
    let before = control.clone();
    let no_serial_left = |error: &VersionListError| error.to_string().contains("is too high");
    assert!(control.push(publication("three")).is_err_and(|error| no_serial_left(&error)));
    let RollbackError::Damaged(error) = control.rollback(None).unwrap_err() else { panic!("another error") };
    assert!(no_serial_left(&error), "{error}");
    assert_eq!(control, before);
}

#[test]
fn list_is_not_read_when_too_large() {
    let padded = |length: usize| {
        let json = VersionList::default().encode();
        [&json[..], &b" ".repeat(length - json.len())].concat()
    };
    assert_eq!(VersionList::decode(&padded(LARGEST_READ)), Ok(VersionList::default()));
    let refused = VersionList::decode(&padded(LARGEST_READ + 1));
    assert!(matches!(&refused, Err(VersionListError::Damaged(why)) if why.contains("4194305 bytes")), "{refused:?}");
}

#[test]
fn last_push_is_current_and_the_previous_one_its_fallback() {
    let mut control = pushed(&["a"]);
    assert_eq!((control.runs(), control.falls_back_on()), (Some((digest("a"), 1)), None));
    control.push(publication("b")).unwrap();
    assert_eq!((control.runs(), control.falls_back_on()), (Some((digest("b"), 2)), Some(digest("a"))));
    assert!(control.proves("b", 2));
    assert_eq!((control.runs(), control.falls_back_on()), (Some((digest("b"), 2)), None));
}

#[test]
fn module_pushed_again_is_a_new_version_unless_current() {
    let mut control = pushed(&["a", "b"]);
    let before = control.clone();
    assert_eq!(control.push(publication("b")), Ok(Pushed::Already));
    assert_eq!(control, before);

    assert!(control.proves("a", 1));
    assert_eq!(control.push(publication("a")), Ok(Pushed::Current));
    assert_eq!(control.runs(), Some((digest("a"), 3)));
    assert_eq!(control.current().unwrap().verdict, Some(RecordedVerdict::Good), "what is good stays so");
    assert_eq!(control.pushed.len(), 2, "each digest is there once");

    control.push(publication("b")).unwrap();
    assert!(control.rejects("b", 4));
    assert_eq!(control.runs(), Some((digest("a"), 3)));
    assert_eq!(control.push(publication("b")), Ok(Pushed::Current));
    assert_eq!(control.current().unwrap().verdict, None, "it is on probation again");
    assert_eq!(control.runs(), Some((digest("b"), 5)));
}

#[test]
fn a_signature_is_replaced_and_never_lost() {
    let mut control = pushed(&["a"]);
    assert_eq!(control.push(signed("a", "one")), Ok(Pushed::SignedAnew));
    assert_eq!(control.push(signed("a", "one")), Ok(Pushed::Already));
    assert_eq!(control.push(publication("a")), Ok(Pushed::Already));
    assert_eq!(control.runs(), Some((digest("a"), 1)), "the same version as before");
    control.push(publication("b")).unwrap();
    control.push(publication("a")).unwrap();
    assert_eq!(control.current().unwrap().signature.as_deref(), Some("one"));
    control.push(publication("b")).unwrap();
    control.push(signed("a", "two")).unwrap();
    assert_eq!(control.current().unwrap().signature.as_deref(), Some("two"));
}

#[test]
fn rejection_falls_back_and_applies_to_one_publication() {
    let mut control = pushed(&["a", "b", "c"]);
    assert!(!control.rejects("b", 3) && !control.rejects("c", 2) && !control.rejects("x", 3));
    assert!(control.rejects("c", 3));
    assert_eq!((control.runs(), control.falls_back_on()), (Some((digest("b"), 2)), Some(digest("a"))));
    let (node, at) = ("alpha".to_owned(), AT.to_owned());
    let noted = RecordedVerdict::Rejected { reason: "it trapped".to_owned(), node, at };
    assert_eq!(control.pushed[2].verdict, Some(noted));
    assert!(!control.rejects("c", 3) && !control.proves("c", 3), "it is the last word");
    control.push(publication("c")).unwrap();
    assert!(!control.rejects("c", 3), "that was another try");
    assert_eq!(control.runs(), Some((digest("c"), 4)));
    assert!(control.proves("c", 4) && !control.proves("c", 4));
    assert!(control.rejects("c", 4), "two nodes tried it, and one of them found it bad");
}

#[test]
fn last_version_that_is_left_is_not_rejected() {
    let mut control = pushed(&["a", "b"]);
    assert!(control.rejects("b", 2));
    assert!(!control.rejects("a", 1));
    assert_eq!(control.runs(), Some((digest("a"), 1)));
}

#[test]
fn rollback_makes_an_earlier_version_current() {
    let mut control = VersionList::default();
    assert_eq!(control.rollback(None), Err(RollbackError::Empty));
    control = pushed(&["a"]);
    assert_eq!(control.rollback(None), Err(RollbackError::NoOther));
    control = pushed(&["a", "b", "c"]);
    assert!(control.proves("a", 1));
    assert_eq!(control.rollback(None), Ok(RolledBack::To(digest("b"))));
    assert_eq!(control.runs(), Some((digest("b"), 4)));
    assert_eq!(control.rolls_back_to("b"), Ok(RolledBack::Already(digest("b"))));
    assert_eq!(control.rolls_back_to("a"), Ok(RolledBack::To(digest("a"))));
    assert_eq!((control.runs(), control.falls_back_on()), (Some((digest("a"), 5)), None), "it is known to be good");
    let unknown = digest("x").hex()[..8].parse().unwrap();
    assert_eq!(control.rolls_back_to("x"), Err(RollbackError::Unknown(unknown)));

    // A rollback can make a rejected version current only if the operator names that version.
    control.push(publication("d")).unwrap();
    assert!(control.rejects("d", 6));
    assert_eq!(control.rolls_back_to("a"), Ok(RolledBack::Already(digest("a"))));
    assert_eq!(control.rollback(None), Ok(RolledBack::To(digest("b"))));
    assert_eq!(control.rolls_back_to("d"), Ok(RolledBack::To(digest("d"))));
    assert_eq!(control.current().unwrap().verdict, None);
}

#[test]
fn rollback_fails_when_the_prefix_is_ambiguous() {
    let mut control = pushed(&["a", "b"]);
    let near = format!("{}{}", &digest("a").to_string()[..20], "0".repeat(51));
    control.pushed[1].digest = near.parse().unwrap();
    let prefix = near[..20].parse().unwrap();
    assert_eq!(control.rollback(Some(&prefix)), Err(RollbackError::Ambiguous(prefix)));
    assert_eq!(control.rolls_back_to("b"), Err(RollbackError::Unknown(digest("b").hex()[..8].parse().unwrap())));
    assert_eq!(control.rollback(Some(&near.parse().unwrap())), Ok(RolledBack::Already(near.parse().unwrap())));
}

#[test]
fn rejections_of_unpushed_modules_are_bounded_and_forgiven() {
    let mut control = VersionList::default();
    let rejects =
        |control: &mut VersionList, name: &str| control.judge_unpushed(&judgement(name, 3, bad()), 10, "alpha", AT);
    for n in 0..25 {
        assert!(rejects(&mut control, &n.to_string()));
    }
    assert_eq!((control.unpushed.len(), control.unpushed[0].digest), (20, digest("5")));
    assert!(!rejects(&mut control, "24"), "that is no news");
    assert!(!control.judge_unpushed(&judgement("x", 3, Verdict::Good), 10, "alpha", AT));
    let kept = control.unpushed.last().unwrap();
    assert_eq!((kept.by.as_str(), kept.size, kept.rejection()), ("alpha", 10, Some("it trapped")));

    assert_eq!(control.rolls_back_to("24"), Ok(RolledBack::Forgiven(digest("24"))));
    assert_eq!((control.unpushed.len(), control.runs()), (19, None));
    control.push(publication("a")).unwrap();
    assert_eq!(control.unpushed, []);
    assert!(rejects(&mut control, "24"));
    assert_eq!(control.push(publication("a")), Ok(Pushed::Already));
    assert_eq!(control.unpushed, []);
}

#[test]
fn prune_keeps_versions_that_are_needed() {
    let mut control = pushed(&["a", "b", "c", "d", "e", "f"]);
    for (name, serial) in [("f", 6), ("e", 5), ("d", 4)] {
        assert!(control.rejects(name, serial));
    }
    let names = |entries: Vec<ListedVersion>| entries.iter().map(|entry| entry.serial).collect::<Vec<_>>();
    // c is current, and b is its fallback.
    assert_eq!(control.clone().prune(6, &BTreeSet::new()), []);
    assert_eq!(names(control.clone().prune(2, &BTreeSet::new())), [1, 4]);
    assert_eq!(names(control.clone().prune(2, &BTreeSet::from([digest("a")]))), [4]);
    assert_eq!(names(control.prune(0, &BTreeSet::new())), [1, 4, 5, 6]);
    assert_eq!((control.runs(), control.falls_back_on()), (Some((digest("c"), 3)), Some(digest("b"))));
    assert_eq!(control.push(publication("g")), Ok(Pushed::Current));
    assert_eq!(control.runs(), Some((digest("g"), 7)), "no serial is used twice");
}

#[test]
fn full_list_has_room_for_a_judgement() {
    let mut control = VersionList::default();
    let full = (0..).find_map(|n: u32| control.push(signed(&n.to_string(), &"s".repeat(300))).err()).unwrap();
    let count = control.pushed.len();
    assert_eq!(full, VersionListError::Full(count));
    assert!(full.to_string().contains("baton prune"));
    assert!(count > 500 && control.encode().len() <= LARGEST, "{count}");
    let serial = control.serial;
    let long = Verdict::Rejected { reason: "é".repeat(10_000) };
    let newest = (count - 1).to_string();
    assert!(control.judge(&judgement(&newest, serial, long), "alpha", AT));
    assert_eq!(control.pushed[count - 1].rejection().unwrap().chars().count(), 500);
    assert!(control.rollback(None).is_ok());
    control.prune(5, &BTreeSet::new());
    assert_eq!(control.push(publication("new")), Ok(Pushed::Current));
}

#[test]
fn list_round_trips_through_the_stored_format() {
    let mut control = pushed(&["a", "b"]);
    control.push(signed("c", "untrusted comment: …\nRUQ")).unwrap();
    assert!(control.proves("a", 1) && control.rejects("c", 3));
    assert!(control.judge_unpushed(&judgement("d", 1, bad()), 10, "alpha", AT));
    assert_eq!(VersionList::decode(&control.encode()), Ok(control));
    let stored = format!(
        r#"{{"format":1,"pushed":[{{"at":"{AT}","by":"ann@desk","digest":"{}","serial":1,"signature":null,"size":1,"verdict":"good"}}],"serial":1,"unpushed":[]}}"#,
        digest("a")
    );
    let mut control = pushed(&["a"]);
    assert!(control.proves("a", 1));
    assert_eq!(control.encode(), stored, "the format is an interface");
    let mut control = pushed(&["a", "b"]);
    assert!(control.rejects("b", 2));
    let rejected = format!(r#""verdict":{{"rejected":{{"at":"{AT}","node":"alpha","reason":"it trapped"}}}}"#);
    let stored = control.encode();
    assert!(str::from_utf8(&stored).unwrap().contains(&rejected), "{stored:?}");
}

#[test]
fn invalid_list_is_refused_with_advice() {
    let entry = |serial: u64, name: &str| {
        serde_json::json!({
            "digest": digest(name), "size": 1, "serial": serial, "by": "", "at": "", "signature": null, "verdict": null
        })
    };
    let document = |serial: u64, pushed: &[serde_json::Value]| {
        serde_json::json!({ "format": 1, "serial": serial, "pushed": pushed, "unpushed": [] }).to_string()
    };
    assert!(VersionList::decode(document(3, &[entry(1, "a"), entry(3, "b")]).as_bytes()).is_ok());
    let more = document(1, &[]).replace('{', r#"{"pause": true, "#);
    for damaged in [
        "",
        "{}",
        "[]",
        "null",
        r#"{"format": "1"}"#,
        r#"{"format": 1}"#,
        &more,
        &document(3, &[entry(1, "a"), entry(2, "a")]),
        &document(3, &[entry(2, "a"), entry(2, "b")]),
        &document(1, &[entry(2, "a")]),
        &document(u64::MAX, &[]),
        &document(1, &[entry(1, "a")]).replace("sha256:", "md5:"),
    ] {
        let refused = VersionList::decode(damaged.as_bytes());
        assert!(matches!(refused, Err(VersionListError::Damaged(_))), "{damaged}: {refused:?}");
    }
    let later = VersionList::decode(br#"{"format": 2, "shape": "unknown"}"#).unwrap_err();
    assert_eq!(later, VersionListError::Format(2));
    assert!(later.to_string().contains("update"), "{later}");
}
