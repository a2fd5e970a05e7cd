//! Tests of modules in the Azure store, with a real emulator: the conformance suite, and faults of the network and the
//! server.

use std::time::Duration;

use baton_election::StoreError;
use baton_store::{Digest, ModuleStore as _, Reading};

use super::azure::{answer, container, handle};
use super::azurite::Azurite;
use super::proxy::{Mode, Proxy};
use super::suite::{self, job, text};

#[tokio::test]
async fn control_write_with_a_lost_answer_conflicts_when_repeated() {
    let azurite = Azurite::start();
    let direct = container(&azurite, "lost-control").await.handle();
    let proxy = Proxy::start(azurite.address());
    let far = handle(proxy.address(), "lost-control");
    let job = job();
    let version = direct.write_control(&job, None, text("a")).await.unwrap();
    for mode in [Mode::Down, Mode::CutAfterRequest] {
        proxy.set(mode);
        let answer = far.write_control(&job, Some(&version), text("b")).await;
        assert!(matches!(answer, Err(StoreError::Unknown(_))), "{answer:?}");
        let unread = far.read_control(&job, Some(&version)).await;
        assert!(matches!(unread, Err(StoreError::Unknown(_))), "{unread:?}");
    }
    proxy.set(Mode::Pass);
    assert_eq!(far.write_control(&job, Some(&version), text("b")).await, Err(StoreError::Conflict));
    let read = far.read_control(&job, Some(&version)).await;
    assert!(matches!(&read, Ok(Reading::Found(_, content)) if *content == text("b")), "{read:?}");
}

#[tokio::test]
async fn module_transfer_that_is_cut_succeeds_when_repeated() {
    let azurite = Azurite::start();
    let _container = container(&azurite, "cut").await;
    let proxy = Proxy::start(azurite.address());
    let far = handle(proxy.address(), "cut");
    let content = suite::large(251);
    let digest = Digest::of(&content);
    let unknown = |answer: Result<(), StoreError>| assert!(matches!(answer, Err(StoreError::Unknown(_))), "{answer:?}");
    proxy.set(Mode::CutAfterRequest);
    unknown(far.put_module(&digest, content.clone()).await);
    proxy.set(Mode::Pass);
    far.put_module(&digest, content.clone()).await.unwrap();
    proxy.set(Mode::CutAfterRequest);
    unknown(far.get_module(&digest, u64::MAX).await.map(drop));
    unknown(far.modules().await.map(drop));
    proxy.set(Mode::Pass);
    assert!(far.get_module(&digest, u64::MAX).await == Ok(Some(content)));
}

#[tokio::test]
async fn module_requests_are_misconfigured_without_a_container() {
    let azurite = Azurite::start();
    let store = handle(azurite.address(), "missing");
    let (job, digest) = (job(), Digest::of(b"x"));
    for answer in [
        store.read_control(&job, None).await.map(drop),
        store.write_control(&job, None, text("x")).await.map(drop),
        store.put_module(&digest, text("x")).await,
        store.get_module(&digest, 10).await.map(drop),
        store.modules().await.map(drop),
        store.remove_module(&digest, None).await.map(drop),
        store.controlled().await.map(drop),
        store.announce(&job, "node", text("x")).await,
        store.announcements(&job).await.map(drop),
        store.withdraw(&job, "node").await,
    ] {
        assert!(matches!(&answer, Err(StoreError::Misconfigured(why)) if why.contains("--create")), "{answer:?}");
    }
}

/// A request for a module may take longer than 11 s. Other requests may not: a renewal that takes this long is useless.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn large_module_may_take_as_long_as_a_slow_line_needs() {
    let azurite = Azurite::start();
    let direct = container(&azurite, "slow").await.handle();
    let proxy = Proxy::start(azurite.address());
    let far = handle(proxy.address(), "slow");
    let content = suite::large(17);
    let digest = Digest::of(&content);
    direct.put_module(&digest, content.clone()).await.unwrap();
    proxy.set(Mode::HoldRequest);
    let mut reading = tokio::spawn(async move { far.get_module(&digest, u64::MAX).await });
    // This call blocks the current thread. The request continues on another thread.
    proxy.wait_held();
    let early = tokio::time::timeout(Duration::from_secs(11), &mut reading).await;
    assert!(early.is_err(), "nothing has reached the store, and yet there is an answer");
    proxy.set(Mode::Pass);
    assert!(reading.await.unwrap() == Ok(Some(content)), "it came late");
}

