//! The SDK's async API on the real host. The SDK's example `watch` waits for an HTTP response, a timer and a stop
//! request at the same time. The guests of the other tests cover the sync API.

use baton_test_support::node;
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::mpsc::{Receiver, channel};

use node::{Journal, Launch, baton, finish};

#[test]
fn async_coordinator_waits_for_answer_timer_and_stop_at_once() {
    let home = tempfile::tempdir().unwrap();
    let journal = Journal::default();
    let store = format!("sqlite:{}", home.path().join("store").display());
    let (address, requests) = service(&[Answer::Status(200), Answer::Status(503), Answer::None]);
    let url = format!("http://{address}/health");
    let mut node = Launch::run("node", home.path(), &journal)
        .arg(watch())
        .flag("--store", &store)
        .flag("--allow-http", format!("http://{address}"))
        .flag("--env", format!("URL={url}"))
        .start();

    for line in ["is up", "is down"] {
        let line = format!("{url} {line}");
        node.event(&line, |event| event.name == "output" && event.text("line") == line);
    }
    // The service does not answer the third HTTP request, so only the stop request can end the guest's wait in time.
    for request in requests.iter().take(3) {
        assert!(request.lines().any(|line| line.eq_ignore_ascii_case("baton-term: 1")), "{request}");
    }
    let status = node.terminate();
    let ended = node.after(0, "ended");
    if !status.success() || ended.text("outcome") != "done" {
        journal.fail(&format!("the host ended with {status}, the instance as {:?}", ended.text("outcome")));
    }
    let mut saved = baton(home.path());
    saved.args(["state", "get", "watch", "down-in-term", "--store", &store]);
    assert_eq!(finish(saved).stdout, "1");
}

enum Answer {
    Status(u16),
    /// The service never answers.
    None,
}

/// Starts a service that gives these answers in order, one per connection. Returns the service's address, and a channel
/// with the requests that it receives.
fn service(answers: &'static [Answer]) -> (SocketAddr, Receiver<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let (sender, requests) = channel();
    std::thread::spawn(move || {
        for answer in answers {
            let (mut connection, _) = listener.accept().unwrap();
            let mut lines = BufReader::new(connection.try_clone().unwrap());
            let mut head = String::new();
            while !head.ends_with("\r\n\r\n") {
                assert_ne!(lines.read_line(&mut head).unwrap(), 0, "{head}");
            }
            sender.send(head).unwrap();
            match answer {
                Answer::Status(status) => {
                    write!(connection, "HTTP/1.1 {status} -\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
                        .unwrap();
                }
                // The loop ends when the instance ends, because the host then closes the connection.
                Answer::None => while lines.read_line(&mut String::new()).is_ok_and(|read| read > 0) {},
            }
        }
    });
    (address, requests)
}

fn watch() -> PathBuf {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).join("guests");
    let built = Command::new(env!("CARGO"))
        .args(["build", "--package", "baton-sdk", "--features", "async", "--example", "watch"])
        .args(["--release", "--target", "wasm32-wasip2"])
        .env("CARGO_TARGET_DIR", &target)
        .current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join(".."))
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&built.stderr);
    assert!(built.status.success(), "the example does not build; is the target wasm32-wasip2 installed?\n{errors}");
    target.join("wasm32-wasip2/release/examples/watch.wasm")
}
