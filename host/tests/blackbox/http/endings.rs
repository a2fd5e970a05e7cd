//! Requests in flight when their term ends.

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::time::Duration;

use rustix::process::Signal;
use time::OffsetDateTime;

use crate::frozen::freeze;
use crate::http::{fleet, launch, launch_with_lease};
use crate::node::{GUARD, Node, until};

/// Clients can connect to the socket, but nothing answers them.
fn listen() -> (TcpListener, String) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    (listener, url)
}

fn accept(listener: &TcpListener) -> TcpStream {
    listener.set_nonblocking(true).unwrap();
    let (stream, _) = until("a connection", || {
        // `accept` has no timeout, so this loop polls it.
        std::thread::sleep(Duration::from_millis(1));
        listener.accept()
    });
    stream.set_nonblocking(false).unwrap();
    stream.set_read_timeout(Some(GUARD)).unwrap();
    stream
}

fn read_until(stream: &mut TcpStream, text: &str) -> String {
    let mut read = String::new();
    let mut buffer = [0; 4096];
    while !read.contains(text) {
        let n = stream.read(&mut buffer).unwrap();
        assert_ne!(n, 0, "the connection ended before {text:?}: {read}");
        read.push_str(&String::from_utf8_lossy(&buffer[..n]));
    }
    read
}

/// Panics if the connection ends in any way other than a reset.
fn read_to_reset(stream: &mut TcpStream) -> String {
    let mut read = Vec::new();
    let ended = stream.read_to_end(&mut read);
    assert!(matches!(&ended, Err(error) if error.kind() == ErrorKind::ConnectionReset), "{ended:?}");
    String::from_utf8_lossy(&read).into_owned()
}

/// Waits until the server has received `begun`, and makes the host kill the instance. Checks that the kill resets the
/// request's connection.
fn is_reset_by_a_kill(behaviour: &str, begun: &str) {
    let fleet = fleet();
    let (listener, url) = listen();
    let mut node = launch(&fleet, "alpha", behaviour, &url).flag("--allow-http", &url).start();
    let mut stream = accept(&listener);
    read_until(&mut stream, begun);
    // The guest ignores the stop request, so the host kills it after the grace.
    assert_eq!(node.terminate().code(), Some(0));
    read_to_reset(&mut stream);
    assert_eq!(node.after(0, "ended").text("outcome"), "killed");
    fleet.check_promises();
}

#[test]
fn waiting_request_is_reset_by_kill() {
    is_reset_by_a_kill("hang", "\r\n\r\n");
}

#[test]
fn sending_request_is_reset_by_kill() {
    is_reset_by_a_kill("upload", "line 10 of term 1\n");
}

fn unsent(stream: &TcpStream) -> u64 {
    let hex = |address: std::net::SocketAddr| match address.ip() {
        std::net::IpAddr::V4(ip) => format!("{:08X}:{:04X}", u32::from_ne_bytes(ip.octets()), address.port()),
        std::net::IpAddr::V6(_) => panic!("{address}"),
    };
    let (theirs, ours) = (hex(stream.peer_addr().unwrap()), hex(stream.local_addr().unwrap()));
    let listed = std::fs::read_to_string("/proc/net/tcp").unwrap();
    // The columns of `/proc/net/tcp` are `sl local rem st tx:rx …`.
    let mut words = listed.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    let found = words.find(|words| words.get(1..3) == Some(&[theirs.as_str(), ours.as_str()]));
    let queue = found.and_then(|words| words.get(4)?.split(':').next().map(str::to_owned));
    queue.map_or(0, |queue| u64::from_str_radix(&queue, 16).unwrap())
}

#[test]
fn killed_host_leaves_no_data_for_kernel_to_send() {
    let fleet = fleet();
    let (listener, url) = listen();
    let mut node = launch(&fleet, "alpha", "flood", &url).flag("--allow-http", &url).start();
    let mut stream = accept(&listener);
    read_until(&mut stream, "\r\n\r\n");
    // The server does not read, so data waits in the host's send queue.
    until("a full queue", || match unsent(&stream) {
        0 => Err("an empty queue"),
        _ => Ok(()),
    });
    node.signal(Signal::KILL);
    node.wait();
    // The data that had already arrived can still be read, and then the read fails with a reset.
    read_to_reset(&mut stream);
    fleet.check_promises();
}

