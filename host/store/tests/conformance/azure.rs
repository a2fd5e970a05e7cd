//! Tests of the Azure store with a real emulator: the conformance suite, and faults of the network and the server.

use std::cell::Cell;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use azure_core::prelude::Metadata;
use azure_storage::{CloudLocation, StorageCredentials};
use azure_storage_blobs::prelude::ClientBuilder;
use baton_election::{LeaseState, Op, Recalled, Reply, Snapshot, StoreError, Version};
use baton_store::state::{self, Document, EditError};
use baton_store::{AzureStore, LeaseStore, ObjectStore as _, Reading, Store, VersionedObject};

use super::azurite::Azurite;
use super::patience::Patience;
use super::proxy::{Mode, Proxy};
use super::suite::{self, Backend, StoreBench, a, b, job, record, text};
use super::{assert_lost, version_of};

/// Time for which a caller waits for an answer: much less than a lease, but more than any answer needs on loopback.
const CALLER_WAITS: Duration = Duration::from_millis(1500);

/// Each case of the suite uses its own container.
pub struct Container {
    address: SocketAddr,
    name: String,
}

impl Container {
    pub fn handle(&self) -> AzureStore {
        handle(self.address, &self.name)
    }
}

pub fn handle(address: SocketAddr, container: &str) -> AzureStore {
    AzureStore::emulator(&address.to_string(), container).unwrap()
}

pub async fn container(azurite: &Azurite, name: &str) -> Container {
    let container = Container { address: azurite.address(), name: name.to_owned() };
    container.handle().create().await.unwrap();
    container.handle().create().await.expect("a second create is harmless");
    container
}

#[async_trait]
impl Backend for Container {
    fn open(&self) -> Arc<dyn Store> {
        Arc::new(self.handle())
    }

    async fn break_lease(&self, period: Duration) -> Result<(), StoreError> {
        self.handle().break_lease(&job(), period).await
    }

    async fn delete(&self) {
        self.handle().delete_container().await.unwrap();
        self.handle().create().await.unwrap();
    }

