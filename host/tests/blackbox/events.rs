//! Logs and events that the admin endpoint serves. Clients receive them live, in order and without duplicates, even
//! when the leader changes.

use std::collections::HashSet;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use rustix::process::Signal;
use serde_json::Value;
use time::OffsetDateTime;

use crate::endpoint::{Answer, Endpoint};
use crate::fleet::{ELECTION, Fleet};
use crate::guests::Guest;
use crate::node::{GUARD, Node, baton, finish, until};
use crate::scenarios;
use crate::skipped::skipped;
use crate::store::Store;

scenarios! {
    with_crashes: [reader_follows_leader_and_prints_no_line_twice],
}

const TOKEN: &str = "0123456789abcdef";

fn token_file(fleet: &Fleet) -> String {
    let path = fleet.home.path().join("token");
    std::fs::write(&path, TOKEN).expect("written");
    path.display().to_string()
}

fn launch(fleet: &Fleet, name: &str, token: &str) -> Node {
    fleet.launch_with(name, &[("--admin-token-file", token)]).start()
}

fn ask(at: Endpoint, path: &str, headers: &str) -> Answer {
    let request = format!("GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n{headers}\r\n");
    at.send(request.as_bytes()).expect("an answer")
}

fn bearer() -> String {
    format!("Authorization: Bearer {TOKEN}\r\n")
}

fn list(answer: &Answer) -> Vec<Value> {
    assert_eq!(answer.status, 200, "{answer:?}");
    let mut rest = answer.body.as_bytes();
    let mut whole = Vec::new();
    while let Some(end) = rest.windows(2).position(|two| two == b"\r\n") {
        let length = usize::from_str_radix(std::str::from_utf8(&rest[..end]).expect("hex"), 16).expect("a length");
        whole.extend_from_slice(&rest[end + 2..end + 2 + length]);
        rest = &rest[end + 2 + length + 2..];
        if length == 0 {
            break;
        }
    }
    serde_json::from_slice(&whole).unwrap_or_else(|error| panic!("{error}: {}", String::from_utf8_lossy(&whole)))
}

struct Stream(BufReader<TcpStream>);

impl Stream {
    /// Retries, because a host with many clients may close the connection.
    fn open(at: Endpoint, path: &str, headers: &str) -> Self {
        let request = format!("GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nAccept: text/event-stream\r\n{headers}\r\n");
        until("a stream", || {
            let mut stream = TcpStream::connect(at.0).map_err(|error| error.to_string())?;
            stream.set_read_timeout(Some(GUARD)).expect("a time");
            stream.write_all(request.as_bytes()).map_err(|error| error.to_string())?;
            let mut stream = Self(BufReader::new(stream));
            let answer = stream.line();
            let is_accepted = answer.as_deref().is_some_and(|answer| answer.starts_with("HTTP/1.1 200"));
            if is_accepted { Ok(stream) } else { Err(format!("{answer:?}")) }
        })
    }

    fn line(&mut self) -> Option<String> {
        let mut line = String::new();
        match self.0.read_line(&mut line) {
            Ok(0) | Err(_) => None,
            Ok(_) => Some(line.trim_end().to_owned()),
        }
    }

    fn entry(&mut self) -> (String, Value) {
        let mut id = String::new();
        loop {
            let line = self.line().expect("the stream continues");
            if let Some(text) = line.strip_prefix("id: ") {
                text.clone_into(&mut id);
            } else if let Some(data) = line.strip_prefix("data: ") {
                return (id, serde_json::from_str(data).expect("JSON"));
            }
        }
    }
}

struct Follower {
    process: Child,
    stdout: Arc<Mutex<Vec<String>>>,
    stderr: Arc<Mutex<Vec<String>>>,
    readers: Vec<JoinHandle<()>>,
}

impl Follower {
    fn start(mut command: Command) -> Self {
        let mut process = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the command starts");
        let (stdout, stderr) = (Arc::default(), Arc::default());
        let readers = vec![
            read(process.stdout.take().expect("piped"), Arc::clone(&stdout)),
            read(process.stderr.take().expect("piped"), Arc::clone(&stderr)),
        ];
        Self { process, stdout, stderr, readers }
    }

