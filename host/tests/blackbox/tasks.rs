//! Tasks from a user's first hour with Baton, performed by the scripts in `host/tests/tasks`. Other tests cover the
//! installation ([`packages`]), HTTP in three languages ([`new`]), and the Kubernetes overlay
//! (`scripts/packaging.sh`).
//!
//! [`packages`]: crate::packages
//! [`new`]: crate::new

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::guests::Guest;

macro_rules! tasks {
    ($($name:ident),+ $(,)?) => {
        $(#[test] fn $name() { run(stringify!($name)); })+

        #[test]
        fn every_script_has_a_test() {
            let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/tasks");
            let files = fs::read_dir(folder).expect("the scripts").map(|entry| entry.expect("a script").file_name());
            let mut scripts: Vec<String> = files.map(|name| name.into_string().expect("a name")).collect();
            scripts.retain(|name| name != "lib.sh");
            scripts.sort();
            assert_eq!(scripts, [$(concat!(stringify!($name), ".sh")),+]);
        }
    };
}

tasks![alert, bad_version, devcontainer, first_fleet, logs, token, wrong_store];

fn run(task: &str) {
    let home = tempfile::tempdir().expect("a folder");
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR"));
    let program = Path::new(env!("CARGO_BIN_EXE_baton")).parent().expect("a folder");
    let path = format!("{}:{}", program.display(), std::env::var("PATH").expect("a path"));
    let scripts = manifest.join("tests/tasks");
    let script = format!(". {0}/lib.sh\n. {0}/{task}.sh", scripts.display());
    let mut shell = Command::new("bash");
    shell.args(["-c", &script]).current_dir(&home).env_clear().env("HOME", home.path()).env("PATH", path);
    shell.env("MODULE", Guest::Beats.module()).env("BATON_ENV", "BEHAVIOUR=beat\nBEAT_MS=100");
    // The bad version is an example that fails because its environment variables are not set. `make examples` builds
    // the example.
    shell.env("BAD", Path::new(env!("CARGO_TARGET_TMPDIR")).join("../examples/scheduler-rust.wasm"));
    let output = shell.output().expect("a shell");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let logs = fs::read_dir(&home).expect("its folder").map(|entry| entry.expect("a file").path());
    let logs = logs.filter(|path| path.extension().is_some_and(|extension| extension == "log"));
    let logs: Vec<String> = logs.map(|path| fs::read_to_string(path).unwrap_or_default()).collect();
    assert!(
        output.status.success(),
        "{task}: {}\n{}{}\n{}",
        output.status,
        text(&output.stdout),
        text(&output.stderr),
        logs.join("\n")
    );
}
