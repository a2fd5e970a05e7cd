//! What arrives at a server, and what does not.

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, TcpListener};
use std::time::Duration;

use crate::fleet::Fleet;
use crate::http::server::{Reply, Server};
use crate::http::{events, fleet, launch, launch_with_lease, said};
use crate::node::Event;
use crate::scenarios;

scenarios! {
    on_sqlite: [
        a_forged_header_never_arrives,
        ten_thousand_requests_meet_their_limit_and_the_host_stays_well,
    ],
}

#[test]
fn every_request_says_whose_it_is() {
    let fleet = fleet();
    let server = Server::start(|request| Reply::ok(request.path()));
    let url = format!("{}/jobs?of=today", server.url());
    let node = launch(&fleet, "alpha", "get", &url).flag("--allow-http", server.url()).start();
    let term = node.after(0, "elected").term;
    let lines = said(&fleet, &node);
    assert_eq!(lines, [format!("{url}: 200 /jobs?of=today")]);
    let [request] = &server.requests()[..] else { panic!("{:?}", server.requests()) };
    assert_eq!(request.line, "GET /jobs?of=today HTTP/1.1");
    assert_eq!(request.header("baton-election"), ["fleet"]);
    assert_eq!(request.header("baton-term"), [term.to_string()]);
    assert_eq!(request.header("baton-node"), ["alpha"]);
    assert_eq!(request.header("host"), [format!("127.0.0.1:{}", server.port)]);
    fleet.check_promises();
}

fn a_forged_header_never_arrives(fleet: Fleet) {
    let server = Server::start(|_| Reply::ok(""));
    let node = launch(&fleet, "alpha", "forge", &server.url()).flag("--allow-http", server.url()).start();
    let lines = said(&fleet, &node);
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
fn connections_are_used_again_while_they_are_there() {
    let fleet = fleet();
    let server = Server::start(|request| match request.path() {
        "/last" => Reply::AnswerAndClose,
        path => Reply::ok(path.repeat(100_000)),
    });
    let urls: Vec<String> =
        ["/1", "/2", "/3", "/last", "/5", "/6"].map(|path| format!("{}{path}", server.url())).to_vec();
    let node = launch(&fleet, "alpha", "get", &urls.join(" ")).flag("--allow-http", server.url()).start();
    let lines = said(&fleet, &node);
    // The one after the last may be on its way before the end of that connection is known here, and never arrive.
    let is_lost = |(number, line): (usize, &String)| number == 4 && line.ends_with(": ErrorCode::ConnectionTerminated");
    let lines_are_right = lines[..6].iter().enumerate().all(|one| one.1.contains(": 200 ") || is_lost(one));
    assert!(lines_are_right, "{lines:?}");
    let connections: Vec<usize> = server.requests().iter().map(|request| request.connection).collect();
    // A request may come before the one ahead of it has given its connection back, and then opens another.
    let opened = connections.iter().max();
    assert!(opened.is_some_and(|opened| *opened < connections.len()), "none is used again: {connections:?}");
    let closed = connections[3];
    assert!(!connections[4..].contains(&closed), "that one was closed: {connections:?}");
}

#[test]
fn timers_and_requests_of_a_guest_that_never_waits_go_on() {
    let fleet = fleet();
    let server = Server::start(|_| Reply::ok("x".repeat(1 << 20)));
    let urls = ["/1", "/2", "/3"].map(|path| format!("{}{path}", server.url()));
    let node = launch(&fleet, "alpha", "never-wait", &urls.join(" ")).flag("--allow-http", server.url()).start();
    let answers = urls.iter().map(|url| format!("{url}: 200 1048576"));
    assert_eq!(said(&fleet, &node), std::iter::once("timers".to_owned()).chain(answers).collect::<Vec<_>>());
    fleet.check_promises();
}

fn ten_thousand_requests_meet_their_limit_and_the_host_stays_well(fleet: Fleet) {
    let server = Server::start(|request| if request.path() == "/hang" { Reply::Hang } else { Reply::ok("") });
    // What else runs on a busy machine must not cost a renewal.
    let lease = Duration::from_secs(20);
    let node = launch_with_lease(lease, &fleet, "alpha", "many", &server.url());
    let node = node.flag("--allow-http", server.url()).start();
    let lines = said(&fleet, &node);
    let refusal = "the coordinator has 64 requests in flight, which is the limit: use --max-requests 128 to allow it";
    assert_eq!(lines, [format!("kept 64, refused with [{refusal:?}]"), "and then 200".to_owned()]);
    let told = events(&fleet, "request_refused");
    assert_eq!(told.iter().map(|event| event.text("setting")).collect::<Vec<_>>(), ["max-requests = 128"]);
    let status = fleet.status_until("its usage", |status| status["usage"].is_object());
    assert_eq!(status["usage"]["requests"]["used"], 64);
    let lost = |event: &Event| ["stopping", "killed", "leadership_lost"].contains(&event.name.as_str());
    assert!(!fleet.journal.events().iter().any(lost), "{:?}", fleet.journal.events());
    fleet.check_promises();
}

#[test]
fn a_request_that_is_answered_early_keeps_its_place_while_it_sends() {
    let fleet = fleet();
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    // It answers without a look at the request, and never closes.
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
    let lines = said(&fleet, &node);
    assert!(lines[0].starts_with("kept 4, refused with") && lines[0].contains("--max-requests 8"), "{lines:?}");
    server.join().unwrap();
    fleet.check_promises();
}