    fn lines(&self) -> Vec<Value> {
        let lines = self.stdout.lock().unwrap_or_else(PoisonError::into_inner);
        lines.iter().map(|line| serde_json::from_str(line).unwrap_or_else(|_| panic!("no JSON: {line}"))).collect()
    }

    fn messages(&self) -> Vec<String> {
        self.stderr.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn wait(&self, what: &str, test: impl Fn(&Value) -> bool) -> Value {
        until(what, || self.lines().into_iter().find(&test).ok_or_else(|| (self.lines().len(), self.messages())))
    }
}

fn read(pipe: impl std::io::Read + Send + 'static, into: Arc<Mutex<Vec<String>>>) -> JoinHandle<()> {
    std::thread::spawn(move || {
        for line in BufReader::new(pipe).lines().map_while(Result::ok) {
            into.lock().unwrap_or_else(PoisonError::into_inner).push(line);
        }
    })
}

impl Drop for Follower {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
        self.readers.drain(..).for_each(|reader| drop(reader.join()));
    }
}

fn identity(line: &Value) -> String {
    format!("{} {} {} {} {}", line["ts"], line["node"], line["event"], line["term"], line["line"])
}

fn reader_follows_leader_and_prints_no_line_twice(fleet: Fleet) {
    let token = token_file(&fleet);
    let alpha = launch(&fleet, "alpha", &token);
    let term = fleet.beat_above(0).term;
    let mut beta = launch(&fleet, "beta", &token);
    let follow = |what: &str| {
        Follower::start(fleet.baton(&[what, ELECTION, "--follow", "--output=json", "--token-file", &token]))
    };
    let (logs, events) = (follow("logs"), follow("events"));

    logs.wait("a beat", |line| line["term"] == term && line["event"] == "output");
    events.wait("the election of alpha", |line| line["event"] == "elected" && line["node"] == "alpha");
    beta.event("to follow alpha", |event| event.name == "standby" && event.text("reason").contains("alpha"));

    // A crash: the connection to alpha is lost, and the reader connects to beta.
    alpha.signal(Signal::KILL);
    let second = fleet.beat_above(term).term;
    logs.wait("a beat of beta", |line| line["term"] == second && line["node"] == "beta");
    events.wait("the election of beta", |line| line["event"] == "elected" && line["node"] == "beta");
    for reader in [&logs, &events] {
        let says = format!("{ELECTION}: beta now leads, in term {second}");
        // The message is on stderr and the lines are on stdout, so the test may receive the message after the lines.
        until("the message about the leader", || {
            if reader.messages().contains(&says) { Ok(()) } else { Err(reader.messages()) }
        });
    }
    // A hand-off: the last lines from beta arrive, followed by the lines from gamma.
    let gamma = launch(&fleet, "gamma", &token);
    gamma.event("to follow beta", |event| event.name == "standby" && event.text("reason").contains("beta"));
    assert_eq!(beta.terminate().code(), Some(0));
    let third = fleet.beat_above(second).term;
    logs.wait("a beat of gamma", |line| line["term"] == third && line["node"] == "gamma");
    events.wait("the election of gamma", |line| line["event"] == "elected" && line["node"] == "gamma");
    for reader in [&logs, &events] {
        let lines: Vec<String> = reader.lines().iter().map(identity).collect();
        let different: HashSet<&String> = lines.iter().collect();
        assert_eq!(different.len(), lines.len(), "a line was printed twice");
    }
    let (mut terms, beats) = (Vec::new(), logs.lines());
    terms.extend(beats.iter().filter_map(|line| line["term"].as_u64()));
    assert!(terms.is_sorted(), "the lines of a term are contiguous: {terms:?}");
    // A host that is shutting down serves its readers for only another half second. So the readers may miss lines that
    // follow `stopping`.
    let last = |line: &Value| line["node"] == "beta" && line["event"] == "stopping";
    events.wait("the last lines of beta", last);
    // Events from gamma's time as a standby do not appear, because the reader did not connect to gamma before gamma
    // led.
    assert!(events.lines().iter().all(|line| line["node"] != "gamma" || line["event"] != "standby"));
    // The reader receives every line that gamma prints as the leader.
    let written = fleet.beat("a later beat", |event| event.from == "gamma" && event.term == third);
    let text = written.text("line").to_owned();
    logs.wait("that beat", |line| line["line"].as_str() == Some(&text) && line["term"] == third);
    fleet.check_promises();
}

