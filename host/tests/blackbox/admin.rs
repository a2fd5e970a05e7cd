//! The answers of a node's admin endpoint to probes, load balancers and metric scrapers, while the node's state
//! changes.

use std::collections::HashSet;
use std::io::{self, Read as _, Write as _};
use std::net::{IpAddr, TcpListener, TcpStream, UdpSocket};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rustix::process::Signal;
use serde_json::Value;
use time::OffsetDateTime;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

use crate::endpoint::{Answer, Endpoint, sample};
use crate::fleet::{ELECTION, Fleet};
use crate::frozen::{freeze, freeze_in};
use crate::guests::{Guest, effects_without_state};
use crate::http::server::{Reply, Server};
use crate::node::{Event, Node, finish, until};
use crate::store::Store;
use crate::{scenarios, skipped};
use baton_test_support::server::free_port;

scenarios! {
    on_sqlite: [
        outage_is_counted_and_keeps_node_ready,
        steering_is_counted_in_transitions_and_store_requests,
        swap_gap_is_timed_and_module_is_reported,
        refused_store_requests_are_counted,
    ],
    with_crashes: [each_node_reports_leader_and_readiness],
}

/// Number of connections to open: far more than a host keeps open.
const CONNECTIONS: usize = 5000;

fn body_json(answer: &Answer) -> Value {
    serde_json::from_str(&answer.body).unwrap_or_else(|_| panic!("no JSON: {answer:?}"))
}

fn series(name: &str, labels: &str) -> String {
    let comma = if labels.is_empty() { "" } else { "," };
    format!("{name}{{election=\"{ELECTION}\"{comma}{labels}}}")
}

fn scraped(at: Endpoint, name: &str, test: impl Fn(f64) -> bool) -> f64 {
    until(&format!("{name} to change"), || {
        let value = sample(&at.ask("/metrics").body, name);
        if test(value) { Ok(value) } else { Err(value) }
    })
}

fn becomes_one(at: Endpoint, name: &str) {
    until(&format!("{name} to be 1"), || {
        let page = at.ask("/metrics").body;
        let value = page.lines().find_map(|line| line.strip_prefix(name)?.trim().parse::<f64>().ok());
        if value == Some(1.0) { Ok(()) } else { Err(page) }
    });
}

fn each_node_reports_leader_and_readiness(fleet: Fleet) {
    let (alpha, term) = fleet.leader("alpha");
    let beta = fleet.standby("beta", &alpha);
    let (at_alpha, at_beta) = (Endpoint::of(&alpha), Endpoint::of(&beta));
    assert_ne!(at_alpha, at_beta);
    for at in [at_alpha, at_beta] {
        for path in ["/livez", "/readyz"] {
            let answer = at.ask(path);
            assert_eq!((answer.status, answer.body.as_str()), (200, "ok\n"), "{path}");
        }
    }
    let path = format!("/leader/{ELECTION}");
    let (here, there) = (at_alpha.ask_until(&path, 200), at_beta.ask_until(&path, 503));
    for (answer, is_here) in [(&here, true), (&there, false)] {
        let status = body_json(answer);
        assert_eq!((&status["leader"], &status["here"]), (&"alpha".into(), &is_here.into()), "{status}");
        assert!(status["term"].as_u64() >= Some(term), "{status}");
    }
    let page = at_alpha.ask("/metrics").body;
    let build = format!("baton_build_info{{version=\"{}\",node=\"alpha\"}}", env!("CARGO_PKG_VERSION"));
    assert_eq!(sample(&page, &build), 1.0, "{page}");
    assert!(sample(&page, &series("baton_lease_remaining_seconds", "")) > 0.0);
    assert_eq!(sample(&page, &series("baton_lease_seconds", "")), fleet.lease().as_secs_f64());
    assert_eq!(sample(&page, &format!("leader_election_master_status{{name=\"{ELECTION}\"}}")), 1.0);
    assert!(sample(&page, &series("baton_guest_memory_bytes", "")) > 0.0);
    assert_eq!(sample(&page, &series("baton_guest_memory_limit_bytes", "")), f64::from(64 << 20));
    assert!(sample(&page, &series("baton_transitions_total", "reason=\"elected\"")) >= 1.0, "{page}");
    assert_eq!(sample(&at_beta.ask("/metrics").body, &series("baton_leader", "")), 0.0);
    scraped(at_alpha, &series("baton_effects_total", "kind=\"output\",result=\"passed\""), |passed| passed > 0.0);
    scraped(at_alpha, &series("baton_renewal_duration_seconds_count", ""), |renewals| renewals > 0.0);
    scraped(at_alpha, &series("baton_store_requests_total", "operation=\"renew\",result=\"ok\""), |asked| asked > 0.0);

    alpha.signal(Signal::KILL);
    let beat = fleet.beat_above(term);
    assert_eq!(beat.from, "beta");
    let status = body_json(&at_beta.ask_until(&path, 200));
    assert_eq!(status["leader"], "beta", "{status}");
    let page = at_beta.ask("/metrics").body;
    assert_eq!(sample(&page, &series("baton_leader", "")), 1.0);
    assert!(sample(&page, &series("baton_term", "")) > term as f64, "{page}");
    assert!(sample(&page, &series("baton_leaderless_seconds_total", "")) > 0.0, "{page}");
    assert!(sample(&page, &series("baton_instance_starts_total", "")) > 0.0, "{page}");
    fleet.check_promises();
}

