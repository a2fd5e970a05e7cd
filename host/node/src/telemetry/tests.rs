#![allow(clippy::disallowed_methods, clippy::unwrap_used, clippy::expect_used, reason = "a test may panic")]

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader, PipeReader, PipeWriter, Read, Seek};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use baton_election::{End, IneligibleCause};
use baton_test_support::patience::Patience;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::queue::CAPACITY;
use super::*;
use baton_base::clock::Clock;
use baton_runtime::LogLevel;
use baton_runtime::{LONGEST_LINE, Usage};
use baton_store::Digest;

const TEXT: Style = Style { format: Format::Text, terminal: true, colours: false };
const JSON: Style = Style { format: Format::Json, terminal: false, colours: false };

fn node() -> NodeId {
    NodeId::new("web-3-0").unwrap()
}

fn tracker() -> Arc<ElectionTracker> {
    Arc::new(ElectionTracker::new(ElectionName::new("heartbeat").unwrap(), Duration::from_secs(15)))
}

fn lines(style: Style, say: impl FnOnce(&Log)) -> Vec<String> {
    let mut kept = tempfile::tempfile().unwrap();
    let (log, writer) = Log::start(style, &node(), Box::new(kept.try_clone().unwrap())).unwrap();
    say(&log.for_election(&tracker()));
    assert!(writer.shutdown(Duration::from_secs(60)));
    kept.rewind().unwrap();
    io::read_to_string(kept).unwrap().lines().map(String::from).collect()
}

fn output(line: impl Into<String>) -> Event {
    Event::printed(GuestStream::Stdout, &line.into())
}

