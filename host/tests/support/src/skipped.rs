//! Skips tests that need a feature or a permission that this machine lacks.

use std::fs::OpenOptions;
use std::io::Write as _;

/// The environment variable that lists the tests that may be skipped in CI, separated by spaces.
const MAY_BE_SKIPPED: &str = "BATON_MAY_SKIP";

/// Reports that the running test is skipped, and why. The report goes to stderr, and to the list that `make test`
/// prints when it ends.
///
/// # Panics
/// If the variable `CI` is set and `BATON_MAY_SKIP` does not name the test.
pub fn skipped(why: &str) {
    let thread = std::thread::current();
    let test = thread.name().unwrap_or_default().rsplit("::").next().unwrap_or_default().to_owned();
    let may_skip = std::env::var(MAY_BE_SKIPPED).unwrap_or_default();
    let is_named = may_skip.split_whitespace().any(|name| name == test);
    assert!(std::env::var_os("CI").is_none() || is_named, "{why}, and {MAY_BE_SKIPPED} does not name {test}");
    let line = format!("SKIPPED {test}: {why}\n");
    // Do not use `eprint!`, because the test harness would capture it.
    std::io::stderr().write_all(line.as_bytes()).expect("stderr can be written");
    let list = crate::scratch().join("skipped");
    let mut list = OpenOptions::new().create(true).append(true).open(list).expect("the list can be written");
    list.write_all(line.as_bytes()).expect("the list can be written");
}
