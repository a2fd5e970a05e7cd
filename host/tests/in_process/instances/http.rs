//! Tests that the host reports an instance as gone only after the tasks of its HTTP requests have ended.

use std::io::Read;
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::sync::Arc;

use baton_election::End;
use baton_runtime::{Grants, HttpPolicy, InstanceHandle as _, Launcher, Module, Notice, Output, Policy};
use tokio::sync::mpsc;

use super::guests::asks_over_http;
use super::patience::Patience;
use super::{GUARD, Lines, engine, gone, launcher_under};

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

/// An output that panics at the first line, to simulate a bug in the host.
struct Panics;

impl Output for Panics {
    fn notice(&self, notice: Notice<'_>) {
        if let Notice::Line(_, line) = notice {
            panic!("on purpose: {line}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn instance_ended_by_panic_is_gone_after_its_requests() {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    listener.set_nonblocking(true).unwrap();
    let (module, launcher) = asking("crowd", &format!("http://{}", listener.local_addr().unwrap()));
    for _ in 0..10 {
        let later = launcher.clock.now() + GUARD * 10;
        let mut instance = launcher.start(&module, 1, None, later, later, Arc::new(Panics));
        let end = gone(&mut instance).await.end;
        assert!(matches!(&end, End::Crashed(why) if why.contains("on purpose: 64 in flight")), "{end:?}");
        // Accept the connections that the instance opened before it ended.
        assert_reset(
            std::iter::repeat_with(|| listener.accept()).map_while(Result::ok).map(|(stream, _)| stream).collect(),
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_instance_is_gone_after_its_requests() {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let (module, launcher) = asking("crowd", &format!("http://{}", listener.local_addr().unwrap()));
    for _ in 0..10 {
        let (sender, mut lines) = mpsc::unbounded_channel();
        let later = launcher.clock.now() + GUARD * 10;
        let mut instance = launcher.start(&module, 1, None, later, later, Arc::new(Lines(sender)));
        assert_eq!(Patience::of_future(lines.recv()).await.unwrap().as_deref(), Some("64 in flight"));
        let mut streams: Vec<_> = (0..64).map(|_| listener.accept().unwrap().0).collect();
        for stream in &mut streams {
            stream.set_read_timeout(Some(GUARD)).unwrap();
            assert_ne!(stream.read(&mut [0; 4096]).unwrap(), 0, "each has sent its request");
        }
        instance.kill();
        assert_eq!(gone(&mut instance).await.end, End::Killed);
        assert_reset(streams);
    }
}

fn assert_reset(streams: Vec<TcpStream>) {
    for mut stream in streams {
        stream.set_nonblocking(true).unwrap();
        let mut read = [0; 4096];
        let ended = loop {
            // Skip bytes that were sent before the reset.
            match stream.read(&mut read) {
                Ok(length) if length > 0 => {}
                ended => break ended,
            }
        };
        let is_reset = ended.as_ref().is_err_and(|error| error.kind() == std::io::ErrorKind::ConnectionReset);
        assert!(is_reset, "{ended:?}");
    }
}
