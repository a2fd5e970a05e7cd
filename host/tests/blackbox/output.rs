//! A coordinator's output and logs. Each line carries its term, and the host limits the number of lines per second.

use crate::fleet::Fleet;
use crate::guests::Guest;
use crate::node::{Event, Node};
use crate::scenarios;
use crate::store::Store;

fn fleet(guest: Guest) -> Fleet {
    Fleet::new(Store::sqlite()).with(guest)
}

scenarios! {
    on_sqlite: [
        host_survives_a_gigabyte_of_output,
    ],
}

fn logged(events: &[Event]) -> Vec<Event> {
    events.iter().filter(|event| event.text("stream") == "log").cloned().collect()
}

#[test]
fn log_lines_have_level_context_and_term() {
    let fleet = fleet(Guest::Logs);
    let (_node, term) = fleet.leader("alpha");
    let all = |events: &[Event]| Some(logged(events)).filter(|logged| logged.len() >= 8);
    let logged = fleet.journal.wait("eight lines of the log", all);
    for (event, level) in logged.iter().zip(["trace", "debug", "info", "warn", "error", "critical"]) {
        assert_eq!((event.name.as_str(), event.term), ("output", term), "{event:?}");
        assert_eq!((event.text("level"), event.text("context")), (level, "billing"), "{event:?}");
        assert_eq!(event.text("line").to_lowercase(), format!("this is level::{level}"), "{event:?}");
    }
    assert!(logged[6].fields.get("context").is_none() && logged[6].text("line") == "no context", "{:?}", logged[6]);
    // The host logs a message with line breaks as 1 line, and shortens that line to the maximum for printed lines.
    let (line, context) = (logged[7].text("line"), logged[7].text("context"));
    assert!(line.starts_with("two\nlines and xxx") && line.ends_with(" more bytes"), "{line}");
    assert!(line.len() < 8300 && context.starts_with("ccc") && context.len() < 300, "{} {context}", line.len());
    fleet.check_promises();
}

#[test]
fn logs_and_prints_share_one_limit_and_drops_are_counted() {
    let fleet = fleet(Guest::FloodsItsLog);
    let mut node = fleet.launch_with("alpha", &[("--max-output", "100")]).start();
    let dropped = |events: &[Event]| -> Vec<Event> {
        let is_report =
            |event: &&Event| event.name == "output_dropped" && event.text("reason").contains("--max-output");
        events.iter().filter(is_report).cloned().collect()
    };
    let reports = fleet.journal.wait("two counts", |events| Some(dropped(events)).filter(|list| list.len() >= 2));
    for event in &reports {
        assert!(event.fields["lines"].as_u64() > Some(0), "{event:?}");
        assert!(event.text("reason").contains("more than 100 lines a second; raise --max-output"), "{event:?}");
    }
    assert_eq!(node.terminate().code(), Some(0));
    let events = fleet.journal.events();
    let ended = events.iter().find(|event| event.name == "ended").expect("an end");
    let used = |what: &str| ended.fields["usage"][what].as_u64().expect("a number");
    let lines = |event: &Event| event.fields["lines"].as_u64().unwrap_or(0);
    assert_eq!(used("dropped"), dropped(&events).iter().map(lines).sum::<u64>(), "{ended:?}");
    // The limit allows a burst of 200 lines, then 100 lines per second. The instance cannot have started before the
    // election. The check tolerates 300 lines more.
    let elected = events.iter().find(|event| event.name == "elected").expect("an election");
    let seconds = (ended.ts - elected.ts).whole_seconds().unsigned_abs();
    assert!((200..=100 * (seconds + 5)).contains(&used("lines")), "{ended:?} after {seconds} s");
    assert!(!logged(&events).is_empty() && events.iter().any(|event| event.text("stream") == "stdout"));
    fleet.check_promises();
}

/// Peak resident memory of the host, in MiB.
fn peak_memory(node: &Node) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", node.pid())).expect("a running process");
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("the peak of the resident memory");
    line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number") >> 10
}

fn host_survives_a_gigabyte_of_output(fleet: Fleet) {
    let fleet = fleet.with(Guest::PrintsAGigabyte);
    // The lease is long, so that it is renewed in time even on a busy machine.
    let mut node = fleet.launch_with("alpha", &[("--lease", "60s")]).start();
    node.after(0, "started");
    let before = peak_memory(&node);
    let end = fleet.journal.wait_for_the_last("the end of it", |events| {
        let end = events.iter().find(|event| event.text("line") == "1 GiB is written").cloned();
        end.ok_or(events.iter().filter(|event| event.name == "output_dropped").count() as u64)
    });
    // The host must have kept leading in the same term, and must have counted the lines that it could not print.
    assert_eq!(end.term, 1, "{end:?}");
    let events = fleet.journal.events();
    for trouble in ["leadership_lost", "stopping", "killed"] {
        assert!(events.iter().all(|event| event.name != trouble), "{trouble}: {events:?}");
    }
    let lines = |event: &Event| event.fields["lines"].as_u64().unwrap_or(0);
    let dropped: u64 = events.iter().filter(|event| event.name == "output_dropped").map(lines).sum();
    assert!(dropped > 5_000_000, "only {dropped} lines of more than 5 million are counted as dropped");
    let grown = peak_memory(&node).saturating_sub(before);
    assert!(grown < 100, "the host grew by {grown} MiB");
    assert_eq!(node.terminate().code(), Some(0));
    fleet.check_promises();
}
