//! Maintenance of an Azure machine that is about to be frozen, rebooted or removed. A server on loopback stands in for
//! Azure's metadata service.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::Command;
use std::sync::{Arc, Mutex, MutexGuard};

use serde_json::{Value, json};
use time::OffsetDateTime;

use crate::endpoint::Endpoint;
use crate::fleet::Fleet;
use crate::node::{Event, Launch, until};
use crate::store::Store;
use crate::{scenarios, skipped::skipped};

scenarios! {
    on_sqlite: [
        node_steps_down_before_its_machine_is_frozen,
    ],
}

const MACHINE: &str = "fleet_3";

#[derive(Clone)]
struct Metadata {
    address: SocketAddr,
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    events: Vec<Value>,
    /// Answer to send instead of the events, if any.
    nonsense: Option<Vec<u8>>,
    /// Ids of the acknowledged events, each with the time of its acknowledgement.
    acknowledged: Vec<(String, OffsetDateTime)>,
    requests: usize,
}

impl Metadata {
    fn new() -> Self {
        Self::at(TcpListener::bind("127.0.0.1:0").expect("a port"))
    }

    fn at(listener: TcpListener) -> Self {
        let metadata =
            Self { address: listener.local_addr().expect("an address"), state: Arc::new(Mutex::new(State::default())) };
        let serving = metadata.clone();
        // The thread runs until the test process exits, so nothing joins it.
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                // Ignores errors, because a request fails only if the client hangs up.
                let _ = serving.answer(stream);
            }
        });
        metadata
    }

    fn answer(&self, mut stream: TcpStream) -> std::io::Result<()> {
        let mut reader = BufReader::new(stream.try_clone()?);
        let (mut first, mut length, mut has_header) = (String::new(), 0, false);
        reader.read_line(&mut first)?;
        loop {
            let mut line = String::new();
            reader.read_line(&mut line)?;
            let line = line.trim().to_ascii_lowercase();
            if line.is_empty() {
                break;
            }
            has_header |= line == "metadata: true";
            length = line.strip_prefix("content-length: ").and_then(|length| length.parse().ok()).unwrap_or(length);
        }
        let mut body = vec![0; length];
        reader.read_exact(&mut body)?;
        let (status, answer) = self.answer_to(&first, &body, has_header);
        write!(stream, "HTTP/1.1 {status} X\r\nContent-Length: {}\r\nConnection: close\r\n\r\n", answer.len())?;
        stream.write_all(&answer)
    }

    fn answer_to(&self, first: &str, body: &[u8], has_header: bool) -> (u16, Vec<u8>) {
        let mut state = self.state();
        if !has_header {
            return (400, Vec::new());
        }
        match first.split(' ').take(2).collect::<Vec<_>>()[..] {
            ["GET", "/metadata/instance/compute?api-version=2021-02-01"] => {
                (200, json!({ "name": MACHINE }).to_string().into_bytes())
            }
            ["GET", "/metadata/scheduledevents?api-version=2020-07-01"] => {
                state.requests += 1;
                let document = json!({ "DocumentIncarnation": state.requests, "Events": state.events });
                (200, state.nonsense.clone().unwrap_or_else(|| document.to_string().into_bytes()))
            }
            ["POST", "/metadata/scheduledevents?api-version=2020-07-01"] => {
                let request: Value = serde_json::from_slice(body).expect("JSON");
                let id = request["StartRequests"][0]["EventId"].as_str().expect("an id").to_owned();
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

    fn wait_for_requests(&self, count: usize) {
        let before = self.state().requests;
        until("the metadata to be read", || {
            let requests = self.state().requests;
            if requests >= before + count { Ok(()) } else { Err(requests) }
        });
    }

    fn acknowledged(&self) -> Vec<String> {
        self.state().acknowledged.iter().map(|(id, _)| id.clone()).collect()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no panic")
    }

    fn used_by(&self, launch: Launch) -> Launch {
        // The host must ignore the proxy, because a proxy would reach the metadata service of another machine.
        launch.flag("--scheduled-events", format!("http://{}", self.address)).env("http_proxy", "http://127.0.0.1:1")
    }
}

fn is(event: &Event, status: &str) -> bool {
    event.name == "maintenance" && event.text("status") == status
}

fn node_steps_down_before_its_machine_is_frozen(fleet: Fleet) {
    let metadata = Metadata::new();
    let alpha = metadata.used_by(fleet.launch("alpha")).start();
    let term = fleet.beat_above(0).term;
    let mut beta = fleet.standby("beta", &alpha);
    metadata.plans("of-another", "Reboot", "Scheduled", &["fleet_4"]);
    metadata.wait_for_requests(2);
    metadata.plans("freeze-1", "Freeze", "Scheduled", &[MACHINE]);
    let planned = alpha.event("the planned event", |event| event.name == "maintenance");
    assert_eq!(planned.text("reason"), "the machine is about to be frozen", "{planned:?}");
    let stopping = alpha.event("to stop", |event| event.name == "stopping");
    assert_eq!((stopping.text("reason"), stopping.text("message")), ("step-down", "the machine is about to be frozen"));
    let released = alpha.event("to step down", |event| event.name == "released");
    alpha.event("to acknowledge", |event| is(event, "Acknowledged"));
    let acknowledged = metadata.state().acknowledged.clone();
    assert_eq!(acknowledged.len(), 1, "once");
    assert!(acknowledged[0].0 == "freeze-1" && acknowledged[0].1 >= released.ts, "{acknowledged:?} {released:?}");
    let beat = fleet.beat_above(term);
    assert_eq!(beat.from, "beta");
    // Beta releases the lease, but alpha must not acquire it while the maintenance is in progress.
    assert_eq!(beta.terminate().code(), Some(0));
    metadata.wait_for_requests(4);
    let elected = || fleet.journal.events().iter().filter(|e| e.name == "elected" && e.from == "alpha").count();
    assert_eq!(elected(), 1, "alpha took part during the event");
    metadata.is_over();
    alpha.event("to come back", |event| is(event, "Over"));
    assert_eq!(fleet.beat_above(beat.term).from, "alpha");
    assert_eq!(metadata.acknowledged(), ["freeze-1"]);
    fleet.check_promises();
}

#[test]
fn node_steps_down_at_once_when_a_freeze_has_started() {
    let fleet = Fleet::new(Store::sqlite());
    let metadata = Metadata::new();
    let alpha = metadata.used_by(fleet.launch("alpha")).start();
    fleet.beat_above(0);
    metadata.plans("freeze-1", "Freeze", "Started", &[MACHINE]);
    let planned = alpha.event("the event in progress", |event| event.name == "maintenance");
    assert_eq!(planned.text("reason"), "the machine is being frozen");
    alpha.event("to step down", |event| event.name == "released");
    metadata.wait_for_requests(3);
    assert!(metadata.acknowledged().is_empty(), "an event that has started needs no acknowledgement");
    metadata.is_over();
    alpha.event("to come back", |event| is(event, "Over"));
    fleet.check_promises();
}

/// An acknowledgement would also start the event on the other machines, although their nodes may not have stepped down
/// yet.
#[test]
fn event_that_affects_other_machines_is_not_acknowledged() {
    let fleet = Fleet::new(Store::sqlite());
    let metadata = Metadata::new();
    let alpha = metadata.used_by(fleet.launch("alpha")).start();
    fleet.beat_above(0);
    for (id, kind) in [("1", "Reboot"), ("2", "Redeploy"), ("3", "Preempt"), ("4", "Terminate")] {
        metadata.plans(id, kind, "Scheduled", &["fleet_4", MACHINE]);
        alpha.event(kind, |event| event.name == "maintenance" && event.text("id") == id);
    }
    alpha.event("to step down", |event| event.name == "released");
    metadata.wait_for_requests(3);
    assert!(metadata.acknowledged().is_empty());
}

#[test]
fn node_steps_down_and_acknowledges_each_kind_of_event() {
    let fleet = Fleet::new(Store::sqlite());
    let metadata = Metadata::new();
    let alpha = metadata.used_by(fleet.launch("alpha")).start();
    let mut term = fleet.beat_above(0).term;
    for kind in ["Reboot", "Redeploy", "Preempt", "Terminate"] {
        metadata.plans(kind, kind, "Scheduled", &[MACHINE]);
        let acknowledged = alpha.event(kind, |event| is(event, "Acknowledged") && event.text("id") == kind);
        let released = alpha.after(term - 1, "released");
        assert!(released.ts <= acknowledged.ts, "{released:?} {acknowledged:?}");
        metadata.is_over();
        term = fleet.beat_above(term).term;
    }
    assert_eq!(metadata.acknowledged(), ["Reboot", "Redeploy", "Preempt", "Terminate"]);
    fleet.check_promises();
}

/// Azure sets a known asset tag in the chassis data of its machines. Only one of the two hosts sees this tag. The test
/// runs in its own network namespace, where its server can use the address of Azure's metadata service.
#[test]
fn azure_machine_is_detected_by_its_chassis_tag() {
    // The threads and processes that this thread starts later are in the new network namespace, too.
    // SAFETY: the call takes no pointers. It only moves this thread to a new network namespace.
    if unsafe { libc::unshare(libc::CLONE_NEWNET) } != 0 {
        return skipped("no network namespace can be created here");
    }
    for words in ["link set lo up", "address add 169.254.169.254/32 dev lo"] {
        let status = Command::new("ip").args(words.split(' ')).status().expect("`ip`");
        assert!(status.success(), "ip {words}");
    }
    let fleet = Fleet::new(Store::sqlite());
    let metadata = Metadata::at(TcpListener::bind("169.254.169.254:80").expect("a free address"));
    metadata.plans("freeze-1", "Freeze", "Started", &[MACHINE]);
    let launch = |name: &str, tag: &str| {
        let chassis = "mount -t tmpfs tmpfs /sys/class && mkdir -p /sys/class/dmi/id";
        fleet.launch(name).with_mounts(&format!("{chassis} && echo {tag} > /sys/class/dmi/id/chassis_asset_tag"))
    };
    let _other = launch("beta", "0000-0000").start();
    fleet.beat_above(0);
    assert_eq!(metadata.state().requests, 0, "only an Azure machine reads the metadata");
    let alpha = launch("alpha", "7783-7084-3265-9085-8269-3286-77").start();
    let planned = alpha.event("the event in progress", |event| event.name == "maintenance");
    assert_eq!(planned.text("reason"), "the machine is being frozen");
    fleet.check_promises();
}

#[test]
fn standby_acknowledges_and_takes_no_lease_during_event() {
    let fleet = Fleet::new(Store::sqlite());
    let (alpha, term) = fleet.leader("alpha");
    let metadata = Metadata::new();
    metadata.plans("preempt", "Preempt", "Scheduled", &[MACHINE]);
    let beta = metadata.used_by(fleet.launch("beta")).start();
    beta.event("to acknowledge", |event| is(event, "Acknowledged"));
    drop(alpha);
    metadata.wait_for_requests(6);
    assert!(fleet.journal.events().iter().all(|event| event.name != "elected" || event.from == "alpha"));
    metadata.is_over();
    assert_eq!(fleet.beat_above(term).from, "beta");
    fleet.check_promises();
}

#[test]
fn leader_keeps_leading_when_metadata_is_invalid() {
    let fleet = Fleet::new(Store::sqlite());
    let metadata = Metadata::new();
    metadata.state().nonsense = Some(b"<html>".to_vec());
    let mut node = metadata.used_by(fleet.launch("alpha")).start();
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
        metadata.wait_for_requests(2);
    }
    assert_eq!(at.ask("/livez").status, 200);
    let now = OffsetDateTime::now_utc();
    assert_eq!(fleet.beat("a beat", |event| event.ts > now).term, term);
    assert_eq!(node.terminate().code(), Some(0));
    fleet.check_promises();
}