#[test]
fn json_has_the_common_fields_first_and_in_order() {
    let error = "a timeout".to_string();
    let failed = Event::RenewalFailed {
        error,
        since_renewal_s: Duration::from_millis(8_250).into(),
        remaining_s: Duration::from_micros(3_750_001).into(),
    };
    let lines = lines(JSON, |log| {
        log.emit(Some(7), failed);
        log.emit(None, Event::Released {});
        log.emit(Some(7), output("hi \u{9b}\u{1b}\n\"x\""));
    });
    let after_ts: Vec<&str> = lines.iter().map(|line| line.split_once(r#"Z","#).unwrap().1).collect();
    assert_eq!(
        after_ts,
        [
            r#""level":"warn","event":"renewal_failed","node":"web-3-0","election":"heartbeat","term":7,"error":"a timeout","since_renewal_s":8.25,"remaining_s":3.750001}"#,
            r#""level":"info","event":"released","node":"web-3-0","election":"heartbeat","term":null}"#,
            r#""level":"info","event":"output","node":"web-3-0","election":"heartbeat","term":7,"stream":"stdout","line":"hi \u009b\u001b\n\"x\""}"#,
        ]
    );
    let year = lines[0].strip_prefix(r#"{"ts":"20"#).expect(&lines[0]);
    assert_eq!(year.find(r#"Z","#), Some("26-11-21T12:00:01.234567".len()));
}

#[test]
fn brief_format_shows_only_what_concerns_a_developer() {
    let (one, two) = (Digest::of(b"1").to_string(), Digest::of(b"2").to_string());
    let lines = lines(Style { format: Format::Brief, ..TEXT }, |log| {
        log.emit(None, Event::Standby { reason: "not of interest".to_owned(), leader: None });
        log.emit(None, Event::Building { command: "make".to_owned() });
        let gap_s = Duration::from_millis(3).into();
        log.emit(
            Some(7),
            Event::Started { module: one.clone(), took_s: gap_s, replaces: Some(two.clone()), gap_s: Some(gap_s) },
        );
        log.emit(Some(7), output(format!("{one} sha256:none sha256:é")));
        let refused = |fallback| {
            let (source, error) = ("job.wasm".to_owned(), format!("use --pin {one}"));
            Event::ModuleRefused { module: None, source, error, fallback }
        };
        log.emit(None, refused(Some(two.clone())));
        log.emit(None, refused(None));
        let (setting, flag) =
            (Some(format!("allow-http = ['https://x/{one}']")), Some(format!("--allow-http https://x/{one}")));
        log.emit(Some(7), Event::RequestRefused { origin: String::new(), reason: "no".to_owned(), setting, flag });
    });
    let after_time: Vec<&str> = lines.iter().map(|line| &line["12:00:01.234".len()..]).collect();
    assert_eq!(
        after_time,
        [
            "  INFO   building: make".to_owned(),
            "  INFO term 7  started: module sha256:6b86b273ff34 is running after 3ms, replacing sha256:d4735e3a265e; \
             3ms without an instance"
                .to_owned(),
            format!("   out term 7  | {one} sha256:none sha256:é"),
            format!(" ERROR         module_refused: job.wasm: use --pin {one}; save a file to build again"),
            format!(" ERROR         module_refused: job.wasm: use --pin {one}; save a file to build again"),
            format!(
                "  WARN term 7  request_refused: no; to allow it: allow-http = ['https://x/{one}'] in baton.toml, or \
                 --allow-http https://x/{one}"
            ),
        ]
    );
}

#[test]
fn text_is_aligned_and_escaped_and_marks_guest_lines() {
    let lines = lines(TEXT, |log| {
        log.emit(Some(7), Event::Killed { reason: "evil\n12:00 INFO fake\x1b[2J".to_string() });
        log.emit(None, Event::Standby { reason: "web-1-0 leads".to_string(), leader: None });
        log.emit(Some(7), output("a\rb"));
        log.emit(Some(7), Event::printed(GuestStream::Stderr, "c"));
        log.emit(Some(7), Event::logged(LogLevel::Trace, "billing", "d\ne"));
        log.emit(Some(7), Event::logged(LogLevel::Critical, "", "f"));
    });
    let after_time: Vec<&str> = lines.iter().map(|line| line.split_once('Z').unwrap().1).collect();
    assert_eq!(
        after_time,
        [
            r"  WARN heartbeat term 7  killed: evil\n12:00 INFO fake\u{1b}[2J",
            r"  INFO heartbeat         standby: web-1-0 leads",
            r"   out heartbeat term 7  | a\rb",
            r"   err heartbeat term 7  | c",
            r" TRACE heartbeat term 7  | billing: d\ne",
            r"  CRIT heartbeat term 7  | f",
        ]
    );
    assert_eq!(lines[0].find('Z'), Some("12:00:01.234567".len()));
}

#[test]
fn files_get_the_date_and_terminals_may_get_colors() {
    let dated = &lines(Style { terminal: false, ..TEXT }, |log| log.emit(None, Event::Released {}))[0];
    assert_eq!(dated.find('Z'), Some("2026-11-21T12:00:01.234567".len()));
    assert!(!dated.contains('\x1b'));
    let coloured = &lines(Style { colours: true, ..TEXT }, |log| log.emit(None, Event::Released {}))[0];
    assert!(coloured.contains("\x1b[32m INFO\x1b[0m"), "{coloured:?}");
}

#[test]
fn long_reasons_are_cut_to_the_length_of_a_line() {
    let long = "x".repeat(1 << 20);
    let end = End::Fatal(long.clone());
    let wait_s = Seconds(Duration::from_secs(1));
    for event in [
        Event::ended(1, &end, Duration::ZERO, Usage::default()),
        Event::NextTerm { reason: Some(long.clone()), failures: 1, wait_s },
        Event::ineligible(&IneligibleCause::CoolingOff, (None, Some(long.clone())), Some(wait_s.0)),
        Event::Stopping { reason: "step-down", message: long.clone(), grace_s: wait_s },
        Event::VersionRejected { module: "sha256:ab".to_owned(), reason: long.clone(), fallback: None },
        Event::RequestRefused { origin: long.clone(), reason: long.clone(), setting: None, flag: None },
    ] {
        for style in [TEXT, JSON] {
            let line = &lines(style, |log| log.emit(None, event.clone()))[0];
            let parts = if matches!(event, Event::RequestRefused { .. }) { 2 } else { 1 };
            assert!(line.len() < parts * (LONGEST_LINE + 500), "{} bytes", line.len());
            assert!(line.contains(&format!(" … and {} more bytes", (1 << 20) - LONGEST_LINE)), "{}", &line[..200]);
        }
    }
    let half = Event::RequestRefused {
        origin: String::new(),
        reason: "not granted".to_owned(),
        setting: Some(long.clone()),
        flag: Some(format!("--allow-http '{long}'")),
    };
    let line = &lines(JSON, |log| log.emit(None, half))[0];
    assert!(line.contains("not granted") && !line.contains("allow-http"), "half a command is none: {line}");
}

#[test]
fn long_line_is_cut_at_a_character_boundary() {
    let line = &lines(TEXT, |log| log.emit(None, output("ü".repeat(LONGEST_LINE))))[0];
    assert!(line.ends_with(&format!("ü … and {LONGEST_LINE} more bytes")), "{}", &line[line.len() - 60..]);
}

#[test]
fn unread_pipe_blocks_no_thread_and_drops_are_reported() {
    let (reader, pipe) = io::pipe().unwrap();
    let (log, writer) = Log::start(JSON, &node(), Box::new(pipe)).unwrap();
    let log = log.for_election(&tracker());
    let total = 20_000;
    for n in 0..total {
        log.emit(Some(1), output(format!("{n} {}", "x".repeat(200))));
    }
    // The guest's share of the queue is full, but the queue still has room for the host's own events.
    for _ in 0..CAPACITY {
        log.emit(Some(1), Event::Released {});
    }

    // Read in a separate thread: if a line is missing, this test then fails instead of hanging.
    let (send, lines) = mpsc::channel();
    let reading = std::thread::spawn(move || {
        BufReader::new(reader).lines().for_each(|line| send.send(line.unwrap()).unwrap());
    });
    let (mut output, mut released, mut dropped) = (0, 0, 0);
    let mut count = |line: String| {
        let line: serde_json::Value = serde_json::from_str(&line).unwrap();
        match line["event"].as_str().unwrap() {
            "output" => output += 1,
            "released" => released += 1,
            "output_dropped" => dropped += line["lines"].as_u64().unwrap(),
            other => panic!("{other}"),
        }
        output + dropped
    };
    // Each line is either written or counted as dropped while the host is still running, not only when it exits.
    while count(Patience::poll(Duration::from_millis(1), || lines.try_recv().ok()).unwrap()) < total {}
    assert!(writer.shutdown(Duration::from_secs(60)));
    reading.join().unwrap();
    lines.try_iter().for_each(|line| {
        count(line);
    });
    assert_eq!(output + dropped, total);
    assert!(dropped > 0);
    assert_eq!(released, CAPACITY);
}

fn pipe() -> (PipeReader, PipeWriter, PipeWriter) {
    let (reader, pipe) = io::pipe().unwrap();
    let another = pipe.try_clone().unwrap();
    (reader, pipe, another)
}

/// Waits until the pipe is full. Returns the number of bytes in the pipe.
fn wait_full(pipe: &PipeWriter) -> usize {
    let give_up = Instant::now() + Duration::from_secs(60);
    loop {
        let mut fds = [PollFd::new(pipe, PollFlags::OUT)];
        // The pipe has been full for 1 ms. It stays full, because nobody reads from it.
        if poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 1_000_000 })).unwrap() == 0 {
            return usize::try_from(rustix::io::ioctl_fionread(pipe).unwrap()).unwrap();
        }
        assert!(Instant::now() < give_up, "the pipe still has room");
    }
}

fn take(reader: &mut PipeReader, bytes: usize) -> String {
    let mut taken = vec![0; bytes];
    reader.read_exact(&mut taken).unwrap();
    String::from_utf8(taken).unwrap()
}

fn deadline_in(length: Duration) -> Deadline {
    let clock = Clock::default();
    let at = clock.now() + length;
    Deadline::new(clock, at)
}

/// Returns the term, and the number of dropped lines, of each `output_dropped` event.
fn dropped(json: &str) -> Vec<(Option<u64>, u64)> {
    let lines = json.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).expect(line));
    let dropped = lines.filter(|line| line["event"] == "output_dropped");
    dropped.map(|line| (line["term"].as_u64(), line["lines"].as_u64().unwrap())).collect()
}

