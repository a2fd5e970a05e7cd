//! Notifications to the service manager, and reloads of files on SIGHUP. The test's own socket stands in for the
//! service manager.

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
use crate::node::{Event, Launch, until};
use crate::store::Store;

struct Manager {
    address: String,
    received: Arc<Mutex<Vec<String>>>,
}

impl Manager {
    fn at_path(path: &Path) -> Self {
        Self::start(path.display().to_string(), UnixDatagram::bind(path).expect("a socket"))
    }

    fn by_name(name: &str) -> Self {
        let address = SocketAddr::from_abstract_name(name).expect("a name");
        Self::start(format!("@{name}"), UnixDatagram::bind_addr(&address).expect("a socket"))
    }

    fn start(address: String, socket: UnixDatagram) -> Self {
        let received: Arc<Mutex<Vec<String>>> = Arc::default();
        let lines = Arc::clone(&received);
        // The thread runs until the test process exits, so nothing joins it.
        std::thread::spawn(move || {
            let mut buffer = [0; 65536];
            while let Ok(length) = socket.recv(&mut buffer) {
                let message = String::from_utf8(buffer[..length].to_vec()).expect("UTF-8, as systemd requires");
                lines.lock().expect("no panic").extend(message.lines().map(str::to_owned));
            }
        });
        Self { address, received }
    }

    fn manages(&self, launch: Launch) -> Launch {
        launch.env("NOTIFY_SOCKET", &self.address).env("WATCHDOG_USEC", "30000000")
    }

    fn wait(&self, count: usize, test: impl Fn(&str) -> bool) -> Vec<String> {
        until("the manager to be notified", || {
            let lines = self.received.lock().expect("no panic").clone();
            if lines.iter().filter(|line| test(line)).count() >= count { Ok(lines) } else { Err(lines) }
        })
    }

    fn wait_for_line(&self, expected: &str) -> Vec<String> {
        self.wait(1, |line| line == expected)
    }
}

fn index_of(lines: &[String], expected: &str) -> usize {
    lines.iter().position(|line| line == expected).unwrap_or_else(|| panic!("no {expected} in {lines:?}"))
}

#[test]
fn host_without_its_store_is_ready_and_alive() {
    let fleet = Fleet::new(Store::bare_azurite());
    let manager = Manager::at_path(&fleet.home.path().join("notify"));
    let mut node = manager.manages(fleet.launch("alpha")).start();
    let at = Endpoint::of(&node);
    manager.wait_for_line("READY=1");
    manager.wait_for_line(&format!("STATUS=standby in {ELECTION}, which has no leader"));
    node.event("the missing store", |event| ["misconfigured", "unreachable"].contains(&event.name.as_str()));
    assert_eq!(at.ask("/readyz").status, 503, "a probe still fails without the store");
    manager.wait(3, |line| line == "WATCHDOG=1");
    fleet.store.create_container();
    manager.wait(1, |line| line.starts_with(&format!("STATUS=leads {ELECTION} in term ")));
    assert_eq!(node.terminate().code(), Some(0));
    let lines = manager.wait_for_line("STOPPING=1");
    assert!(index_of(&lines, "READY=1") < index_of(&lines, "STOPPING=1"), "{lines:?}");
}

#[test]
fn standby_reports_the_leader_in_its_status() {
    let fleet = Fleet::new(Store::sqlite());
    let (alpha, term) = fleet.leader("alpha");
    let manager = Manager::by_name(&format!("baton-test/{}/standby", std::process::id()));
    let _beta = manager.manages(fleet.launch("beta")).start();
    manager.wait(1, |line| {
        line.strip_prefix(&format!("STATUS=standby of alpha in {ELECTION}, term "))
            .and_then(|seen| seen.parse::<u64>().ok())
            .is_some_and(|seen| seen >= term)
    });
    alpha.signal(Signal::KILL);
    manager.wait(1, |line| line.starts_with(&format!("STATUS=leads {ELECTION} in term ")));
}

#[test]
fn watchdog_notifications_stop_when_control_threads_hang() {
    let fleet = Fleet::new(Store::sqlite());
    let (_alpha, _) = fleet.leader("alpha");
    let manager = Manager::at_path(&fleet.home.path().join("notify"));
    let beta = manager.manages(fleet.launch("beta")).start();
    let at = Endpoint::of(&beta);
    manager.wait(2, |line| line == "WATCHDOG=1");
    freeze(&beta, "control");
    let is_stuck = |line: &str| line.starts_with("STATUS=the control runtime has made no progress for ");
    // A host that is not stuck sends `WATCHDOG=1` together with each status line.
    let lines = manager.wait(5, is_stuck);
    let since = lines.iter().position(|line| is_stuck(line)).expect("such a line");
    assert!(!lines[since..].iter().any(|line| line == "WATCHDOG=1"), "{lines:?}");
    assert_eq!(at.ask("/livez").status, 503, "the probe agrees with the watchdog");
}