#[test]
fn output_is_served_only_with_token() {
    let fleet = Fleet::new(Store::sqlite()).with(Guest::Logs);
    let file = token_file(&fleet);
    let node = launch(&fleet, "alpha", &file);
    let at = Endpoint::of(&node);
    let path = format!("/v1/elections/{ELECTION}/logs");
    let logged = until("eight lines", || {
        let lines = list(&ask(at, &format!("{path}?tail=1000"), &bearer()));
        if lines.len() > 8 { Ok(lines) } else { Err(lines) }
    });
    // Skips the first line, because the guest printed it instead of logging it.
    let levels: Vec<&str> = logged[1..7].iter().filter_map(|line| line["level"].as_str()).collect();
    assert_eq!(levels, ["trace", "debug", "info", "warn", "error", "critical"], "{logged:?}");
    let warnings = list(&ask(at, &format!("{path}?level=warn&tail=2"), &bearer()));
    let levels: Vec<&str> = warnings.iter().filter_map(|line| line["level"].as_str()).collect();
    assert_eq!(levels, ["error", "critical"], "the last two of the matching lines");

    for (path, headers, status) in [
        (path.as_str(), "", 401),
        (&path, "Authorization: Bearer 0123456789abcdeg\r\n", 401),
        (&path, "Accept: text/event-stream\r\n", 401),
        ("/v1/elections/other/logs", &bearer(), 404),
        (&format!("{path}?level=loud"), &bearer(), 400),
        (&format!("{path}?tail=-1"), &bearer(), 400),
        (&format!("{path}?since=1"), &bearer(), 400),
        ("/v1/events?election=other", "", 404),
        ("/v1/events", "Authorization: Bearer 0123456789abcdeg\r\n", 401),
        ("/v1/events?tail=0", "", 200),
    ] {
        let answer = ask(at, path, headers);
        assert_eq!(answer.status, status, "{path} {headers}: {answer:?}");
    }
    let rebound = at.send(format!("GET {path} HTTP/1.1\r\nHost: evil.example\r\n{}\r\n", bearer()).as_bytes());
    assert_eq!(rebound.map(|answer| answer.status).ok(), Some(403), "DNS rebinding is refused");

    let logs = |flags: &[&str]| fleet.command(&[&["logs", ELECTION], flags].concat());
    let text = until("the endpoint to be known", || {
        let text = logs(&["--token-file", &file, "--level", "critical"]);
        if text.code == Some(0) { Ok(text) } else { Err(text) }
    });
    assert!(text.stdout.contains("CRIT fleet term 1  | billing: this is Level::Critical\n"), "{text:?}");
    assert!(!text.stdout.contains("Level::Error"), "{text:?}");
    // On this machine, the host's own user needs no token.
    let own = logs(&["--level", "critical"]);
    assert_eq!((own.code, own.stdout), (Some(0), text.stdout), "{}", own.stderr);
    let other = fleet.home.path().join("other");
    std::fs::write(&other, "another-token-of-ours").expect("written");
    let refused = logs(&["--token-file", other.to_str().expect("a path")]);
    assert_eq!(refused.code, Some(1), "{refused:?}");
    assert!(refused.stderr.contains("401") && refused.stderr.contains("--admin-token-file"), "{refused:?}");
    let wrong = logs(&["--token-file", "/nowhere"]);
    assert_eq!(wrong.code, Some(2), "{wrong:?}");
    assert!(wrong.stderr.contains("configuration: --token-file /nowhere: "), "{wrong:?}");
    fleet.check_promises();
}

