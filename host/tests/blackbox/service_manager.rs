//! What a host tells the manager of the machine's services, a stand-in for systemd that listens as that does, and what it
//! reads anew when it is told to.

use std::fs::{self, File};
use std::os::fd::AsRawFd as _;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::path::Path;
use std::sync::{Arc, Mutex};

use rustix::process::Signal;

use crate::admin::tls_to;
use crate::endpoint::Endpoint;
use crate::fleet::{ELECTION, Fleet};
use crate::frozen::freeze;
use crate::guests::Guest;
use crate::minisign::Signer;
use crate::node::{Launch, until};
use crate::store::Store;

/// A listener, and what it has heard.
struct Manager {
    place: String,
    heard: Arc<Mutex<Vec<String>>>,
}

impl Manager {
    fn at_path(path: &Path) -> Self {
        Self::hears(path.display().to_string(), UnixDatagram::bind(path).expect("a socket"))
    }

    fn by_name(name: &str) -> Self {
        let address = SocketAddr::from_abstract_name(name).expect("a name");
        Self::hears(format!("@{name}"), UnixDatagram::bind_addr(&address).expect("a socket"))
    }

    fn hears(place: String, socket: UnixDatagram) -> Self {
        let heard: Arc<Mutex<Vec<String>>> = Arc::default();
        let hearing = Arc::clone(&heard);
        // It ends with the tests' process: nothing waits for it.
        std::thread::spawn(move || {
            let mut buffer = [0; 65536];
            while let Ok(length) = socket.recv(&mut buffer) {
                let message = String::from_utf8(buffer[..length].to_vec()).expect("what systemd takes is UTF-8");
                hearing.lock().expect("no panic").extend(message.lines().map(str::to_owned));
            }
        });
        Self { place, heard }
    }

    fn starts(&self, launch: Launch) -> Launch {
        launch.env("NOTIFY_SOCKET", &self.place).env("WATCHDOG_USEC", "30000000")
    }

    /// Waits until that was heard so often, and gives all that was heard.
    fn has_heard(&self, times: usize, is_it: impl Fn(&str) -> bool) -> Vec<String> {
        until("the manager to be told", || {
            let heard = self.heard.lock().expect("no panic").clone();
            if heard.iter().filter(|line| is_it(line)).count() >= times { Ok(heard) } else { Err(heard) }
        })
    }

    fn has_heard_line(&self, line: &str) -> Vec<String> {
        self.has_heard(1, |heard| heard == line)
    }
}

fn place(heard: &[String], line: &str) -> usize {
    heard.iter().position(|heard| heard == line).unwrap_or_else(|| panic!("no {line} in {heard:?}"))
}

#[test]
fn a_host_without_its_store_is_ready_and_alive() {
    let fleet = Fleet::new(Store::bare_azurite());
    let manager = Manager::at_path(&fleet.home.path().join("notify"));
    let mut node = manager.starts(fleet.launch("alpha")).start();
    let at = Endpoint::of(&node);
    manager.has_heard_line("READY=1");
    manager.has_heard_line(&format!("STATUS=standby in {ELECTION}, which has no leader"));
    node.event("the missing store", |event| ["misconfigured", "store_unreachable"].contains(&event.name.as_str()));
    assert_eq!(at.ask("/readyz").status, 503, "that is another question");
    manager.has_heard(3, |line| line == "WATCHDOG=1");
    fleet.store.create_container();
    manager.has_heard(1, |line| line.starts_with(&format!("STATUS=leads {ELECTION} in term ")));
    assert_eq!(node.terminate().code(), Some(0));
    let heard = manager.has_heard_line("STOPPING=1");
    assert!(place(&heard, "READY=1") < place(&heard, "STOPPING=1"), "{heard:?}");
}

#[test]
fn a_standby_says_whom_it_follows() {
    let fleet = Fleet::new(Store::sqlite());
    let (alpha, term) = fleet.leader("alpha");
    let manager = Manager::by_name(&format!("baton-test/{}/standby", std::process::id()));
    let _beta = manager.starts(fleet.launch("beta")).start();
    manager.has_heard(1, |line| {
        line.strip_prefix(&format!("STATUS=standby of alpha in {ELECTION}, term "))
            .and_then(|seen| seen.parse::<u64>().ok())
            .is_some_and(|seen| seen >= term)
    });
    alpha.signal(Signal::KILL);
    manager.has_heard(1, |line| line.starts_with(&format!("STATUS=leads {ELECTION} in term ")));
}

