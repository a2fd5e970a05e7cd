//! The packages that `make dist` builds, installed as users install them.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use baton_test_support::node::{Journal, Launch};

use crate::guests::Guest;

#[test]
fn packages_install_and_run() {
    let home = tempfile::tempdir().expect("a folder");
    let made = packages(home.path());
    let package = |suffix: &str| {
        let is_it = |path: &&PathBuf| path.to_str().is_some_and(|path| path.ends_with(suffix));
        made.iter().find(is_it).unwrap_or_else(|| panic!("no {suffix} among {made:?}")).clone()
    };

    let venv = home.path().join("venv");
    run(Command::new("python3").args(["-m", "venv"]).arg(&venv));
    run(Command::new(venv.join("bin/pip")).args(["install", "--no-index"]).arg(package(".whl")));
    writes_a_project(&venv.join("bin/baton"), &home.path().join("by-pip"));

    let npm = home.path().join("npm");
    let file = package(".tgz");
    let cache = home.path().join("cache");
    run(Command::new("npm").args(["install", "--offline", "--cache"]).arg(cache).arg("--prefix").arg(&npm).arg(file));
    writes_a_project(&npm.join("node_modules/.bin/baton"), &home.path().join("by-npm"));

    let root = home.path().join("root");
    install(&package(".deb"), &root);
    for file in ["usr/lib/systemd/system/baton.service", "usr/share/man/man1/baton-run.1.gz"] {
        assert!(root.join(file).is_file(), "{file}");
    }
    let mut host = Command::new(root.join("usr/bin/baton"));
    host.args(["run", "--node", "debian", "--log-format", "json", "--admin", "off", "--store"]);
    host.arg(format!("sqlite:{}", home.path().join("store").display())).arg(Guest::Beats.module());
    let journal = Journal::default();
    let mut node = Launch::of("debian", host, &journal).start();
    journal.event("a beat", |event| event.name == "output");
    assert!(node.terminate().success());
}

/// Makes all packages from the binary under test, as `scripts/dist.sh` does.
fn packages(home: &Path) -> Vec<PathBuf> {
    let repository = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let folder = home.join("dist/baton");
    fs::create_dir_all(folder.join("completions")).expect("a folder");
    let program = folder.join("baton");
    run(Command::new("strip").arg(env!("CARGO_BIN_EXE_baton")).arg("-o").arg(&program));
    run(Command::new(&program).arg("man").arg(folder.join("man")));
    for (shell, file) in [("bash", "baton.bash"), ("zsh", "_baton"), ("fish", "baton.fish")] {
        let script = run(Command::new(&program).args(["completions", shell]));
        fs::write(folder.join("completions").join(file), script).expect("a file");
    }
    fs::copy(repository.join("LICENSE"), folder.join("LICENSE")).expect("a file");
    fs::write(folder.join("LICENSES.txt"), "").expect("a file");
    run(Command::new("cp").arg("-r").arg(repository.join("packaging")).arg(&folder));
    let target = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
    let mut make = Command::new(repository.join("scripts/packages.py"));
    make.arg(&folder).args([env!("CARGO_PKG_VERSION"), &target, env!("CARGO_PKG_REPOSITORY")]);
    run(make.env("SOURCE_DATE_EPOCH", "1780000000").env("DPKG_DEB_COMPRESSOR_TYPE", "gzip"));
    let made = fs::read_dir(home.join("dist")).expect("a folder");
    made.map(|entry| entry.expect("an entry").path()).collect()
}

/// Installs a Debian package into a separate root folder. Only root may run `dpkg --install`. For other users, the test
/// only unpacks the package.
fn install(package: &Path, root: &Path) {
    if !rustix::process::geteuid().is_root() {
        run(Command::new("dpkg-deb").arg("--extract").arg(package).arg(root));
        return;
    }
    for folder in ["info", "updates", "triggers"] {
        fs::create_dir_all(root.join("var/lib/dpkg").join(folder)).expect("a folder");
    }
    fs::write(root.join("var/lib/dpkg/status"), "").expect("a file");
    fs::create_dir(root.join("etc")).expect("a folder");
    // The `--force` flags are needed because the root folder contains neither the package's dependencies nor the
    // programs that the package's scripts call.
    let mut dpkg = Command::new("dpkg");
    dpkg.arg("--root").arg(root).args(["--force-depends", "--force-script-chrootless", "--install"]).arg(package);
    run(&mut dpkg);
    if Path::new("/usr/bin/systemd-sysusers").exists() {
        let users = fs::read_to_string(root.join("etc/passwd")).expect("the users");
        assert!(users.lines().any(|user| user.starts_with("baton:")), "{users}");
    }
}

fn writes_a_project(program: &Path, home: &Path) {
    fs::create_dir(home).expect("a folder");
    run(Command::new(program).args(["new", "job", "--lang", "python"]).current_dir(home));
    assert!(home.join("job/baton.toml").is_file());
}

fn run(command: &mut Command) -> Vec<u8> {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(output.status.success(), "{command:?}: {}\n{}", output.status, String::from_utf8_lossy(&output.stderr));
    output.stdout
}