#[test]
fn line_is_never_written_after_its_deadline() {
    for style in [TEXT, JSON] {
        let (mut reader, pipe, full) = pipe();
        let (log, writer) = Log::start(style, &node(), Box::new(pipe)).unwrap();
        let deadline = deadline_in(Duration::from_secs(3600));
        for n in 0..600 {
            log.emit_output(7, output(format!("{n} {}", "x".repeat(200))), &deadline);
        }
        let held = wait_full(&full);
        deadline.end();
        log.emit(Some(7), Event::Released {});
        drop(full);
        let before = take(&mut reader, held);
        let reading = std::thread::spawn(move || io::read_to_string(reader).unwrap());
        assert!(writer.shutdown(Duration::from_secs(60)));
        drop(log);
        let after = reading.join().unwrap();
        assert!(before.lines().count() > 10, "{before}");
        assert!(!after.contains("xxx"), "a line was written after its deadline: {after}");
        // Dropped lines are reported before the next entry.
        let (first, second) = after.split_once('\n').unwrap();
        assert!(first.contains("output_dropped") && second.contains("released"), "{after}");
        if style == JSON {
            assert_eq!(dropped(&after), [(Some(7), 600 - before.lines().count() as u64)]);
        }
    }
}

#[test]
fn long_line_ends_where_its_deadline_passes() {
    let (mut reader, pipe, full) = pipe();
    let (log, writer) = Log::start(JSON, &node(), Box::new(pipe)).unwrap();
    let deadline = deadline_in(Duration::from_secs(3600));
    // The writer writes each line in two pieces, so a full pipe may end in the middle of a line.
    for _ in 0..100 {
        log.emit_output(7, output("x".repeat(6000)), &deadline);
        log.emit(None, output("x".repeat(10)));
    }
    let held = wait_full(&full);
    deadline.end();
    drop(full);
    let before = take(&mut reader, held);
    let reading = std::thread::spawn(move || io::read_to_string(reader).unwrap());
    assert!(writer.shutdown(Duration::from_secs(60)));
    let after = reading.join().unwrap();
    let rest = match before.ends_with('\n') {
        true => &after,
        false => after.strip_prefix('\n').expect("a partial line should be ended"),
    };
    assert!(!after.contains(&"x".repeat(1000)), "a line was written after its deadline: {after}");
    let written = before.lines().filter(|line| line.len() > 6000).count() as u64;
    let lines: u64 = dropped(rest).iter().map(|(term, lines)| term.map_or(0, |_| *lines)).sum();
    assert_eq!(written + lines, 100, "{before}{after}");
}

