//! The cases for modules and announcements: one for each guarantee, each in its own elections.

use std::sync::Arc;
use std::time::Duration;

use crate::{Digest, ModuleStore as _, ObjectStore, Reading};
use bytes::Bytes;
use tokio::task::JoinSet;

use super::versioned::{election, text};

/// Larger than any store reads in one request, and not a multiple of any store's request size.
const LARGE: usize = (20 << 20) + 12_345;

/// Runs all cases on a store without modules. `open` opens a handle to the store for another host. `next_second` waits
/// for the next second on the store's clock.
pub async fn run(open: impl Fn() -> Arc<dyn ObjectStore>, next_second: impl AsyncFn()) {
    first_content_of_a_module_is_kept(&*open()).await;
    module_is_read_only_up_to_the_limit(&*open()).await;
    large_module_is_kept_whole(&*open()).await;
    concurrent_puts_of_a_module_all_succeed(&open).await;
    modules_are_listed_by_digest_and_removed(&*open()).await;
    module_put_again_is_not_removed_as_old(&*open(), next_second).await;
    nodes_announce_and_withdraw(&*open()).await;
    elections_are_separate(&*open()).await;
    any_node_id_has_its_own_announcement(&*open()).await;
}

/// Waits for the next second on this machine's clock, for stores that use this clock.
pub async fn next_second() {
    tokio::time::sleep(Duration::from_millis(1_001)).await;
}

async fn first_content_of_a_module_is_kept(store: &dyn ObjectStore) {
    let digest = Digest::of(b"first");
    assert_eq!(store.get_module(&digest, 100).await, Ok(None));
    store.put_module(&digest, text("first")).await.unwrap();
    // Other content must not replace the module, because other clients may be reading it.
    store.put_module(&digest, text("other")).await.unwrap();
    assert_eq!(store.get_module(&digest, 100).await, Ok(Some(text("first"))));
    assert_eq!(store.get_module(&Digest::of(b"another"), 100).await, Ok(None));
}

async fn module_is_read_only_up_to_the_limit(store: &dyn ObjectStore) {
    let digest = Digest::of(b"0123456789");
    store.put_module(&digest, text("0123456789")).await.unwrap();
    for limit in 0..12 {
        let expected = &"0123456789"[..limit.min(10)];
        assert_eq!(store.get_module(&digest, limit as u64).await, Ok(Some(text(expected))), "{limit}");
    }
    assert_eq!(store.get_module(&digest, u64::MAX).await, Ok(Some(text("0123456789"))));
    let empty = Digest::of(b"");
    store.put_module(&empty, Bytes::new()).await.unwrap();
    assert_eq!(store.get_module(&empty, 10).await, Ok(Some(Bytes::new())));
}

async fn large_module_is_kept_whole(store: &dyn ObjectStore) {
    let content = large(251);
    let digest = Digest::of(&content);
    store.put_module(&digest, content.clone()).await.unwrap();
    // The first limit is a power of two, and so a multiple of any store's request size. The others are close to the
    // size of the module.
    for limit in [16 << 20, LARGE - 1, LARGE, LARGE + 1] {
        let found = store.get_module(&digest, limit as u64).await.unwrap().unwrap();
        assert!(found == content[..limit.min(LARGE)], "{} bytes of {limit} came back", found.len());
    }
    let listed = store.modules().await.unwrap();
    assert!(listed.iter().any(|module| module.digest == digest && module.size == LARGE as u64), "{listed:?}");
}

async fn concurrent_puts_of_a_module_all_succeed(open: &impl Fn() -> Arc<dyn ObjectStore>) {
    let content = large(13).slice(..1 << 20);
    let digest = Digest::of(&content);
    let mut writers = JoinSet::new();
    for _ in 0..8 {
        let (store, content) = (open(), content.clone());
        writers.spawn(async move { store.put_module(&digest, content).await });
    }
    assert_eq!(writers.join_all().await, vec![Ok(()); 8]);
    assert!(open().get_module(&digest, u64::MAX).await == Ok(Some(content)), "it is there");
}

