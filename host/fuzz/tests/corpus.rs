//! Every reader of foreign bytes on all that is kept for it, and on each beginning of that.

#![allow(clippy::expect_used, reason = "a test may panic")]

use std::collections::BTreeSet;
use std::fs;
use std::panic::catch_unwind;
use std::path::{Path, PathBuf};

/// So many beginnings of one file are tried.
const BEGINNINGS: usize = 256;

fn corpus() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus")
}

fn entries(folder: &Path) -> impl Iterator<Item = PathBuf> {
    fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry").path())
}

#[test]
fn every_reader_has_bytes_that_are_kept() {
    let names: BTreeSet<PathBuf> = baton::foreign::readers().map(|reader| corpus().join(reader.name)).collect();
    assert_eq!(entries(&corpus()).collect::<BTreeSet<_>>(), names);
    for folder in names {
        assert!(entries(&folder).next().is_some(), "{} is empty", folder.display());
    }
}

#[test]
fn what_is_kept_is_read_as_it_should_be() {
    let mut failed = Vec::new();
    for reader in baton::foreign::readers() {
        for path in entries(&corpus().join(reader.name)) {
            let bytes = fs::read(&path).expect("a file");
            let every = bytes.len() / BEGINNINGS + 1;
            let ends = (0..bytes.len()).step_by(every).chain([bytes.len()]);
            if catch_unwind(|| ends.for_each(|end| (reader.read)(&bytes[..end]))).is_err() {
                failed.push(path);
            }
        }
    }
    assert!(failed.is_empty(), "said above what is wrong with each: {failed:#?}");
}