#[test]
fn what_does_not_turn_gives_no_sign_of_life() {
    let fleet = Fleet::new(Store::sqlite());
    let (_alpha, _) = fleet.leader("alpha");
    let manager = Manager::at_path(&fleet.home.path().join("notify"));
    let beta = manager.starts(fleet.launch("beta")).start();
    let at = Endpoint::of(&beta);
    manager.has_heard(2, |line| line == "WATCHDOG=1");
    freeze(&beta, "control");
    let is_stuck = |line: &str| line.starts_with("STATUS=the control runtime has made no progress for ");
    // Each second it says a longer time, so that more signs of life would have come meanwhile.
    let heard = manager.has_heard(5, is_stuck);
    let since = heard.iter().position(|line| is_stuck(line)).expect("it was heard");
    assert!(!heard[since..].iter().any(|line| line == "WATCHDOG=1"), "{heard:?}");
    assert_eq!(at.ask("/livez").status, 503, "both go by the same");
}

#[test]
fn a_certificate_is_read_anew_when_it_is_asked_for() {
    let fleet = Fleet::new(Store::sqlite());
    let home = fleet.home.path();
    let beside = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/blackbox/http/tls");
    let other = Path::new(env!("CARGO_MANIFEST_DIR")).join("modules/tests/registries/tls");
    let [certificate, key] = ["cert.pem", "key.pem"].map(|name| home.join(name).display().to_string());
    let put = |from: &Path, names: &[&str]| {
        for name in names {
            fs::copy(from.join(name), home.join(name)).expect("copied");
        }
    };
    put(&beside, &["cert.pem", "key.pem"]);
    fs::write(home.join("baton.toml"), "").expect("written");
    let flags = [("--admin-tls-cert", &*certificate), ("--admin-tls-key", &*key)];
    let manager = Manager::at_path(&home.join("notify"));
    let mut node = manager.starts(fleet.launch_with("alpha", &flags)).without_terminal().start();
    let at = Endpoint::of(&node);
    node.after(0, "started");
    manager.has_heard_line("READY=1");
    let request = "GET /livez HTTP/1.1\r\nHost: node\r\nConnection: close\r\n\r\n";
    let knows = |authority: &Path| {
        tls_to(at, &authority.join("ca.pem"), request).is_ok_and(|answer| answer.starts_with("HTTP/1.1 200"))
    };
    assert!(knows(&beside) && !knows(&other));

    // Half of a pair, as in the middle of a replacement: nothing changes.
    put(&other, &["cert.pem"]);
    node.signal(Signal::HUP);
    let refused = node.event("the refusal", |event| event.name == "reload_failed");
    assert!(refused.text("error").contains("--admin-tls-key"), "{refused:?}");
    manager.has_heard(2, |line| line == "READY=1");
    assert!(knows(&beside) && !knows(&other));

    put(&other, &["key.pem"]);
    fs::write(home.join("baton.toml"), "probation = '40s'\n").expect("written");
    node.signal(Signal::HUP);
    let reloaded = node.event("the reload", |event| event.name == "reloaded");
    assert_eq!(reloaded.fields["read"], serde_json::json!(["--admin-tls-cert", "--admin-tls-key"]));
    assert_eq!(reloaded.fields["next_start"], serde_json::json!(["--probation"]));
    assert!(knows(&other) && !knows(&beside));
    let heard = manager.has_heard(3, |line| line == "READY=1");
    let since: Vec<u64> = heard
        .windows(2)
        .filter(|pair| pair[0] == "RELOADING=1")
        .map(|pair| pair[1].strip_prefix("MONOTONIC_USEC=").and_then(|since| since.parse().ok()).expect("a time"))
        .collect();
    assert!(since.len() == 2 && since[0] < since[1], "{heard:?}");
    assert!(fleet.journal.events().iter().all(|event| event.name != "stopping"), "the instance goes on");
    assert_eq!(node.terminate().code(), Some(0));
}