fn outage_is_counted_and_keeps_node_ready(fleet: Fleet) {
    let (alpha, _) = fleet.leader("alpha");
    let at = Endpoint::of(&alpha);
    let outage = fleet.store.cut();
    alpha.event("the loss of leadership", |event| {
        event.name == "standby" && event.text("leader").is_empty() && event.term == 0
    });
    alpha.after(0, "ended");
    let path = format!("/leader/{ELECTION}");
    assert_eq!(body_json(&at.ask_until(&path, 503))["here"], false);
    for path in ["/livez", "/readyz"] {
        assert_eq!(at.ask(path).status, 200, "{path}");
    }
    scraped(at, &series("baton_transitions_total", "reason=\"lost\""), |lost| lost == 1.0);
    let unanswered =
        |result: &str| series("baton_store_requests_total", &format!("operation=\"renew\",result=\"{result}\""));
    let page = at.ask("/metrics").body;
    assert!(sample(&page, &unanswered("unknown")) + sample(&page, &unanswered("misconfigured")) > 0.0, "{page}");
    assert_eq!(sample(&page, &series("baton_leader", "")), 0.0);
    assert_eq!(sample(&page, "baton_ready"), 1.0);
    drop(outage);
    at.ask_until(&path, 200);
    fleet.check_promises();
}

/// The test breaks the lease, so the store refuses the next renewal. Before the node acquires the lease again, it reads
/// the highest term from the store, which counts as a `recall` request.
fn refused_store_requests_are_counted(fleet: Fleet) {
    let (alpha, term) = fleet.leader("alpha");
    let asked =
        |what: &str, how: &str| series("baton_store_requests_total", &format!("operation=\"{what}\",result=\"{how}\""));
    fleet.store.break_lease();
    scraped(Endpoint::of(&alpha), &asked("renew", "refused"), |refused| refused > 0.0);
    fleet.beat_above(term);
    scraped(Endpoint::of(&alpha), &asked("recall", "ok"), |recalls| recalls > 0.0);
    fleet.check_promises();
}

fn swap_gap_is_timed_and_module_is_reported(fleet: Fleet) {
    let build = |n| {
        let path = fleet.home.path().join(format!("{n}.wasm"));
        std::fs::write(&path, Guest::Beats.build(n)).expect("written");
        let pushed = fleet.command(&["push", path.to_str().expect("a path"), ELECTION]);
        assert_eq!(pushed.code, Some(0), "{pushed:?}");
        pushed.stdout.split(' ').next().expect("a digest").to_owned()
    };
    let node = fleet.launch_from("alpha", format!("store://{ELECTION}"), &[("--lease", "60s")]).start();
    let at = Endpoint::of(&node);
    // A node is ready before the first push, so that a rolling update does not have to wait for a push.
    at.ask_until("/readyz", 200);
    let module = |digest: &str| series("baton_module_info", &format!("digest=\"{digest}\""));
    let first = build(1);
    fleet.beat_above(0);
    becomes_one(at, &module(&first));
    let second = build(2);
    node.event("the swap", Event::is_swap);
    becomes_one(at, &series("baton_swap_gap_seconds_count", ""));
    becomes_one(at, &module(&second));
    let page = at.ask("/metrics").body;
    assert!(sample(&page, &series("baton_instance_starts_total", "")) >= 2.0, "{page}");
    assert_eq!(sample(&page, &series("baton_transitions_total", "reason=\"elected\"")), 1.0);
    fleet.check_promises();
}