#[test]
fn node_without_token_serves_no_output() {
    let fleet = Fleet::new(Store::sqlite());
    let (node, _) = fleet.leader("alpha");
    let at = Endpoint::of(&node);
    let refused = ask(at, &format!("/v1/elections/{ELECTION}/logs"), &bearer());
    assert_eq!(refused.status, 403, "{refused:?}");
    assert!(refused.body.contains("--admin-token-file"), "{refused:?}");
    assert!(!list(&ask(at, "/v1/events", "")).is_empty(), "events need no token on this machine");
    let events = until("the endpoint to be known", || {
        let events = fleet.command(&["events"]);
        if events.code == Some(0) { Ok(events) } else { Err(events) }
    });
    assert!(events.stdout.contains("elected: leading with module"), "{events:?}");
    let unknown = fleet.command(&["events", "other"]);
    assert_eq!(unknown.code, Some(1), "{unknown:?}");
    assert!(unknown.stderr.contains("there is no election other"), "{unknown:?}");
    assert!(unknown.stderr.contains("the store has fleet;"), "{unknown:?}");
    // After an election's only host has exited, the events of that election cannot be read. The events of the other
    // elections are still printed.
    let mut last = fleet.launch_with("beta", &[("--election", "ended")]).start();
    last.after(0, "started");
    assert_eq!(last.terminate().code(), Some(0));
    let events = fleet.command(&["events"]);
    assert_eq!(events.code, Some(1), "{events:?}");
    assert!(events.stdout.contains("elected: leading with module"), "{events:?}");
    // A host that exits withdraws its announcement if the store answers within 1 s, so there are two possible messages.
    let has_ended = |text: &str| text.contains("its host has exited") || text.contains("beta did not answer");
    assert!(events.stderr.contains("ended: ") && has_ended(&events.stderr), "{events:?}");
    let ended = fleet.command(&["events", "ended"]);
    assert!(ended.code == Some(1) && has_ended(&ended.stderr), "{ended:?}");
}

#[test]
fn stream_resumes_after_last_id_and_reports_lost_lines() {
    let fleet = Fleet::new(Store::sqlite());
    let file = token_file(&fleet);
    let node = launch(&fleet, "alpha", &file);
    node.after(0, "started");
    let at = Endpoint::of(&node);
    let path = format!("/v1/elections/{ELECTION}/logs");
    let mut stream = Stream::open(at, &format!("{path}?tail=5"), &bearer());
    let (mut id, mut last) = stream.entry();
    for _ in 0..20 {
        (id, last) = stream.entry();
    }
    drop(stream);
    let number = |line: &Value| line["line"].as_str()?.strip_prefix("beat ")?.split(' ').next()?.parse::<u64>().ok();
    fleet.beat("later beats", |event| number(&event.fields) > number(&last).map(|last| last + 20));
    let mut stream = Stream::open(at, &path, &format!("{}Last-Event-ID: {id}\r\n", bearer()));
    let last = number(&last).expect("a beat");
    for expected in last + 1..last + 40 {
        assert_eq!(number(&stream.entry().1), Some(expected), "each once, in order");
    }
    // The id is from another run of the host, so the stream starts with the first line.
    let mut stream = Stream::open(at, &path, &format!("{}Last-Event-ID: 0123456789abcdef-7\r\n", bearer()));
    assert_eq!(stream.entry().1["line"], "beat in term 1");
    drop(node);

    // A host keeps a limited number of lines. When new lines displace old lines, the stream reports how many lines were
    // lost.
    let fleet = Fleet::new(Store::sqlite()).with(Guest::Floods);
    let file = token_file(&fleet);
    let node = fleet.launch_with("alpha", &[("--admin-token-file", &file), ("--max-output", "100000")]).start();
    let at = Endpoint::of(&node);
    let (first, _) = Stream::open(at, &format!("{path}?tail=1"), &bearer()).entry();
    let lost = until("lines to be lost", || {
        let mut stream = Stream::open(at, &path, &format!("{}Last-Event-ID: {first}\r\n", bearer()));
        loop {
            match stream.line().expect("the stream continues") {
                line if line == "event: missed" => break Ok(stream.line().expect("a count")),
                line if line.starts_with("data: ") => break Err(line),
                _ => {}
            }
        }
    });
    assert!(lost.starts_with("data: {\"missed\":"), "{lost}");
    fleet.check_promises();
}

