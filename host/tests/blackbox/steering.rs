//! What operators ask of a fleet, on both stores: of a leader that is alive, pauses between terms, does not heed its stop,
//! is alone, hangs or is cut off, and of nodes that hang, are older or share an id.

use std::process::Stdio;
use std::time::Duration;

use baton_election::{ElectionName, Op, Record, Reply, Snapshot};
use baton_store::{Announcement, ModuleStore as _, Reading, Store as AnyStore, VersionedObject};
use bytes::Bytes;
use rustix::process::Signal;
use serde_json::Value;

use crate::endpoint::Endpoint;
use crate::fleet::{ELECTION, Fleet};
use crate::guests::Guest;
use crate::node::{Event, Finished, Node, baton, finish, until};
use crate::scenarios;
use crate::store::Store;

scenarios! {
    on_both_stores: [
        a_step_down_hands_over_and_the_reason_is_told,
        an_outside_clients_lease_is_broken_and_a_hosts_is_not,
    ],
    on_sqlite: [
        nobody_leads_while_it_is_suspended,
        a_lease_is_transferred_to_whom_it_should,
        a_node_that_hangs_is_waited_for_in_vain_and_the_leader_goes_on,
        a_leader_that_hangs_is_waited_out_and_hears_of_it_when_it_wakes,
        a_transfer_waits_out_a_leader_that_hangs,
        a_store_that_goes_away_has_what_it_was_asked,
        a_leader_that_is_gone_is_waited_out,
        a_leader_that_heeds_no_stop_is_killed,
        what_is_spoilt_is_told_once_and_made_anew,
        a_suspension_that_is_put_back_holds,
        hosts_that_do_not_know_steering_are_named,
        an_id_that_two_hosts_have_is_refused,
        an_endpoint_steers_for_who_has_the_token,
    ],
}

fn steer(fleet: &Fleet, args: &[&str]) -> Finished {
    fleet.command(&[&[args[0], ELECTION], &args[1..]].concat())
}

#[track_caller]
fn done(finished: &Finished, words: &[&str]) {
    assert_eq!(finished.code, Some(0), "{finished:?}");
    words.iter().for_each(|word| assert!(finished.stdout.contains(word), "`{word}` is not said: {finished:?}"));
}

#[track_caller]
fn refused(finished: &Finished, words: &[&str]) {
    assert_eq!((finished.code, finished.stdout.as_str()), (Some(1), ""), "{finished:?}");
    words.iter().for_each(|word| assert!(finished.stderr.contains(word), "`{word}` is not said: {finished:?}"));
}

/// A node's row in `baton nodes`, once it passes the test.
fn listed(fleet: &Fleet, node: &str, test: impl Fn(&Value) -> bool) -> Value {
    until(&format!("{node} in `baton nodes`"), || {
        let nodes = steer(fleet, &["nodes", "--output=json"]);
        let rows = if nodes.code == Some(0) { nodes.json() } else { Value::Null };
        let own = rows.as_array().and_then(|rows| rows.iter().find(|row| row["node"] == node));
        own.filter(|row| test(row)).cloned().ok_or(nodes)
    })
}

fn is_ready(row: &Value) -> bool {
    row["ready"] == true && row["ineligible"].is_null()
}

/// The terms in which that node was elected.
fn elected(fleet: &Fleet, node: &str) -> Vec<u64> {
    let events = fleet.journal.events();
    events.iter().filter(|event| event.name == "elected" && event.from == node).map(|event| event.term).collect()
}

fn says(node: &Node, name: &str) -> Event {
    node.event(&format!("`{name}`"), |event| event.name == name)
}

/// The store, past the commands.
fn on<T>(fleet: &Fleet, ask: impl AsyncFn(&dyn AnyStore) -> T) -> T {
    let store = baton_store::open(&fleet.store.url().parse().expect("a URL")).expect("a store");
    tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime").block_on(ask(&*store))
}

fn election() -> ElectionName {
    ElectionName::new(ELECTION).expect("a name")
}

