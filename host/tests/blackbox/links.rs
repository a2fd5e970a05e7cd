//! Links between the nodes of one machine. Hints replace most reads of the store, and let a standby act before its next
//! poll. No peer can break one of Baton's promises or delay a renewal, whatever the peer sends.
#![allow(clippy::disallowed_methods, reason = "no machine sleeps in the seconds of these tests")]

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::{UnixListener, UnixStream};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::process::{Resource, Rlimit, Signal, getrlimit, setrlimit};

use crate::endpoint::{Endpoint, sample};
use crate::fleet::{ELECTION, Fleet};
use crate::node::{Event, Launch, Node, finish, until};
use crate::patience::Patience;
use crate::skipped::skipped;
use crate::store::Store;

const MINUTE: (&str, &str) = ("--lease", "60s");

/// The leader renews this lease every 2.5 s. Even on a busy machine, it can renew the lease in time.
const LONGER: (&str, &str) = ("--lease", "15s");

fn folder(fleet: &Fleet) -> PathBuf {
    fleet.store.folder().join("links")
}

/// Starts a leader, and a standby that is linked to the leader. The returned number is the leader's term.
fn pair(fleet: &Fleet, flags: &[(&str, &str)]) -> (Node, Node, u64) {
    pair_of(fleet, |name| linked(fleet, name, flags))
}

fn linked(fleet: &Fleet, name: &str, flags: &[(&str, &str)]) -> Launch {
    fleet.launch_with(name, flags).arg("--links=true")
}

fn pair_of(fleet: &Fleet, launch: impl Fn(&str) -> Launch) -> (Node, Node, u64) {
    let alpha = launch("alpha").start();
    let term = fleet.beat_above(0).term;
    let beta = launch("beta").start();
    beta.event("to hear from alpha", |event| event.is_linked() && event.text("leader") == "alpha");
    (alpha, beta, term)
}

fn metric(name: &str, labels: &str) -> String {
    let comma = if labels.is_empty() { "" } else { "," };
    format!("{name}{{election=\"{ELECTION}\"{comma}{labels}}}")
}

pub fn socket(fleet: &Fleet) -> PathBuf {
    let status = fleet.command(&["nodes", ELECTION, "--output=json"]).json();
    let nodes = status.as_array().cloned().unwrap_or_default();
    let leader = nodes.iter().find(|node| node["role"] == "leader").expect("a leader");
    folder(fleet).join(leader["incarnation"].as_str().expect("an incarnation"))
}

pub fn incarnation_of(socket: &Path) -> String {
    socket.file_name().and_then(|name| name.to_str()).expect("an incarnation").to_owned()
}