#[test]
fn certificate_is_reloaded_on_sighup() {
    let fleet = Fleet::new(Store::sqlite());
    let home = fleet.home.path();
    let first = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/blackbox/http/tls");
    let second = Path::new(env!("CARGO_MANIFEST_DIR")).join("modules/tests/registries/tls");
    let [certificate, key] = ["cert.pem", "key.pem"].map(|name| home.join(name).display().to_string());
    let put = |from: &Path, names: &[&str]| {
        for name in names {
            fs::copy(from.join(name), home.join(name)).expect("copied");
        }
    };
    put(&first, &["cert.pem", "key.pem"]);
    fs::write(home.join("baton.toml"), "").expect("written");
    let flags = [("--admin-tls-cert", &*certificate), ("--admin-tls-key", &*key)];
    let manager = Manager::at_path(&home.join("notify"));
    let mut node = manager.manages(fleet.launch_with("alpha", &flags)).without_terminal().start();
    let at = Endpoint::of(&node);
    node.after(0, "started");
    manager.wait_for_line("READY=1");
    let request = "GET /livez HTTP/1.1\r\nHost: node\r\nConnection: close\r\n\r\n";
    let is_certified_by = |authority: &Path| {
        tls_to(at, &authority.join("ca.pem"), request).is_ok_and(|answer| answer.starts_with("HTTP/1.1 200"))
    };
    assert!(is_certified_by(&first) && !is_certified_by(&second));

    // If the certificate is replaced but not its key, the host keeps the old certificate and key.
    put(&second, &["cert.pem"]);
    node.signal(Signal::HUP);
    let refused = node.event("the refusal", |event| event.name == "reload" && !event.text("error").is_empty());
    assert!(refused.text("error").contains("--admin-tls-key"), "{refused:?}");
    manager.wait(2, |line| line == "READY=1");
    assert!(is_certified_by(&first) && !is_certified_by(&second));

    put(&second, &["key.pem"]);
    fs::write(home.join("baton.toml"), "probation = '40s'\n").expect("written");
    node.signal(Signal::HUP);
    let reloaded = node.event("the reload", |event| event.name == "reload" && event.text("error").is_empty());
    assert_eq!(reloaded.fields["read"], serde_json::json!(["--admin-tls-cert", "--admin-tls-key"]));
    assert_eq!(reloaded.fields["next_start"], serde_json::json!(["--probation"]));
    assert!(is_certified_by(&second) && !is_certified_by(&first));
    let lines = manager.wait(3, |line| line == "READY=1");
    let since: Vec<u64> = lines
        .windows(2)
        .filter(|pair| pair[0] == "RELOADING=1")
        .map(|pair| pair[1].strip_prefix("MONOTONIC_USEC=").and_then(|since| since.parse().ok()).expect("a time"))
        .collect();
    assert!(since.len() == 2 && since[0] < since[1], "{lines:?}");
    assert!(fleet.journal.events().iter().all(|event| event.name != "stopping"), "the instance keeps running");
    assert_eq!(node.terminate().code(), Some(0));
}

#[test]
fn trusted_keys_are_reloaded_on_sighup() {
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
    // Replaces the module with a version that is signed with the second key, which the host does not trust yet.
    bytes.extend([0, 3, 1, b'n', 2]);
    fs::write(&signature, second.sign(&bytes)).expect("written");
    fs::write(module.with_extension("new"), &bytes).expect("written");
    fs::rename(module.with_extension("new"), &module).expect("renamed");
    node.event("the refusal", |event| {
        event.name == "module_refused" && event.text("error").contains("a key that this host trusts")
    });
    fs::write(&keys, "").expect("written");
    node.signal(Signal::HUP);
    let refused = node.event("to refuse it", |event| event.name == "reload" && !event.text("error").is_empty());
    assert!(refused.text("error").contains("contains no key"), "{refused:?}");
    fs::write(&keys, key(&first) + &key(&second)).expect("written");
    node.signal(Signal::HUP);
    let reloaded = node.event("the reload", |event| event.name == "reload" && event.text("error").is_empty());
    assert_eq!(reloaded.fields["read"], serde_json::json!(["--trust"]));
    node.event("the swap", Event::is_swap);
    fleet.check_promises();
}

#[test]
fn host_works_when_service_manager_is_unreachable() {
    let fleet = Fleet::new(Store::sqlite());
    for (name, socket, error) in [("alpha", "/nowhere/notify", "cannot notify"), ("beta", "vsock:2:1", "vsock:2:1")] {
        let mut node = fleet.launch(name).env("NOTIFY_SOCKET", socket).start();
        node.event("the error", |event| event.name == "error" && event.text("error").contains(error));
        node.after(0, "started");
        assert_eq!(node.terminate().code(), Some(0));
    }
    fleet.check_promises();
}

/// SIGHUP must not kill the host, because then the lease would not be released.
#[test]
fn host_shuts_down_cleanly_when_its_terminal_closes() {
    let fleet = Fleet::new(Store::sqlite());
    let (terminal, programs_end) = terminal();
    let mut node = fleet.launch("alpha").with_terminal(programs_end).start();
    node.after(0, "started");
    drop(terminal);
    assert_eq!(node.wait().code(), Some(0));
    let events = fleet.journal.events();
    assert!(events.iter().any(|event| event.name == "shutting_down" && event.text("signal") == "SIGHUP"));
    assert!(events.iter().any(|event| event.name == "released"), "{events:?}");
    fleet.check_promises();
}

/// Returns the user's end and the programs' end. Dropping the user's end closes the terminal.
fn terminal() -> (File, File) {
    let open = |path: &str| File::options().read(true).write(true).custom_flags(libc::O_NOCTTY).open(path);
    let person = open("/dev/ptmx").expect("a terminal");
    let mut number: libc::c_uint = 0;
    // SAFETY: `person` keeps the descriptor open during both calls, and `TIOCGPTN` writes one `c_uint`, to `number`.
    let done = unsafe {
        [libc::unlockpt(person.as_raw_fd()), libc::ioctl(person.as_raw_fd(), libc::TIOCGPTN, &raw mut number)]
    };
    assert_eq!(done, [0, 0], "{}", std::io::Error::last_os_error());
    let programs = open(&format!("/dev/pts/{number}")).expect("its other end");
    (person, programs)
}