fn a_step_down_hands_over_and_the_reason_is_told(fleet: Fleet) {
    let (alpha, term) = fleet.leader("alpha");
    let beta = fleet.standby("beta", &alpha);
    listed(&fleet, "beta", is_ready);
    let row = listed(&fleet, "alpha", |row| row["role"] == "leader" && !row["runs"].is_null());
    assert_eq!(row["version"], env!("CARGO_PKG_VERSION"), "{row}");
    let asked = steer(&fleet, &["step-down", "--for", "1h", "--reason", "kernel update"]);
    done(&asked, &["alpha led fleet in term ", "is ineligible for 1h", "beta leads in term "]);
    let stepping_down = says(&alpha, "stepping_down");
    assert_eq!(stepping_down.text("reason"), "kernel update", "{stepping_down:?}");
    assert!(
        stepping_down.text("by").contains('@') && stepping_down.fields["wait_s"].as_f64() > Some(3500.0),
        "{stepping_down:?}"
    );
    let stopping = says(&alpha, "stopping");
    assert_eq!(stopping.text("reason"), "step-down");
    assert!(stopping.text("message").contains("kernel update"), "{stopping:?}");
    assert_eq!(fleet.beat_above(term).from, "beta");
    assert_eq!(listed(&fleet, "alpha", |row| !row["ineligible"].is_null())["ineligible"], "stepped-down");
    // Nobody else is there to step down to, and whoever steps down alone comes back.
    let alone = steer(&fleet, &["step-down", "--for", "3s"]);
    done(&alone, &["beta led fleet", "no other node has announced that it can"]);
    says(&beta, "resumed");
    let last = elected(&fleet, "beta")[0];
    assert_eq!(fleet.beat_above(last).from, "beta");
    assert_eq!(elected(&fleet, "alpha").len(), 1, "it stays out for longer");
    fleet.check_promises();
}

fn nobody_leads_while_it_is_suspended(fleet: Fleet) {
    let (alpha, term) = fleet.leader("alpha");
    let beta = fleet.standby("beta", &alpha);
    let nothing = steer(&fleet, &["resume"]);
    done(&nothing, &["was not suspended"]);
    let asked = steer(&fleet, &["suspend", "--reason", "the database is moved"]);
    done(&asked, &["no node leads until `baton resume fleet`", "alpha led in term"]);
    let status = fleet.status();
    assert_eq!((&status["lease"], &status["suspended"]["reason"]), (&"free".into(), &"the database is moved".into()));
    for node in [&alpha, &beta] {
        assert_eq!(says(node, "suspended").text("reason"), "the database is moved");
        assert_eq!(listed(&fleet, &node.name, |row| !row["ineligible"].is_null())["ineligible"], "suspended");
    }
    // One that starts now hears of it before it takes what is free.
    let gamma = fleet.node("gamma");
    says(&gamma, "suspended");
    refused(&steer(&fleet, &["step-down"]), &["no node leads fleet", "suspended by", "the database is moved"]);
    refused(&steer(&fleet, &["transfer", "--to", "alpha"]), &["is suspended by", "`baton resume fleet` first"]);
    assert_eq!(elected(&fleet, "alpha"), [term], "nobody has led since");
    assert!(elected(&fleet, "beta").is_empty() && elected(&fleet, "gamma").is_empty());
    done(&steer(&fleet, &["resume"]), &["fleet is resumed: ", " leads in term "]);
    assert_eq!(fleet.status()["suspended"], Value::Null);
    fleet.beat_above(term);
    for node in [&alpha, &beta, &gamma] {
        says(node, "resumed");
    }
    let unknown = fleet.command(&["suspend", "nightly"]);
    refused(&unknown, &["there is no election nightly", "the store has fleet;", "--store"]);
    for command in [&["resume", "nightly"][..], &["transfer", "nightly", "--to", "alpha"]] {
        refused(&fleet.command(command), &["there is no election nightly", "the store has fleet;"]);
    }
    fleet.check_promises();
}

fn a_lease_is_transferred_to_whom_it_should(fleet: Fleet) {
    let (alpha, term) = fleet.leader("alpha");
    let _standbys = ["beta", "gamma", "delta"].map(|name| fleet.standby(name, &alpha));
    for name in ["beta", "gamma", "delta"] {
        listed(&fleet, name, is_ready);
    }
    refused(&steer(&fleet, &["transfer", "--to", "omega"]), &["no node omega", "alpha", "delta"]);
    done(&steer(&fleet, &["transfer", "--to", "alpha"]), &["alpha leads fleet already"]);
    let mut last = term;
    for to in ["delta", "beta", "gamma"] {
        // What stayed out for the one before may still do.
        listed(&fleet, to, is_ready);
        done(&steer(&fleet, &["transfer", "--to", to, "--reason", "a test"]), &[&format!("{to} leads fleet in term ")]);
        let beat = fleet.beat_above(last);
        assert_eq!(beat.from, to);
        last = beat.term;
    }
    let told = says(&alpha, "transferring");
    assert_eq!((told.text("to"), told.text("reason")), ("delta", "a test"), "{told:?}");
    fleet.check_promises();
}

