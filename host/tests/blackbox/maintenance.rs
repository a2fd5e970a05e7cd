//! A machine that is about to be frozen, rebooted or taken away, as Azure tells it: by a server on the loopback that answers
//! as its metadata service does.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::Command;
use std::sync::{Arc, Mutex, MutexGuard};

use serde_json::{Value, json};
use time::OffsetDateTime;

use crate::endpoint::Endpoint;
use crate::fleet::Fleet;
use crate::node::{Launch, until};
use crate::store::Store;
use crate::{scenarios, skipped::skipped};

scenarios! {
    on_sqlite: [
        a_node_steps_down_before_its_machine_is_frozen,
    ],
}

/// What Azure calls the machine.
const MACHINE: &str = "fleet_3";

/// The metadata service of a machine.
#[derive(Clone)]
struct Metadata {
    address: SocketAddr,
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    events: Vec<Value>,
    /// What it answers in place of them.
    nonsense: Option<Vec<u8>>,
    /// The events that were acknowledged, and when.
    acknowledged: Vec<(String, OffsetDateTime)>,
    /// How often it was asked for events.
    asked: usize,
}

impl Metadata {
    fn new() -> Self {
        Self::at(TcpListener::bind("127.0.0.1:0").expect("a port"))
    }

    fn at(listener: TcpListener) -> Self {
        let metadata =
            Self { address: listener.local_addr().expect("an address"), state: Arc::new(Mutex::new(State::default())) };
        let serving = metadata.clone();
        // It ends with the tests' process: nothing waits for it.
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                // Who hangs up is asked for nothing.
                let _ = serving.answer(stream);
            }
        });
        metadata
    }

    fn answer(&self, mut stream: TcpStream) -> std::io::Result<()> {
        let mut reader = BufReader::new(stream.try_clone()?);
        let (mut first, mut length, mut is_meant) = (String::new(), 0, false);
        reader.read_line(&mut first)?;
        loop {
            let mut line = String::new();
            reader.read_line(&mut line)?;
            let line = line.trim().to_ascii_lowercase();
            if line.is_empty() {
                break;
            }
            is_meant |= line == "metadata: true";
            length = line.strip_prefix("content-length: ").and_then(|length| length.parse().ok()).unwrap_or(length);
        }
        let mut body = vec![0; length];
        reader.read_exact(&mut body)?;
        let (status, answer) = self.say(&first, &body, is_meant);
        write!(stream, "HTTP/1.1 {status} X\r\nContent-Length: {}\r\nConnection: close\r\n\r\n", answer.len())?;
        stream.write_all(&answer)
    }

    fn say(&self, first: &str, body: &[u8], is_meant: bool) -> (u16, Vec<u8>) {
        let mut state = self.state();
        if !is_meant {
            return (400, Vec::new());
        }
        match first.split(' ').take(2).collect::<Vec<_>>()[..] {
            ["GET", "/metadata/instance/compute?api-version=2021-02-01"] => {
                (200, json!({ "name": MACHINE }).to_string().into_bytes())
            }
            ["GET", "/metadata/scheduledevents?api-version=2020-07-01"] => {
                state.asked += 1;
                let document = json!({ "DocumentIncarnation": state.asked, "Events": state.events });
                (200, state.nonsense.clone().unwrap_or_else(|| document.to_string().into_bytes()))
            }
            ["POST", "/metadata/scheduledevents?api-version=2020-07-01"] => {
                let asked: Value = serde_json::from_slice(body).expect("JSON");
                let id = asked["StartRequests"][0]["EventId"].as_str().expect("an id").to_owned();
                for event in state.events.iter_mut().filter(|event| event["EventId"] == *id) {
                    event["EventStatus"] = "Started".into();
                    event["NotBefore"] = "".into();
                }
                state.acknowledged.push((id, OffsetDateTime::now_utc()));
                (200, Vec::new())
            }
            _ => (404, Vec::new()),
        }
    }

    fn plans(&self, id: &str, kind: &str, status: &str, machines: &[&str]) {
        self.state().events.push(json!({
            "EventId": id, "EventType": kind, "ResourceType": "VirtualMachine", "Resources": machines,
            "EventStatus": status, "NotBefore": "Mon, 19 Sep 2026 18:29:47 GMT", "Description": "Host server is\nupdated",
            "EventSource": "Platform", "DurationInSeconds": 9,
        }));
    }

    fn is_over(&self) {
        self.state().events.clear();
    }

    /// Waits until it was asked so often again.
    fn is_asked(&self, times: usize) {
        let before = self.state().asked;
        until("the metadata to be read", || {
            let asked = self.state().asked;
            if asked >= before + times { Ok(()) } else { Err(asked) }
        });
    }

    fn acknowledged(&self) -> Vec<String> {
        self.state().acknowledged.iter().map(|(id, _)| id.clone()).collect()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no panic")
    }

    fn of(&self, launch: Launch) -> Launch {
        // A proxy would not lead to the machine's own metadata.
        launch.flag("--scheduled-events", format!("http://{}", self.address)).env("http_proxy", "http://127.0.0.1:1")
    }
}

