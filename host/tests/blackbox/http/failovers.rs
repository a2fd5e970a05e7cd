//! A server that remembers the highest term, over many failovers.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use rustix::process::Signal;

use crate::http::server::{Reply, Request, Server};
use crate::http::{launch, stage};
use crate::node::{Journal, Node};

/// Terms that are served in all.
const TERMS: usize = 200;

/// How often a leader is killed, and how often one ends in order.
const KILLS: usize = 3;
const ENDS: usize = 6;

#[test]
fn a_server_that_refuses_lower_terms_never_has_to_over_200_failovers() {
    let stage = stage();
    let highest = Arc::new(Mutex::new(0));
    let fence = Arc::clone(&highest);
    let server = Server::start(move |request| {
        let mut highest = fence.lock().unwrap();
        if request.term() < *highest {
            return Reply::Answer("409 Conflict".to_owned(), String::new());
        }
        *highest = request.term();
        Reply::ok("")
    });
    let start = |name: &str| launch(&stage, name, "report", &server.url()).flag("--allow-http", server.url()).start();
    let mut nodes: Vec<Node> = ["alpha", "beta"].map(start).into();
    let mut number = 0;
    // Between these, terms follow each other under one lease as fast as they can.
    let violent = [true, false, false].repeat(KILLS);
    assert_eq!(violent.len(), KILLS + ENDS);
    for kill in violent {
        let before = *highest.lock().unwrap();
        server.wait("terms to go by", |requests| (reported(requests) > before + 5).then_some(()));
        let leader = leader(&stage.journal, &server);
        let at = nodes.iter().position(|node| node.name == leader).expect("it leads");
        let mut old = nodes.remove(at);
        old.signal(if kill { Signal::KILL } else { Signal::TERM });
        old.wait();
        let last = *highest.lock().unwrap();
        server.wait("the other to lead", |requests| {
            requests
                .iter()
                .any(|request| request.term() > last && request.header("baton-node") != [&*old.name])
                .then_some(())
        });
        number += 1;
        nodes.push(start(&format!("node-{number}")));
    }
    let requests = server.wait("200 terms", |requests| {
        let terms: BTreeSet<u64> = requests.iter().map(Request::term).collect();
        (terms.len() >= TERMS).then(|| requests.to_vec())
    });
    drop(nodes);
    let terms: Vec<u64> = requests.iter().map(Request::term).collect();
    assert!(terms.is_sorted(), "a lower term came after a higher one: {terms:?}");
    let leaders: BTreeSet<&str> = requests.iter().flat_map(|request| request.header("baton-node")).collect();
    assert_eq!(leaders.len(), 1 + KILLS + ENDS, "{leaders:?}");
    stage.check_promises();
}

/// The highest term that was heard of.
fn reported(requests: &[Request]) -> u64 {
    requests.iter().map(Request::term).max().unwrap_or(0)
}

/// Who made the last request.
fn leader(journal: &Journal, server: &Server) -> String {
    match server.requests().last().map(|request| request.header("baton-node").concat()) {
        Some(node) => node,
        None => journal.fail("nobody has asked the server"),
    }
}