fn a_node_that_hangs_is_waited_for_in_vain_and_the_leader_goes_on(fleet: Fleet) {
    let alpha = fleet.launch_with("alpha", &[("--priority", "0")]).start();
    let term = fleet.beat_above(0).term;
    let beta = fleet.standby("beta", &alpha);
    listed(&fleet, "beta", is_ready);
    beta.pause();
    let asked = steer(&fleet, &["transfer", "--to", "beta"]);
    refused(&asked, &["beta has not taken the lease of fleet in time", "alpha leads in term"]);
    assert_eq!(fleet.beat_above(term).from, "alpha");
    says(&alpha, "resumed");
    let waits = |event: &&Event| event.text("reason").contains("lets other nodes take it first");
    assert_eq!(fleet.journal.events().iter().find(waits).map(|_| ()), None, "it has made room once");
    beta.resume();
    fleet.check_promises();
}

fn a_leader_that_hangs_is_waited_out_and_hears_of_it_when_it_wakes(fleet: Fleet) {
    let (alpha, term) = fleet.leader("alpha");
    let beta = fleet.standby("beta", &alpha);
    listed(&fleet, "beta", is_ready);
    alpha.pause();
    let early = steer(&fleet, &["step-down", "--timeout", "0s"]);
    refused(&early, &["alpha still leads fleet", "has not confirmed the request"]);
    let asked = steer(&fleet, &["step-down", "--for", "1h"]);
    done(&asked, &["beta leads in term"]);
    assert_eq!(fleet.beat_above(term).from, "beta");
    beta.pause();
    // Nobody is left who could say that it knows.
    done(&steer(&fleet, &["suspend"]), &["fleet is suspended", "beta has not confirmed the suspension"]);
    alpha.resume();
    beta.resume();
    for node in [&alpha, &beta] {
        says(node, "suspended");
    }
    done(&steer(&fleet, &["resume"]), &["is resumed"]);
    fleet.check_promises();
}

fn a_transfer_waits_out_a_leader_that_hangs(fleet: Fleet) {
    let (alpha, term) = fleet.leader("alpha");
    let beta = fleet.standby("beta", &alpha);
    listed(&fleet, "beta", is_ready);
    alpha.pause();
    done(&steer(&fleet, &["transfer", "--to", "beta"]), &["beta leads fleet in term "]);
    alpha.resume();
    assert_eq!(fleet.beat_above(term).from, "beta");
    drop(beta);
    fleet.check_promises();
}

fn a_store_that_goes_away_has_what_it_was_asked(fleet: Fleet) {
    let (alpha, term) = fleet.leader("alpha");
    listed(&fleet, "alpha", |row| row["role"] == "leader");
    // Before it is asked, it is not.
    let outage = fleet.store.cut();
    let away = steer(&fleet, &["suspend", "--timeout", "1s"]);
    drop(outage);
    assert!(away.code == Some(1) && !away.stderr.contains("stays in force"), "{away:?}");
    // A leader that hangs has the command wait. While it does, the store goes away.
    fleet.beat_above(elected(&fleet, "alpha").last().map_or(term, |term| term - 1));
    alpha.pause();
    let mut waits = fleet.baton(&["suspend", ELECTION, "--timeout", "8s"]);
    let waits = waits.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts");
    until("it to be asked", || {
        let asked = on(&fleet, async |store| baton_store::steering::read(store, &election()).await);
        if asked.as_ref().is_ok_and(|asked| asked.suspended.is_some()) { Ok(()) } else { Err(format!("{asked:?}")) }
    });
    let outage = fleet.store.cut();
    let ended = waits.wait_with_output().expect("it ends");
    drop(outage);
    let said = String::from_utf8_lossy(&ended.stderr);
    assert!(ended.status.code() == Some(1) && said.contains("the request to fleet stays in force"), "{ended:?}");
    alpha.resume();
    says(&alpha, "suspended");
    done(&steer(&fleet, &["resume"]), &["is resumed"]);
    fleet.check_promises();
}

