//! Guests that take as much of the host's memory and as many of its file descriptors as they can get. The host's memory
//! stays bounded. The guest gets an error, or its instance ends with a message that names the limit or its flag.

use std::fs;
use std::time::Duration;

use crate::fleet::Fleet;
use crate::http::server::{Reply, Server};
use crate::http::{events, launch_with_lease};
use crate::node::{Event, Node};
use crate::store::Store;

/// The guests' `--max-memory`, in bytes.
const MEMORY: u64 = 16 << 20;

/// Limit, in bytes, on how much more memory a host uses for a hoarding guest than for a calm guest.
const MORE: u64 = MEMORY + (64 << 20);

enum Outcome {
    Refused(&'static str),
    Ended(&'static str),
}

/// Adds up the peak memory of the node's current processes, in bytes.
fn peak(node: &Node) -> u64 {
    let runners = node.runners().into_iter().map(|pid| pid.to_string());
    let peak = |pid: String| {
        // A process that has just ended counts as 0.
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap_or("0 kB");
        line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number") << 10
    };
    runners.chain([node.pid().to_string()]).map(peak).sum()
}

/// Runs a guest that hoards `what` and then rests. Returns the event that shows that the guest rests or that its
/// instance has ended, and the node's peak memory in bytes.
fn hoard(fleet: &Fleet, what: &str) -> (Event, u64) {
    let (node, _server) = start(fleet, what, "rest");
    let ended = node.event(what, |event| event.name == "ended" || event.text("line") == "rests");
    (ended, peak(&node))
}

/// Starts a host with a soft limit of 100 open file descriptors. Its guest hoards `what`, and then does `then`.
fn start(fleet: &Fleet, what: &str, then: &str) -> (Node, Server) {
    let folder = fleet.home.path().join("data");
    if !folder.exists() {
        fs::create_dir(&folder).expect("a folder");
        fs::write(folder.join("large"), vec![b'x'; 1 << 20]).expect("a file");
        for n in 0..2_000 {
            fs::write(folder.join(format!("{n:0>200}")), "").expect("a file");
        }
    }
    let server = Server::start(|request| {
        let (fields, body) = match request.path() {
            "/no-body" => (90, 0),
            // This answer's head and body are so short that the host reads them together.
            "/some" => (3, 60_000),
            _ => (90, 1 << 20),
        };
        let headers: String = (0..fields).map(|n| format!("\r\nx-{n}: {}", "v".repeat(300))).collect();
        Reply::Answer(format!("200 OK{headers}"), "x".repeat(body))
    });
    // The lease is long, so that it is not lost on a busy machine.
    let node = launch_with_lease(Duration::from_secs(20), fleet, "alpha", "hoard", &server.url())
        .flag("--env", format!("HOARD={what}"))
        .flag("--env", format!("THEN={then}"))
        .flag("--dir", format!("{}::/data", folder.display()))
        .flag("--max-memory", "16MiB")
        .flag("--allow-http", server.url())
        .with_descriptors("-Sn 100")
        .start();
    (node, server)
}

#[test]
fn host_memory_held_by_guest_is_bounded() {
    use Outcome::{Ended, Refused};
    let calm = {
        let fleet = Fleet::new(Store::sqlite());
        hoard(&fleet, "nothing").1
    };
    let memory = "more than ";
    for (what, outcome) in [
        ("methods", Refused("0: ()")),
        ("schemes", Ended("more handles than the limit of 50000")),
        ("authorities", Refused(": ()")),
        ("paths", Refused(": ()")),
        ("fields", Ended("`--max-memory 32MiB` grants more")),
        ("copies", Ended("`--max-memory 32MiB` grants more")),
        ("emptied", Refused("1000: ")),
        ("trailers", Refused("HttpRequestTrailerSectionSize(Some(16384))")),
        ("heads", Refused("10000: ")),
        ("stdouts", Refused("4000: \"enough\", true")),
        ("bodies", Ended("`--max-memory 32MiB` grants more")),
        ("answers", Refused("`--max-memory 32MiB` grants more")),
        ("unread", Refused("--max-requests 128")),
        ("listings", Refused("256: ErrorCode { code: 6, name: \"quota\"")),
        ("read-listings", Refused("name: \"quota\"")),
        ("files", Refused("256: ErrorCode { code: 6, name: \"quota\"")),
        ("readers", Refused("name: \"insufficient-memory\"")),
        ("writers", Refused("name: \"insufficient-memory\"")),
    ] {
        let fleet = Fleet::new(Store::sqlite());
        let (ended, most) = hoard(&fleet, what);
        let message = match outcome {
            Ended(_) => ended.text("message").to_owned(),
            Refused(_) => events(&fleet, "output").iter().map(|event| event.text("line")).collect(),
        };
        let (Ended(expected) | Refused(expected)) = outcome;
        assert!(message.contains(expected), "{what}: {message}");
        let more = most.saturating_sub(calm);
        println!("{what}: {} KiB more than a calm guest's; {message:.150}", more >> 10);
        assert!(more < MORE, "{what} took {} MiB", more >> 20);
        if expected.contains("--max-memory") {
            let denied: Vec<Event> =
                events(&fleet, "capability_denied").into_iter().filter(|event| event.term == ended.term).collect();
            assert!(matches!(&denied[..], [denied] if denied.text("what").starts_with(memory)), "{what}: {denied:?}");
        }
        fleet.check_promises();
    }
}

#[test]
fn memory_freed_by_guests_does_not_stay_with_host() {
    let fleet = Fleet::new(Store::sqlite());
    let (calm, _server) = start(&fleet, "nothing", "rest");
    fleet.beat("a calm guest", |event| event.text("line") == "rests");
    let least = peak(&calm);
    drop(calm);
    let fleet = Fleet::new(Store::sqlite());
    // Each term makes the host allocate many small pieces of memory, on any of its threads.
    let (node, _server) = start(&fleet, "paths", "done");
    let first = node.after(0, "ended").term;
    node.after(first + 20, "ended");
    let more = peak(&node).saturating_sub(least);
    println!("{} KiB more than a calm guest's after 20 terms", more >> 10);
    assert!(more < MORE, "20 terms took {} MiB", more >> 20);
    fleet.check_promises();
}