#[test]
fn paused_leader_writes_nothing_when_it_resumes() {
    let fleet = fleet();
    let (listener, url) = listen();
    let start = |name: &str| launch(&fleet, name, "upload", &url).flag("--allow-http", &url).start();
    let a = start("alpha");
    let mut old = accept(&listener);
    read_until(&mut old, "line 10 of term 1\n");
    let b = start("beta");
    b.event("to follow", |event| event.name == "standby" && event.text("reason").contains("alpha"));
    a.pause();
    let mut new = accept(&listener);
    read_until(&mut new, "line 10 of term 2\n");
    // Reads all of the old leader's data that is still in the kernel's buffers. So a later read returns only data that
    // the old leader writes after its term.
    old.set_nonblocking(true).unwrap();
    let mut buffer = [0; 4096];
    until("an empty queue", || {
        let queued = unsent(&old);
        let drained = std::iter::repeat_with(|| old.read(&mut buffer)).find(|read| !matches!(read, Ok(1..)));
        assert!(matches!(&drained, Some(Err(error)) if error.kind() == ErrorKind::WouldBlock), "{drained:?}");
        if queued == 0 { Ok(()) } else { Err(queued) }
    });
    old.set_nonblocking(false).unwrap();
    a.resume();
    assert_eq!(read_to_reset(&mut old), "", "the paused leader wrote after its term");
    let ended = a.event("ended", |event| event.name == "ended" && event.term == 1);
    assert_eq!(ended.text("outcome"), "killed");
    read_until(&mut new, "of term 2\n");
    fleet.check_promises();
}

/// Returns the duration of the guest's wait in milliseconds, and its result.
fn wait_result(node: &Node) -> (u64, String) {
    let line = node.event("the end of the wait", |event| event.text("line").starts_with("after"));
    let mut words = line.text("line").splitn(4, ' ').skip(1);
    let took = words.next().unwrap().parse().unwrap();
    (took, words.nth(1).unwrap().to_owned())
}

#[test]
fn request_timeout_of_guest_is_applied() {
    let fleet = fleet();
    let (listener, url) = listen();
    let node = launch(&fleet, "alpha", "hang", &url).flag("--allow-http", &url);
    let node = node.flag("--env", "TIMEOUT_MS=300").start();
    let _stream = accept(&listener);
    let (took, result) = wait_result(&node);
    assert!(took >= 300, "{took} ms");
    assert!(result.contains("ReadTimeout"), "{result}");
}

#[test]
fn response_wait_may_outlast_a_renewed_lease() {
    // If the lease is lost because the machine is busy, the test tries again with a longer lease.
    let outlasts = [4, 8, 16, 32].map(Duration::from_secs).into_iter().any(wait_outlasts);
    assert!(outlasts, "no wait outlasted its lease");
}

/// True if the guest waits for longer than the lease, and then gets its answer.
fn wait_outlasts(lease: Duration) -> bool {
    let fleet = fleet();
    let (listener, url) = listen();
    let longer = lease + lease / 2;
    let node = launch_with_lease(lease, &fleet, "alpha", "hang", &url).flag("--allow-http", &url);
    let node = node.flag("--env", "TIMEOUT_MS=600000").start();
    let mut stream = accept(&listener);
    stream.set_read_timeout(Some(longer)).unwrap();
    // The read times out once the guest has waited for longer than its lease.
    let ended = std::iter::repeat_with(|| stream.read(&mut [0; 4096])).find(|read| !matches!(read, Ok(1..)));
    if !matches!(ended, Some(Err(error)) if error.kind() == ErrorKind::WouldBlock) {
        return false;
    }
    if stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n").is_err() {
        return false;
    }
    let end =
        node.event("the end of the wait", |event| event.name == "ended" || event.text("line").starts_with("after"));
    let mut words = end.text("line").splitn(4, ' ').skip(1);
    words.next().and_then(|took| took.parse().ok()).is_some_and(|took: u128| took >= longer.as_millis())
        && words.nth(1) == Some("Ok(200)")
}

#[test]
fn nothing_is_written_after_deadline_without_a_kill() {
    let fleet = fleet();
    let (listener, url) = listen();
    let node = launch(&fleet, "alpha", "upload", &url).flag("--allow-http", &url).start();
    let mut stream = accept(&listener);
    read_until(&mut stream, "line 10 of term 1\n");
    // From here on, no thread renews the lease, kills the instance or ends the host.
    freeze(&node, "control");
    freeze(&node, "watchdog");
    let frozen = OffsetDateTime::now_utc();
    let mut buffer = [0; 4096];
    let ended = loop {
        match stream.read(&mut buffer) {
            Ok(1..) => assert!(OffsetDateTime::now_utc() < frozen + fleet.lease(), "the host still writes"),
            ended => break ended,
        }
    };
    assert!(matches!(&ended, Err(error) if error.kind() == ErrorKind::ConnectionReset), "{ended:?}");
}