/// As on another machine, where nobody hears of its end.
fn a_leader_that_is_gone_is_waited_out(fleet: Fleet) {
    let start = |name: &str| fleet.launch(name).arg("--reclaim=false").start();
    let nodes = ["alpha", "beta", "gamma", "delta"].map(start);
    let leader = |above: u64| {
        let beat = fleet.beat_above(above);
        (nodes.iter().find(|node| node.name == beat.from).expect("one of them"), beat.term)
    };
    let (first, term) = leader(0);
    let rest: Vec<&Node> = nodes.iter().filter(|node| node.name != first.name).collect();
    rest.iter().for_each(|node| drop(listed(&fleet, &node.name, is_ready)));
    first.signal(Signal::KILL);
    refused(&steer(&fleet, &["break-lease"]), &[&format!("{} holds the lease", first.name), "expires within"]);
    let heir = &rest[0].name;
    let asked = steer(&fleet, &["transfer", "--to", heir]);
    let (second, term) = leader(term);
    // Whoever has not heard of that yet when the lease runs out may be the first.
    match second.name == *heir {
        true => done(&asked, &[&format!("{heir} leads fleet in term ")]),
        false => refused(&asked, &[&format!("in time: {} leads in term ", second.name)]),
    }
    let others = rest.iter().filter(|node| node.name != second.name);
    others.for_each(|node| drop(listed(&fleet, &node.name, is_ready)));
    second.signal(Signal::KILL);
    done(&steer(&fleet, &["step-down", "--for", "1h"]), &[" leads in term "]);
    let (third, term) = leader(term);
    third.signal(Signal::KILL);
    done(&steer(&fleet, &["suspend"]), &["fleet is suspended"]);
    done(&steer(&fleet, &["resume"]), &["fleet is resumed: ", " leads in term "]);
    let (fourth, _) = leader(term);
    let all = [first, second, third, fourth].map(|node| &node.name);
    assert_eq!(all.iter().collect::<std::collections::HashSet<_>>().len(), 4, "{all:?}");
    fleet.check_promises();
}

fn a_leader_that_heeds_no_stop_is_killed(fleet: Fleet) {
    let fleet = fleet.with(Guest::IgnoresStop);
    let (alpha, term) = fleet.leader("alpha");
    let beta = fleet.standby("beta", &alpha);
    listed(&fleet, "beta", is_ready);
    done(&steer(&fleet, &["transfer", "--to", "beta"]), &["beta leads fleet in term ", "after alpha"]);
    says(&alpha, "killed");
    assert_eq!(fleet.beat_above(term).from, "beta");
    done(&steer(&fleet, &["suspend"]), &["fleet is suspended"]);
    says(&beta, "killed");
    fleet.check_promises();
}

#[test]
fn a_leader_that_pauses_between_terms_gives_its_lease_up() {
    let fleet = Fleet::new(Store::sqlite()).with(Guest::Done);
    let paused = [("--restart-delay", "1h")];
    let alpha = fleet.launch_with("alpha", &paused).start();
    says(&alpha, "idle");
    let beta = fleet.launch_with("beta", &paused).start();
    beta.event("to follow", |event| event.name == "standby" && event.text("leader") == "alpha");
    listed(&fleet, "beta", is_ready);
    done(&steer(&fleet, &["step-down"]), &["beta leads in term"]);
    says(&beta, "idle");
    // Nor does a crash run the job again before its time.
    let gamma = fleet.launch_with("gamma", &paused).start();
    gamma.event("to follow", |event| event.name == "standby" && event.text("leader") == "beta");
    listed(&fleet, "gamma", is_ready);
    drop(beta);
    gamma.event("the rest of the pause", |event| event.name == "idle");
    let starts = fleet.journal.events().iter().filter(|event| event.name == "started").count();
    assert_eq!(starts, 1, "one run an hour");
    fleet.check_promises();
}

