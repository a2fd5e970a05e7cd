//! An instance is gone when all that its requests had started has ended.

use std::io::Read;
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::sync::Arc;

use baton_election::End;
use baton_runtime::{Grants, HttpPolicy, Launcher, Module, Notice, Output, Policy};
use tokio::sync::mpsc;

use super::guests::asks_over_http;
use super::patience::Patience;
use super::{GUARD, Lines, engine, gone, launcher_under};

/// A launcher of the guest that makes requests.
fn asking(behaviour: &str, url: &str) -> (Module, Launcher) {
    let grants = Grants::new(vec![url.parse().unwrap()]);
    let policy = Policy { http: HttpPolicy::new(grants, 64, None).unwrap(), ..Policy::default() };
    let module = Module::load(&engine(), &asks_over_http()).unwrap();
    let launcher = Launcher {
        env: vec![("BEHAVIOUR".to_owned(), behaviour.to_owned()), ("URL".to_owned(), url.to_owned())],
        ..launcher_under(policy, behaviour)
    };
    (module, launcher)
}

/// Takes a guest's first line for a reason to panic, as a mistake in the host would.
struct Panics;

impl Output for Panics {
    fn notice(&self, notice: Notice<'_>) {
        if let Notice::Line(_, line) = notice {
            panic!("on purpose: {line}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_instance_that_a_panic_ends_is_gone_when_the_last_of_its_requests_is() {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    listener.set_nonblocking(true).unwrap();
    let (module, launcher) = asking("crowd", &format!("http://{}", listener.local_addr().unwrap()));
    for _ in 0..10 {
        let later = launcher.clock.now() + GUARD * 10;
        let mut instance = launcher.start(&module, 1, later, later, Arc::new(Panics));
        let end = gone(&mut instance).await.end;
        assert!(matches!(&end, End::Crashed(why) if why.contains("on purpose: 64 in flight")), "{end:?}");
        // As many as it had opened by then.
        are_reset(
            std::iter::repeat_with(|| listener.accept()).map_while(Result::ok).map(|(stream, _)| stream).collect(),
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_instance_is_gone_when_the_last_of_its_requests_is() {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let (module, launcher) = asking("crowd", &format!("http://{}", listener.local_addr().unwrap()));
    for _ in 0..10 {
        let (sender, mut lines) = mpsc::unbounded_channel();
        let later = launcher.clock.now() + GUARD * 10;
        let mut instance = launcher.start(&module, 1, later, later, Arc::new(Lines(sender)));
        assert_eq!(Patience::of_future(lines.recv()).await.unwrap().as_deref(), Some("64 in flight"));
        let mut streams: Vec<_> = (0..64).map(|_| listener.accept().unwrap().0).collect();
        for stream in &mut streams {
            stream.set_read_timeout(Some(GUARD)).unwrap();
            assert_ne!(stream.read(&mut [0; 4096]).unwrap(), 0, "each has sent its request");
        }
        instance.kill();
        assert_eq!(gone(&mut instance).await.end, End::Killed);
        are_reset(streams);
    }
}

/// Each connection has been broken off by now.
fn are_reset(streams: Vec<TcpStream>) {
    for mut stream in streams {
        stream.set_nonblocking(true).unwrap();
        let mut read = [0; 4096];
        let ended = loop {
            // What it had sent before comes first.
            match stream.read(&mut read) {
                Ok(length) if length > 0 => {}
                ended => break ended,
            }
        };
        let is_reset = ended.as_ref().is_err_and(|error| error.kind() == std::io::ErrorKind::ConnectionReset);
        assert!(is_reset, "{ended:?}");
    }
}
