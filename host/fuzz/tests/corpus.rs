//! Runs every reader of untrusted bytes on the files of its corpus, and on prefixes of each file.

#![allow(clippy::expect_used, reason = "a test may panic")]

use std::collections::BTreeSet;
use std::fs;
use std::panic::catch_unwind;
use std::path::{Path, PathBuf};

/// Maximum number of prefixes that are tried for each file, in addition to the whole file.
const BEGINNINGS: usize = 256;

fn corpus() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus")
}

fn entries(folder: &Path) -> impl Iterator<Item = PathBuf> {
    fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry").path())
}

#[test]
fn every_reader_has_a_corpus() {
    let names: BTreeSet<PathBuf> = baton::untrusted::readers().map(|reader| corpus().join(reader.name)).collect();
    assert_eq!(entries(&corpus()).collect::<BTreeSet<_>>(), names);
    for folder in names {
        assert!(entries(&folder).next().is_some(), "{} is empty", folder.display());
    }
}

#[test]
fn every_corpus_file_is_read_without_a_panic() {
    let mut failed = Vec::new();
    for reader in baton::untrusted::readers() {
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