/// Only a store that is asked over a network can be away for one node and there for the others.
#[test]
fn a_leader_that_is_cut_off_is_waited_out() {
    let fleet = Fleet::new(Store::azurite());
    let (alpha, term) = fleet.leader("alpha");
    let around = fleet.store.url_around_the_proxy();
    let mut beta = fleet.launch_with("beta", &[("--store", &around)]).start();
    listed(&fleet, "beta", is_ready);
    let outage = fleet.store.cut();
    let asked = |args: &[&str]| {
        let mut command = baton(fleet.home.path());
        command.args(args).args(["--store", &around]);
        finish(command)
    };
    done(&asked(&["transfer", ELECTION, "--to", "beta"]), &["beta leads fleet in term"]);
    assert_eq!(fleet.beat_above(term).from, "beta");
    done(&asked(&["suspend", ELECTION, "--reason", "while it is away"]), &["alpha has not confirmed the suspension"]);
    drop(outage);
    assert_eq!(says(&alpha, "suspended").text("reason"), "while it is away");
    says(&beta, "suspended");
    // The other way round, for a step-down: alpha leads alone, and beta comes back while it is away.
    assert!(beta.terminate().success());
    done(&asked(&["resume", ELECTION]), &["is resumed: alpha leads"]);
    let term = fleet.beat_above(elected(&fleet, "beta")[0]).term;
    let beta = fleet.launch_with("beta", &[("--store", &around)]).start();
    listed(&fleet, "beta", is_ready);
    let outage = fleet.store.cut();
    done(&asked(&["step-down", ELECTION, "--for", "1h"]), &["alpha led fleet in term", "beta leads in term"]);
    assert_eq!(fleet.beat_above(term).from, "beta");
    drop((outage, beta));
    fleet.check_promises();
}

fn what_is_spoilt_is_told_once_and_made_anew(fleet: Fleet) {
    let (alpha, term) = fleet.leader("alpha");
    done(&steer(&fleet, &["suspend"]), &[]);
    let write = |content: &'static str| write_asked(&fleet, content.into());
    write("{\"format\":1,\"suspended\":");
    let told = alpha.event("what is wrong", |event| event.name == "error" && event.text("error").contains("steering"));
    assert!(told.text("error").contains("`baton resume` replaces it"), "{told:?}");
    refused(&steer(&fleet, &["suspend"]), &["is damaged", "`baton resume` replaces it"]);
    assert_eq!(elected(&fleet, "alpha"), [term], "what was known goes on");
    done(&steer(&fleet, &["resume"]), &["is resumed: alpha leads"]);
    // A later version's is left alone.
    write("{\"format\":2,\"suspended\":true}");
    alpha.event("that it is newer", |event| event.name == "error" && event.text("error").contains("has format 2"));
    for command in ["resume", "suspend", "step-down"] {
        refused(&steer(&fleet, &[command]), &["has format 2", "update Baton"]);
    }
    let is_of_it = |event: &&Event| event.name == "error" && event.text("error").contains("steering");
    let errors = fleet.journal.events().iter().filter(is_of_it).count();
    assert_eq!(errors, 2, "each is said once");
    assert_eq!(elected(&fleet, "alpha").len(), 2);
    fleet.check_promises();
}

/// As from a backup, after an operator or a lost file had ended it: by its id it is the one that was over.
fn a_suspension_that_is_put_back_holds(fleet: Fleet) {
    let (alpha, term) = fleet.leader("alpha");
    done(&steer(&fleet, &["suspend"]), &[]);
    let asked = on(&fleet, async |store| store.read(VersionedObject::Steering, &election(), None).await);
    let Ok(Reading::Found(_, asked)) = asked else { panic!("it stands there: {asked:?}") };
    done(&steer(&fleet, &["resume"]), &["is resumed: alpha leads"]);
    let term = fleet.beat_above(term).term;
    write_asked(&fleet, asked);
    alpha.after(term - 1, "released");
    done(&steer(&fleet, &["resume"]), &["is resumed: alpha leads"]);
    fleet.beat_above(term);
    fleet.check_promises();
}

/// Writes what the nodes are asked, whatever stood there.
fn write_asked(fleet: &Fleet, content: Bytes) {
    on(fleet, async |store| {
        let read = store.read(VersionedObject::Steering, &election(), None).await.expect("it is read");
        let version = if let Reading::Found(version, _) = read { Some(version) } else { None };
        let written = store.write(VersionedObject::Steering, &election(), version.as_ref(), content.clone()).await;
        written.expect("it is written");
    });
}