/// The first message that a node sends on a link.
pub fn hello(election: &str, to: &str, node: &str, incarnation: &str) -> String {
    let names = format!(r#""to":"{to}","node":"{node}","incarnation":"{incarnation}""#);
    format!("{{\"hello\":{{\"election\":\"{election}\",{names}}}}}\n")
}

/// Waits for more output in `term`. Checks that the node has logged no error and no stop, and has not lost the lease.
pub fn keeps_leading(fleet: &Fleet, node: &Node, term: u64) {
    let beats = |above: usize| {
        fleet.journal.wait("another beat", |events| {
            let beats = events.iter().filter(|event| event.name == "output" && event.term == term).count();
            (beats > above).then_some(beats)
        })
    };
    let so_far = beats(0);
    beats(so_far);
    let is_trouble = |event: &&Event| {
        event.from == node.name && ["leadership_lost", "stopping", "error"].contains(&event.name.as_str())
    };
    let events = fleet.journal.events();
    assert!(!events.iter().any(|event| is_trouble(&event)), "{events:?}");
}

/// Waits for a period in which the node receives hints about `renewals` renewals, but reads the lease at most
/// `readings` times. Then checks that the node and its leader report the link.
pub fn rarely_reads(fleet: &Fleet, node: &Node, leader: &Node, renewals: f64, readings: f64) {
    let at = Endpoint::of(node);
    let number = |name: &str| sample(&at.ask("/metrics").body, name);
    let hints = metric("baton_link_hints_total", "");
    let reads = metric("baton_store_requests_total", "operation=\"read\",result=\"ok\"");
    // If a hint is late on a busy machine, the node reads the lease before the hint arrives. In that case, the test
    // tries again.
    until(&format!("{renewals} renewals in which it reads {readings} times at the most"), || {
        let (received, read) = (number(&hints), number(&reads));
        until("hints about renewals", || (number(&hints) >= received + renewals).then_some(()).ok_or(()));
        let recent = number(&reads) - read;
        if recent <= readings { Ok(()) } else { Err(recent) }
    });
    // If the node has just re-established its link, it announces the link a moment later.
    until("the link to be reported", || {
        let nodes = fleet.command(&["nodes", ELECTION, "--output=json"]).json();
        let row = nodes.as_array().expect("a list").iter().find(|row| row["node"] == *node.name).expect("the node");
        let listeners = sample(&Endpoint::of(leader).ask("/metrics").body, &metric("baton_link_listeners", ""));
        let links = number(&metric("baton_link", ""));
        if row["link"]["to"] == *leader.name && (listeners, links) == (1.0, 1.0) {
            Ok(())
        } else {
            Err((nodes, listeners, links))
        }
    });
}

/// Terminates the leader. Checks that the node takes over after the leader's instance has ended, and that the node
/// received a hint.
pub fn takes_over_at_hand_off(node: &Node, leader: &mut Node, term: u64) {
    let hints = || sample(&Endpoint::of(node).ask("/metrics").body, &metric("baton_link_hints_total", ""));
    let before = hints();
    assert!(leader.terminate().success());
    let next = node.after(term, "elected");
    let ended = leader.event("the end of its instance", |event| event.name == "ended" && event.term >= term);
    assert!(next.ts >= ended.ts, "{ended:?}, {next:?}");
    until("a hint", || (hints() > before).then_some(()).ok_or(before));
}

#[test]
fn linked_standby_rarely_reads_and_takes_over_at_hand_off() {
    let fleet = Fleet::new(Store::sqlite());
    let (mut alpha, beta, term) = pair(&fleet, &[LONGER]);
    // Without hints, beta would read the lease about once a second: about 7 times during 3 renewals.
    rarely_reads(&fleet, &beta, &alpha, 3.0, 2.0);
    takes_over_at_hand_off(&beta, &mut alpha, term);
    // Before each attempt to acquire the lease, beta reads the record and the highest term, usually with one `survey`
    // request. If beta was already reading the record when the hint arrived, it reads the term with a separate `recall`
    // request instead. So there are at least as many of these requests as attempts. There may be several attempts,
    // because the first one may come before the release.
    let page = Endpoint::of(&beta).ask("/metrics").body;
    let requests = |operation: &str, result: &str| {
        let labels = format!("operation=\"{operation}\",result=\"{result}\"");
        sample(&page, &metric("baton_store_requests_total", &labels))
    };
    let readings = requests("survey", "ok") + requests("recall", "ok");
    let acquires = requests("acquire", "ok") + requests("acquire", "refused");
    assert!(acquires >= 1.0 && readings >= acquires, "{page}");
    fleet.check_promises();
}

/// A leader without listeners sends no hints, and the leader's next renewal may be up to 10 s away. As soon as a
/// listener connects, the leader must therefore report its last renewal.
#[test]
fn new_listener_learns_of_last_renewal_at_once() {
    let fleet = Fleet::new(Store::sqlite());
    let alpha = linked(&fleet, "alpha", &[MINUTE]).start();
    let term = fleet.beat_above(0).term;
    let socket = socket(&fleet);
    let hello = hello(ELECTION, &incarnation_of(&socket), "late", "ee");
    let has_no_listeners = || {
        let listeners = sample(&Endpoint::of(&alpha).ask("/metrics").body, &metric("baton_link_listeners", ""));
        if listeners == 0.0 { Ok(()) } else { Err(listeners) }
    };
    for _ in 0..2 {
        // If the leader renews just after the test has connected, the test tries again.
        until("the report of a renewal that is older than the link", || {
            until("no listener to be left", has_no_listeners);
            let mut late = UnixStream::connect(&socket)?;
            late.set_read_timeout(Some(Duration::from_secs(30)))?;
            let since = Instant::now();
            late.write_all(hello.as_bytes())?;
            for line in BufReader::new(late).lines() {
                let line: serde_json::Value = serde_json::from_str(&line?)?;
                let Some(age) = line["leads"]["age_ms"].as_u64() else { continue };
                assert_eq!(line["leads"]["term"].as_u64(), Some(term));
                // If the reported age is greater than the age of the connection, the renewal is older than the link.
                // Only the first report can be about such a renewal.
                if u128::from(age) > since.elapsed().as_millis() {
                    return Ok(());
                }
                break;
            }
            Err(std::io::Error::other("the first renewal is newer than the link"))
        });
    }
    fleet.check_promises();
}

/// While no node leads, there are no links, so no host can send hints to the others. The commands `suspend` and
/// `resume` must therefore send a hint to every host themselves.
#[test]
fn command_sends_a_hint_to_every_host_of_its_machine() {
    let fleet = Fleet::new(Store::sqlite());
    let alpha = linked(&fleet, "alpha", &[MINUTE]).start();
    fleet.beat_above(0);
    let listener = UnixListener::bind(folder(&fleet).join("ee")).unwrap();
    listener.set_nonblocking(true).unwrap();
    // These sockets stand for 2 more hosts: `cc` has exited, and `.dd` is still starting. The commands must not fail.
    drop(UnixListener::bind(folder(&fleet).join("cc")).unwrap());
    let _unfinished = UnixListener::bind(folder(&fleet).join(".dd")).unwrap();
    // On a busy machine, a command may give up before it has reached all hosts. In that case, the test tries again.
    until("both commands to send a hint", || {
        let hints = ["suspend", "resume"].map(|command| {
            let done = fleet.command(&[command, ELECTION]);
            assert_eq!(done.code, Some(0), "{done:?}");
            // By the time the command returns, its hint has arrived.
            let (mut stream, mut text) = (listener.accept().ok()?.0, String::new());
            stream.read_to_string(&mut text).unwrap();
            let lines: Vec<serde_json::Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
            let [first, rest @ ..] = &lines[..] else { return None };
            assert_eq!((&first["hello"]["to"], &first["hello"]["election"]), (&"ee".into(), &ELECTION.into()));
            assert_eq!(*rest, ["look"]);
            Some(())
        });
        if hints.iter().all(Option::is_some) { Ok(()) } else { Err(hints) }
    });
    assert_eq!(alpha.event("to lead again", |event| event.name == "elected" && event.term > 1).from, "alpha");
    fleet.check_promises();
}

#[test]
fn floods_loiterers_and_garbage_disturb_no_node() {
    let fleet = Fleet::new(Store::sqlite());
    let (alpha, _beta, term) = pair(&fleet, &[LONGER]);
    let socket = socket(&fleet);
    let incarnation = incarnation_of(&socket);
    let hello = |election: &str, to: &str| hello(election, to, "mallory", "ee");
    // Opens more connections than the host accepts at a time. The connections send nothing, and stay open until the
    // host closes them.
    let loiterers: Vec<_> = (0..200).filter_map(|_| UnixStream::connect(&socket).ok()).collect();
    let is_over = Arc::new(AtomicBool::new(false));
    let floods = std::thread::spawn({
        let (socket, hello, is_over) = (socket.clone(), hello(ELECTION, &incarnation), Arc::clone(&is_over));
        move || {
            while !is_over.load(Ordering::Relaxed) {
                let Ok(mut flood) = UnixStream::connect(&socket) else { continue };
                let _ = flood.write_all(hello.as_bytes());
                for _ in 0..1000 {
                    if flood.write_all(b"\"look\"\n").is_err() {
                        break;
                    }
                }
            }
        }
    });
    let garbage = [
        "GET / HTTP/1.1\r\n\r\n".to_owned(),
        "{".repeat(1 << 16),
        "\u{0}\n".to_owned(),
        hello("another", &incarnation),
        hello(ELECTION, "ee"),
        hello(ELECTION, "../../lease.db"),
        // Only the leader may send `leads`.
        hello(ELECTION, &incarnation) + "{\"leads\":{\"term\":9000,\"age_ms\":0,\"place\":0}}\n",
    ];
    for message in garbage {
        let mut patience = Patience::default();
        // Before the host can accept this connection, it must close one of the silent connections. Until then, the test
        // tries again.
        while patience.lasts() {
            let Ok(mut peer) = UnixStream::connect(&socket) else {
                std::thread::sleep(Duration::from_millis(10));
                continue;
            };
            peer.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
            let _ = peer.write_all(message.as_bytes());
            // The host may send an answer before it closes the connection.
            let mut answer = Vec::new();
            match peer.read_to_end(&mut answer) {
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
                _ => break,
            }
        }
    }
    keeps_leading(&fleet, &alpha, term);
    is_over.store(true, Ordering::Relaxed);
    floods.join().expect("no panic");
    drop(loiterers);
    keeps_leading(&fleet, &alpha, term);
    let gamma = linked(&fleet, "gamma", &[LONGER]).start();
    gamma.event("to hear from alpha", |event| event.is_linked() && event.text("leader") == "alpha");
    fleet.check_promises();
}

/// The liars are peers that claim to be ready and to have the highest priority. The leader puts the liars first in its
/// order of successors, but they never acquire the lease.
#[test]
fn false_claims_of_readiness_prevent_no_takeover() {
    let fleet = Fleet::new(Store::sqlite());
    let launch =
        |name: &str| linked(&fleet, name, &[MINUTE, ("--priority", "50")]).arg("--preempt").arg("--reclaim=false");
    let (mut alpha, beta, term) = pair_of(&fleet, launch);
    let socket = socket(&fleet);
    let to = incarnation_of(&socket);
    let liars: Vec<UnixStream> = (0..40)
        .map(|number| {
            let hello = hello(ELECTION, &to, &format!("liar-{number}"), &format!("{number:016x}"));
            let is = "{\"is\":{\"ready\":true,\"priority\":100,\"at_leadership_limit\":false}}\n";
            until("to be greeted", || {
                let mut liar = UnixStream::connect(&socket)?;
                liar.set_read_timeout(Some(Duration::from_secs(30)))?;
                liar.write_all((hello.clone() + is).as_bytes())?;
                let read = liar.read(&mut [0; 1024])?;
                if read > 0 { Ok(liar) } else { Err(std::io::Error::from(std::io::ErrorKind::UnexpectedEof)) }
            })
        })
        .collect();
    let listeners = metric("baton_link_listeners", "");
    until("all to be listeners", || {
        let count = sample(&Endpoint::of(&alpha).ask("/metrics").body, &listeners);
        if count >= 41.0 { Ok(()) } else { Err(count) }
    });
    // With `--preempt`, the leader compares the priorities in the store, not those in link messages. So the liars'
    // priority of 100 must not make the leader transfer its leadership.
    keeps_leading(&fleet, &alpha, term);
    let moved = |event: &Event| event.from == "alpha" && event.is_ineligible("transferring");
    assert!(!fleet.journal.events().iter().any(moved), "{:?}", fleet.journal.events());
    takes_over_at_hand_off(&beta, &mut alpha, term);
    drop(liars);
    fleet.check_promises();
}

/// A host checks which user each peer runs as. The host does not rely on the permissions of the sockets' folder.
#[test]
fn peer_of_another_user_is_refused() {
    if !rustix::process::geteuid().is_root() {
        return skipped("only root can become another user");
    }
    let fleet = Fleet::new(Store::sqlite());
    let alpha = linked(&fleet, "alpha", &[MINUTE]).start();
    let term = fleet.beat_above(0).term;
    let socket = socket(&fleet);
    let to = incarnation_of(&socket);
    let hello = hello(ELECTION, &to, "mallory", "ee");
    for path in socket.ancestors().take_while(|path| path.starts_with(fleet.store.folder())) {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o777)).expect("our own file");
    }
    const SCRIPT: &str = "import socket, sys\ns = socket.socket(socket.AF_UNIX)\ns.connect(sys.argv[1])\n\
                          s.sendall(sys.argv[2].encode())\nprint(s.recv(1))";
    let answer_to = |user: u32| {
        let mut client = Command::new("python3");
        client.args(["-c", SCRIPT, socket.to_str().expect("a path"), &hello]).uid(user);
        finish(client)
    };
    // If the client takes longer than 1 s to send its message on a busy machine, the host hangs up. In that case, the
    // test tries again.
    until("this user to be greeted", || {
        let answer = answer_to(0);
        if answer.stdout == "b'{'\n" { Ok(()) } else { Err(answer) }
    });
    let refused = answer_to(65_534);
    // The host may hang up before or after the client has sent its message.
    let is_hung_up =
        refused.stdout == "b''\n" || refused.stderr.contains("reset") || refused.stderr.contains("Broken pipe");
    assert!(is_hung_up, "{refused:?}");
    keeps_leading(&fleet, &alpha, term);
    fleet.check_promises();
}

