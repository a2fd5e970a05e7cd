//! Commands that steer a fleet. In these scenarios, the leader is alive, hangs or is cut off from the store. Other
//! nodes hang, run an older version or share an id. Scenarios that do not need real processes are in
//! `in_process/nodes`.

use std::process::Stdio;
use std::time::Duration;

use baton_election::{ElectionName, Op, Record, Reply, Snapshot};
use baton_store::{Announcement, ModuleStore as _, Store as AnyStore};
use serde_json::Value;

use crate::endpoint::Endpoint;
use crate::fleet::{ELECTION, Fleet};
use crate::guests::Guest;
use crate::node::{Event, Finished, Node, baton, finish, until};
use crate::scenarios;
use crate::store::Store;

scenarios! {
    on_both_stores: [
        step_down_hands_over_and_reports_its_reason,
        break_lease_breaks_only_leases_of_other_clients,
    ],
    on_sqlite: [
        no_node_leads_while_election_is_suspended,
        hanging_leader_obeys_commands_when_it_wakes,
        transfer_waits_for_expiry_when_leader_hangs,
        request_stays_in_force_when_store_goes_away,
        hosts_without_steering_are_named,
        node_id_of_two_hosts_is_refused,
        endpoint_steers_for_clients_with_the_token,
    ],
}

fn steer(fleet: &Fleet, args: &[&str]) -> Finished {
    fleet.command(&[&[args[0], ELECTION], &args[1..]].concat())
}

#[track_caller]
fn done(finished: &Finished, words: &[&str]) {
    assert_eq!(finished.code, Some(0), "{finished:?}");
    words.iter().for_each(|word| assert!(finished.stdout.contains(word), "`{word}` is missing: {finished:?}"));
}

#[track_caller]
fn refused(finished: &Finished, words: &[&str]) {
    assert_eq!((finished.code, finished.stdout.as_str()), (Some(1), ""), "{finished:?}");
    words.iter().for_each(|word| assert!(finished.stderr.contains(word), "`{word}` is missing: {finished:?}"));
}

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

fn elected(fleet: &Fleet, node: &str) -> Vec<u64> {
    let events = fleet.journal.events();
    events.iter().filter(|event| event.name == "elected" && event.from == node).map(|event| event.term).collect()
}

fn logs(node: &Node, name: &str) -> Event {
    node.event(&format!("`{name}`"), |event| event.name == name)
}

fn ineligible(node: &Node, cause: &str) -> Event {
    node.event(&format!("to be ineligible: {cause}"), |event| event.is_ineligible(cause))
}

fn on_store<T>(fleet: &Fleet, ask: impl AsyncFn(&dyn AnyStore) -> T) -> T {
    let store = baton_store::open(&fleet.store.url().parse().expect("a URL")).expect("a store");
    tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime").block_on(ask(&*store))
}

fn election() -> ElectionName {
    ElectionName::new(ELECTION).expect("a name")
}

fn step_down_hands_over_and_reports_its_reason(fleet: Fleet) {
    let (alpha, term) = fleet.leader("alpha");
    let beta = fleet.standby("beta", &alpha);
    listed(&fleet, "beta", is_ready);
    let row = listed(&fleet, "alpha", |row| row["role"] == "leader" && !row["runs"].is_null());
    assert_eq!(row["version"], env!("CARGO_PKG_VERSION"), "{row}");
    let step_down = steer(&fleet, &["step-down", "--for", "1h", "--reason", "kernel update"]);
    done(&step_down, &["alpha led fleet in term ", "is ineligible for 1h", "beta leads in term "]);
    let stepping_down = ineligible(&alpha, "stepped-down");
    assert_eq!(stepping_down.text("reason"), "kernel update", "{stepping_down:?}");
    assert!(
        stepping_down.text("by").contains('@') && stepping_down.fields["wait_s"].as_f64() > Some(3500.0),
        "{stepping_down:?}"
    );
    let stopping = logs(&alpha, "stopping");
    assert_eq!(stopping.text("reason"), "step-down");
    assert!(stopping.text("message").contains("kernel update"), "{stopping:?}");
    assert_eq!(fleet.beat_above(term).from, "beta");
    assert_eq!(listed(&fleet, "alpha", |row| !row["ineligible"].is_null())["ineligible"], "stepped-down");
    // Alpha is still ineligible, so no other node can take over from beta. Beta leads again after 3 s.
    let alone = steer(&fleet, &["step-down", "--for", "3s"]);
    done(&alone, &["beta led fleet", "no other node has announced that it can"]);
    logs(&beta, "eligible");
    let last = elected(&fleet, "beta")[0];
    assert_eq!(fleet.beat_above(last).from, "beta");
    assert_eq!(elected(&fleet, "alpha").len(), 1, "alpha is still ineligible");
    fleet.check_promises();
}

