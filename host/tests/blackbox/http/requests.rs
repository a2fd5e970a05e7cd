//! A guest's requests, as they arrive at a server.

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, TcpListener};
use std::time::Duration;

use crate::fleet::Fleet;
use crate::http::server::{Reply, Server};
use crate::http::{events, fleet, launch, launch_with_lease, results};
use crate::node::Event;
use crate::scenarios;

scenarios! {
    on_sqlite: [
        forged_header_never_arrives,
        ten_thousand_requests_meet_limit_and_keep_the_lease,
    ],
}

#[test]
fn every_request_carries_election_term_and_node() {
    let fleet = fleet();
    let server = Server::start(|request| Reply::ok(request.path()));
    let url = format!("{}/jobs?of=today", server.url());
    let node = launch(&fleet, "alpha", "get", &url).flag("--allow-http", server.url()).start();
    let term = node.after(0, "elected").term;
    let lines = results(&fleet, &node);
    assert_eq!(lines, [format!("{url}: 200 /jobs?of=today")]);
    let [request] = &server.requests()[..] else { panic!("{:?}", server.requests()) };
    assert_eq!(request.line, "GET /jobs?of=today HTTP/1.1");
    assert_eq!(request.header("baton-election"), ["fleet"]);
    assert_eq!(request.header("baton-term"), [term.to_string()]);
    assert_eq!(request.header("baton-node"), ["alpha"]);
    assert_eq!(request.header("host"), [format!("127.0.0.1:{}", server.port)]);
    fleet.check_promises();
}

fn forged_header_never_arrives(fleet: Fleet) {
    let server = Server::start(|_| Reply::ok(""));
    let node = launch(&fleet, "alpha", "forge", &server.url()).flag("--allow-http", server.url()).start();
    let lines = results(&fleet, &node);
    assert!(lines.contains(&"sent: 200".to_owned()), "{lines:?}");
    assert!(!lines.iter().any(|line| line.contains("forged")), "{lines:?}");
    assert_eq!(lines.iter().filter(|line| line.contains("Err(")).count(), 5, "{lines:?}");
    let [request] = &server.requests()[..] else { panic!("{:?}", server.requests()) };
    assert_eq!(request.line, "POST /honest HTTP/1.1");
    assert_eq!(request.header("baton-term").len(), 1);
    assert_eq!(request.header("x-honest"), ["yes"]);
    assert!(request.body.contains("x-honest: trailing"), "trailers do arrive: {request:?}");
    let text = format!("{request:?}").to_ascii_lowercase();
    assert!(!text.contains("invented"), "{request:?}");
    assert_eq!(text.matches("baton").count(), 4, "three headers and a word in `Trailer`: {request:?}");
}

#[test]
fn open_connections_are_reused() {
    let fleet = fleet();
    let server = Server::start(|request| match request.path() {
        "/last" => Reply::AnswerAndClose,
        path => Reply::ok(path.repeat(100_000)),
    });
    let urls: Vec<String> =
        ["/1", "/2", "/3", "/last", "/5", "/6"].map(|path| format!("{}{path}", server.url())).to_vec();
    let node = launch(&fleet, "alpha", "get", &urls.join(" ")).flag("--allow-http", server.url()).start();
    let lines = results(&fleet, &node);
    // The server closes the connection after `/last`. If the host sends its next request before it notices the close,
    // the request is lost.
    let is_lost = |(number, line): (usize, &String)| number == 4 && line.ends_with(": ErrorCode::ConnectionTerminated");
    let lines_are_right = lines[..6].iter().enumerate().all(|one| one.1.contains(": 200 ") || is_lost(one));
    assert!(lines_are_right, "{lines:?}");
    let connections: Vec<usize> = server.requests().iter().map(|request| request.connection).collect();
    // A request opens a new connection if the previous request has not yet returned its connection to the pool.
    let opened = connections.iter().max();
    assert!(opened.is_some_and(|opened| *opened < connections.len()), "no connection is reused: {connections:?}");
    let closed = connections[3];
    assert!(!connections[4..].contains(&closed), "a closed connection is reused: {connections:?}");
}

#[test]
fn timers_and_requests_progress_when_guest_never_waits() {
    let fleet = fleet();
    let server = Server::start(|_| Reply::ok("x".repeat(1 << 20)));
    let urls = ["/1", "/2", "/3"].map(|path| format!("{}{path}", server.url()));
    let node = launch(&fleet, "alpha", "never-wait", &urls.join(" ")).flag("--allow-http", server.url()).start();
    let answers = urls.iter().map(|url| format!("{url}: 200 1048576"));
    assert_eq!(results(&fleet, &node), std::iter::once("timers".to_owned()).chain(answers).collect::<Vec<_>>());
    fleet.check_promises();
}

fn ten_thousand_requests_meet_limit_and_keep_the_lease(fleet: Fleet) {
    let server = Server::start(|request| if request.path() == "/hang" { Reply::Hang } else { Reply::ok("") });
    // The lease is long, so that no renewal is too late on a busy machine.
    let lease = Duration::from_secs(20);
    let node = launch_with_lease(lease, &fleet, "alpha", "many", &server.url());
    let node = node.flag("--allow-http", server.url()).start();
    let lines = results(&fleet, &node);
    let refusal = "the coordinator has 64 requests in flight, which is the limit: use --max-requests 128 to allow it";
    assert_eq!(lines, [format!("kept 64, refused with [{refusal:?}]"), "and then 200".to_owned()]);
    let refusals = events(&fleet, "request_refused");
    assert_eq!(refusals.iter().map(|event| event.text("setting")).collect::<Vec<_>>(), ["max-requests = 128"]);
    let status = fleet.status_until("the usage", |status| status["usage"].is_object());
    assert_eq!(status["usage"]["requests"]["used"], 64);
    let lost = |event: &Event| ["stopping", "killed", "leadership_lost"].contains(&event.name.as_str());
    assert!(!fleet.journal.events().iter().any(lost), "{:?}", fleet.journal.events());
    fleet.check_promises();
}

#[test]
fn early_answered_request_counts_until_it_is_sent() {
    let fleet = fleet();
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    // The server answers before it has read the whole request, and never closes a connection.
    let server = std::thread::spawn(move || {
        let accept = |_| {
            let (mut stream, _) = listener.accept().unwrap();
            assert_ne!(stream.read(&mut [0; 4096]).unwrap(), 0);
            stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").unwrap();
            stream
        };
        (0..4).map(accept).collect::<Vec<_>>()
    });
    let node = launch(&fleet, "alpha", "linger", &url).flag("--allow-http", &url).flag("--max-requests", "4").start();
    let lines = results(&fleet, &node);
    assert!(lines[0].starts_with("kept 4, refused with") && lines[0].contains("--max-requests 8"), "{lines:?}");
    server.join().unwrap();
    fleet.check_promises();
}
