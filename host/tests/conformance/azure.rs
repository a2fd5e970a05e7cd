//! The store on a real emulator: the suite, and what a network and a server can do to it.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use baton::store::{AzureStore, LeaseStore};
use baton_election::{LeaseState, Op, Refusal, Reply};

use super::azurite::Azurite;
use super::proxy::{Mode, Proxy};
use super::suite::{self, Backend, Bench, a, assert_lost, b, job, record, version_of};

/// Shorter than a lease by far, longer than any answer on loopback.
const CALLER_WAITS: Duration = Duration::from_millis(1500);

/// A container of its own in an emulator that others use, too.
struct Container {
    address: SocketAddr,
    name: String,
}

impl Container {
    fn handle(&self) -> AzureStore {
        handle(self.address, &self.name)
    }
}

fn handle(address: SocketAddr, container: &str) -> AzureStore {
    AzureStore::emulator(&address.to_string(), container).unwrap()
}

async fn container(azurite: &Azurite, name: &str) -> Container {
    let container = Container { address: azurite.address(), name: name.to_owned() };
    container.handle().create().await.unwrap();
    container.handle().create().await.expect("a second create is harmless");
    container
}

#[async_trait]
impl Backend for Container {
    fn open(&self) -> Arc<dyn LeaseStore> {
        Arc::new(self.handle())
    }

    async fn break_lease(&self, period: Duration) -> Result<(), Refusal> {
        self.handle().break_lease(&job(), period).await
    }

    async fn delete(&self) {
        self.handle().delete_container().await.unwrap();
        self.handle().create().await.unwrap();
    }

    async fn wait_out(&self, time: Duration) {
        // Beyond the end by more than a loaded emulator's clock is late.
        tokio::time::sleep(time + Duration::from_millis(250)).await;
    }
}

#[tokio::test]
async fn passes_the_suite() {
    let azurite = Azurite::start();
    let made = std::cell::Cell::new(0);
    suite::run(async || {
        made.set(made.get() + 1);
        container(&azurite, &format!("case-{}", made.get())).await
    })
    .await;
}

#[tokio::test]
async fn what_the_network_loses_is_unknown_and_found_out() {
    let azurite = Azurite::start();
    let direct = container(&azurite, "network").await;
    let proxy = Proxy::start(azurite.address());
    let far = handle(proxy.address(), "network");
    let bench = Bench { store: direct.open(), backend: Arc::new(direct) };
    let version = bench.create().await;
    let unknown = |answer: Result<Reply, Refusal>| assert!(matches!(answer, Err(Refusal::Unknown(_))), "{answer:?}");
    let acquire = Op::Acquire { id: a(), length: bench.brief(), version: version.clone() };

    for mode in [Mode::Down, Mode::Hang] {
        proxy.set(mode);
        let answer = tokio::time::timeout(CALLER_WAITS, far.request(&job(), acquire.clone())).await;
        match (mode, answer) {
            (Mode::Hang, answer) => assert!(answer.is_err(), "a hung server answers nothing: {answer:?}"),
            (_, answer) => unknown(answer.expect("a server that is down is noticed at once")),
        }
        assert_eq!(bench.see().await.lease, LeaseState::Free, "{mode:?}");
    }

    // Each answer is lost, and each request was carried out.
    proxy.set(Mode::CutAfterRequest);
    unknown(far.request(&job(), acquire.clone()).await);
    assert_eq!(bench.acquire(b()).await, Err(Refusal::Held));
    assert_eq!(bench.ask(acquire.clone()).await, Ok(Reply::Done), "asking again finds it out");
    unknown(far.request(&job(), Op::Write { id: a(), version: version.clone(), record: record(1) }).await);
    assert_eq!(bench.write(a(), &version, 1).await, Err(Refusal::Conflict));
    assert_eq!(bench.see().await.record, Some(record(1)));
    unknown(far.request(&job(), Op::Release { id: a() }).await);
    assert_eq!(bench.see().await.lease, LeaseState::Free);
    assert_lost(&bench.release(a()).await);

    // Each request arrives when the world has moved on: another has led and written since.
    let arrive_late = async |op: Op| {
        proxy.set(Mode::HoldRequest);
        let given_up = tokio::time::timeout(CALLER_WAITS, far.request(&job(), op)).await;
        assert!(given_up.is_err(), "{given_up:?}");
        proxy.wait_held();
        proxy.deliver();
    };
    arrive_late(acquire).await;
    assert_eq!(bench.see().await.lease, LeaseState::Free);
    assert_eq!(bench.acquire(b()).await, Ok(Reply::Done));
    let latest = version_of(bench.write(b(), &bench.see().await.version, 2).await);
    for late in [
        Op::Create { record: record(0) },
        Op::Renew { id: a() },
        Op::Write { id: a(), version, record: record(1) },
        Op::Release { id: a() },
    ] {
        arrive_late(late.clone()).await;
        let seen = bench.see().await;
        assert_eq!(
            (seen.lease, seen.version, seen.record),
            (LeaseState::Held, latest.clone(), Some(record(2))),
            "{late:?}"
        );
    }
    assert_eq!(bench.renew(b()).await, Ok(Reply::Done));
}

