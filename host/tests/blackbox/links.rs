//! What the nodes of one machine tell each other: that it spares them the store, that nobody waits for a poll, and that
//! whoever speaks on a link, whatever it says, breaks no promise and is in no renewal's way.
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

use rustix::process::{Resource, Rlimit, Signal, getrlimit, kill_process, setrlimit};

use crate::endpoint::{Endpoint, sample};
use crate::fleet::{ELECTION, Fleet};
use crate::node::{Event, Launch, Node, finish, until};
use crate::patience::Patience;
use crate::skipped::skipped;
use crate::store::Store;

/// With it a renewal is due each ten seconds.
const MINUTE: (&str, &str) = ("--lease", "60s");

/// One that a busy machine does not lose.
const LONGER: (&str, &str) = ("--lease", "15s");

fn folder(fleet: &Fleet) -> PathBuf {
    fleet.store.folder().join("links")
}

/// A leader, a standby that hears from it, and the term.
fn pair(fleet: &Fleet, flags: &[(&str, &str)]) -> (Node, Node, u64) {
    pair_of(fleet, |name| linked(fleet, name, flags))
}

/// A host that has links whatever is set for all.
fn linked(fleet: &Fleet, name: &str, flags: &[(&str, &str)]) -> Launch {
    fleet.launch_with(name, flags).arg("--links=true")
}

/// The same, as it is launched.
fn pair_of(fleet: &Fleet, launch: impl Fn(&str) -> Launch) -> (Node, Node, u64) {
    let alpha = launch("alpha").start();
    let term = fleet.beat_above(0).term;
    let beta = launch("beta").start();
    beta.event("to hear from alpha", |event| event.name == "linked" && event.text("leader") == "alpha");
    (alpha, beta, term)
}

fn of(name: &str, labels: &str) -> String {
    let comma = if labels.is_empty() { "" } else { "," };
    format!("{name}{{election=\"{ELECTION}\"{comma}{labels}}}")
}

/// The socket of whoever leads.
pub fn socket(fleet: &Fleet) -> PathBuf {
    let status = fleet.command(&["nodes", ELECTION, "--output=json"]).json();
    let nodes = status.as_array().cloned().unwrap_or_default();
    let leader = nodes.iter().find(|node| node["role"] == "leader").expect("somebody leads");
    folder(fleet).join(leader["incarnation"].as_str().expect("an incarnation"))
}

/// Whose socket that is.
pub fn incarnation_of(socket: &Path) -> String {
    socket.file_name().and_then(|name| name.to_str()).expect("an incarnation").to_owned()
}