fn ends(status: &str, code: &str) -> String {
    format!("HTTP/1.1 {status}\r\nx-ms-error-code: {code}\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
}

/// Returns the response to a request for one part of a module of 20 bytes.
fn part(of: &str, content: &str) -> String {
    format!(
        "HTTP/1.1 206 Partial Content\r\ncontent-length: {}\r\ncontent-range: bytes {of}/20\r\netag: \"0x1\"\r\n\
         x-ms-blob-type: BlockBlob\r\nx-ms-server-encrypted: true\r\n\
         x-ms-creation-time: Fri, 20 Nov 2026 10:00:00 GMT\r\nlast-modified: Fri, 20 Nov 2026 10:00:00 GMT\r\n\
         date: Fri, 20 Nov 2026 10:00:00 GMT\r\nx-ms-request-id: 6d5f3b5e-0000-4000-8000-000000000000\r\n\
         server: none\r\nconnection: close\r\n\r\n{content}",
        content.len()
    )
}

#[tokio::test]
async fn module_is_assembled_from_parts_of_one_version() {
    let read = async |limit, answers| {
        let (address, server) = answer(answers);
        let answer = handle(address, "leases").get_module(&Digest::of(b""), limit).await;
        (answer, server.join().unwrap())
    };
    let first = || part("0-9", "0123456789");
    let (answer, asked) = read(u64::MAX, vec![first(), part("10-19", "abcdefghij")]).await;
    assert_eq!(answer, Ok(Some(text("0123456789abcdefghij"))));
    assert!(asked[0].contains("bytes=0-") && !asked[0].contains("if-match"), "{asked:?}");
    assert!(asked[1].contains("bytes=10-") && asked[1].contains("if-match: \"0x1\""), "{asked:?}");
    // The store returns at most `limit` bytes, and requests no second part once it has them.
    for limit in [7, 10] {
        assert_eq!(read(limit, vec![first()]).await.0, Ok(Some(text(&"0123456789"[..limit as usize]))));
    }
    for (second, why) in [
        (ends("412 Precondition Failed", "ConditionNotMet"), "removed or replaced"),
        (ends("404 Not Found", "BlobNotFound"), "removed or replaced"),
        (ends("416 Range Not Satisfiable", "InvalidRange"), "removed or replaced"),
        (ends("503 Service Unavailable", "ServerBusy"), "ServerBusy"),
        (part("10-10", ""), "returned no data"),
    ] {
        let (answer, _) = read(u64::MAX, vec![first(), second]).await;
        assert!(matches!(&answer, Err(StoreError::Unknown(told)) if told.contains(why)), "{answer:?}");
    }
}

#[tokio::test]
async fn existing_module_is_neither_sent_nor_replaced() {
    let put = async |answers| {
        let (address, server) = answer(answers);
        let answer = handle(address, "leases").put_module(&Digest::of(b"x"), text("x")).await;
        (answer, server.join().unwrap())
    };
    let missing = || ends("404 Not Found", "BlobNotFound");
    let there = || part("0-9", "");
    let (answer, asked) = put(vec![there(), there()]).await;
    assert_eq!(answer, Ok(()));
    // The module already exists, so the store only updates the time of its last change.
    assert!(asked[0].starts_with("HEAD ") && asked[1].contains("comp=metadata"), "{asked:?}");
    // Another client stores the module between this store's check and its upload.
    let (answer, asked) = put(vec![missing(), ends("409 Conflict", "BlobAlreadyExists"), there()]).await;
    assert_eq!(answer, Ok(()));
    assert!(asked[1].starts_with("PUT ") && asked[1].contains("if-none-match: *"), "{asked:?}");
    assert!(asked[2].contains("comp=metadata"), "{asked:?}");
    // The upload gets no answer, so it is unknown whether the module was stored.
    let (answer, _) = put(vec![missing(), String::new()]).await;
    assert!(matches!(answer, Err(StoreError::Unknown(_))), "{answer:?}");
}

/// Another client may hold a lease on the blob of a module or a node. The store then reports an unknown outcome, not a
/// lost lease.
#[tokio::test]
async fn blob_leased_by_another_client_is_unknown() {
    let (address, server) = answer(vec![ends("412 Precondition Failed", "LeaseIdMissing"); 3]);
    let (store, job) = (handle(address, "leases"), job());
    for answer in [
        store.remove_module(&Digest::of(b""), None).await.map(drop),
        store.announce(&job, "node", text("x")).await,
        store.withdraw(&job, "node").await,
    ] {
        assert!(matches!(&answer, Err(StoreError::Unknown(why)) if why.contains("LeaseIdMissing")), "{answer:?}");
    }
    server.join().unwrap();
}