#[test]
fn lines_past_deadline_are_dropped_and_events_are_written() {
    let lines = lines(JSON, |log| {
        let (past, later) = (deadline_in(Duration::ZERO), deadline_in(Duration::from_secs(3600)));
        for term in [7, 7, 8] {
            log.emit_output(term, output("too late"), &past);
        }
        log.emit_output(9, output("in time"), &later);
        log.emit(Some(9), Event::Released {});
    });
    let text = lines.join("\n");
    // If the writer is fast, it reports each dropped line separately. Add up these reports.
    let lost = |term| dropped(&text).iter().filter(|(of, _)| *of == Some(term)).map(|(_, lines)| lines).sum::<u64>();
    assert_eq!((lost(7), lost(8), lost(9)), (2, 1, 0), "{text}");
    assert!(!text.contains("too late") && text.contains("in time"), "{text}");
}

#[tokio::test]
async fn written_completes_once_all_lines_are_written() {
    let mut kept = tempfile::tempfile().unwrap();
    let (log, writer) = Log::start(JSON, &node(), Box::new(kept.try_clone().unwrap())).unwrap();
    let deadline = deadline_in(Duration::from_secs(3600));
    (0..500).for_each(|n| log.emit_output(7, output(format!("line {n}")), &deadline));
    log.written().await;
    kept.rewind().unwrap();
    let text = io::read_to_string(kept).unwrap();
    assert_eq!(text.lines().count(), 500, "{text}");
    // Once the writer has ended, `written` returns immediately.
    assert!(writer.shutdown(Duration::from_secs(60)));
    log.written().await;
}

#[test]
fn shutdown_gives_up_on_an_unread_pipe() {
    let (mut reader, pipe) = io::pipe().unwrap();
    let (log, writer) = Log::start(TEXT, &node(), Box::new(pipe)).unwrap();
    for _ in 0..CAPACITY {
        log.emit(None, output("x".repeat(1000)));
    }
    assert!(!writer.shutdown(Duration::from_millis(200)));
    // Now that the pipe is being read, the writer's thread can end.
    assert!(reader.read_to_end(&mut Vec::new()).unwrap() > 0);
}

#[test]
fn closed_reader_does_not_end_the_host() {
    let (reader, pipe) = io::pipe().unwrap();
    let (log, writer) = Log::start(TEXT, &node(), Box::new(pipe)).unwrap();
    drop(reader);
    for _ in 0..10 {
        log.emit(None, Event::Released {});
    }
    assert!(writer.shutdown(Duration::from_secs(60)));
    log.emit(None, Event::Released {});
}

#[test]
fn starting_event_states_the_promises_of_the_timing() {
    let second = Duration::from_secs(1);
    let timing = baton_election::Timing::new(15 * second, (2 * second, 60 * second), 5 * second, 1 << 28);
    let event = Event::starting(
        "web-1-0",
        &"azure://account/box".parse().unwrap(),
        "x.wasm".to_owned(),
        Some(Digest::of(b"")),
        &timing.unwrap(),
        Duration::ZERO,
    );
    assert_eq!(
        event.to_string(),
        format!(
            "baton {}, node web-1-0, store azure://account/box, module {} from x.wasm, lease 15s; at worst: takeover \
             after a crash 16.25s, hand-off 8.7s; tolerates a store outage of 5.75s, an undetected pause of 550ms, and \
             a clock that is 3.7% slow",
            env!("CARGO_PKG_VERSION"),
            Digest::of(b"")
        )
    );
}