/// What a node says first of all on a link: who it is, and whom it means.
pub fn hello(election: &str, to: &str, node: &str, incarnation: &str) -> String {
    let who = format!(r#""to":"{to}","node":"{node}","incarnation":"{incarnation}""#);
    format!("{{\"hello\":{{\"election\":\"{election}\",{who}}}}}\n")
}

/// Waits until the node has led on in that term for a while.
pub fn goes_on(fleet: &Fleet, node: &Node, term: u64) {
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

/// Waits until a node has heard so many renewals of its leader while it read the lease no more than so often, and checks
/// that it is told of as one that listens.
pub fn hardly_asks(fleet: &Fleet, node: &Node, leader: &Node, renewals: f64, readings: f64) {
    let at = Endpoint::of(node);
    let number = |name: &str| sample(&at.ask("/metrics").body, name);
    let (hints, reads) =
        (of("baton_link_hints_total", ""), of("baton_store_requests_total", "operation=\"read\",result=\"ok\""));
    // Where the machine kept renewals from it for a while, it has asked in between.
    until(&format!("{renewals} renewals in which it reads {readings} times at the most"), || {
        let (heard, read) = (number(&hints), number(&reads));
        until("renewals to be heard", || (number(&hints) >= heard + renewals).then_some(()).ok_or(()));
        let asked = number(&reads) - read;
        if asked <= readings { Ok(()) } else { Err(asked) }
    });
    // One that was just cut and made anew is announced a moment later.
    until("it to be told of", || {
        let nodes = fleet.command(&["nodes", ELECTION, "--output=json"]).json();
        let row = nodes.as_array().expect("a list").iter().find(|row| row["node"] == *node.name).expect("it is there");
        let listeners = sample(&Endpoint::of(leader).ask("/metrics").body, &of("baton_link_listeners", ""));
        let hears = number(&of("baton_link", ""));
        if row["link"]["to"] == *leader.name && (listeners, hears) == (1.0, 1.0) {
            Ok(())
        } else {
            Err((nodes, listeners, hears))
        }
    });
}

/// Ends the leader, and checks that the node takes over after the end of its instance, and has heard from it since.
pub fn is_told_of_the_end(node: &Node, leader: &mut Node, term: u64) {
    let heard = || sample(&Endpoint::of(node).ask("/metrics").body, &of("baton_link_hints_total", ""));
    let before = heard();
    assert!(leader.terminate().success());
    let next = node.after(term, "elected");
    let gone = leader.event("the end of its instance", |event| event.name == "ended" && event.term >= term);
    assert!(next.ts >= gone.ts, "{gone:?}, {next:?}");
    until("it to be told", || (heard() > before).then_some(()).ok_or(before));
}

#[test]
fn a_standby_that_hears_its_leader_hardly_asks_and_is_there_when_the_lease_is_given_up() {
    let fleet = Fleet::new(Store::sqlite());
    let (mut alpha, beta, term) = pair(&fleet, &[LONGER]);
    // 2.5 s apart.
    hardly_asks(&fleet, &beta, &alpha, 3.0, 2.0);
    is_told_of_the_end(&beta, &mut alpha, term);
    // One that reads at the very moment at which it is told recalls what it would have surveyed, and one that asks for the
    // lease before it is released does so once more. It never asks without.
    let page = Endpoint::of(&beta).ask("/metrics").body;
    let asked = |what: &str, how: &str| {
        sample(&page, &of("baton_store_requests_total", &format!("operation=\"{what}\",result=\"{how}\"")))
    };
    let looks = asked("survey", "ok") + asked("recall", "ok");
    let acquires = asked("acquire", "ok") + asked("acquire", "refused");
    assert!(acquires >= 1.0 && looks >= acquires, "{page}");
    fleet.check_promises();
}

/// A leader to which nobody listens tells nothing, and renews each ten seconds here.
#[test]
fn who_begins_to_listen_is_told_at_once_of_the_last_renewal() {
    let fleet = Fleet::new(Store::sqlite());
    let alpha = linked(&fleet, "alpha", &[MINUTE]).start();
    let term = fleet.beat_above(0).term;
    let socket = socket(&fleet);
    let hello = hello(ELECTION, &incarnation_of(&socket), "late", "ee");
    let nobody_listens = || {
        let listeners = sample(&Endpoint::of(&alpha).ask("/metrics").body, &of("baton_link_listeners", ""));
        if listeners == 0.0 { Ok(()) } else { Err(listeners) }
    };
    // The first of all, and one after nobody has listened for a while.
    for _ in 0..2 {
        // A renewal may come just then.
        until("it to be told of a renewal that is older than its link", || {
            until("nobody to listen", nobody_listens);
            let mut late = UnixStream::connect(&socket)?;
            late.set_read_timeout(Some(Duration::from_secs(30)))?;
            let since = Instant::now();
            late.write_all(hello.as_bytes())?;
            for line in BufReader::new(late).lines() {
                let line: serde_json::Value = serde_json::from_str(&line?)?;
                let Some(age) = line["leads"]["age_ms"].as_u64() else { continue };
                assert_eq!(line["leads"]["term"].as_u64(), Some(term));
                // Later lines are of later renewals.
                if u128::from(age) > since.elapsed().as_millis() {
                    return Ok(());
                }
                break;
            }
            Err(std::io::Error::other("it was told late"))
        });
    }
    fleet.check_promises();
}

/// Where nobody leads, nobody is linked: who is told of a suspension tells nobody that it is over.
#[test]
fn a_command_tells_every_host_of_its_machine_and_not_the_leader_alone() {
    let fleet = Fleet::new(Store::sqlite());
    let alpha = linked(&fleet, "alpha", &[MINUTE]).start();
    fleet.beat_above(0);
    let listener = UnixListener::bind(folder(&fleet).join("ee")).unwrap();
    listener.set_nonblocking(true).unwrap();
    // Those of a host that is gone, and of one that is just starting.
    drop(UnixListener::bind(folder(&fleet).join("cc")).unwrap());
    let _unfinished = UnixListener::bind(folder(&fleet).join(".dd")).unwrap();
    // On a machine that is too busy, a command gives up before it has told everybody.
    until("both commands to tell", || {
        let told = ["suspend", "resume"].map(|what| {
            let done = fleet.command(&[what, ELECTION]);
            assert_eq!(done.code, Some(0), "{done:?}");
            // The node has the hint by the time that the command returns.
            let (mut told, mut said) = (listener.accept().ok()?.0, String::new());
            told.read_to_string(&mut said).unwrap();
            let said: Vec<serde_json::Value> = said.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
            let [first, rest @ ..] = &said[..] else { return None };
            assert_eq!((&first["hello"]["to"], &first["hello"]["election"]), (&"ee".into(), &ELECTION.into()));
            assert_eq!(*rest, ["look"]);
            Some(())
        });
        if told.iter().all(Option::is_some) { Ok(()) } else { Err(told) }
    });
    assert_eq!(alpha.event("to lead again", |event| event.name == "elected" && event.term > 1).from, "alpha");
    fleet.check_promises();
}

#[test]
fn what_carries_the_links_may_die_and_is_started_again() {
    let fleet = Fleet::new(Store::sqlite());
    let (alpha, beta, term) = pair(&fleet, &[MINUTE]);
    for carrier in alpha.link_carriers() {
        kill_process(carrier, Signal::KILL).expect("it is there");
    }
    let is = |name: &'static str| move |event: &&Event| event.from == "beta" && event.name == name;
    beta.event("the link to end", |event| event.name == "link_ended");
    fleet.journal.wait("another link", |events| (events.iter().filter(is("linked")).count() >= 2).then_some(()));
    // The node whose process it was has said what that means, and goes on.
    alpha.event("to say so", |event| event.name == "error" && event.text("error").contains("links"));
    assert_eq!(fleet.status()["term"].as_u64(), Some(term));
    // A host that is killed takes it along.
    let socket = socket(&fleet);
    alpha.signal(Signal::KILL);
    beta.after(term, "elected");
    until("nobody to listen there", || UnixStream::connect(&socket).map_or_else(|_| Ok(()), Err));
    fleet.check_promises();
}

#[test]
fn who_floods_loiters_or_speaks_garbage_is_in_nobodys_way() {
    let fleet = Fleet::new(Store::sqlite());
    let (alpha, _beta, term) = pair(&fleet, &[LONGER]);
    let socket = socket(&fleet);
    let incarnation = incarnation_of(&socket);
    let hello = |election: &str, to: &str| hello(election, to, "mallory", "ee");
    // Those who say nothing, more than there may be, and stay for as long as they may.
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
        // What only the one that leads may say.
        hello(ELECTION, &incarnation) + "{\"leads\":{\"term\":9000,\"age_ms\":0,\"place\":0}}\n",
    ];
    for said in garbage {
        let mut patience = Patience::default();
        // There is no room for a while.
        while patience.lasts() {
            let Ok(mut peer) = UnixStream::connect(&socket) else {
                std::thread::sleep(Duration::from_millis(10));
                continue;
            };
            peer.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
            let _ = peer.write_all(said.as_bytes());
            // It is cut off, whatever it was told before.
            let mut told = Vec::new();
            match peer.read_to_end(&mut told) {
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
                _ => break,
            }
        }
    }
    goes_on(&fleet, &alpha, term);
    is_over.store(true, Ordering::Relaxed);
    floods.join().expect("it ends");
    drop(loiterers);
    goes_on(&fleet, &alpha, term);
    // Whoever comes then is heard as ever.
    let gamma = linked(&fleet, "gamma", &[LONGER]).start();
    gamma.event("to hear from alpha", |event| event.name == "linked" && event.text("leader") == "alpha");
    fleet.check_promises();
}

/// Those that say that they could take the lease, with the highest priority, have all the first places, and take nothing.
#[test]
fn who_lies_about_what_it_could_take_over_keeps_nobody_from_it() {
    let fleet = Fleet::new(Store::sqlite());
    let launch =
        |name: &str| linked(&fleet, name, &[MINUTE, ("--priority", "50")]).arg("--preempt").arg("--reclaim=false");
    let (mut alpha, beta, term) = pair_of(&fleet, launch);
    let socket = socket(&fleet);
    let to = incarnation_of(&socket);
    let liars: Vec<UnixStream> = (0..40)
        .map(|number| {
            let hello = hello(ELECTION, &to, &format!("liar-{number}"), &format!("{number:016x}"));
            let is = "{\"is\":{\"ready\":true,\"priority\":100,\"leads_enough\":false}}\n";
            until("to be greeted", || {
                let mut liar = UnixStream::connect(&socket)?;
                liar.set_read_timeout(Some(Duration::from_secs(30)))?;
                liar.write_all((hello.clone() + is).as_bytes())?;
                let read = liar.read(&mut [0; 1024])?;
                if read > 0 { Ok(liar) } else { Err(std::io::Error::from(std::io::ErrorKind::UnexpectedEof)) }
            })
        })
        .collect();
    let listeners = of("baton_link_listeners", "");
    until("all to be heard", || {
        let heard = sample(&Endpoint::of(&alpha).ask("/metrics").body, &listeners);
        if heard >= 41.0 { Ok(()) } else { Err(heard) }
    });
    // Whom it prefers is for the store to say.
    goes_on(&fleet, &alpha, term);
    let moved = |event: &Event| event.from == "alpha" && event.name == "transferring";
    assert!(!fleet.journal.events().iter().any(moved), "{:?}", fleet.journal.events());
    is_told_of_the_end(&beta, &mut alpha, term);
    drop(liars);
    fleet.check_promises();
}

/// What one may say for another user goes by who it is, not by what the folder lets in.
#[test]
fn another_user_is_not_heard() {
    if !rustix::process::geteuid().is_root() {
        return skipped("only root may be another user");
    }
    let fleet = Fleet::new(Store::sqlite());
    let alpha = linked(&fleet, "alpha", &[MINUTE]).start();
    let term = fleet.beat_above(0).term;
    let socket = socket(&fleet);
    let to = incarnation_of(&socket);
    let hello = hello(ELECTION, &to, "mallory", "ee");
    for path in socket.ancestors().take_while(|path| path.starts_with(fleet.store.folder())) {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o777)).expect("it is ours");
    }
    const SAYS: &str = "import socket, sys\ns = socket.socket(socket.AF_UNIX)\ns.connect(sys.argv[1])\n\
                        s.sendall(sys.argv[2].encode())\nprint(s.recv(1))";
    let told_to = |user: u32| {
        let mut says = Command::new("python3");
        says.args(["-c", SAYS, socket.to_str().expect("a path"), &hello]).uid(user);
        finish(says)
    };
    // A host hangs up on who says nothing for a second.
    until("this user to be greeted", || {
        let told = told_to(0);
        if told.stdout == "b'{'\n" { Ok(()) } else { Err(told) }
    });
    let refused = told_to(65_534);
    // It is hung up on before or after it has spoken.
    let is_hung_up =
        refused.stdout == "b''\n" || refused.stderr.contains("reset") || refused.stderr.contains("Broken pipe");
    assert!(is_hung_up, "{refused:?}");
    goes_on(&fleet, &alpha, term);
    fleet.check_promises();
}