/// Replaces the hosts one after another: stops an old host, starts a new one, and continues once the new host is ready.
/// All running hosts must stay live.
#[test]
fn rolling_update_proceeds_without_leadership() {
    let fleet = Fleet::new(Store::sqlite());
    let (alpha, _) = fleet.leader("alpha");
    let mut nodes = vec![fleet.standby("beta", &alpha), fleet.standby("gamma", &alpha), alpha];
    for name in ["delta", "epsilon", "zeta"] {
        let mut old = nodes.remove(0);
        assert_eq!(old.terminate().code(), Some(0));
        let new = fleet.node(name);
        Endpoint::of(&new).ask_until("/readyz", 200);
        nodes.push(new);
        for node in &nodes {
            assert_eq!(Endpoint::of(node).ask("/livez").status, 200, "{}", node.name);
        }
    }
    let last = fleet.journal.events().iter().map(|event| event.term).max().expect("terms");
    let beat = fleet.beat("one of the new nodes to lead", |event| ["delta", "epsilon", "zeta"].contains(&&*event.from));
    assert!(beat.term >= last);
    // The leader was replaced last, so the update caused only one more election.
    let leaders: HashSet<String> =
        fleet.journal.events().into_iter().filter(|event| event.name == "elected").map(|event| event.from).collect();
    assert_eq!(leaders.len(), 2, "{leaders:?}");
    fleet.check_promises();
}

/// Starts and stops the hosts in the order that a rolling update with the Kubernetes manifests uses.
#[test]
fn update_takes_one_election_when_new_hosts_start_first() {
    let fleet = Fleet::new(Store::sqlite());
    let (alpha, term) = fleet.leader("alpha");
    let mut old = vec![fleet.standby("beta", &alpha), fleet.standby("gamma", &alpha), alpha];
    let new = ["delta", "epsilon", "zeta"].map(|name| fleet.node(name));
    for node in &new {
        Endpoint::of(node).ask_until("/readyz", 200);
    }
    // The leader stops last. Otherwise, an old host that is still running might win the election.
    for node in &mut old {
        assert_eq!(node.terminate().code(), Some(0));
    }
    let beat = fleet.beat_above(term);
    assert!(new.iter().any(|node| node.name == beat.from), "{beat:?}");
    let elections = fleet.journal.events().iter().filter(|event| event.name == "elected").count();
    assert_eq!(elections, 2, "the first, and one for the update");
    fleet.check_promises();
}

#[test]
fn instance_ends_are_counted_by_outcome() {
    for (guest, outcome) in [(Guest::Done, "done"), (Guest::Traps, "failed"), (Guest::FailsFatally, "fatal")] {
        let fleet = Fleet::new(Store::sqlite()).with(guest);
        let node = fleet.node("alpha");
        let at = Endpoint::of(&node);
        scraped(at, &series("baton_instance_ends_total", &format!("outcome=\"{outcome}\"")), |ends| ends > 0.0);
    }
    let fleet = Fleet::new(Store::sqlite()).with(Guest::Loops);
    let node = fleet.node("alpha");
    node.after(0, "started");
    let at = Endpoint::of(&node);
    scraped(at, &series("baton_guest_cpu_seconds_total", ""), |seconds| seconds > 0.0);
    let _outage = fleet.store.cut();
    scraped(at, &series("baton_instance_ends_total", "outcome=\"killed\""), |ends| ends == 1.0);
    let page = at.ask("/metrics").body;
    assert_eq!(sample(&page, &series("baton_kill_duration_seconds_count", "")), 1.0);
    assert!(!page.contains("baton_guest_memory_bytes{"), "nothing runs:\n{page}");
}