fn an_outside_clients_lease_is_broken_and_a_hosts_is_not(fleet: Fleet) {
    let (mut alpha, term) = fleet.leader("alpha");
    refused(&steer(&fleet, &["break-lease"]), &["alpha holds the lease", "expires within", "baton step-down fleet"]);
    assert!(alpha.terminate().success());
    refused(&steer(&fleet, &["break-lease"]), &["no client holds the lease"]);
    fleet.store.hold_for_ever();
    let beta = fleet.node("beta");
    says(&beta, "held_by_other_client");
    refused(&steer(&fleet, &["step-down"]), &["no node leads fleet", "a client other than Baton"]);
    done(&steer(&fleet, &["break-lease"]), &["the lease of fleet is broken"]);
    says(&beta, "waiting_for_previous_lease");
    assert_eq!(fleet.beat_above(term).from, "beta");
    fleet.check_promises();
}

fn hosts_that_do_not_know_steering_are_named(fleet: Fleet) {
    let (mut alpha, _) = fleet.leader("alpha");
    assert!(alpha.terminate().success());
    // As a host of before announces itself, and leads.
    let unaware = |node: &str| Announcement::now(node, &format!("{node}-1"), "", vec![], None);
    let announce = |said: Announcement| {
        on(&fleet, async |store| store.announce(&election(), &said.node, said.encode()).await.expect("it is said"));
    };
    announce(unaware("older"));
    fleet.store.hold(Duration::from_secs(60));
    let id = baton_election::LeaseId::from_random(7);
    let is_sqlite = fleet.store.is_sqlite();
    if is_sqlite {
        on(&fleet, async |store| {
            let Ok(Reply::Read(Snapshot::Object { version, record: Some(record), .. })) =
                store.request(&election(), Op::Read).await
            else {
                panic!("no record")
            };
            let (node, incarnation) = (Some("older".to_owned()), "older-1".to_owned());
            let record = Record { node, incarnation, released: false, term: record.term + 1, ..record };
            store.request(&election(), Op::Write { id, version, record }).await.expect("it is written");
        });
        refused(&steer(&fleet, &["step-down"]), &["older leads fleet", "does not support steering", "update it"]);
        refused(&steer(&fleet, &["suspend"]), &["older leads fleet", "does not support steering"]);
        on(&fleet, async |store| store.request(&election(), Op::Release { id }).await.expect("it is released"));
    } else {
        on(&fleet, async |store| store.break_now(&election()).await.expect("it is broken"));
    }
    done(&steer(&fleet, &["suspend"]), &["older does not support steering and may still lead"]);
    let nodes = steer(&fleet, &["nodes"]);
    done(&nodes, &[" steering"]);
}

fn an_id_that_two_hosts_have_is_refused(fleet: Fleet) {
    let (alpha, _) = fleet.leader("alpha");
    let one = fleet.standby("beta", &alpha);
    let other = fleet.node("beta");
    listed(&fleet, "beta", is_ready);
    // Each has something new to say now, and finds what the other has said.
    let row = until("one of them to notice the other", || {
        done(&steer(&fleet, &["suspend"]), &[]);
        done(&steer(&fleet, &["resume"]), &[]);
        let nodes = steer(&fleet, &["nodes", "--output=json"]);
        let rows = nodes.json();
        rows.as_array().and_then(|rows| rows.iter().find(|row| !row["duplicate"].is_null())).cloned().ok_or(nodes)
    });
    let (incarnation, rival) = (row["incarnation"].as_str().expect("text"), row["duplicate"].as_str().expect("text"));
    assert_ne!(incarnation, rival);
    let asked = until("a refusal", || {
        let asked = steer(&fleet, &["transfer", "--to", "beta"]);
        if asked.stderr.contains("two hosts have the node id beta") { Ok(asked) } else { Err(asked) }
    });
    refused(&asked, &[incarnation, rival, "--node"]);
    drop((one, other));
    // Which of two hosts with the leader's id would be asked for its events? At its socket there is no doubt, and with the token
    // the announced endpoint is asked.
    let token = fleet.home.path().join("token");
    std::fs::write(&token, "0123456789abcdef\n").expect("written");
    let token = token.to_str().expect("text");
    until("that to be said", || {
        let rival = Some("another".to_owned());
        let said = Announcement { rival, ..Announcement::now("alpha", "twin", "", vec![], None) };
        on(&fleet, async |store| store.announce(&election(), "alpha", said.encode()).await.expect("it is said"));
        let told = steer(&fleet, &["events", "--token-file", token]);
        if told.stderr.contains("two hosts have the node id alpha") { Ok(()) } else { Err(told.stderr) }
    });
}