fn a_node_steps_down_before_its_machine_is_frozen(fleet: Fleet) {
    let metadata = Metadata::new();
    let alpha = metadata.of(fleet.launch("alpha")).start();
    let term = fleet.beat_above(0).term;
    let mut beta = fleet.standby("beta", &alpha);
    metadata.plans("of-another", "Reboot", "Scheduled", &["fleet_4"]);
    metadata.is_asked(2);
    metadata.plans("freeze-1", "Freeze", "Scheduled", &[MACHINE]);
    let planned = alpha.event("what is planned", |event| event.name == "maintenance");
    assert_eq!(planned.text("reason"), "the machine is about to be frozen", "{planned:?}");
    let stopping = alpha.event("to stop", |event| event.name == "stopping");
    assert_eq!((stopping.text("reason"), stopping.text("message")), ("step-down", "the machine is about to be frozen"));
    let released = alpha.event("to step down", |event| event.name == "released");
    alpha.event("to acknowledge", |event| event.name == "maintenance_acknowledged");
    let acknowledged = metadata.state().acknowledged.clone();
    assert_eq!(acknowledged.len(), 1, "once");
    assert!(acknowledged[0].0 == "freeze-1" && acknowledged[0].1 >= released.ts, "{acknowledged:?} {released:?}");
    let beat = fleet.beat_above(term);
    assert_eq!(beat.from, "beta");
    // It is under way now, and alpha stays out: a vacant election does not lure it.
    assert_eq!(beta.terminate().code(), Some(0));
    metadata.is_asked(4);
    let elected = || fleet.journal.events().iter().filter(|e| e.name == "elected" && e.from == "alpha").count();
    assert_eq!(elected(), 1, "it took part during the event");
    metadata.is_over();
    alpha.event("to come back", |event| event.name == "maintenance_over");
    assert_eq!(fleet.beat_above(beat.term).from, "alpha");
    assert_eq!(metadata.acknowledged(), ["freeze-1"]);
    fleet.check_promises();
}

#[test]
fn a_freeze_that_is_under_way_is_stepped_down_from_at_once() {
    let fleet = Fleet::new(Store::sqlite());
    let metadata = Metadata::new();
    let alpha = metadata.of(fleet.launch("alpha")).start();
    fleet.beat_above(0);
    metadata.plans("freeze-1", "Freeze", "Started", &[MACHINE]);
    let planned = alpha.event("what is under way", |event| event.name == "maintenance");
    assert_eq!(planned.text("reason"), "the machine is being frozen");
    alpha.event("to step down", |event| event.name == "released");
    metadata.is_asked(3);
    assert!(metadata.acknowledged().is_empty(), "there is nothing to wait for any more");
    metadata.is_over();
    alpha.event("to come back", |event| event.name == "maintenance_over");
    fleet.check_promises();
}

/// It would begin for the others, too, which may not have stepped down.
#[test]
fn what_is_planned_for_others_too_is_not_acknowledged() {
    let fleet = Fleet::new(Store::sqlite());
    let metadata = Metadata::new();
    let alpha = metadata.of(fleet.launch("alpha")).start();
    fleet.beat_above(0);
    for (id, kind) in [("1", "Reboot"), ("2", "Redeploy"), ("3", "Preempt"), ("4", "Terminate")] {
        metadata.plans(id, kind, "Scheduled", &["fleet_4", MACHINE]);
        alpha.event(kind, |event| event.name == "maintenance" && event.text("id") == id);
    }
    alpha.event("to step down", |event| event.name == "released");
    metadata.is_asked(3);
    assert!(metadata.acknowledged().is_empty());
}