#[test]
fn dropped_lines_are_counted() {
    let fleet = Fleet::new(Store::sqlite()).with(Guest::Floods);
    let node = fleet.node("alpha");
    node.event("dropped lines", |event| event.name == "output_dropped");
    scraped(Endpoint::of(&node), &series("baton_output_lines_dropped_total", ""), |lines| lines > 0.0);
}

#[test]
fn unsaved_commits_are_counted_as_refused() {
    let fleet = Fleet::new(Store::sqlite()).with(Guest::SavesTooMuch);
    let node = fleet.node("alpha");
    let refused = series("baton_effects_total", "kind=\"commit\",result=\"refused\"");
    scraped(Endpoint::of(&node), &refused, |commits| commits > 0.0);
}

#[test]
fn commits_are_counted_over_all_instances() {
    let fleet = Fleet::new(Store::sqlite()).with(Guest::KeepsHistory);
    let (node, term) = fleet.leader("alpha");
    let at = Endpoint::of(&node);
    let commits = series("baton_effects_total", "kind=\"commit\",result=\"passed\"");
    let before = scraped(at, &commits, |commits| commits > 2.0);
    let outage = fleet.store.cut();
    node.after(0, "ended");
    let after_end = sample(&at.ask("/metrics").body, &commits);
    assert!(after_end >= before, "{after_end} after {before}");
    drop(outage);
    fleet.beat_above(term);
    scraped(at, &commits, |commits| commits > after_end);
}

/// Starts a leader whose coordinator sends requests, writes to a file and prints lines. Returns once an effect of each
/// of these kinds has passed the gate. The returned server receives the requests.
fn start_with_effects(fleet: &Fleet) -> (Node, Server) {
    let server = Server::start(|_| Reply::Answer("200 OK".to_owned(), String::new()));
    let folder = fleet.home.path().join("data");
    let flags = [
        ("--env", "EVERY_US=5000".to_owned()),
        ("--allow-http", server.url()),
        ("--env", format!("URL={}", server.url())),
        ("--env", "FILE=/data/log".to_owned()),
        ("--dir", format!("{}::/data", folder.display())),
    ];
    let flags = flags.each_ref().map(|(flag, value)| (*flag, value.as_str()));
    std::fs::create_dir(&folder).expect("a folder");
    let alpha = fleet.launch_from("alpha", effects_without_state(), &flags).start();
    for kind in EFFECTS {
        scraped(Endpoint::of(&alpha), &effects(kind, "passed"), |passed| passed > 0.0);
    }
    (alpha, server)
}

const EFFECTS: [&str; 3] = ["request", "file", "output"];

fn effects(kind: &str, result: &str) -> String {
    series("baton_effects_total", &format!("kind=\"{kind}\",result=\"{result}\""))
}

/// The test freezes the threads that would end the instance, both in the host and in the runners. So only the gate is
/// left to stop the instance's effects.
#[test]
fn effects_after_deadline_are_counted_as_refused() {
    let fleet = Fleet::new(Store::sqlite());
    let (alpha, _server) = start_with_effects(&fleet);
    for runner in alpha.runners() {
        freeze_in(runner.as_raw_nonzero().get().unsigned_abs(), "deadline");
    }
    freeze(&alpha, "watchdog");
    freeze(&alpha, "control");
    for kind in EFFECTS {
        scraped(Endpoint::of(&alpha), &effects(kind, "refused"), |refused| refused > 0.0);
    }
    let counts = |result: &str| {
        let page = Endpoint::of(&alpha).ask("/metrics").body;
        EFFECTS.map(|kind| sample(&page, &effects(kind, result)))
    };
    let (passed, refused) = (counts("passed"), counts("refused"));
    until("more refused effects", || {
        let now = counts("refused");
        if now.iter().zip(refused).all(|(now, before)| *now > before) { Ok(()) } else { Err(now) }
    });
    assert_eq!(counts("passed"), passed);
}