/// More than a host has room for, each as another node: the rest find no room, and all others go on.
#[test]
fn no_more_are_heard_than_there_is_room_for() {
    /// As the host has it.
    const MOST: usize = 1024;
    let fleet = Fleet::new(Store::sqlite());
    let (alpha, _beta, term) = pair(&fleet, &[MINUTE]);
    let socket = socket(&fleet);
    let to = incarnation_of(&socket);
    let limit = getrlimit(Resource::Nofile);
    let wanted = limit.maximum.map_or(1 << 16, |most| most.min(1 << 16));
    setrlimit(Resource::Nofile, Rlimit { current: Some(wanted), ..limit }).expect("it is ours to raise");
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
            // Nothing, or an end.
            _ => refused += 1,
        }
        assert!(greeted.len() <= MOST, "{} have a link", greeted.len());
    }
    assert!(greeted.len() > MOST / 2, "{} had a link", greeted.len());
    goes_on(&fleet, &alpha, term);
    drop(greeted);
    let gamma = linked(&fleet, "gamma", &[MINUTE]).start();
    gamma.event("to hear from alpha", |event| event.name == "linked" && event.text("leader") == "alpha");
    fleet.check_promises();
}

#[test]
fn who_lies_in_the_leaders_name_is_read_after_and_never_believed() {
    let fleet = Fleet::new(Store::sqlite());
    let (alpha, beta, term) = pair_of(&fleet, |name| linked(&fleet, name, &[LONGER]).arg("--reclaim=false"));
    // Its socket is another's from now on.
    let socket = socket(&fleet);
    let incarnation = incarnation_of(&socket);
    std::fs::remove_file(&socket).expect("it is there");
    let liar = UnixListener::bind(&socket).expect("the path is free");
    for carrier in alpha.link_carriers() {
        kill_process(carrier, Signal::STOP).expect("it is there");
    }
    for carrier in beta.link_carriers() {
        kill_process(carrier, Signal::KILL).expect("it is there");
    }
    liar.set_nonblocking(true).expect("a socket");
    let told = Arc::new(AtomicU64::new(0));
    let lies = std::thread::spawn({
        let told = Arc::clone(&told);
        move || {
            // Until it is told no more, by its last owner but this.
            while Arc::strong_count(&told) > 1 {
                std::thread::sleep(Duration::from_millis(10));
                let Ok((mut victim, _)) = liar.accept() else { continue };
                let mut lie = hello(ELECTION, "ee", "alpha", &incarnation);
                while Arc::strong_count(&told) > 1 && victim.write_all(lie.as_bytes()).is_ok() {
                    let number = told.fetch_add(1, Ordering::Relaxed);
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
    fleet.journal.wait("beta to hear lies", |events| {
        (events.iter().filter(|event| event.from == "beta" && event.name == "linked").count() >= 2).then_some(())
    });
    // All this time alpha leads, and no term but its own was ever there.
    until("lies to be told", || (told.load(Ordering::Relaxed) > 60).then_some(()).ok_or(()));
    goes_on(&fleet, &alpha, term);
    let status = fleet.status();
    assert_eq!((status["term"].as_u64(), status["lease"].as_str()), (Some(term), Some("held")), "{status}");
    // Who dies is followed all the same, in the term after, while the lies go on.
    alpha.signal(Signal::KILL);
    let next = beta.after(term, "elected").term;
    assert!(next > term && next < 1 << 40, "no lie has raised {next}");
    drop(told);
    lies.join().expect("it ends");
    fleet.check_promises();
}

#[test]
fn without_links_everything_is_as_it_was() {
    let fleet = Fleet::new(Store::sqlite());
    let mut alpha = fleet.launch("alpha").arg("--links=false").start();
    let term = fleet.beat_above(0).term;
    // One with links beside one without.
    let beta = linked(&fleet, "beta", &[]).start();
    beta.event("to follow alpha", |event| event.name == "standby" && event.text("leader") == "alpha");
    assert!(alpha.link_carriers().is_empty());
    assert!(alpha.terminate().success());
    let next = fleet.beat_above(term);
    assert_eq!(next.from, "beta");
    let events = fleet.journal.events();
    assert!(!events.iter().any(|event| event.name == "linked"), "{events:?}");
    // And where the folder cannot be had.
    let bare = Fleet::new(Store::sqlite());
    std::fs::create_dir_all(bare.store.folder()).expect("the store's folder");
    std::fs::write(folder(&bare), "").expect("a file in its place");
    let gamma = linked(&bare, "gamma", &[]).start();
    let term = bare.beat_above(0).term;
    let error = gamma.event("to say so", |event| event.name == "error");
    assert!(error.text("error").contains("links"), "{error:?}");
    goes_on_without(&bare, term);
    bare.check_promises();
}

fn goes_on_without(fleet: &Fleet, term: u64) {
    fleet.journal.wait("beats", |events| {
        (events.iter().filter(|event| event.name == "output" && event.term == term).count() >= 3).then_some(())
    });
}