async fn modules_are_listed_by_digest_and_removed(store: &dyn ObjectStore) {
    for module in store.modules().await.unwrap() {
        assert_eq!(store.remove_module(&module.digest, Some(module.stored)).await, Ok(true));
    }
    assert_eq!(store.modules().await, Ok(vec![]));
    let mut digests = Vec::new();
    for n in 0..20 {
        let content = text(&"x".repeat(n));
        digests.push((Digest::of(&content), n as u64));
        store.put_module(&digests[n].0, content).await.unwrap();
    }
    digests.sort();
    let listed = store.modules().await.unwrap();
    assert_eq!(listed.iter().map(|module| (module.digest, module.size)).collect::<Vec<_>>(), digests);
    let (removed, _) = digests.remove(7);
    for _ in 0..2 {
        assert_eq!(store.remove_module(&removed, None).await, Ok(true), "a second removal is harmless");
    }
    assert_eq!(store.get_module(&removed, 100).await, Ok(None));
    let listed = store.modules().await.unwrap();
    assert_eq!(listed.iter().map(|module| (module.digest, module.size)).collect::<Vec<_>>(), digests);
}

async fn module_put_again_is_not_removed_as_old(store: &dyn ObjectStore, next_second: impl AsyncFn()) {
    let digest = Digest::of(b"again");
    let stored = async || {
        store.put_module(&digest, text("again")).await.unwrap();
        let listed = store.modules().await.unwrap();
        listed.iter().find(|module| module.digest == digest).unwrap().stored
    };
    let first = stored().await;
    next_second().await;
    let second = stored().await;
    assert!(second > first, "{second} is not later than {first}");
    assert_eq!(store.remove_module(&digest, Some(first)).await, Ok(false));
    assert_eq!(store.get_module(&digest, 100).await, Ok(Some(text("again"))));
    assert_eq!(store.remove_module(&digest, Some(second)).await, Ok(true));
    assert_eq!(store.get_module(&digest, 100).await, Ok(None));
    assert_eq!(store.remove_module(&digest, Some(first)).await, Ok(true));
}

async fn nodes_announce_and_withdraw(store: &dyn ObjectStore) {
    let job = election("nodes");
    assert_eq!(store.announcements(&job).await, Ok(vec![]));
    store.announce(&job, "web-2-0", text("b")).await.unwrap();
    store.announce(&job, "web-1-0", text("a")).await.unwrap();
    store.announce(&job, "web-2-0", text("c")).await.unwrap();
    let said = |node: &str, content| (node.to_owned(), text(content));
    assert_eq!(store.announcements(&job).await, Ok(vec![said("web-1-0", "a"), said("web-2-0", "c")]));
    store.withdraw(&job, "web-1-0").await.unwrap();
    store.withdraw(&job, "web-1-0").await.expect("a second withdrawal is harmless");
    assert_eq!(store.announcements(&job).await, Ok(vec![said("web-2-0", "c")]));
}

async fn elections_are_separate(store: &dyn ObjectStore) {
    // The first name is also the name of a folder, and the other two share a prefix.
    let names = ["modules", "one", "one-more"].map(election);
    let digest = Digest::of(b"apart");
    store.put_module(&digest, text("apart")).await.unwrap();
    let before = store.modules().await.unwrap();
    for name in &names {
        store.announce(name, "node", text(name.as_str())).await.unwrap();
    }
    let controlled = store.controlled().await.unwrap();
    assert!(!controlled.contains(&election("nodes")), "nodes have said something there, and nothing was pushed");
    store.withdraw(&names[1], "node").await.unwrap();
    for name in &names {
        let left = if *name == names[1] { vec![] } else { vec![("node".to_owned(), text(name.as_str()))] };
        assert_eq!(store.announcements(name).await, Ok(left), "{name}");
        let announced = store.announced(name, "node").await;
        assert_eq!(announced, Ok((*name != names[1]).then(|| text(name.as_str()))), "{name}");
    }
    assert_eq!(store.modules().await, Ok(before));
}

/// The ids have unusual characters, or would collide with other names.
async fn any_node_id_has_its_own_announcement(store: &dyn ObjectStore) {
    let job = election("places");
    let longest = "#".repeat(128);
    let mut nodes =
        ["lease", "a/b", "a~2fb", "a%2Fb", ".", "..", "../control", "a.", "A", "a", "\\", "?x=1&y", "<&>\"'", &longest];
    nodes.sort_unstable();
    for node in nodes {
        store.announce(&job, node, text(node)).await.unwrap();
    }
    let said = nodes.map(|node| (node.to_owned(), text(node)));
    assert_eq!(store.announcements(&job).await, Ok(said.to_vec()));
    assert_eq!(store.read_control(&job, None).await, Ok(Reading::Nothing));
    for node in nodes {
        store.withdraw(&job, node).await.unwrap();
    }
    assert_eq!(store.announcements(&job).await, Ok(vec![]));
}

/// Returns large content that repeats every `period` bytes.
pub fn large(period: usize) -> Bytes {
    (0..LARGE).map(|n| (n % period) as u8).collect()
}