#[test]
fn output_is_escaped_to_one_line_of_text() {
    let fleet = Fleet::new(Store::sqlite()).with(Guest::TellsConfig);
    let file = token_file(&fleet);
    let evil = "<script>alert(1)</script>\u{1b}[2J\u{202e}\u{0}\r\ndata: {}\r\n\r\nevent: missed";
    let printed = evil.replace('\u{0}', "");
    let node = fleet
        .launch_with("alpha", &[("--admin-token-file", &file)])
        .flag("--config-var", format!("evil={printed}"))
        .start();
    node.after(0, "ended");
    let at = Endpoint::of(&node);
    let path = format!("/v1/elections/{ELECTION}/logs");
    let mut stream = Stream::open(at, &path, &bearer());
    let lines = [stream.entry(), stream.entry()].map(|(_, entry)| entry["line"].as_str().expect("a line").to_owned());
    assert!(lines[1].contains("<script>"), "{lines:?}");
    let raw = ask(at, &path, &bearer()).body;
    assert!(!raw.chars().any(|c| c == '\u{1b}' || c == '\u{202e}'), "{raw:?}");
    let text = until("the endpoint to be known", || {
        let text = fleet.command(&["logs", ELECTION, "--token-file", &file]);
        if text.code == Some(0) { Ok(text) } else { Err(text) }
    });
    assert!(!text.stdout.chars().any(|c| (c.is_control() && c != '\n') || c == '\u{202e}'), "{text:?}");
    // The token is also required to read the message of an ended instance.
    let fleet = Fleet::new(Store::sqlite()).with(Guest::FailsRetryable);
    let file = token_file(&fleet);
    let node = launch(&fleet, "alpha", &file);
    let ended = node.after(0, "ended");
    let message = ended.text("message").to_owned();
    assert!(!message.is_empty());
    let at = Endpoint::of(&node);
    let path = format!("/v1/events?election={ELECTION}&tail=1000");
    let end_event = |headers: &str| {
        let events = list(&ask(at, &path, headers));
        events.into_iter().find(|event| event["event"] == "ended").expect("an `ended` event")
    };
    assert_eq!(end_event(&bearer())["message"], message.as_str());
    let withheld = end_event("").to_string();
    assert!(withheld.contains("only with the token") && !withheld.contains(&message), "{withheld}");
}

/// Opens more streams than a host serves, and reads none of them.
#[test]
fn unread_streams_block_no_client_and_delay_nothing() {
    let fleet = Fleet::new(Store::sqlite()).with(Guest::Floods);
    let file = token_file(&fleet);
    // The lease is long, so that it is not lost on a busy machine.
    let flags = [("--admin-token-file", &*file), ("--max-output", "1000"), ("--lease", "60s")];
    let mut node = fleet.launch_with("alpha", &flags).start();
    let term = fleet.beat_above(0).term;
    let at = Endpoint::of(&node);
    let logs = format!("/v1/elections/{ELECTION}/logs");
    let mut held = Vec::new();
    for number in 0..5000 {
        let Ok(mut stream) = TcpStream::connect(at.0) else { continue };
        let (path, headers) =
            if number % 2 == 0 { ("/v1/events?tail=9999", String::new()) } else { (&*logs, bearer()) };
        let request = format!("GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nAccept: text/event-stream\r\n{headers}\r\n");
        // Ignores errors, because the host may have closed the connection.
        let _ = stream.write_all(request.as_bytes());
        held.push(stream);
        if held.len() > 500 {
            held.drain(..100);
        }
    }
    at.ask_until("/livez", 200);
    at.ask_until("/readyz", 200);
    let descriptors = std::fs::read_dir(format!("/proc/{}/fd", node.pid())).expect("the host runs").count();
    assert!(descriptors < 400, "{descriptors} descriptors are open");
    // The host serves a new client although the number of idle streams has reached the host's limit.
    let mut stream = Stream::open(at, &logs, &bearer());
    assert_eq!(stream.entry().1["event"], "output");
    drop(held);
    let now = OffsetDateTime::now_utc();
    let beat = fleet.beat("a line", |event| event.ts > now);
    assert_eq!((beat.term, node.is_running()), (term, true));
    let mut events = fleet.journal.events();
    events.retain(|event| ["leadership_lost", "stopping"].contains(&event.name.as_str()));
    assert!(events.is_empty(), "{events:?}");
    assert_eq!(node.terminate().code(), Some(0));
    fleet.check_promises();
}