fn no_node_leads_while_election_is_suspended(fleet: Fleet) {
    let (alpha, term) = fleet.leader("alpha");
    let beta = fleet.standby("beta", &alpha);
    let nothing = steer(&fleet, &["resume"]);
    done(&nothing, &["was not suspended"]);
    let suspend = steer(&fleet, &["suspend", "--reason", "the database is moved"]);
    done(&suspend, &["no node leads until `baton resume fleet`", "alpha led in term"]);
    let status = fleet.status();
    assert_eq!((&status["lease"], &status["suspended"]["reason"]), (&"free".into(), &"the database is moved".into()));
    for node in [&alpha, &beta] {
        assert_eq!(ineligible(node, "suspended").text("reason"), "the database is moved");
        assert_eq!(listed(&fleet, &node.name, |row| !row["ineligible"].is_null())["ineligible"], "suspended");
    }
    // A node that starts now reads the suspension first, so it does not acquire the free lease.
    let gamma = fleet.node("gamma");
    ineligible(&gamma, "suspended");
    refused(&steer(&fleet, &["step-down"]), &["no node leads fleet", "suspended by", "the database is moved"]);
    refused(&steer(&fleet, &["transfer", "--to", "alpha"]), &["is suspended by", "`baton resume fleet` first"]);
    assert_eq!(elected(&fleet, "alpha"), [term], "alpha has not led since");
    assert!(elected(&fleet, "beta").is_empty() && elected(&fleet, "gamma").is_empty());
    done(&steer(&fleet, &["resume"]), &["fleet is resumed: ", " leads in term "]);
    assert_eq!(fleet.status()["suspended"], Value::Null);
    fleet.beat_above(term);
    for node in [&alpha, &beta, &gamma] {
        logs(node, "eligible");
    }
    let unknown = fleet.command(&["suspend", "nightly"]);
    refused(&unknown, &["there is no election nightly", "the store has fleet;", "--store"]);
    for command in [&["resume", "nightly"][..], &["transfer", "nightly", "--to", "alpha"]] {
        refused(&fleet.command(command), &["there is no election nightly", "the store has fleet;"]);
    }
    fleet.check_promises();
}

fn hanging_leader_obeys_commands_when_it_wakes(fleet: Fleet) {
    let (alpha, term) = fleet.leader("alpha");
    let beta = fleet.standby("beta", &alpha);
    listed(&fleet, "beta", is_ready);
    alpha.pause();
    let early = steer(&fleet, &["step-down", "--timeout", "0s"]);
    refused(&early, &["alpha still leads fleet", "has not confirmed the request"]);
    let step_down = steer(&fleet, &["step-down", "--for", "1h"]);
    done(&step_down, &["beta leads in term"]);
    assert_eq!(fleet.beat_above(term).from, "beta");
    beta.pause();
    // Both nodes are paused now, so no node can confirm the suspension.
    done(&steer(&fleet, &["suspend"]), &["fleet is suspended", "beta has not confirmed the suspension"]);
    alpha.resume();
    beta.resume();
    for node in [&alpha, &beta] {
        ineligible(node, "suspended");
    }
    done(&steer(&fleet, &["resume"]), &["is resumed"]);
    fleet.check_promises();
}