#[test]
fn effects_and_usage_are_counted_by_kind() {
    let fleet = Fleet::new(Store::sqlite());
    let (alpha, _server) = start_with_effects(&fleet);
    let at = Endpoint::of(&alpha);
    let usage = |name: &str, limit: &str| series(name, &format!("limit=\"{limit}\""));
    for limit in ["instances", "handles", "files", "requests"] {
        let most = scraped(at, &usage("baton_guest_limit", limit), |most| most > 0.0);
        scraped(at, &usage("baton_guest_usage", limit), |used| used > 0.0 && used <= most);
    }
    let page = at.ask("/metrics").body;
    assert!(sample(&page, &usage("baton_guest_limit", "table_elements")) > 0.0, "{page}");
    assert!(sample(&page, &usage("baton_guest_usage", "kept_bytes")) > 0.0, "{page}");
    fleet.check_promises();
}

fn steering_is_counted_in_transitions_and_store_requests(fleet: Fleet) {
    let (alpha, _) = fleet.leader("alpha");
    let beta = fleet.standby("beta", &alpha);
    let [at_alpha, at_beta] = [&alpha, &beta].map(Endpoint::of);
    let transitions = |reason: &str| series("baton_transitions_total", &format!("reason=\"{reason}\""));
    let steer = |how: &[&str]| {
        let asked = fleet.command(how);
        assert_eq!(asked.code, Some(0), "{asked:?}");
    };
    steer(&["step-down", ELECTION, "--for", "1h"]);
    scraped(at_alpha, &transitions("released"), |released| released == 1.0);
    scraped(at_alpha, &transitions("other"), |others| others == 1.0);
    scraped(at_beta, &transitions("elected"), |elected| elected == 1.0);
    let asked = |how: &str| series("baton_store_requests_total", &format!("operation=\"{how}\",result=\"ok\""));
    for (at, operations) in [(at_alpha, ["create", "release"]), (at_beta, ["acquire", "write"])] {
        for operation in operations.into_iter().chain(["read"]) {
            scraped(at, &asked(operation), |requests| requests > 0.0);
        }
    }
    let ineligible = series("baton_ineligible", "");
    scraped(at_alpha, &ineligible, |ineligible| ineligible == 1.0);
    assert_eq!(sample(&at_beta.ask("/metrics").body, &ineligible), 0.0);
    steer(&["suspend", ELECTION]);
    scraped(at_beta, &ineligible, |ineligible| ineligible == 1.0);
    steer(&["resume", ELECTION]);
    scraped(at_beta, &ineligible, |ineligible| ineligible == 0.0);
    fleet.check_promises();
}

#[test]
fn node_without_store_is_not_ready_and_says_why() {
    let fleet = Fleet::new(Store::bare_azurite());
    let node = fleet.node("alpha");
    let at = Endpoint::of(&node);
    let answer = at.ask_until("/readyz", 503);
    let missing = format!("{ELECTION}: the store has not answered yet\n");
    assert!(answer.body.starts_with(&missing), "{answer:?}");
    assert_eq!(at.ask("/livez").status, 200, "an outage of the store does not make the host unhealthy");
    assert_eq!(sample(&at.ask("/metrics").body, "baton_ready"), 0.0);
    fleet.store.create_container();
    at.ask_until("/readyz", 200);
    assert_eq!(sample(&at.ask("/metrics").body, "baton_ready"), 1.0);
}

#[test]
fn host_is_not_live_when_control_threads_hang() {
    let fleet = Fleet::new(Store::sqlite());
    let (alpha, _) = fleet.leader("alpha");
    let beta = fleet.standby("beta", &alpha);
    let at = Endpoint::of(&beta);
    assert_eq!(at.ask("/livez").status, 200);
    freeze(&beta, "control");
    let supervisor = format!("the supervisor of {ELECTION} has made no progress for ");
    let names = ["the control runtime has made no progress for ", &supervisor];
    // `/livez` names the control runtime and the supervisor, each once it has made no progress for too long. The last
    // progress of one may be up to a second older than that of the other, so `/livez` may name one before the other.
    until("/livez to name both", || {
        let answer = at.ask_until("/livez", 503);
        let lines: Vec<&str> = answer.body.lines().collect();
        let names_both = lines.len() == 2 && names.iter().zip(&lines).all(|(name, line)| line.starts_with(*name));
        if names_both { Ok(()) } else { Err(answer) }
    });
    assert_eq!(Endpoint::of(&alpha).ask("/livez").status, 200);
}

