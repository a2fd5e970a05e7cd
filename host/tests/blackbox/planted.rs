//! Attacks through files: symbolic links that a guest plants for its host to follow, and patched code in the cache of
//! compiled modules.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};

use sha2::{Digest as _, Sha256};
use tempfile::TempDir;

use crate::fleet::Fleet;
use crate::guests::Guest;
use crate::node::{Event, Finished, baton, finish, until, with_mounts};
use crate::store::Store;

/// Makes a home folder. Its subfolder `data` is for guests, and its subfolder `outside` is not.
fn home() -> TempDir {
    let home = tempfile::tempdir().expect("a folder");
    for folder in ["data/in/deep", "outside", "etc"] {
        fs::create_dir_all(home.path().join(folder)).expect("a folder");
    }
    for file in ["data/token", "data/in/token", "outside/token"] {
        fs::write(home.path().join(file), file).expect("a file");
    }
    fs::write(home.path().join("etc/baton.toml"), "").expect("a file");
    home
}

fn run(home: &Path, settings: &[(&str, &str)]) -> Finished {
    let mut command = baton(home);
    command.arg("run").arg(Guest::UsesFiles.module()).args(["--election", "job"]);
    for (flag, value) in settings {
        command.arg(flag).arg(value);
    }
    let given = |flag: &str| settings.iter().any(|(other, _)| *other == flag);
    let usual = [("--node", "a"), ("--store", "sqlite:store"), ("--cache", "off"), ("--config", "etc/baton.toml")];
    for (flag, value) in usual.iter().filter(|(flag, _)| !given(flag)) {
        command.arg(flag).arg(value);
    }
    finish(command)
}

/// Checks that the host refused the setting `place`. The error must state what the path belongs to (`what`), in which
/// folder of the path the coordinator may write (`through`), and which grant allows these writes (`granted`).
#[track_caller]
fn refused(finished: &Finished, place: &str, what: &str, through: &Path, granted: &str) {
    let Finished { code, stderr, .. } = finished;
    assert_eq!(*code, Some(2), "{finished:?}");
    let begin = format!("error: wrong configuration: {place}: the path of {what}, ");
    assert!(stderr.starts_with(&begin), "it should begin with `{begin}`: {stderr}");
    let through = format!("passes through {:?}, where the coordinator `job` may write", through.display().to_string());
    assert!(stderr.contains(&through), "`{through}` is missing: {stderr}");
    let granted = format!("granted: {granted:?}, --dir)");
    assert!(stderr.contains(&granted), "`{granted}` is missing: {stderr}");
}

