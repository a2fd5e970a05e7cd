//! This crate's readers of untrusted bytes, for fuzzing.

use std::collections::BTreeSet;

use baton_election::ModuleVersion;
use minisign_verify::Signature;

use super::{Judgement, ModuleSource, Publication, Verdict, VersionList, check_election, compile, oci};
use baton_base::untrusted::{Reader, text};
use baton_store::Digest;

/// The readers in this crate.
pub const READERS: &[Reader] = &[
    Reader { name: "control", read: control },
    Reader { name: "manifest", read: oci::untrusted::manifest },
    Reader { name: "challenge", read: oci::untrusted::challenge },
    Reader { name: "registry-answer", read: oci::untrusted::answer },
    Reader { name: "credentials", read: oci::untrusted::credentials },
    Reader { name: "signature", read: signature },
    Reader { name: "inspection", read: inspection },
    Reader { name: "module-source", read: module_source },
];

fn control(bytes: &[u8]) {
    let Ok(control) = VersionList::decode(bytes) else { return };
    assert_eq!(VersionList::decode(&control.encode()), Ok(control.clone()), "it is written as it is read");
    let (current, fallback) = (control.current().cloned(), control.fallback().cloned());
    assert!(fallback.is_none() || current != fallback);
    // Check that every list that can be decoded can also be changed.
    let goes_on = |change: &dyn Fn(&mut VersionList)| {
        let mut changed = control.clone();
        change(&mut changed);
        assert_eq!(VersionList::decode(&changed.encode()), Ok(changed), "what became of it can be read");
    };
    let said = || ("node".to_owned(), "2026-01-01T00:00:00Z".to_owned());
    let ((by, at), size) = (said(), bytes.len() as u64);
    let new = Publication { digest: Digest::of(bytes), size, by, at, signature: None };
    goes_on(&|control| drop(control.push(new.clone())));
    goes_on(&|control| drop(control.rollback(None)));
    goes_on(&|control| drop(control.prune(1, &BTreeSet::new())));
    let Some(current) = current else { return };
    let version = ModuleVersion { digest: current.digest.to_string(), serial: current.serial };
    let verdict = Verdict::Rejected { reason: text(bytes).to_owned() };
    let judgement = Judgement { version, term: 1, verdict };
    let (node, at) = said();
    goes_on(&|control| {
        control.judge(&judgement, &node, &at);
    });
    goes_on(&|control| {
        control.judge_unpushed(&judgement, size, &node, &at);
    });
}

fn signature(bytes: &[u8]) {
    if let Ok(signature) = Signature::decode(text(bytes)) {
        drop(check_election(&signature, None).map_err(|error| error.to_string()));
    }
}

fn inspection(bytes: &[u8]) {
    match compile::inspection(bytes) {
        Ok(said) => {
            let again = serde_json::to_vec(&said).map(|said| said.len());
            assert!(again.is_ok(), "it is written as it is read");
        }
        Err(error) => drop(error.to_string()),
    }
}

fn module_source(bytes: &[u8]) {
    match text(bytes).parse::<ModuleSource>() {
        Ok(source) => {
            drop(source.stem());
            assert_eq!(source.to_string().parse(), Ok(source), "it is written as it is read");
        }
        Err(error) => drop(error.to_string()),
    }
}