/// Any node that takes part can be asked, also one that does not lead.
fn an_endpoint_steers_for_who_has_the_token(fleet: Fleet) {
    let token = fleet.home.path().join("token");
    std::fs::write(&token, "0123456789abcdef\n").expect("written");
    let (alpha, term) = fleet.leader("alpha");
    let beta = fleet.launch_with("beta", &[("--admin-token-file", token.to_str().expect("text"))]).start();
    listed(&fleet, "beta", is_ready);
    let post = |at: Endpoint, what: &str, headers: &str, body: &str| {
        let request = format!(
            "POST /v1/elections/{ELECTION}/{what} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n{headers}\
             Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
            at.0,
            body.len()
        );
        at.send(request.as_bytes()).expect("an answer")
    };
    const RIGHT: &str = "Authorization: Bearer 0123456789abcdef\r\n";
    let (at_alpha, at_beta) = (Endpoint::of(&alpha), Endpoint::of(&beta));
    for what in ["step-down", "suspend", "resume", "transfer", "rollback"] {
        assert_eq!(post(at_beta, what, "", "{}").status, 401, "{what}");
        assert_eq!(post(at_alpha, what, RIGHT, "{}").status, 403, "it has no token: {what}");
    }
    for (what, list) in [("suspend", "[]"), ("step-down", "[1]"), ("transfer", r#"["alpha"]"#)] {
        let no_object = post(at_beta, what, RIGHT, list);
        assert!(no_object.status == 400 && no_object.body.contains("not a JSON object"), "{no_object:?}");
    }
    let nowhere = post(at_beta, "transfer", RIGHT, r#"{"to":"omega"}"#);
    assert!(nowhere.status == 409 && nowhere.body.contains("no node omega"), "{nowhere:?}");
    let suspended = post(at_beta, "suspend", RIGHT, r#"{"reason":"a test","timeout_s":50}"#);
    assert!(suspended.status == 200 && suspended.body.contains(r#""done":true"#), "{suspended:?}");
    assert_eq!(fleet.status()["suspended"]["by"], "the endpoint of beta");
    let status = at_beta.ask_as("localhost", &format!("/v1/elections/{ELECTION}"));
    assert!(status.body.contains(r#""ineligible":"suspended by the endpoint of beta: a test""#), "{status:?}");
    assert_eq!(post(at_beta, "resume", RIGHT, "").status, 200);
    let last = fleet.beat_above(term).term;
    for to in ["alpha", "beta"] {
        listed(&fleet, to, is_ready);
        let asked = post(at_beta, "transfer", RIGHT, &format!(r#"{{"to":"{to}"}}"#));
        assert!(asked.status == 200 && asked.body.contains(&format!("{to} leads fleet")), "{asked:?}");
    }
    fleet.beat("one of beta", |event| event.from == "beta" && event.term >= last);
    let nothing = post(at_beta, "rollback", RIGHT, "{}");
    assert!(nothing.status == 409 && nothing.body.contains("no module was pushed"), "{nothing:?}");
    let versions = [1, 2].map(|number| {
        let path = fleet.home.path().join(format!("{number}.wasm"));
        std::fs::write(&path, Guest::Beats.build(number)).expect("written");
        let pushed = fleet.command(&["push", path.to_str().expect("text"), ELECTION]);
        assert_eq!(pushed.code, Some(0), "{pushed:?}");
        pushed.stdout.split(' ').next().expect("a digest").to_owned()
    });
    let current = || {
        let modules = fleet.command(&["modules", ELECTION, "--output=json"]).json();
        let rows = modules.as_array().expect("a list").iter();
        rows.filter(|row| row["current"] == true).map(|row| row["digest"].to_string()).collect::<String>()
    };
    assert!(current().contains(&versions[1]), "{}", current());
    let asked = post(at_beta, "rollback", RIGHT, r#"{"reason":"a test"}"#);
    assert!(asked.status == 200 && asked.body.contains(&versions[0]), "{asked:?}");
    assert!(current().contains(&versions[0]), "{}", current());
    let told = says(&beta, "rolled_back");
    assert!(told.raw.contains(&versions[0]) && told.raw.contains("a test"), "{told:?}");
    fleet.check_promises();
}