/// Connects more peers than a host accepts, each with its own incarnation. The host refuses the excess peers, and keeps
/// leading.
#[test]
fn links_are_refused_when_there_is_no_room() {
    const MOST: usize = 1024;
    let fleet = Fleet::new(Store::sqlite());
    let (alpha, _beta, term) = pair(&fleet, &[MINUTE]);
    let socket = socket(&fleet);
    let to = incarnation_of(&socket);
    let limit = getrlimit(Resource::Nofile);
    let wanted = limit.maximum.map_or(1 << 16, |most| most.min(1 << 16));
    setrlimit(Resource::Nofile, Rlimit { current: Some(wanted), ..limit }).expect("a limit up to the maximum");
    let mut greeted = Vec::new();
    let mut refused = 0;
    while refused < 20 {
        let hello = hello(ELECTION, &to, "one", &format!("{:016x}", greeted.len()));
        let greeting = UnixStream::connect(&socket).and_then(|mut one| {
            one.set_read_timeout(Some(Duration::from_secs(30)))?;
            one.write_all(hello.as_bytes())?;
            Ok((one.read(&mut [0; 1024])?, one))
        });
        match greeting {
            Ok((1.., one)) => {
                greeted.push(one);
                refused = 0;
            }
            // The host has closed the connection, or has not answered.
            _ => refused += 1,
        }
        assert!(greeted.len() <= MOST, "{} have a link", greeted.len());
    }
    assert!(greeted.len() > MOST / 2, "{} had a link", greeted.len());
    keeps_leading(&fleet, &alpha, term);
    drop(greeted);
    let gamma = linked(&fleet, "gamma", &[MINUTE]).start();
    gamma.event("to hear from alpha", |event| event.is_linked() && event.text("leader") == "alpha");
    fleet.check_promises();
}

