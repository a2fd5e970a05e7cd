//! Guests that keep as much of the host's memory and descriptors as they get: the host stays small, its neighbours do not
//! notice, and the guest hears no or its end names the flag.

use std::fs;
use std::time::Duration;

use crate::fleet::Fleet;
use crate::http::server::{Reply, Server};
use crate::http::{events, launch_with_lease};
use crate::node::{Event, Node};
use crate::store::Store;

/// What the guests below may use of their own.
const MEMORY: u64 = 16 << 20;

/// What the host may take more for a guest that hoards than for a calm one.
const MORE: u64 = MEMORY + (64 << 20);

/// How a guest's hoarding ends.
enum Ends {
    /// The guest hears an error.
    Refused(&'static str),
    /// The instance is ended, and this is said.
    Gone(&'static str),
}

/// The most memory that the processes of a node have had so far, in bytes: each of those that are there.
fn peak(node: &Node) -> u64 {
    let runners = node.runners().into_iter().map(|pid| pid.to_string());
    let peak = |pid: String| {
        // One that has just ended has had its time.
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap_or("0 kB");
        line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number") << 10
    };
    runners.chain([node.pid().to_string()]).map(peak).sum()
}

/// Lets a guest hoard. What it or its end says, and the most memory that its host had.
fn hoard(fleet: &Fleet, what: &str) -> (Event, u64) {
    let (node, _server) = start(fleet, what, "rest");
    let ended = node.event(what, |event| event.name == "ended" || event.text("line") == "rests");
    (ended, peak(&node))
}

/// A host that at first may have only a few descriptors, whose guest hoards and then does that.
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
            // As much as is read at a time, with the head.
            "/some" => (3, 60_000),
            _ => (90, 1 << 20),
        };
        let headers: String = (0..fields).map(|n| format!("\r\nx-{n}: {}", "v".repeat(300))).collect();
        Reply::Answer(format!("200 OK{headers}"), "x".repeat(body))
    });
    // What else runs on a busy machine must not cost the lease.
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
fn what_a_guest_can_keep_of_the_hosts_memory_is_bounded() {
    use Ends::{Gone, Refused};
    let calm = {
        let fleet = Fleet::new(Store::sqlite());
        hoard(&fleet, "nothing").1
    };
    let memory = "more than ";
    for (what, ends) in [
        ("methods", Refused("0: ()")),
        ("schemes", Gone("raise `--max-handles`")),
        ("authorities", Gone("raise `--max-handles`")),
        ("paths", Refused(": ()")),
        ("fields", Gone("`--max-memory 32MiB` grants more")),
        ("copies", Gone("`--max-memory 32MiB` grants more")),
        ("emptied", Refused("1000: ")),
        ("trailers", Refused("HttpRequestTrailerSectionSize(Some(16384))")),
        ("heads", Gone("raise `--max-handles`")),
        ("stdouts", Refused("4000: \"enough\", true")),
        ("bodies", Gone("`--max-memory 32MiB` grants more")),
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
        let said = match ends {
            Gone(_) => ended.text("message").to_owned(),
            Refused(_) => events(&fleet, "output").iter().map(|event| event.text("line")).collect(),
        };
        let (Gone(expected) | Refused(expected)) = ends;
        assert!(said.contains(expected), "{what}: {said}");
        let more = most.saturating_sub(calm);
        println!("{what}: {} KiB more than a calm guest's; {said:.150}", more >> 10);
        assert!(more < MORE, "{what} took {} MiB", more >> 20);
        if expected.contains("--max-memory") {
            let told: Vec<Event> =
                events(&fleet, "capability_denied").into_iter().filter(|event| event.term == ended.term).collect();
            assert!(matches!(&told[..], [told] if told.text("what").starts_with(memory)), "{what}: {told:?}");
        }
        fleet.check_promises();
    }
}

#[test]
fn what_guests_have_freed_does_not_stay_with_their_host() {
    let fleet = Fleet::new(Store::sqlite());
    let (calm, _server) = start(&fleet, "nothing", "rest");
    fleet.beat("a calm guest", |event| event.text("line") == "rests");
    let least = peak(&calm);
    drop(calm);
    let fleet = Fleet::new(Store::sqlite());
    // Each term fills the host's memory in small pieces, on whichever thread it runs.
    let (node, _server) = start(&fleet, "paths", "done");
    let first = node.after(0, "ended").term;
    node.after(first + 20, "ended");
    let more = peak(&node).saturating_sub(least);
    println!("{} KiB more than a calm guest's after 20 terms", more >> 10);
    assert!(more < MORE, "20 terms took {} MiB", more >> 20);
    fleet.check_promises();
}