#[test]
fn host_is_not_live_when_watchdog_is_late() {
    let fleet = Fleet::new(Store::sqlite());
    // The watchdog watches only leaders, so this test needs a leader.
    let (alpha, _) = fleet.leader("alpha");
    freeze(&alpha, "watchdog");
    let answer = Endpoint::of(&alpha).ask_until("/livez", 503);
    assert!(answer.body.starts_with("the watchdog is ") && answer.body.ends_with(" s late\n"), "{answer:?}");
}

/// The host's threads sleep until absolute times. So after a long stop of the process, they wake up and make progress
/// at once.
#[test]
fn stopped_host_is_live_again_when_it_resumes() {
    let fleet = Fleet::new(Store::sqlite());
    let alpha = fleet.launch_with("alpha", &[("--lease", "60s")]).start();
    fleet.beat_above(0);
    let at = Endpoint::of(&alpha);
    assert_eq!(at.ask("/livez").status, 200);
    alpha.pause_host();
    // The pause is longer than the time that a control thread may spend without making progress.
    std::thread::sleep(Duration::from_secs(22));
    alpha.resume();
    at.ask_until("/livez", 200);
}

#[test]
fn hung_leader_is_not_reported_after_its_deadline() {
    let fleet = Fleet::new(Store::sqlite());
    // The host ends itself 0.13 D after the gate closes, where D is the lease duration. This long lease leaves 5.2 s in
    // which the endpoint can answer 503.
    let alpha = fleet.launch_with("alpha", &[("--lease", "40s")]).start();
    fleet.beat_above(0);
    let at = Endpoint::of(&alpha);
    let path = format!("/leader/{ELECTION}");
    at.ask_until(&path, 200);
    // Without its control threads, the host can no longer renew its lease. The loop sends requests until the endpoint
    // answers 503, or until the host has ended itself.
    freeze(&alpha, "control");
    let mut last = 200;
    while let Ok(mut stream) = TcpStream::connect(at.0) {
        let request = format!("GET {path} HTTP/1.1\r\nHost: node\r\nConnection: close\r\n\r\n");
        let mut answer = String::new();
        if stream.write_all(request.as_bytes()).and_then(|()| stream.read_to_string(&mut answer)).is_err() {
            break;
        }
        let status = if answer.starts_with("HTTP/1.1 200") { 200 } else { 503 };
        assert!(status >= last, "the node leads again: {answer}");
        last = status;
        if status == 503 {
            break;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    assert_eq!(last, 503, "the endpoint reported leadership until the host ended");
}

#[test]
fn endpoint_answers_only_reads() {
    let fleet = Fleet::new(Store::sqlite());
    let node = fleet.node("alpha");
    let at = Endpoint::of(&node);
    for path in ["/livez", "/readyz", "/metrics", "/leader/fleet"] {
        for method in ["POST", "PUT", "DELETE", "PATCH"] {
            let request =
                format!("{method} {path} HTTP/1.1\r\nHost: node\r\nConnection: close\r\nContent-Length: 0\r\n\r\n");
            let answer = at.send(request.as_bytes()).expect("an answer");
            assert_eq!(answer.status, 405, "{method} {path}: {answer:?}");
            assert!(answer.head.contains("allow: get, head"), "{answer:?}");
        }
    }
    let nothing = at.ask("/nothing");
    assert_eq!(nothing.status, 404);
    assert!(nothing.body.contains("/readyz"), "{nothing:?}");
    let other = at.ask("/leader/other%0A");
    assert_eq!(other.status, 404);
    assert_eq!(other.body, "alpha is not in the election other\\n; its elections: fleet\n");
    let open =
        b"GET /metrics HTTP/1.1\r\nHost: node\r\nConnection: close\r\nAccept: application/openmetrics-text\r\n\r\n";
    let open = at.send(open).expect("an answer");
    assert!(open.head.contains("content-type: application/openmetrics-text; version=1.0.0"), "{}", open.head);
    assert!(
        open.body.ends_with("# EOF\n") && open.body.contains("# TYPE baton_transitions counter\n"),
        "{}",
        open.body
    );
    let old = at.ask("/metrics");
    assert!(old.head.contains("content-type: text/plain; version=0.0.4"), "{}", old.head);
    assert!(
        old.body.contains("# TYPE baton_transitions_total counter\n") && !old.body.contains("# EOF"),
        "{}",
        old.body
    );
}

#[test]
fn probes_are_answered_despite_held_connections_and_garbage() {
    let fleet = Fleet::new(Store::sqlite());
    let (mut node, term) = fleet.leader("alpha");
    let at = Endpoint::of(&node);
    // The test keeps the newest 400 to 500 connections open on its side, although the host closes most of them.
    let mut held = Vec::new();
    for number in 0..CONNECTIONS {
        let Ok(mut stream) = TcpStream::connect(at.0) else { continue };
        let sent: &[u8] = match number % 4 {
            0 => b"GET /metrics HT",
            1 => b"\x16\x03\x01 this is no HTTP\r\n\r\n",
            2 => b"",
            _ => b"POST /livez HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999\r\n\r\nx",
        };
        let _ = stream.write_all(sent);
        held.push(stream);
        if held.len() > 500 {
            held.drain(..100);
        }
    }
    assert_eq!(at.ask_until("/livez", 200).body, "ok\n");
    let huge = format!("GET /livez HTTP/1.1\r\nHost: x\r\nX: {}\r\n\r\n", "x".repeat(1 << 20));
    if let Ok(answer) = at.send(huge.as_bytes()) {
        assert!([0, 431].contains(&answer.status), "{answer:?}");
    }
    let long = format!("GET /leader/{} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", "x".repeat(10_000));
    assert_eq!(at.send(long.as_bytes()).expect("an answer").status, 404);
    at.ask_until("/readyz", 200);
    drop(held);
    let now = OffsetDateTime::now_utc();
    let beat = fleet.beat("a beat", |event| event.ts > now);
    assert_eq!((beat.term, node.is_running()), (term, true));
    let events = fleet.journal.events();
    assert!(events.iter().all(|event| !["leadership_lost", "stopping"].contains(&event.name.as_str())), "{events:?}");
    assert_eq!(node.terminate().code(), Some(0));
    fleet.check_promises();
}

#[test]
fn admin_address_is_used_exactly_as_given() {
    let fleet = Fleet::new(Store::sqlite());
    let taken = TcpListener::bind(("127.0.0.1", free_port())).expect("a port");
    let address = taken.local_addr().expect("an address").to_string();
    let mut command = fleet.baton(&["run"]);
    command.arg(Guest::Beats.module()).args(["--admin", &address]);
    let refused = finish(command);
    assert_eq!(refused.code, Some(1), "the address may be free at the next start: {refused:?}");
    let says = format!("--admin {address}: cannot listen on this address; give another address, or none");
    assert!(refused.stderr.contains(&says), "{refused:?}");
    drop(taken);
    let node = fleet.launch_with("alpha", &[("--admin", &address)]).start();
    assert_eq!(Endpoint::of(&node).0.to_string(), address);
    assert_eq!(Endpoint::of(&node).ask("/livez").status, 200);
    let quiet = fleet.launch_with("beta", &[("--admin", "none")]).start();
    quiet.event("the start", |event| event.name == "starting");
    assert!(!fleet.journal.events().iter().any(|event| event.from == "beta" && event.name == "listening"));
}

#[test]
fn status_is_served_locally_and_remotely_with_token_and_tls() {
    let fleet = Fleet::new(Store::sqlite());
    let token = fleet.home.path().join("token");
    std::fs::write(&token, "too-short").expect("written");
    let beside = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/blackbox/http/tls");
    let [token_file, certificate, key] =
        [token.clone(), beside.join("cert.pem"), beside.join("key.pem")].map(|path| path.display().to_string());
    let flags = [
        ("--admin", "0.0.0.0:0"),
        ("--admin-token-file", &*token_file),
        ("--admin-tls-cert", &*certificate),
        ("--admin-tls-key", &*key),
    ];
    let mut refused = fleet.launch_with("alpha", &flags).start();
    assert_eq!(refused.wait().code(), Some(2));
    let log = fleet.journal.events().into_iter().map(|event| event.raw).collect::<String>();
    assert!(log.contains("at least 16") && log.contains("openssl rand"), "{log}");

    std::fs::write(&token, "0123456789abcdef\n").expect("written");
    let node = fleet.launch_with("alpha", &flags).start();
    node.after(0, "started");
    let port = Endpoint::of(&node).0.port();
    let here = Endpoint(([127, 0, 0, 1], port).into());
    let elections: Value = serde_json::from_str(&here.ask_as("127.0.0.1", "/v1/elections").body).expect("JSON");
    assert_eq!((&elections[0]["election"], &elections[0]["leads"]), (&ELECTION.into(), &true.into()), "{elections}");
    assert!(elections[0]["usage"]["memory"]["used"].as_u64() > Some(0), "{elections}");
    let nodes = until("the node to be announced", || {
        let nodes: Value = serde_json::from_str(&here.ask_as("localhost", "/v1/nodes").body).expect("JSON");
        if nodes[0]["runs"].is_string() { Ok(nodes) } else { Err(nodes) }
    });
    assert_eq!((&nodes[0]["node"], &nodes[0]["election"]), (&"alpha".into(), &ELECTION.into()), "{nodes}");
    // DNS rebinding: a web page has made its own domain name resolve to this address, so its requests carry that name.
    let rebound = here.ask_as("evil.example", "/v1/elections");
    assert_eq!(rebound.status, 403, "{rebound:?}");

    // A request from this machine needs no token, whether it uses plain HTTP or TLS.
    let secure = tls(here, "GET /v1/elections HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n");
    assert!(secure.starts_with("HTTP/1.1 200 OK") && secure.contains(ELECTION), "{secure}");
    let Some(other) = own_address() else { return skipped::skipped("this machine has only a loopback address") };
    let there = Endpoint((other, port).into());
    assert_eq!(there.ask("/livez").status, 200);
    assert_eq!(there.ask("/v1/elections").status, 403);
    let ask =
        |token: &str| tls(there, &format!("GET /v1/nodes HTTP/1.1\r\nHost: node\r\nConnection: close\r\n{token}\r\n"));
    let without = ask("");
    assert!(without.starts_with("HTTP/1.1 401") && without.contains("www-authenticate: Bearer"), "{without}");
    let with = ask("Authorization: Bearer 0123456789abcdef\r\n");
    assert!(with.starts_with("HTTP/1.1 200 OK") && with.contains("alpha"), "{with}");
}

fn tls(at: Endpoint, request: &str) -> String {
    let authority = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/blackbox/http/tls/ca.pem");
    tls_to(at, &authority, request).expect("the certificate is trusted")
}

pub fn tls_to(at: Endpoint, authority: &Path, request: &str) -> io::Result<String> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(authority).expect("a certificate")).expect("an authority");
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_root_certificates(roots)
        .with_no_client_auth();
    let name = ServerName::try_from("localhost").expect("a name");
    let connection = ClientConnection::new(Arc::new(config), name).expect("a client");
    let mut stream = StreamOwned::new(connection, TcpStream::connect(at.0).expect("the endpoint listens"));
    stream.write_all(request.as_bytes())?;
    let mut answer = Vec::new();
    // The read may fail at the end, because a server may close the connection without a TLS close alert.
    let _ = stream.read_to_end(&mut answer);
    Ok(String::from_utf8_lossy(&answer).into_owned())
}

/// Returns an address of this machine that is not a loopback address. Connecting a UDP socket selects such an address
/// without sending anything.
fn own_address() -> Option<IpAddr> {
    let socket = UdpSocket::bind("0.0.0.0:0").ok()?;
    socket.connect("192.0.2.1:9").ok()?;
    Some(socket.local_addr().ok()?.ip()).filter(|address| !address.is_loopback() && !address.is_unspecified())
}