#[test]
fn each_kind_of_event_is_stepped_down_for_acknowledged_and_outlived() {
    let fleet = Fleet::new(Store::sqlite());
    let metadata = Metadata::new();
    let alpha = metadata.of(fleet.launch("alpha")).start();
    let mut term = fleet.beat_above(0).term;
    for kind in ["Reboot", "Redeploy", "Preempt", "Terminate"] {
        metadata.plans(kind, kind, "Scheduled", &[MACHINE]);
        let acknowledged =
            alpha.event(kind, |event| event.name == "maintenance_acknowledged" && event.text("id") == kind);
        let released = alpha.after(term - 1, "released");
        assert!(released.ts <= acknowledged.ts, "{released:?} {acknowledged:?}");
        metadata.is_over();
        term = fleet.beat_above(term).term;
    }
    assert_eq!(metadata.acknowledged(), ["Reboot", "Redeploy", "Preempt", "Terminate"]);
    fleet.check_promises();
}

/// In a network of its own, where Azure's address is the stand-in's, on a machine whose chassis has that tag or another.
#[test]
fn a_machine_of_azure_is_known_by_the_tag_of_its_chassis() {
    // Only this thread leaves the network that the others are in, and what it starts.
    // SAFETY: the call has no pointers, and gives this thread another network, in which it has no sockets yet.
    if unsafe { libc::unshare(libc::CLONE_NEWNET) } != 0 {
        return skipped("no network of one's own can be had here");
    }
    for words in ["link set lo up", "address add 169.254.169.254/32 dev lo"] {
        let status = Command::new("ip").args(words.split(' ')).status().expect("`ip` is there");
        assert!(status.success(), "ip {words}");
    }
    let fleet = Fleet::new(Store::sqlite());
    let metadata = Metadata::at(TcpListener::bind("169.254.169.254:80").expect("nobody else has it"));
    metadata.plans("freeze-1", "Freeze", "Started", &[MACHINE]);
    let launch = |name: &str, tag: &str| {
        let chassis = "mount -t tmpfs tmpfs /sys/class && mkdir -p /sys/class/dmi/id";
        fleet.launch(name).with_mounts(&format!("{chassis} && echo {tag} > /sys/class/dmi/id/chassis_asset_tag"))
    };
    let _other = launch("beta", "0000-0000").start();
    fleet.beat_above(0);
    assert_eq!(metadata.state().asked, 0, "only a machine of Azure asks");
    let azures = launch("alpha", "7783-7084-3265-9085-8269-3286-77").start();
    let planned = azures.event("what is under way", |event| event.name == "maintenance");
    assert_eq!(planned.text("reason"), "the machine is being frozen");
    fleet.check_promises();
}

#[test]
fn a_standby_acknowledges_and_takes_nothing_over_meanwhile() {
    let fleet = Fleet::new(Store::sqlite());
    let (alpha, term) = fleet.leader("alpha");
    let metadata = Metadata::new();
    metadata.plans("preempt", "Preempt", "Scheduled", &[MACHINE]);
    let beta = metadata.of(fleet.launch("beta")).start();
    beta.event("to acknowledge", |event| event.name == "maintenance_acknowledged");
    drop(alpha);
    metadata.is_asked(6);
    assert!(fleet.journal.events().iter().all(|event| event.name != "elected" || event.from == "alpha"));
    metadata.is_over();
    assert_eq!(fleet.beat_above(term).from, "beta");
    fleet.check_promises();
}

#[test]
fn metadata_that_is_none_keeps_nobody_from_leading() {
    let fleet = Fleet::new(Store::sqlite());
    let metadata = Metadata::new();
    metadata.state().nonsense = Some(b"<html>".to_vec());
    let mut node = metadata.of(fleet.launch("alpha")).start();
    let at = Endpoint::of(&node);
    let term = fleet.beat_above(0).term;
    let event = json!({ "EventType": "Freeze", "Resources": [MACHINE], "EventStatus": "Started" }).to_string();
    for nonsense in [
        "[]".repeat(1 << 21).into_bytes(),
        "[".repeat(100_000).into_bytes(),
        br#"{"Events":[{"EventId":7}]}"#.to_vec(),
        format!(r#"{{"Events":[{event}]}}"#).into_bytes(),
        Vec::new(),
    ] {
        metadata.state().nonsense = Some(nonsense);
        metadata.is_asked(2);
    }
    assert_eq!(at.ask("/livez").status, 200);
    let now = OffsetDateTime::now_utc();
    assert_eq!(fleet.beat("a beat", |event| event.ts > now).term, term);
    assert_eq!(node.terminate().code(), Some(0));
    fleet.check_promises();
}