#[test]
fn lies_in_the_leaders_name_cause_reads_and_no_takeover() {
    let fleet = Fleet::new(Store::sqlite());
    let launch = |name| linked(&fleet, name, &[LONGER]).arg("--reclaim=false");
    let alpha = launch("alpha").start();
    let term = fleet.beat_above(0).term;
    // The liar takes the leader's place: it listens on the path of the leader's socket.
    let socket = socket(&fleet);
    let incarnation = incarnation_of(&socket);
    std::fs::remove_file(&socket).expect("the socket");
    let liar = UnixListener::bind(&socket).expect("the path is free");
    liar.set_nonblocking(true).expect("a socket");
    let count = Arc::new(AtomicU64::new(0));
    let lies = std::thread::spawn({
        let count = Arc::clone(&count);
        move || {
            // The thread ends when the test drops its own reference to `count`.
            while Arc::strong_count(&count) > 1 {
                std::thread::sleep(Duration::from_millis(10));
                let Ok((mut victim, _)) = liar.accept() else { continue };
                let mut lie = hello(ELECTION, "ee", "alpha", &incarnation);
                while Arc::strong_count(&count) > 1 && victim.write_all(lie.as_bytes()).is_ok() {
                    let number = count.fetch_add(1, Ordering::Relaxed);
                    lie = match number % 3 {
                        0 => format!("{{\"leads\":{{\"term\":{},\"age_ms\":0,\"place\":0}}}}\n", (number + 1) << 40),
                        1 => "{\"gives-up\":{\"place\":0}}\n".to_owned(),
                        _ => "\"look\"\n".to_owned(),
                    };
                    std::thread::sleep(Duration::from_millis(60));
                }
            }
        }
    });
    let beta = launch("beta").start();
    fleet.journal.wait("beta to hear lies", |events| {
        events.iter().any(|event| event.from == "beta" && event.is_linked()).then_some(())
    });
    until("60 lies", || (count.load(Ordering::Relaxed) > 60).then_some(()).ok_or(()));
    keeps_leading(&fleet, &alpha, term);
    let status = fleet.status();
    assert_eq!((status["term"].as_u64(), status["lease"].as_str()), (Some(term), Some("held")), "{status}");
    // When alpha dies, beta must still take over. The false reports of high terms must not have raised beta's term.
    alpha.signal(Signal::KILL);
    let next = beta.after(term, "elected").term;
    assert!(next > term && next < 1 << 40, "no lie has raised {next}");
    drop(count);
    lies.join().expect("no panic");
    fleet.check_promises();
}