#[tokio::test]
async fn answers_of_a_troubled_server_are_told_apart() {
    for (status, code, misconfigured) in [
        ("403 Forbidden", Some("AuthenticationFailed"), true),
        ("403 Forbidden", Some("AuthorizationPermissionMismatch"), true),
        ("403 Forbidden", None, false),
        ("429 Too Many Requests", Some("TooManyRequests"), false),
        ("500 Internal Server Error", Some("InternalError"), false),
        ("500 Internal Server Error", None, false),
        ("503 Service Unavailable", Some("ServerBusy"), false),
    ] {
        for op in [Op::Read, Op::Create { record: record(0) }, Op::Renew { id: a() }, Op::Release { id: a() }] {
            let (address, server) = answer_once(status, code);
            let answer = handle(address, "leases").request(&job(), op.clone()).await;
            match &answer {
                Err(Refusal::Misconfigured(_)) => assert!(misconfigured, "{status} {code:?} {op:?}: {answer:?}"),
                Err(Refusal::Unknown(_)) => assert!(!misconfigured, "{status} {code:?} {op:?}: {answer:?}"),
                _ => panic!("{status} {code:?} {op:?}: {answer:?}"),
            }
            server.join().unwrap();
        }
    }
}

#[tokio::test]
async fn a_missing_container_is_said_to_be_missing() {
    let azurite = Azurite::start();
    let answer = handle(azurite.address(), "nowhere").request(&job(), Op::Read).await;
    assert!(matches!(&answer, Err(Refusal::Misconfigured(why)) if why.contains("--create")), "{answer:?}");
    let answer = handle(azurite.address(), "nowhere").request(&job(), Op::Create { record: record(0) }).await;
    assert!(matches!(&answer, Err(Refusal::Misconfigured(why)) if why.contains("--create")), "{answer:?}");
    let answer = handle(azurite.address(), "nowhere").elections().await;
    assert!(matches!(&answer, Err(Refusal::Misconfigured(why)) if why.contains("--create")), "{answer:?}");
}

/// The variable that the store takes credentials from, and that no other test may see.
const CREDENTIALS: &str = "BATON_STORE_CONNECTION_STRING";
/// The variable that tells a process of this test binary where the emulator is.
const WRONG_KEY_AT: &str = "BATON_TEST_WRONG_KEY_AT";

#[tokio::test]
async fn a_wrong_key_is_not_accepted_and_that_is_said() {
    if let Ok(address) = std::env::var(WRONG_KEY_AT) {
        let answer = handle(address.parse().unwrap(), "leases").request(&job(), Op::Renew { id: a() }).await;
        assert!(matches!(&answer, Err(Refusal::Misconfigured(why)) if why.contains("credentials")), "{answer:?}");
        return;
    }
    let azurite = Azurite::start();
    let _container = container(&azurite, "leases").await;
    let told = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "azure::a_wrong_key_is_not_accepted_and_that_is_said"])
        .env(WRONG_KEY_AT, azurite.address().to_string())
        .env(CREDENTIALS, "AccountName=devstoreaccount1;AccountKey=d3Jvbmc=")
        .output()
        .unwrap();
    assert!(told.status.success(), "{}", String::from_utf8_lossy(&told.stdout));
}

/// A server that answers one request.
fn answer_once(status: &'static str, code: Option<&'static str>) -> (SocketAddr, std::thread::JoinHandle<()>) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = listener.local_addr().unwrap();
    let server = std::thread::spawn(move || {
        let (mut client, _) = listener.accept().unwrap();
        let mut request = Vec::new();
        let mut bytes = [0; 4096];
        let end = |request: &[u8]| request.windows(4).any(|window| window == b"\r\n\r\n");
        while !end(&request) {
            match client.read(&mut bytes).unwrap() {
                0 => return,
                length => request.extend_from_slice(&bytes[..length]),
            }
        }
        let code = code.map_or(String::new(), |code| format!("x-ms-error-code: {code}\r\n"));
        write!(client, "HTTP/1.1 {status}\r\n{code}content-length: 0\r\nconnection: close\r\n\r\n").unwrap();
        // What is left of the request is read, or closing would cut the answer off.
        while client.read(&mut bytes).is_ok_and(|length| length > 0) {}
    });
    (address, server)
}