/// A host with too many connections closes the oldest connection that is not a stream.
#[test]
fn stream_outlives_idle_connections() {
    let fleet = Fleet::new(Store::sqlite());
    let (node, _) = fleet.leader("alpha");
    let at = Endpoint::of(&node);
    let mut stream = Stream::open(at, "/v1/events?tail=1", "");
    stream.entry();
    let held: Vec<TcpStream> = (0..400).filter_map(|_| TcpStream::connect(at.0).ok()).collect();
    at.ask_until("/livez", 200);
    let _outage = fleet.store.cut();
    while stream.entry().1["event"] != "renewal_failed" {}
    drop(held);
}

#[test]
fn command_ends_when_its_reader_closes_the_pipe() {
    let fleet = Fleet::new(Store::sqlite());
    let file = token_file(&fleet);
    let node = launch(&fleet, "alpha", &file);
    node.after(0, "started");
    let mut command = fleet.baton(&["logs", ELECTION, "--follow", "--token-file", &file]);
    // The command retries until it finds the endpoint of the node.
    let mut process = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("the command starts");
    let mut first = [0; 20];
    process.stdout.take().expect("piped").read_exact(&mut first).expect("a line");
    let status = until("the end of the command", || process.try_wait().expect("a child").ok_or("it still runs"));
    assert_eq!(status.code(), Some(0));
}

#[test]
fn idle_command_ends_when_its_reader_closes_the_pipe() {
    let fleet = Fleet::new(Store::sqlite());
    let node = fleet.node("alpha");
    node.after(0, "started");
    let mut command = fleet.baton(&["events", ELECTION, "--follow", "--tail", "1"]);
    let mut process = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("the command starts");
    process.stdout.take().expect("piped").read_exact(&mut [0]).expect("a line");
    let status = until("the end of the command", || process.try_wait().expect("a child").ok_or("it still runs"));
    assert_eq!(status.code(), Some(0));
}

#[test]
fn token_is_sent_only_over_tls_to_advertised_address() {
    let fleet = Fleet::new(Store::sqlite());
    let file = token_file(&fleet);
    let beside = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/blackbox/http/tls");
    let [certificate, key, ca] = ["cert.pem", "key.pem", "ca.pem"].map(|name| beside.join(name).display().to_string());
    let port = baton_test_support::server::free_port();
    let (address, secure) = (format!("127.0.0.1:{port}"), format!("https://localhost:{port}"));
    let flags = [
        ("--admin", &*address),
        ("--admin-token-file", &file),
        ("--admin-tls-cert", &certificate),
        ("--admin-tls-key", &key),
        ("--admin-advertise", &secure),
    ];
    let mut node = fleet.launch_with("alpha", &flags).start();
    node.after(0, "started");
    let at = Endpoint::of(&node);
    until("the node to be announced", || {
        let nodes: Value = serde_json::from_str(&at.ask_as("localhost", "/v1/nodes").body).expect("JSON");
        if nodes[0]["admin"] == secure.as_str() { Ok(()) } else { Err(nodes) }
    });
    let logs = |flags: &[&str]| fleet.command(&[&["logs", ELECTION, "--token-file", &file], flags].concat());
    let trusted = logs(&["--ca", &ca]);
    assert_eq!(trusted.code, Some(0), "{trusted:?}");
    assert!(trusted.stdout.contains("OUT fleet term"), "{trusted:?}");
    let unknown = logs(&[]);
    assert_eq!(unknown.code, Some(1), "{unknown:?}");
    assert!(unknown.stderr.contains("certificate"), "{unknown:?}");
    assert_eq!(node.terminate().code(), Some(0));

    let clear = format!("http://node.example:{port}");
    let node = fleet.launch_with("beta", &[("--admin-advertise", &clear)]).start();
    node.after(0, "started");
    let refused = until("the node to be announced", || {
        let refused = logs(&[]);
        if refused.stderr.contains(&clear) { Ok(refused) } else { Err(refused) }
    });
    assert_eq!(refused.code, Some(1), "{refused:?}");
    assert!(refused.stderr.contains("the token is not sent in plain text"), "{refused:?}");
    drop(node);
    let quiet = fleet.launch_with("gamma", &[("--admin", "none")]).start();
    let started = quiet.after(0, "started");
    until("gamma, which has no endpoint, to answer at its socket", || {
        let local = logs(&[]);
        let is_answered = local.code == Some(0) && local.stdout.contains(&format!("term {}", started.term));
        if is_answered { Ok(()) } else { Err(local) }
    });
}