    async fn wait_out(&self, time: Duration) {
        tokio::time::sleep(time + Duration::from_millis(250)).await;
        // The clock of a busy emulator may lag, so also wait until a read shows that the time has passed. If `time` is
        // shorter than a lease, the lease may rightly still be held.
        let mut patience = Patience::default();
        loop {
            let is_early = match self.handle().request(&job(), Op::Read).await {
                Ok(Reply::Read(Snapshot::Object { lease: LeaseState::Held, .. })) => {
                    time >= self.handle().lease_range().0
                }
                Ok(Reply::Read(Snapshot::Object { lease: LeaseState::Breaking, .. })) => true,
                _ => false,
            };
            if !is_early || !patience.lasts() {
                return;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
}

#[tokio::test]
async fn passes_the_suite() {
    let azurite = Azurite::start();
    let made = Cell::new(0);
    suite::run(async || {
        made.set(made.get() + 1);
        container(&azurite, &format!("case-{}", made.get())).await
    })
    .await;
}

#[tokio::test]
async fn state_write_with_a_lost_answer_conflicts_when_repeated() {
    let azurite = Azurite::start();
    let direct = container(&azurite, "lost").await.handle();
    let proxy = Proxy::start(azurite.address());
    let far = handle(proxy.address(), "lost");
    let job = job();
    let version = direct.write(VersionedObject::State, &job, None, text("a")).await.unwrap();
    proxy.set(Mode::Down);
    let answer = far.write(VersionedObject::State, &job, Some(&version), text("b")).await;
    assert!(matches!(answer, Err(StoreError::Unknown(_))), "{answer:?}");
    proxy.set(Mode::CutAfterRequest);
    let answer = far.write(VersionedObject::State, &job, Some(&version), text("b")).await;
    assert!(matches!(answer, Err(StoreError::Unknown(_))), "{answer:?}");
    proxy.set(Mode::Pass);
    assert_eq!(far.write(VersionedObject::State, &job, Some(&version), text("b")).await, Err(StoreError::Conflict));
    let Ok(Reading::Found(found, content)) = far.read(VersionedObject::State, &job, None).await else {
        panic!("it is there")
    };
    assert!(found != version && content == text("b"));
}

#[tokio::test]
async fn state_requests_are_misconfigured_without_a_container() {
    let azurite = Azurite::start();
    let store = handle(azurite.address(), "missing");
    let job = job();
    let read = store.read(VersionedObject::State, &job, None).await;
    assert!(matches!(read, Err(StoreError::Misconfigured(_))), "{read:?}");
    let written = store.write(VersionedObject::State, &job, None, text("a")).await;
    assert!(matches!(written, Err(StoreError::Misconfigured(_))), "{written:?}");
}

#[tokio::test]
async fn lost_request_or_answer_is_unknown_until_repeated() {
    let azurite = Azurite::start();
    let direct = container(&azurite, "network").await;
    let proxy = Proxy::start(azurite.address());
    let far = handle(proxy.address(), "network");
    let bench = StoreBench::new(direct);
    let version = bench.create().await.unwrap();
    let unknown =
        |answer: Result<Reply, StoreError>| assert!(matches!(answer, Err(StoreError::Unknown(_))), "{answer:?}");
    let acquire = Op::Acquire { id: a(), length: bench.length, version: version.clone(), instead_of: None };

    proxy.set(Mode::Down);
    unknown(Patience::of_future(far.request(&job(), acquire.clone())).await.expect("a server that is down is noticed"));
    assert_eq!(bench.see().await.unwrap().lease, LeaseState::Free);
    proxy.set(Mode::Hang);
    let answer = tokio::time::timeout(CALLER_WAITS, far.request(&job(), acquire.clone())).await;
    assert!(answer.is_err(), "a hung server answers nothing: {answer:?}");
    assert_eq!(bench.see().await.unwrap().lease, LeaseState::Free);

    // The store carries out each request, but the proxy drops the answer.
    proxy.set(Mode::CutAfterRequest);
    unknown(far.request(&job(), acquire.clone()).await);
    assert_eq!(bench.acquire(b()).await, Err(StoreError::Held));
    assert_eq!(bench.ask(acquire.clone()).await, Ok(Reply::Done), "asking again finds it out");
    unknown(far.request(&job(), Op::Write { id: a(), version: version.clone(), record: record(1) }).await);
    assert_eq!(bench.write(a(), &version, 1).await, Err(StoreError::Conflict));
    assert_eq!(bench.see().await.unwrap().record, Some(record(1)));
    unknown(far.request(&job(), Op::Release { id: a() }).await);
    assert_eq!(bench.see().await.unwrap().lease, LeaseState::Free);
    assert_lost(&bench.release(a()).await);
}

/// Sends requests that arrive late, after the state of the store has changed.
struct Late {
    bench: StoreBench,
    far: Arc<dyn LeaseStore>,
    proxy: Proxy,
}

impl Late {
    async fn new(azurite: &Azurite, name: &str) -> Self {
        let direct = container(azurite, name).await;
        let proxy = Proxy::start(azurite.address());
        let far = Arc::new(handle(proxy.address(), name));
        Self { bench: StoreBench::new(direct), far, proxy }
    }

    /// Sends a request, which the proxy holds back. Gives up on the answer, runs `after`, and then delivers the
    /// request.
    async fn arrives(&self, op: Op, after: impl AsyncFnOnce(&StoreBench)) {
        self.proxy.set(Mode::HoldRequest);
        let far = Arc::clone(&self.far);
        let sent = tokio::spawn(async move { far.request(&job(), op).await });
        // This call blocks the current thread. The request continues on another thread.
        self.proxy.wait_held();
        sent.abort();
        assert!(sent.await.is_err_and(|error| error.is_cancelled()), "nobody has answered it");
        after(&self.bench).await;
        self.proxy.deliver();
    }

    async fn assert_unharmed(&self, lease: LeaseState, version: &Version, term: u64) {
        let seen = self.bench.see().await.unwrap();
        assert_eq!((seen.lease, &seen.version, seen.record), (lease, version, Some(record(term))));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn late_create_changes_nothing() {
    let azurite = Azurite::start();
    let late = Late::new(&azurite, "late-create").await;
    late.arrives(Op::Create { record: record(7) }, async |bench| drop(bench.create().await.unwrap())).await;
    let version = late.bench.see().await.unwrap().version;
    late.assert_unharmed(LeaseState::Free, &version, 0).await;
    // The late create also changes nothing if another client holds the lease when the create arrives.
    let create = Op::Create { record: record(7) };
    late.arrives(create, async |bench| assert_eq!(bench.acquire(b()).await, Ok(Reply::Done))).await;
    late.assert_unharmed(LeaseState::Held, &version, 0).await;
    assert_eq!(late.bench.renew(b()).await, Ok(Reply::Done));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn late_acquire_takes_nothing_once_a_term_has_begun() {
    let azurite = Azurite::start();
    let late = Late::new(&azurite, "late-acquire").await;
    let version = late.bench.create().await.unwrap();
    let acquire = Op::Acquire { id: a(), length: late.bench.length, version: version.clone(), instead_of: None };
    let begun = Cell::new(None);
    late.arrives(acquire, async |bench| {
        assert_eq!(bench.acquire(b()).await, Ok(Reply::Done));
        begun.set(Some(version_of(bench.write(b(), &version, 1).await)));
        assert_eq!(bench.release(b()).await, Ok(Reply::Done));
    })
    .await;
    late.assert_unharmed(LeaseState::Free, &begun.take().unwrap(), 1).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn late_renewal_takes_nothing_from_the_next_holder() {
    let azurite = Azurite::start();
    let late = Late::new(&azurite, "late-renew").await;
    let version = late.bench.held_by(a()).await.unwrap();
    let renew = || Op::Renew { id: a() };
    late.arrives(renew(), async |bench| assert_eq!(bench.release(a()).await, Ok(Reply::Done))).await;
    late.assert_unharmed(LeaseState::Free, &version, 0).await;
    late.arrives(renew(), async |bench| assert_eq!(bench.acquire(b()).await, Ok(Reply::Done))).await;
    late.assert_unharmed(LeaseState::Held, &version, 0).await;
    assert_eq!(late.bench.renew(b()).await, Ok(Reply::Done));
    // A late renewal does not revive a lease that an operator has broken in the meantime.
    assert_eq!(late.bench.release(b()).await, Ok(Reply::Done));
    assert_eq!(late.bench.acquire(a()).await, Ok(Reply::Done));
    late.arrives(renew(), async |bench| assert_eq!(bench.backend.break_lease(Duration::ZERO).await, Ok(()))).await;
    late.assert_unharmed(LeaseState::Broken, &version, 0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn late_release_frees_nothing_of_the_next_holder() {
    let azurite = Azurite::start();
    let late = Late::new(&azurite, "late-release").await;
    let version = late.bench.held_by(a()).await.unwrap();
    late.arrives(Op::Release { id: a() }, async |bench| {
        assert_eq!(bench.release(a()).await, Ok(Reply::Done), "the second try was faster");
        assert_eq!(bench.acquire(b()).await, Ok(Reply::Done));
    })
    .await;
    late.assert_unharmed(LeaseState::Held, &version, 0).await;
    assert_eq!(late.bench.renew(b()).await, Ok(Reply::Done));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn late_write_changes_nothing_after_a_write_or_a_takeover() {
    let azurite = Azurite::start();
    let late = Late::new(&azurite, "late-write").await;
    let first = late.bench.held_by(a()).await.unwrap();
    let write = |version: &Version| Op::Write { id: a(), version: version.clone(), record: record(7) };
    let second = Cell::new(None);
    late.arrives(write(&first), async |bench| {
        second.set(Some(version_of(bench.write(a(), &first, 1).await)));
    })
    .await;
    let second = second.take().unwrap();
    late.assert_unharmed(LeaseState::Held, &second, 1).await;
    // When the write arrives, its version is still current, but another client holds the lease.
    late.arrives(write(&second), async |bench| {
        assert_eq!(bench.release(a()).await, Ok(Reply::Done));
        assert_eq!(bench.acquire(b()).await, Ok(Reply::Done));
    })
    .await;
    late.assert_unharmed(LeaseState::Held, &second, 1).await;
    assert_eq!(late.bench.renew(b()).await, Ok(Reply::Done));
}

#[tokio::test]
async fn error_responses_of_a_server_are_distinguished() {
    for (status, code, misconfigured) in [
        ("403 Forbidden", Some("AuthenticationFailed"), true),
        ("403 Forbidden", Some("AuthorizationPermissionMismatch"), true),
        ("403 Forbidden", None, false),
        ("429 Too Many Requests", Some("TooManyRequests"), false),
        ("500 Internal Server Error", Some("InternalError"), false),
        ("500 Internal Server Error", None, false),
        ("503 Service Unavailable", Some("ServerBusy"), false),
    ] {
        let version = || Version("\"0x8DC\"".to_owned());
        for op in [
            Op::Read,
            Op::Recall,
            Op::Create { record: record(0) },
            Op::Acquire { id: a(), length: Duration::from_secs(15), version: version(), instead_of: None },
            Op::Renew { id: a() },
            Op::Write { id: a(), version: version(), record: record(1) },
            Op::Release { id: a() },
        ] {
            let (address, server) = answer_once(status, code);
            let answer = handle(address, "leases").request(&job(), op.clone()).await;
            match &answer {
                Err(StoreError::Misconfigured(_)) => assert!(misconfigured, "{status} {code:?} {op:?}: {answer:?}"),
                Err(StoreError::Unknown(_)) => assert!(!misconfigured, "{status} {code:?} {op:?}: {answer:?}"),
                _ => panic!("{status} {code:?} {op:?}: {answer:?}"),
            }
            server.join().unwrap();
        }
    }
}

#[tokio::test]
async fn missing_container_is_reported() {
    let azurite = Azurite::start();
    let answer = handle(azurite.address(), "nowhere").request(&job(), Op::Read).await;
    assert!(matches!(&answer, Err(StoreError::Misconfigured(why)) if why.contains("--create")), "{answer:?}");
    let answer = handle(azurite.address(), "nowhere").request(&job(), Op::Create { record: record(0) }).await;
    assert!(matches!(&answer, Err(StoreError::Misconfigured(why)) if why.contains("--create")), "{answer:?}");
    let answer = handle(azurite.address(), "nowhere").elections().await;
    assert!(matches!(&answer, Err(StoreError::Misconfigured(why)) if why.contains("--create")), "{answer:?}");
}

/// Any write without a lease id frees a broken or expired lease. The lease then does not count as released by its
/// holder.
#[tokio::test]
async fn lease_freed_by_a_write_without_its_id_is_not_released() {
    let azurite = Azurite::start();
    for (name, breaks) in [("broken", true), ("expired", false)] {
        let container = container(&azurite, name).await;
        let bench = StoreBench::new(container);
        let version = bench.held_by(a()).await.unwrap();
        let version = version_of(bench.write(a(), &version, 1).await);
        if breaks {
            assert_eq!(bench.backend.break_lease(Duration::ZERO).await, Ok(()));
        } else {
            bench.outlive().await.unwrap();
        }
        let location = CloudLocation::Emulator { address: "127.0.0.1".to_owned(), port: azurite.address().port() };
        let blob =
            ClientBuilder::with_location(location, StorageCredentials::emulator()).blob_client(name, "job/lease");
        let found = blob.get_properties().into_future().await.unwrap().blob.metadata.unwrap();
        let mut metadata = Metadata::new();
        for (name, value) in found {
            metadata.insert(name, value);
        }
        blob.set_metadata().metadata(metadata).into_future().await.unwrap();
        let seen = bench.see().await.unwrap();
        assert_eq!((seen.lease, seen.record), (LeaseState::Free, Some(record(1))), "{name}");
        assert_ne!(seen.version, version);
        assert_lost(&bench.renew(a()).await);
    }
}

/// Azure's listings contain two kinds of entries that the emulator's listings do not: blobs without metadata, and blobs
/// that Azure has encrypted.
#[tokio::test]
async fn list_in_azures_format_is_parsed() {
    let blob = |name: &str, metadata: &str| {
        format!(
            "<Blob><Name>{name}</Name><Properties><Creation-Time>Fri, 20 Nov 2026 10:00:00 GMT</Creation-Time>\
             <Last-Modified>Fri, 20 Nov 2026 10:00:00 GMT</Last-Modified><Etag>0x8DC</Etag>\
             <Content-Length>9</Content-Length><Content-Type>text/plain</Content-Type><Content-Encoding />\
             <Content-Language /><Content-CRC64 /><Content-MD5 /><Cache-Control /><Content-Disposition />\
             <BlobType>BlockBlob</BlobType><AccessTier>Hot</AccessTier><AccessTierInferred>true</AccessTierInferred>\
             <LeaseStatus>unlocked</LeaseStatus><LeaseState>available</LeaseState>\
             <ServerEncrypted>true</ServerEncrypted></Properties>{metadata}<OrMetadata /></Blob>"
        )
    };
    let blobs = [
        blob("job/control", "<Metadata />"),
        blob(
            "job/lease",
            "<Metadata><Format>1</Format><Term>5</Term><Since>2026-11-20T10:00:00Z</Since><Lease>15</Lease><Failures>0</Failures></Metadata>",
        ),
        blob("job/nodes/a", ""),
        blob("job/nodes/b", "<Metadata Encrypted=\"true\"><Term>8</Term></Metadata>"),
        blob("job/nodes/c", "<Metadata><term>many</term></Metadata>"),
        blob("job/nodes/d", "<Metadata><term>7</term></Metadata>"),
    ];
    for (state, requests, term) in [
        (String::new(), 1, 8),
        (blob("job/state", "<Metadata><Term>9</Term></Metadata>"), 1, 9),
        // The listing does not show a valid term for the state, so the store reads the start of the state. By then, the
        // state has been deleted.
        (blob("job/state", "<Metadata />"), 2, 8),
        (blob("job/state", "<Metadata><term>many</term></Metadata>"), 2, 8),
    ] {
        let list = format!(
            "<?xml version=\"1.0\" encoding=\"utf-8\"?><EnumerationResults ServiceEndpoint=\"http://x/\" \
             ContainerName=\"leases\"><Prefix>job/</Prefix><Blobs>{}{state}</Blobs><NextMarker />\
             </EnumerationResults>",
            blobs.concat()
        );
        let listed = format!(
            "HTTP/1.1 200 OK\r\ncontent-length: {}\r\ncontent-type: application/xml\r\n\
             date: Fri, 20 Nov 2026 10:00:00 GMT\r\nx-ms-request-id: 6d5f3b5e-0000-4000-8000-000000000000\r\n\
             connection: close\r\n\r\n{list}",
            list.len()
        );
        let missing = "HTTP/1.1 404 Not Found\r\nx-ms-error-code: BlobNotFound\r\ncontent-length: 0\r\n\
                       connection: close\r\n\r\n";
        let answers = [listed, missing.to_owned()];
        let (address, server) = answer(answers.into_iter().take(requests).collect());
        assert_eq!(
            handle(address, "leases").request(&job(), Op::Recall).await,
            Ok(Reply::Recalled(Recalled { term, progress: None })),
            "{state}"
        );
        let asked = server.join().unwrap();
        assert!(asked[0].contains("prefix=job%2F") && asked[0].contains("include=metadata"), "{asked:?}");
    }
}

/// The state has no metadata if an older host wrote it, or if a client copied it.
#[tokio::test]
async fn state_with_its_term_only_in_the_content_is_recalled() {
    let azurite = Azurite::start();
    let store = container(&azurite, "leases").await.handle();
    let claim = async |term| {
        let claimed = |_| Ok::<_, EditError>(Document { term, ..Document::default() });
        state::edit(&store, &job(), async || Ok(()), claimed).await.unwrap();
    };
    claim(41).await;
    assert_eq!(store.request(&job(), Op::Recall).await, Ok(Reply::Recalled(Recalled { term: 41, progress: None })));
    let Ok(Reading::Found(_, content)) = store.read(VersionedObject::State, &job(), None).await else {
        panic!("it was written");
    };
    // Write a lower term. Then replace the blob by the earlier content, without metadata, so that only the content
    // shows the higher term.
    claim(5).await;
    let location = CloudLocation::Emulator { address: "127.0.0.1".to_owned(), port: azurite.address().port() };
    let blob =
        ClientBuilder::with_location(location, StorageCredentials::emulator()).blob_client("leases", "job/state");
    blob.put_block_blob(content).into_future().await.unwrap();
    assert_eq!(store.request(&job(), Op::Recall).await, Ok(Reply::Recalled(Recalled { term: 41, progress: None })));
}

/// The environment variable with the store's credentials. No other test may run in a process that has this variable.
const CREDENTIALS: &str = "BATON_STORE_CONNECTION_STRING";
/// The variable with the emulator's address, for a child process that runs this test binary.
const WRONG_KEY_AT: &str = "BATON_TEST_WRONG_KEY_AT";

#[tokio::test]
async fn wrong_key_is_refused_and_reported() {
    if let Ok(address) = std::env::var(WRONG_KEY_AT) {
        let answer = handle(address.parse().unwrap(), "leases").request(&job(), Op::Renew { id: a() }).await;
        assert!(matches!(&answer, Err(StoreError::Misconfigured(why)) if why.contains("credentials")), "{answer:?}");
        return;
    }
    let azurite = Azurite::start();
    let _container = container(&azurite, "leases").await;
    let told = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "azure::wrong_key_is_refused_and_reported"])
        .env(WRONG_KEY_AT, azurite.address().to_string())
        .env(CREDENTIALS, "AccountName=devstoreaccount1;AccountKey=d3Jvbmc=")
        .output()
        .unwrap();
    assert!(told.status.success(), "{}", String::from_utf8_lossy(&told.stdout));
}

fn answer_once(status: &str, code: Option<&str>) -> (SocketAddr, std::thread::JoinHandle<Vec<String>>) {
    let code = code.map_or(String::new(), |code| format!("x-ms-error-code: {code}\r\n"));
    answer(vec![format!("HTTP/1.1 {status}\r\n{code}content-length: 0\r\nconnection: close\r\n\r\n")])
}

/// Starts a server that sends these answers, each on a new connection. The server's thread returns the requests that it
/// received.
pub fn answer(answers: Vec<String>) -> (SocketAddr, std::thread::JoinHandle<Vec<String>>) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = listener.local_addr().unwrap();
    let serve = move |answer: String| {
        let (mut client, _) = listener.accept().unwrap();
        let mut request = Vec::new();
        let mut bytes = [0; 4096];
        let end = |request: &[u8]| request.windows(4).any(|window| window == b"\r\n\r\n");
        while !end(&request) {
            match client.read(&mut bytes).unwrap() {
                0 => break,
                length => request.extend_from_slice(&bytes[..length]),
            }
        }
        let request = String::from_utf8_lossy(&request).into_owned();
        client.write_all(answer.as_bytes()).unwrap();
        client.shutdown(Shutdown::Write).unwrap();
        // Read the rest of the request. Otherwise, closing the connection would cut off the answer.
        while client.read(&mut bytes).is_ok_and(|length| length > 0) {}
        request
    };
    (address, std::thread::spawn(move || answers.into_iter().map(serve).collect()))
}