#[test]
fn host_refuses_paths_that_a_coordinator_can_change() {
    let home = home();
    let base = home.path().canonicalize().expect("a path");
    fs::write(base.join("data/key.pub"), "").expect("a file");
    fs::copy(Guest::UsesFiles.module(), base.join("data/job.wasm")).expect("a copy");
    let data = base.join("data");
    let grant = ("--dir", "data::/data");
    let with = |setting: (&'static str, &'static str)| run(home.path(), &[grant, setting]);
    for (flag, value, what) in [
        ("--secret", "token=file:data/token", r#"the secret "token""#),
        ("--trust", "data/key.pub", "the public key"),
        ("--http-ca", "data/ca.pem", "the certificate file"),
        ("--cache", "data", "the cache"),
        ("--store", "sqlite:data", "the store"),
        ("--dir", "data/in::/in:ro", r#"the folder "/in""#),
        ("--dir", "data/in/../in::/in", r#"the folder "/in""#),
    ] {
        refused(&with((flag, value)), flag, what, &data, "data");
    }
    // The host also refuses paths that do not exist yet, and files in subfolders.
    let store = with(("--store", "sqlite:data/new/store"));
    refused(&store, "--store", "the store", &data, "data");
    refused(&with(("--secret", "token=file:data/in/token")), "--secret", r#"the secret "token""#, &data, "data");

    let mut module = baton(home.path());
    module.args(["run", "data/job.wasm", "--election", "job", "--dir", "data::/data"]);
    module.args(["--node", "a", "--store", "sqlite:store", "--cache", "off", "--config", "etc/baton.toml"]);
    refused(&finish(module), "MODULE", "the module", &data, "data");

    // The host also checks default paths: those of the configuration file and of the cache's key.
    let mut usual = baton(home.path());
    usual.arg("run").arg(Guest::UsesFiles.module()).args(["--election", "job", "--dir", ".::/data"]);
    refused(&finish(usual), "config (by default)", "the configuration file", &base, ".");
    let state = ("--dir", ".local/state::/data");
    fs::create_dir_all(base.join(".local/state")).expect("a folder");
    let key = run(home.path(), &[state, ("--cache", "cache")]);
    refused(&key, "--cache", "the cache's key", &base.join(".local/state"), ".local/state");

    // The host also checks paths in environment variables.
    for (variable, what) in [("PATH", "the program folder"), ("SSL_CERT_FILE", "the certificate file")] {
        let mut command = baton(home.path());
        command.arg("run").arg(Guest::UsesFiles.module()).args(["--election", "job", "--dir", "data::/data"]);
        command.args(["--node", "a", "--store", "sqlite:store", "--cache", "off"]).env(variable, "data/x");
        refused(&finish(command), variable, what, &data, "data");
    }

    // The host also checks the paths of another coordinator.
    let tables = format!(
        "store = 'sqlite:store'\ncache = 'off'\nnode = 'a'\n\
         [coordinators.job]\nmodule = {module:?}\ndir = ['data::/data']\n\
         [coordinators.other]\nmodule = {module:?}\nsecret.token = {{ file = 'data/token' }}\n",
        module = Guest::UsesFiles.module()
    );
    fs::write(base.join("baton.toml"), tables).expect("a file");
    let mut both = baton(home.path());
    both.arg("run");
    let both = finish(both);
    assert_eq!(both.code, Some(2), "{both:?}");
    for words in
        ["baton.toml:9: coordinators.other.secret.token", "coordinator `job`", "baton.toml:6: coordinators.job.dir"]
    {
        assert!(both.stderr.contains(words), "`{words}` is missing: {both:?}");
    }
    assert!(!base.join("store").exists(), "the host creates nothing before it refuses");
}

#[test]
fn folders_may_be_shared_and_overlap_read_only_folders() {
    let home = home();
    let base = home.path().canonicalize().expect("a path");
    // Returns the host's error if the host refuses to grant these folders (one list for each coordinator). Returns
    // `None` if the host accepts the folders: it then fails later, because the module is missing.
    let granted = |folders: &[&str]| {
        let mut tables = "store = 'sqlite:store'\ncache = 'off'\nnode = 'a'\n".to_owned();
        for (number, folder) in folders.iter().enumerate() {
            tables += &format!("[coordinators.job-{number}]\nmodule = 'outside/none.wasm'\ndir = [{folder}]\n");
        }
        fs::write(base.join("baton.toml"), tables).expect("a file");
        let mut command = baton(home.path());
        command.arg("run");
        let finished = finish(command);
        assert_eq!(finished.code, Some(2), "{finished:?}");
        if finished.stderr.contains("none.wasm") { None } else { Some(finished.stderr) }
    };
    for shared in [
        &["'data::/data'", "'data::/data'"][..],
        &["'data::/data'", "'data::/data:ro'"],
        &["'data/in::/data'", "'data::/data:ro'"],
        &["'data::/data:ro', 'data/in::/out'"],
        &["'data::/data:ro', 'data/in::/in:ro'"],
        &["'data::/data', 'data/../data::/again'"],
        &["'data/in::/data', 'outside::/data/in'"],
    ] {
        assert_eq!(granted(shared), None, "{shared:?}");
    }
    for (refused, words) in [
        (
            &["'data::/data'", "'data/in::/in:ro'"][..],
            r#"job-1.dir: the path of the folder "/in", "data/in", passes through"#,
        ),
        (&["'data/in::/in'", "'data::/data'"], r#"job-0.dir: the path of the folder "/in", "data/in", passes through"#),
        (&["'data::/data:ro', 'data::/out'"], r#"the same coordinator may write to it through "data""#),
    ] {
        let error = granted(refused).unwrap_or_else(|| panic!("{refused:?} was not refused"));
        assert!(error.contains(words), "`{words}` is missing for {refused:?}: {error}");
    }
}

#[test]
fn links_are_refused_by_their_place_and_by_their_target() {
    let home = home();
    let base = home.path().canonicalize().expect("a path");
    let secret =
        |path: &str| run(home.path(), &[("--dir", "data::/data"), ("--secret", &format!("token=file:{path}"))]);
    let (data, within) = (base.join("data"), base.join("data/in"));
    // Makes links that lead out of the granted folder, into it, and through it.
    symlink("../outside/token", data.join("out")).expect("a link");
    symlink(data.join("token"), base.join("outside/in")).expect("a link");
    symlink("data/in/deep/../../../outside", base.join("past")).expect("a link");
    for path in ["data/out", "outside/in", "past/token", "./data/../data/token", "data//in/../../outside/token"] {
        refused(&secret(path), "--secret", r#"the secret "token""#, &data, "data");
    }
    symlink("data", base.join("alias")).expect("a link");
    let alias = run(home.path(), &[("--dir", "alias/./::/data"), ("--secret", "token=file:data/in/token")]);
    refused(&alias, "--secret", r#"the secret "token""#, &data, "alias/./");
    // A secret's file next to the granted folder is accepted, because the guest cannot change the file's path.
    let sibling = [("--dir", "data/in::/data"), ("--secret", "token=file:data/token"), ("--http-ca", "none.pem")];
    let sibling = run(home.path(), &sibling);
    assert!(sibling.stderr.contains("none.pem: No such file"), "the secret was refused: {sibling:?}");
    let inside = run(home.path(), &[("--dir", "data/in::/data"), ("--secret", "token=file:data/in/token")]);
    refused(&inside, "--secret", r#"the secret "token""#, &within, "data/in");
}

#[test]
fn granted_folder_is_recognized_wherever_it_is_mounted() {
    let home = home();
    let base = home.path().canonicalize().expect("a path");
    let mounted = |mount: &str, secret: &str| {
        let mut command = baton(home.path());
        command.arg("run").arg(Guest::UsesFiles.module()).args(["--election", "job", "--dir", "data::/data"]);
        command.args(["--node", "a", "--store", "sqlite:store", "--cache", "off", "--config", "etc/baton.toml"]);
        command.args(["--secret", &format!("token=file:{secret}")]);
        finish(with_mounts(&command, &format!("cd {}; {mount}", base.display())))
    };
    let what = r#"the secret "token""#;
    // A granted folder is also mounted at `outside`, so the coordinator may write to `outside`, too.
    let elsewhere = base.join("outside");
    refused(&mounted("mount --bind data outside", "outside/token"), "--secret", what, &elsewhere, "data");
    refused(&mounted("mount --bind data/in outside", "outside/token"), "--secret", what, &elsewhere, "data");
    // `outside` is also mounted inside the granted folder, so the coordinator may write to `outside`, too.
    refused(&mounted("mount --bind outside data/in", "outside/token"), "--secret", what, &elsewhere, "data");
    let tmpfs = "mount -t tmpfs tmpfs data/in; mkdir data/in/deep; echo x > data/in/deep/token";
    let elsewhere = base.join("data");
    refused(&mounted(tmpfs, "data/in/deep/token"), "--secret", what, &elsewhere, "data");
}

/// Runs a second host, whose guest may change the whole folder `data`. Terminates this host after one term, because a
/// later term would repeat the script.
fn attack(home: &Path, script: &str) {
    let fleet = Fleet::new(Store::sqlite()).with(Guest::UsesFiles);
    let granted = format!("{}::/data", home.join("data").display());
    let flags = [("--dir", &*granted), ("--env", &format!("SCRIPT={script}"))];
    let mut node = fleet.launch_with("mallory", &flags).start();
    for call in script.split(';') {
        fleet.beat(call, |event| event.text("line") == format!("{call}: ok"));
    }
    assert_eq!(node.terminate().code(), Some(0));
}

#[test]
fn later_term_does_not_follow_a_planted_link() {
    let home = home();
    let fleet = Fleet::new(Store::sqlite()).with(Guest::UsesFiles);
    let granted = format!("{}::/in:ro", home.path().join("data/in").display());
    let script = "SCRIPT=read /in/token";
    let node = fleet.launch_with("alpha", &[("--dir", &granted), ("--env", script)]).start();
    let term = fleet.beat("the file", |event| event.text("line") == "read /in/token: data/in/token").term;
    let fails = |above: u64, word: &str| {
        let ended = node.event("a term that it cannot start", |event| {
            event.name == "ended" && event.term > above && event.text("outcome") == "unable"
        });
        for word in ["data/in", "--dir", word] {
            assert!(ended.raw.contains(word), "`{word}` is missing: {ended:?}");
        }
        ended.term
    };
    attack(home.path(), "rename /data/in /data/aside;link /data/in ../outside");
    fleet.store.break_lease();
    fails(term, "was replaced after the host started");
    // The host must also refuse a new folder in place of the link.
    let data = home.path().join("data");
    fs::remove_file(data.join("in")).expect("a link is there");
    fs::create_dir(data.join("in")).expect("a folder");
    fs::write(data.join("in/token"), "outside").expect("a file");
    // Skips the term after the last logged term, because that term may have begun just before the change.
    let begun = fleet.journal.events().iter().map(|event| event.term).max().unwrap_or(term);
    let term = fails(begun + 1, "was replaced after the host started");
    // The runner for the next term opens the granted folder before it creates its threads. So once the runner has
    // several threads, it has already failed to open the original folder.
    until("a runner for the next term", || {
        let threads = |pid| fs::read_dir(format!("/proc/{pid}/task")).map_or(0, Iterator::count);
        let threads: Vec<_> = node.runners().into_iter().map(threads).collect();
        if threads.iter().any(|threads| *threads > 1) { Ok(()) } else { Err(threads) }
    });
    fs::remove_dir_all(data.join("in")).expect("a folder is there");
    fs::rename(data.join("aside"), data.join("in")).expect("the renamed folder");
    fleet.beat("the file", |event| event.term > term && event.text("line") == "read /in/token: data/in/token");
    let strayed = |event: &Event| event.name == "output" && event.text("line").contains("outside");
    assert!(!fleet.journal.events().iter().any(strayed), "no term has read what was outside");
    fleet.check_promises();
}

fn entry(cache: &Path) -> PathBuf {
    let mut entries = fs::read_dir(cache).expect("the cache").map(|entry| entry.expect("an entry").path());
    let entry = entries.next().expect("an entry");
    assert_eq!(entries.next(), None);
    entry
}

/// Length of the tag at the start of a cache entry, in bytes.
const TAG: usize = 32;
/// Length of the checksum at the end of a cache entry, in bytes.
const CHECKSUM: usize = 32;

/// Returns the artifact in a cache entry, with `from` replaced by `to` in its code, and with a new checksum.
fn patched(entry: &Path, from: &[u8], to: &[u8]) -> Vec<u8> {
    let mut artifact = fs::read(entry).expect("the entry").split_off(TAG);
    artifact.truncate(artifact.len() - CHECKSUM);
    let places: Vec<usize> =
        artifact.windows(from.len()).enumerate().filter(|(_, text)| *text == from).map(|(at, _)| at).collect();
    assert!(!places.is_empty(), "the text is not in the code");
    for at in places {
        artifact[at..at + to.len()].copy_from_slice(to);
    }
    let key = entry.file_stem().expect("a name").as_encoded_bytes();
    let checksum = Sha256::new().chain_update(key).chain_update(&artifact).finalize();
    artifact.extend_from_slice(&checksum);
    artifact
}

#[test]
fn patched_cache_entry_is_compiled_again() {
    let fleet = Fleet::new(Store::sqlite());
    let cache = fleet.home.path().join("cache");
    let flag = cache.display().to_string();
    let runs = |name: &str, cached: bool| {
        let mut node = fleet.launch_with(name, &[("--cache", &flag)]).start();
        let ready = node.event("a module to be ready", |event| event.name == "module_ready");
        assert_eq!(ready.fields["cached"], cached, "{ready:?}");
        // The journal keeps only some lines of a burst, so the test accepts any beat except the first one, which has a
        // different form.
        let is_counted = |line: &str| line.starts_with("beat ") && !line.starts_with("beat in ");
        let beat = fleet.beat("a beat", |event| event.from == name && is_counted(event.text("line")));
        assert!(beat.text("line").ends_with(&format!(" of term {}", beat.term)), "{beat:?}");
        assert_eq!(node.terminate().code(), Some(0));
    };
    runs("first", false);
    let entry = entry(&cache);
    let whole = fs::read(&entry).expect("the entry");
    let patched = patched(&entry, b" of term ", b" OF TERM ");
    for (name, tag) in
        [("under-its-tag", &whole[..TAG]), ("under-another", &[0; TAG]), ("as-before-there-were-any", &[])]
    {
        let planted = [tag, &patched].concat();
        fs::write(&entry, &planted).expect("the entry is written");
        runs(name, false);
        assert!(fs::read(&entry).expect("an entry") != planted, "the planted entry was not replaced");
    }
    runs("last", true);
    fleet.check_promises();
}

#[test]
fn cache_is_not_used_when_others_can_read_its_key() {
    let fleet = Fleet::new(Store::sqlite());
    let launch = fleet.launch("alpha");
    let key = fleet.home.path().join(".local/state/baton/cache.key");
    fs::set_permissions(&key, fs::Permissions::from_mode(0o640)).expect("the key is there");
    let node = launch.start();
    let error = node.event("the error about the key", |event| event.name == "error");
    for words in ["cannot use the cache of compiled modules", "cache.key", "no other user can read; remove the key"] {
        assert!(error.raw.contains(words), "`{words}` is missing: {error:?}");
    }
    fleet.beat_above(0);
}
