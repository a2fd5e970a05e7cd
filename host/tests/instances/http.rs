//! An instance is gone when all that its requests had started has ended.

use std::io::Read;
use std::net::{Ipv4Addr, TcpListener};
use std::sync::Arc;
use std::time::Duration;

use baton::runtime::{Grants, HttpPolicy, Launcher, Module, Notice, Output};
use baton_election::End;
use tokio::sync::mpsc;

use crate::guests::asks_over_http;
use crate::patience::Patience;
use crate::{GUARD, Lines, gone, launcher};

/// A launcher of the guest that makes requests, with the policy of its own.
fn asking(behaviour: &str, url: &str) -> (Module, Launcher) {
    let plain = launcher(behaviour);
    let engine = baton::runtime::Engine::start().unwrap();
    let grants = Grants::new(vec![url.parse().unwrap()]);
    let module = Module::load(&engine, &asks_over_http()).unwrap();
    let launcher = Launcher {
        http: Arc::new(HttpPolicy::new(grants, 64, None).unwrap()),
        env: vec![("BEHAVIOUR".to_owned(), behaviour.to_owned()), ("URL".to_owned(), url.to_owned())],
        ..plain
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
    let (module, launcher) = asking("crowd", &format!("http://{}", listener.local_addr().unwrap()));
    for _ in 0..10 {
        let later = launcher.clock.now() + GUARD * 10;
        let mut instance = launcher.start(&module, 1, later, later, Arc::new(Panics));
        let end = gone(&mut instance).await.end;
        assert!(matches!(&end, End::Crashed(why) if why.contains("on purpose: 64 in flight")), "{end:?}");
        assert_eq!(Arc::strong_count(&launcher.http), 1, "something is left of its requests");
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
        // Whatever a request needs holds the policy.
        assert_eq!(Arc::strong_count(&launcher.http), 1, "something is left of its requests");
        for stream in &mut streams {
            stream.set_read_timeout(Some(Duration::from_millis(1))).unwrap();
            let ended = stream.read(&mut [0; 4096]);
            let is_reset = ended.as_ref().is_err_and(|error| error.kind() == std::io::ErrorKind::ConnectionReset);
            assert!(is_reset, "{ended:?}");
        }
    }
}
