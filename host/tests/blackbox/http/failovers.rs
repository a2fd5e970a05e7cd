//! A server that remembers the highest term in the requests that it receives, tested over many failovers.

use std::sync::{Arc, Mutex};

use rustix::process::Signal;

use crate::fleet::Fleet;
use crate::http::launch_with_times;
use crate::http::server::{Reply, Request, Server};
use crate::node::{Journal, Node};
use crate::scenarios;

scenarios! {
    on_sqlite: [
        fencing_server_sees_no_lower_term_over_200_failovers,
    ],
}

const FAILOVERS: usize = 200;

/// Every 100th leader is killed, so the next leader must wait until the killed leader's lease has expired. The others
/// shut down cleanly.
const KILL_EVERY: usize = 100;

/// Four nodes, so that one of them polls soon after the lease becomes free.
const NODES: [&str; 4] = ["alpha", "beta", "gamma", "delta"];

fn fencing_server_sees_no_lower_term_over_200_failovers(fleet: Fleet) {
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
    // Reclaim is off. With reclaim, the next leader's request could arrive before the server has read the killed
    // leader's last request. The grace is long, so that a stopping instance gets the answer to its last request even on
    // a busy machine.
    let start = |name: &str| {
        let launch = launch_with_times(fleet.lease(), "10s", &fleet, name, "report", &server.url());
        launch.arg("--reclaim=false").flag("--allow-http", server.url()).start()
    };
    let mut nodes: Vec<Node> = NODES.map(start).into();
    server.wait("a leader", |requests| (highest_term(requests) > 0).then_some(()));
    for failover in 1..=FAILOVERS {
        let leader = leader(&fleet.journal, &server);
        let at = nodes.iter().position(|node| node.name == leader).expect("the leader");
        let mut old = nodes.remove(at);
        old.signal(if failover % KILL_EVERY == 0 { Signal::KILL } else { Signal::TERM });
        nodes.push(start(&format!("node-{failover}")));
        old.wait();
        let last = *highest.lock().unwrap();
        server.wait("another to lead", |requests| {
            let is_by_another = |request: &Request| request.header("baton-node") != [&*old.name];
            requests.iter().any(|request| request.term() > last && is_by_another(request)).then_some(())
        });
    }
    let requests = server.requests();
    drop(nodes);
    let terms: Vec<u64> = requests.iter().map(Request::term).collect();
    assert!(terms.is_sorted(), "a lower term came after a higher one: {terms:?}");
    let leaders: Vec<&str> = requests.iter().flat_map(|request| request.header("baton-node")).collect();
    let changes = leaders.windows(2).filter(|pair| pair[0] != pair[1]).count();
    assert!(changes >= FAILOVERS, "another node took over {changes} times");
    fleet.check_promises();
}

fn highest_term(requests: &[Request]) -> u64 {
    requests.iter().map(Request::term).max().unwrap_or(0)
}

fn leader(journal: &Journal, server: &Server) -> String {
    match server.requests().last().map(|request| request.header("baton-node").concat()) {
        Some(node) => node,
        None => journal.fail("the server received no request"),
    }
}
