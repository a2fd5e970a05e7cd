//! Copies the elector's sources and puts every mutant of `table.rs` into the copy, each behind a switch.
//! The sources themselves know nothing of it. A mutant whose text is not found exactly once stops the
//! build: a developer who changes that place in the elector says anew how its rule would be broken there.

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::{env, fs};

include!("table.rs");

fn main() {
    let from = Path::new("../../src");
    let to = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR")).join("src");
    println!("cargo::rerun-if-changed=../../src");
    println!("cargo::rerun-if-changed=table.rs");
    // A source that was renamed since would stand beside its old copy.
    if to.exists() {
        fs::remove_dir_all(&to).expect("the build folder can be emptied");
    }
    copy_all(from, &to, "");
    for mutant in MUTANTS {
        assert!(to.join(mutant.file).exists(), "the mutant `{}` is in a file that there is not", mutant.name);
    }
}

fn copy_all(from: &Path, to: &Path, folder: &str) {
    fs::create_dir_all(to.join(folder)).expect("the build folder can be written");
    for entry in fs::read_dir(from.join(folder)).expect("the elector's sources are there") {
        let entry = entry.expect("the elector's sources can be listed");
        let name = entry.file_name().into_string().expect("source files have plain names");
        let path = if folder.is_empty() { name } else { format!("{folder}/{name}") };
        if entry.path().is_dir() { copy_all(from, to, &path) } else { copy(from, to, &path) }
    }
}

fn copy(from: &Path, to: &Path, file: &str) {
    let mut text = fs::read_to_string(from.join(file)).unwrap_or_else(|error| panic!("{file}: {error}"));
    let original = text.clone();
    for (number, mutant) in MUTANTS.iter().enumerate().filter(|(_, mutant)| mutant.file == file) {
        let places = places(&original, mutant.old).len();
        assert!(places == 1, "the mutant `{}` has {places} places in {file}: mend `table.rs`", mutant.name);
        let new = mutant.new.replace("MUTANT", &format!("crate::mutant({number})"));
        let [place] = &self::places(&text, mutant.old)[..] else {
            panic!("the mutant `{}` overlaps another in {file}", mutant.name)
        };
        text.replace_range(place.clone(), &new);
    }
    if file == "lib.rs" {
        // What is included into another crate's root has no attributes of its own.
        let keep = |line: &&str| !line.starts_with("//!") && !line.starts_with("#![");
        text = text.lines().filter(keep).collect::<Vec<_>>().join("\n");
    }
    fs::write(to.join(file), text).expect("the build folder can be written");
}

/// Where `wanted` stands in `text`, however the lines are broken.
fn places(text: &str, wanted: &str) -> Vec<Range<usize>> {
    let words: Vec<_> = wanted.split_whitespace().collect();
    let starts = text.match_indices(words[0]).map(|(start, _)| start);
    starts.filter_map(|start| Some(start..end_of(text, start, &words)?)).collect()
}

fn end_of(text: &str, start: usize, words: &[&str]) -> Option<usize> {
    let mut rest = &text[start..];
    for (number, word) in words.iter().enumerate() {
        let trimmed = rest.trim_start();
        if number > 0 && trimmed.len() == rest.len() {
            return None;
        }
        rest = trimmed.strip_prefix(word)?;
    }
    Some(text.len() - rest.len())
}