/// Every user can connect to an abstract socket, because it has no file permissions. So the host must check which user
/// connects.
#[test]
fn host_socket_answers_only_its_own_user() {
    if !rustix::process::geteuid().is_root() {
        return skipped("only root may be another user");
    }
    let fleet = Fleet::new(Store::sqlite());
    let (_alpha, _) = fleet.leader("alpha");
    let nodes = fleet.command(&["nodes", ELECTION, "--output=json"]).json();
    let incarnation = nodes[0]["incarnation"].as_str().expect("text");
    const ASKS: &str = "import socket, sys\ns = socket.socket(socket.AF_UNIX)\ns.connect('\\0baton/0/' + sys.argv[1])\n\
                        s.sendall(f'{sys.argv[2]} HTTP/1.1\\r\\nHost: localhost\\r\\n\\r\\n'.encode())\nprint(s.recv(12))";
    let ask = |user: u32, request: &str| {
        let mut asks = Command::new("python3");
        asks.args(["-c", ASKS, incarnation, request]).uid(user);
        finish(asks)
    };
    let logs = format!("GET /v1/elections/{ELECTION}/logs");
    assert_eq!(ask(0, &logs).stdout, "b'HTTP/1.1 200'\n");
    // Steering commands write to the store instead of calling the host. So the host's local socket refuses all requests
    // for changes.
    let steering = ask(0, &format!("POST /v1/elections/{ELECTION}/suspend"));
    assert_eq!(steering.stdout, "b'HTTP/1.1 403'\n", "{steering:?}");
    let refused = ask(65_534, &logs);
    // The host may close the connection before or after the client has sent the request.
    let is_closed =
        refused.stdout == "b''\n" || refused.stderr.contains("reset") || refused.stderr.contains("Broken pipe");
    assert!(is_closed, "{refused:?}");
    fleet.check_promises();
}

#[test]
fn logs_of_another_users_host_need_the_token() {
    if !rustix::process::geteuid().is_root() {
        return skipped("only root may be another user");
    }
    // This test uses Azurite, because every user can read from it. Only their owner can read the files of an embedded
    // store.
    let fleet = Fleet::new(Store::azurite());
    let (_alpha, _) = fleet.leader("alpha");
    until("the node to be announced, and the token to be missing", || {
        let mut logs = fleet.baton(&["logs", ELECTION]);
        logs.current_dir("/").uid(65_534);
        let logs = finish(logs);
        if logs.code == Some(1) && logs.stderr.contains("--token-file") { Ok(()) } else { Err(logs) }
    });
}

#[test]
fn generated_token_is_accepted_by_hosts() {
    let fleet = Fleet::new(Store::sqlite());
    let file = fleet.home.path().join("made");
    let path = file.to_str().expect("a path");
    let made = finish(baton_without_store(&fleet, &["token", path]));
    assert!(made.code == Some(0) && made.stderr.contains("--admin-token-file"), "{made:?}");
    assert_eq!(std::fs::metadata(&file).expect("the file exists").permissions().mode() & 0o777, 0o600);
    let again = finish(baton_without_store(&fleet, &["token", path]));
    assert!(again.code == Some(1) && again.stderr.contains(path), "no token is replaced: {again:?}");
    let node = fleet.launch_with("alpha", &[("--admin-token-file", path)]).start();
    node.after(0, "started");
    let token = std::fs::read_to_string(&file).expect("a token");
    let headers = format!("Authorization: Bearer {}\r\n", token.trim());
    assert_eq!(ask(Endpoint::of(&node), &format!("/v1/elections/{ELECTION}/logs"), &headers).status, 200);
    let printed = finish(baton_without_store(&fleet, &["token"]));
    assert!(
        printed.stdout.trim().len() == token.trim().len() && printed.stdout != token,
        "each token is different: {printed:?}"
    );
}

fn baton_without_store(fleet: &Fleet, args: &[&str]) -> Command {
    let mut command = baton(fleet.home.path());
    command.args(args);
    command
}