fn transfer_waits_for_expiry_when_leader_hangs(fleet: Fleet) {
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

fn request_stays_in_force_when_store_goes_away(fleet: Fleet) {
    let (alpha, term) = fleet.leader("alpha");
    listed(&fleet, "alpha", |row| row["role"] == "leader");
    // If a command could not write its request, it must not claim that the request stays in force.
    let outage = fleet.store.cut();
    let away = steer(&fleet, &["suspend", "--timeout", "1s"]);
    drop(outage);
    assert!(away.code == Some(1) && !away.stderr.contains("stays in force"), "{away:?}");
    // The leader hangs, and the store becomes unavailable while the command waits for the leader.
    fleet.beat_above(elected(&fleet, "alpha").last().map_or(term, |term| term - 1));
    alpha.pause();
    let mut suspend = fleet.baton(&["suspend", ELECTION, "--timeout", "8s"]);
    let suspend = suspend.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("a process");
    until("the request to be written", || {
        let steering = on_store(&fleet, async |store| baton_store::steering::read(store, &election()).await);
        let is_suspended = steering.as_ref().is_ok_and(|steering| steering.suspended.is_some());
        if is_suspended { Ok(()) } else { Err(format!("{steering:?}")) }
    });
    let outage = fleet.store.cut();
    let output = suspend.wait_with_output().expect("its output");
    drop(outage);
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(1) && error.contains("the request to fleet stays in force"), "{output:?}");
    alpha.resume();
    ineligible(&alpha, "suspended");
    done(&steer(&fleet, &["resume"]), &["is resumed"]);
    fleet.check_promises();
}

/// The test needs a store that nodes reach over a network, because only such a store can be unreachable for a single
/// node.
#[test]
fn commands_wait_for_expiry_when_leader_is_cut_off() {
    let fleet = Fleet::new(Store::azurite());
    let (alpha, term) = fleet.leader("alpha");
    let around = fleet.store.url_around_the_proxy();
    let mut beta = fleet.launch_with("beta", &[("--store", &around)]).start();
    listed(&fleet, "beta", is_ready);
    let outage = fleet.store.cut();
    let steer = |args: &[&str]| {
        let mut command = baton(fleet.home.path());
        command.args(args).args(["--store", &around]);
        finish(command)
    };
    done(&steer(&["transfer", ELECTION, "--to", "beta"]), &["beta leads fleet in term"]);
    assert_eq!(fleet.beat_above(term).from, "beta");
    done(&steer(&["suspend", ELECTION, "--reason", "while it is away"]), &["alpha has not confirmed the suspension"]);
    drop(outage);
    assert_eq!(ineligible(&alpha, "suspended").text("reason"), "while it is away");
    ineligible(&beta, "suspended");
    // Repeats the scenario with a step-down instead of a transfer: alpha leads again, and is cut off from the store
    // while beta is ready.
    assert!(beta.terminate().success());
    done(&steer(&["resume", ELECTION]), &["is resumed: alpha leads"]);
    let term = fleet.beat_above(elected(&fleet, "beta")[0]).term;
    let beta = fleet.launch_with("beta", &[("--store", &around)]).start();
    listed(&fleet, "beta", is_ready);
    let outage = fleet.store.cut();
    done(&steer(&["step-down", ELECTION, "--for", "1h"]), &["alpha led fleet in term", "beta leads in term"]);
    assert_eq!(fleet.beat_above(term).from, "beta");
    drop((outage, beta));
    fleet.check_promises();
}

fn break_lease_breaks_only_leases_of_other_clients(fleet: Fleet) {
    let (mut alpha, term) = fleet.leader("alpha");
    refused(&steer(&fleet, &["break-lease"]), &["alpha holds the lease", "expires within", "baton step-down fleet"]);
    assert!(alpha.terminate().success());
    refused(&steer(&fleet, &["break-lease"]), &["no client holds the lease"]);
    fleet.store.hold_for_ever();
    let beta = fleet.node("beta");
    logs(&beta, "held_by_other_client");
    refused(&steer(&fleet, &["step-down"]), &["no node leads fleet", "a client other than Baton"]);
    done(&steer(&fleet, &["break-lease"]), &["the lease of fleet is broken"]);
    logs(&beta, "waiting_for_previous_lease");
    assert_eq!(fleet.beat_above(term).from, "beta");
    fleet.check_promises();
}

