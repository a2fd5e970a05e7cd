//! Tests that need more of their machine or their user than there is.

use std::fs::OpenOptions;
use std::io::Write as _;

/// Which tests may be left out under CI: their names, with spaces between.
const MAY_BE_SKIPPED: &str = "BATON_MAY_SKIP";

/// Says of the running test that it is left out, and why: on stderr, and in the list that `make test` ends with.
///
/// # Panics
/// Under CI, where the variable `CI` is set, unless the test is named in `BATON_MAY_SKIP`.
pub fn skipped(why: &str) {
    let thread = std::thread::current();
    let test = thread.name().unwrap_or_default().rsplit("::").next().unwrap_or_default().to_owned();
    let may_skip = std::env::var(MAY_BE_SKIPPED).unwrap_or_default();
    let is_named = may_skip.split_whitespace().any(|name| name == test);
    assert!(std::env::var_os("CI").is_none() || is_named, "{why}, and {MAY_BE_SKIPPED} does not name {test}");
    let line = format!("SKIPPED {test}: {why}\n");
    // Past the capture of the test harness, which would swallow it.
    std::io::stderr().write_all(line.as_bytes()).expect("stderr can be written");
    let list = crate::scratch().join("skipped");
    let mut list = OpenOptions::new().create(true).append(true).open(list).expect("the list can be written");
    list.write_all(line.as_bytes()).expect("the list can be written");
}