#[test]
fn durations_have_readable_units() {
    for (micros, text) in
        [(0, "0us"), (999, "999us"), (1_999, "1ms"), (250_000, "250ms"), (1_250_000, "1.25s"), (100_000_000, "100s")]
    {
        assert_eq!(Seconds(Duration::from_micros(micros)).to_string(), text);
    }
}

#[test]
fn message_that_ends_with_a_newline_takes_one_line() {
    for (message, text) in
        [("boom\n", "failed: boom; used 0 MiB"), ("boom", "failed: boom; used 0 MiB"), ("", "failed; used 0 MiB")]
    {
        let ended = Event::ended(1, &End::Failed(message.to_owned()), Duration::ZERO, Usage::default()).to_string();
        assert!(ended.starts_with(text) && !ended.contains('\n'), "{ended:?}");
    }
}

#[test]
fn event_names_match_the_variants() {
    let text = String::new;
    let s = || Seconds(Duration::ZERO);
    for event in [
        Event::Standby { reason: text(), leader: None },
        Event::RenewalFailed { error: text(), since_renewal_s: s(), remaining_s: s() },
        Event::NextTerm { reason: None, failures: 0, wait_s: s() },
        Event::Unreachable { what: text(), error: text() },
        Event::ShuttingDown { signal: text(), grace: true },
        Event::ModuleDiffers { leader: text(), leader_module: text(), module: text() },
        Event::Released {},
    ] {
        let variant = format!("{event:?}");
        let mut name = String::new();
        for c in variant.chars().take_while(char::is_ascii_alphanumeric) {
            if c.is_ascii_uppercase() && !name.is_empty() {
                name.push('_');
            }
            name.push(c.to_ascii_lowercase());
        }
        assert_eq!(event.kind().0, name);
    }
}

#[test]
fn docs_list_every_event_and_its_fields_once() {
    // JSON events omit these fields: every JSON line contains the node and the level anyway.
    const SKIPPED: [(&str, &str); 2] = [("starting", "node"), ("output", "level")];
    let mut in_code: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for (name, fields) in Event::KINDS {
        let fields = fields.iter().copied().filter(|field| !SKIPPED.contains(&(name, field)));
        assert!(in_code.insert(name, fields.collect()).is_none(), "there are two kinds of {name}");
    }
    in_code.values_mut().for_each(|fields| fields.sort_unstable());

    let docs = include_str!("../../../../docs/logs.md");
    let section = docs.split("\n## Events\n").nth(1).unwrap();
    let mut in_docs = BTreeMap::new();
    for row in section.lines().filter(|line| line.starts_with("| `")) {
        let mut cells = row.split(" | ");
        let name = cells.next().unwrap().trim_matches(['|', ' ', '`']);
        let mut fields: Vec<&str> = cells.next().unwrap().split('`').skip(1).step_by(2).collect();
        fields.sort_unstable();
        assert!(in_docs.insert(name, fields).is_none(), "docs/logs.md has {name} twice");
    }
    assert_eq!(in_docs, in_code);

    // The first column of these tables contains the names of events, and the text of a single error.
    let help = include_str!("../../../../docs/troubleshooting.md");
    let rows = help.split("| the log says |").skip(1).flat_map(|table| {
        table.lines().skip(2).take_while(|line| line.starts_with('|')).map(|row| row.split('`').nth(1).unwrap())
    });
    let looked_up: Vec<&str> = rows.filter(|text| *text != "busy with another request").collect();
    assert!(looked_up.len() > 10 && looked_up.iter().all(|event| in_code.contains_key(event)), "{looked_up:?}");
}

#[test]
fn docs_list_every_outcome_of_an_instance() {
    let outcomes: BTreeSet<String> = Ended::ALL.iter().map(|ended| ended.word().to_owned()).collect();
    let logs = include_str!("../../../../docs/logs.md");
    let row = logs.lines().find(|line| line.starts_with("| `ended` |")).unwrap();
    let in_logs: BTreeSet<String> =
        row.split('|').nth(3).unwrap().split('`').skip(1).step_by(2).map(str::to_owned).collect();
    assert_eq!(in_logs, outcomes);
    let help = include_str!("../../../../docs/troubleshooting.md").split("| `ended` says |").nth(1).unwrap();
    let rows = help.lines().skip(2).take_while(|line| line.starts_with('|'));
    let cells = rows.flat_map(|row| row.split('|').nth(1).unwrap().split('`').skip(1).step_by(2));
    assert_eq!(cells.map(str::to_owned).collect::<BTreeSet<String>>(), outcomes);
}