#[test]
fn whom_modules_must_be_signed_by_is_read_anew() {
    let fleet = Fleet::new(Store::sqlite());
    let (first, second) = (Signer::with_new_key(), Signer::with_new_key());
    let [keys, module, signature] = ["keys", "job.wasm", "job.wasm.minisig"].map(|name| fleet.home.path().join(name));
    let key = |signer: &Signer| fs::read_to_string(signer.public()).expect("a key");
    fs::write(&keys, key(&first)).expect("written");
    let mut bytes = fs::read(Guest::Beats.module()).expect("the guest");
    fs::write(&signature, first.sign(&bytes)).expect("written");
    fs::write(&module, &bytes).expect("written");
    let trust = keys.display().to_string();
    let node = fleet.launch_from("alpha", &module, &[("--trust", &trust)]).without_terminal().start();
    fleet.beat_above(0);
    // A new version, signed with the next key.
    bytes.extend([0, 3, 1, b'n', 2]);
    fs::write(&signature, second.sign(&bytes)).expect("written");
    fs::write(module.with_extension("new"), &bytes).expect("written");
    fs::rename(module.with_extension("new"), &module).expect("renamed");
    node.event("the refusal", |event| {
        event.name == "module_refused" && event.text("error").contains("a key that this host trusts")
    });
    fs::write(&keys, "").expect("written");
    node.signal(Signal::HUP);
    let refused = node.event("to refuse it", |event| event.name == "reload_failed");
    assert!(refused.text("error").contains("contains no key"), "{refused:?}");
    fs::write(&keys, key(&first) + &key(&second)).expect("written");
    node.signal(Signal::HUP);
    let reloaded = node.event("the reload", |event| event.name == "reloaded");
    assert_eq!(reloaded.fields["read"], serde_json::json!(["--trust"]));
    node.event("the swap", |event| event.name == "swapped");
    fleet.check_promises();
}

#[test]
fn a_manager_that_is_not_there_keeps_no_host_from_its_work() {
    let fleet = Fleet::new(Store::sqlite());
    for (name, place, says) in [("alpha", "/nowhere/notify", "cannot notify"), ("beta", "vsock:2:1", "vsock:2:1")] {
        let mut node = fleet.launch(name).env("NOTIFY_SOCKET", place).start();
        node.event("the complaint", |event| event.name == "error" && event.text("error").contains(says));
        node.after(0, "started");
        assert_eq!(node.terminate().code(), Some(0));
    }
    fleet.check_promises();
}

/// Else the kernel would end it, and nothing would be released.
#[test]
fn a_host_whose_terminal_is_gone_ends_in_order() {
    let fleet = Fleet::new(Store::sqlite());
    let (terminal, its_end) = terminal();
    let mut node = fleet.launch("alpha").with_terminal(its_end).start();
    node.after(0, "started");
    drop(terminal);
    assert_eq!(node.wait().code(), Some(0));
    let events = fleet.journal.events();
    assert!(events.iter().any(|event| event.name == "shutting_down" && event.text("signal") == "SIGHUP"));
    assert!(events.iter().any(|event| event.name == "released"), "{events:?}");
    fleet.check_promises();
}

/// A terminal: the end at which a person would sit, and that of the programs. It is gone with the first.
fn terminal() -> (File, File) {
    let open = |path: &str| File::options().read(true).write(true).custom_flags(libc::O_NOCTTY).open(path);
    let person = open("/dev/ptmx").expect("a terminal");
    let mut number: libc::c_uint = 0;
    // SAFETY: each call gets the descriptor of a terminal, and the second a number to write to.
    let done = unsafe {
        [libc::unlockpt(person.as_raw_fd()), libc::ioctl(person.as_raw_fd(), libc::TIOCGPTN, &raw mut number)]
    };
    assert_eq!(done, [0, 0], "{}", std::io::Error::last_os_error());
    let programs = open(&format!("/dev/pts/{number}")).expect("its other end");
    (person, programs)
}