fn hosts_without_steering_are_named(fleet: Fleet) {
    let (mut alpha, _) = fleet.leader("alpha");
    assert!(alpha.terminate().success());
    // The test acts as an older host: it holds the lease, and its announcement says that it does not support steering.
    let unaware = |node: &str| Announcement::now(node, &format!("{node}-1"), "", vec![], None);
    let announce = |older: Announcement| {
        on_store(&fleet, async |store| {
            store.announce(&election(), &older.node, older.encode()).await.expect("written")
        });
    };
    announce(unaware("older"));
    fleet.store.hold(Duration::from_secs(60));
    let id = baton_election::LeaseId::from_random(7);
    let is_sqlite = fleet.store.is_sqlite();
    if is_sqlite {
        on_store(&fleet, async |store| {
            let Ok(Reply::Read(Snapshot::Object { version, record: Some(record), .. })) =
                store.request(&election(), Op::Read).await
            else {
                panic!("no record")
            };
            let (node, incarnation) = (Some("older".to_owned()), "older-1".to_owned());
            let record = Record { node, incarnation, released: false, term: record.term + 1, ..record };
            store.request(&election(), Op::Write { id, version, record }).await.expect("a written record");
        });
        refused(&steer(&fleet, &["step-down"]), &["older leads fleet", "does not support steering", "update it"]);
        refused(&steer(&fleet, &["suspend"]), &["older leads fleet", "does not support steering"]);
        on_store(&fleet, async |store| store.request(&election(), Op::Release { id }).await.expect("a released lease"));
    } else {
        on_store(&fleet, async |store| store.break_now(&election()).await.expect("a broken lease"));
    }
    done(&steer(&fleet, &["suspend"]), &["older does not support steering and may still lead"]);
    let nodes = steer(&fleet, &["nodes"]);
    done(&nodes, &[" steering"]);
}

fn node_id_of_two_hosts_is_refused(fleet: Fleet) {
    let (alpha, _) = fleet.leader("alpha");
    let one = fleet.standby("beta", &alpha);
    let other = fleet.node("beta");
    listed(&fleet, "beta", is_ready);
    // Each command makes both hosts called beta announce themselves again. One of them then finds that the other has
    // overwritten its announcement.
    let row = until("one of them to notice the other", || {
        done(&steer(&fleet, &["suspend"]), &[]);
        done(&steer(&fleet, &["resume"]), &[]);
        let nodes = steer(&fleet, &["nodes", "--output=json"]);
        let rows = nodes.json();
        rows.as_array().and_then(|rows| rows.iter().find(|row| !row["duplicate"].is_null())).cloned().ok_or(nodes)
    });
    let (incarnation, duplicate) =
        (row["incarnation"].as_str().expect("text"), row["duplicate"].as_str().expect("text"));
    assert_ne!(incarnation, duplicate);
    let transfer = until("a refusal", || {
        let transfer = steer(&fleet, &["transfer", "--to", "beta"]);
        if transfer.stderr.contains("two hosts have the node id beta") { Ok(transfer) } else { Err(transfer) }
    });
    refused(&transfer, &[incarnation, duplicate, "--node"]);
    drop((one, other));
    // With the token, `events` connects to the announced endpoint, which is ambiguous if two hosts have the leader's
    // id. Without the token, `events` connects to the leader's local socket.
    let token = fleet.home.path().join("token");
    std::fs::write(&token, "0123456789abcdef\n").expect("written");
    let token = token.to_str().expect("text");
    until("the refusal", || {
        let duplicate = Some("another".to_owned());
        let twin = Announcement { duplicate, ..Announcement::now("alpha", "twin", "", vec![], None) };
        on_store(&fleet, async |store| store.announce(&election(), "alpha", twin.encode()).await.expect("written"));
        let events = steer(&fleet, &["events", "--token-file", token]);
        if events.stderr.contains("two hosts have the node id alpha") { Ok(()) } else { Err(events.stderr) }
    });
}

/// Steers through the endpoint of beta, first while beta is a standby.
fn endpoint_steers_for_clients_with_the_token(fleet: Fleet) {
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
        assert_eq!(post(at_alpha, what, RIGHT, "{}").status, 403, "alpha has no token: {what}");
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
        let transfer = post(at_beta, "transfer", RIGHT, &format!(r#"{{"to":"{to}"}}"#));
        let leads = [format!("{to} leads fleet"), format!("{to} already leads fleet")];
        assert!(transfer.status == 200 && leads.iter().any(|leads| transfer.body.contains(leads)), "{transfer:?}");
    }
    fleet.beat("a beat of beta", |event| event.from == "beta" && event.term >= last);
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
    let rollback = post(at_beta, "rollback", RIGHT, r#"{"reason":"a test"}"#);
    assert!(rollback.status == 200 && rollback.body.contains(&versions[0]), "{rollback:?}");
    assert!(current().contains(&versions[0]), "{}", current());
    let rolled_back = logs(&beta, "rolled_back");
    assert!(rolled_back.raw.contains(&versions[0]) && rolled_back.raw.contains("a test"), "{rolled_back:?}");
    fleet.check_promises();
}