#[test]
fn election_works_without_links() {
    let fleet = Fleet::new(Store::sqlite());
    let mut alpha = fleet.launch("alpha").arg("--links=false").start();
    let term = fleet.beat_above(0).term;
    let beta = linked(&fleet, "beta", &[]).start();
    beta.event("to follow alpha", |event| event.name == "standby" && event.text("leader") == "alpha");
    assert!(alpha.terminate().success());
    let next = fleet.beat_above(term);
    assert_eq!(next.from, "beta");
    let events = fleet.journal.events();
    assert!(!events.iter().any(|event| event.is_linked()), "{events:?}");
    // A host that cannot create the folder for its links' sockets runs without links.
    let bare = Fleet::new(Store::sqlite());
    std::fs::create_dir_all(bare.store.folder()).expect("the store's folder");
    std::fs::write(folder(&bare), "").expect("a file instead of the folder");
    let gamma = linked(&bare, "gamma", &[]).start();
    let term = bare.beat_above(0).term;
    let error = gamma.event("the error", |event| event.name == "error");
    assert!(error.text("error").contains("links"), "{error:?}");
    keeps_beating(&bare, term);
    bare.check_promises();
}

fn keeps_beating(fleet: &Fleet, term: u64) {
    fleet.journal.wait("beats", |events| {
        (events.iter().filter(|event| event.name == "output" && event.term == term).count() >= 3).then_some(())
    });
}
