//! What every store does with modules, one case for each promise, each in elections of its own.

use std::sync::Arc;
use std::time::Duration;

use baton_election::{Refusal, Version};
use baton_store::{Digest, ModuleStore, Reading};
use bytes::Bytes;
use tokio::task::JoinSet;

use super::states::{election, text};

/// More than one request of any store reads, and no multiple of what one reads.
const LARGE: usize = (20 << 20) + 12_345;

/// Runs every case on a store of which `open` makes another host's handle. It has no modules before. After
/// `next_second` its clock shows another second.
pub async fn run(open: impl Fn() -> Arc<dyn ModuleStore>, next_second: impl AsyncFn()) {
    a_module_is_kept_as_it_came_first(&*open()).await;
    no_more_of_a_module_is_read_than_asked_for(&*open()).await;
    what_is_large_is_kept_whole(&*open()).await;
    of_many_who_put_a_module_all_succeed(&open).await;
    modules_are_listed_by_digest_and_removed(&*open()).await;
    what_is_put_again_is_not_removed_as_old(&*open(), next_second).await;
    control_is_read_only_where_it_has_changed(&*open()).await;
    a_control_write_needs_the_version(&*open()).await;
    of_many_control_writers_one_succeeds_in_each_round(&open).await;
    versions_never_come_back(&*open()).await;
    nodes_say_what_they_have_and_take_it_back(&*open()).await;
    elections_are_apart(&*open()).await;
    any_node_has_its_own_place(&*open()).await;
}

/// Waits for another second on this machine's clock, which its stores go by.
pub async fn next_second() {
    tokio::time::sleep(Duration::from_millis(1_001)).await;
}

async fn a_module_is_kept_as_it_came_first(store: &dyn ModuleStore) {
    let digest = Digest::of(b"first");
    assert_eq!(store.get_module(&digest, 100).await, Ok(None));
    store.put_module(&digest, text("first")).await.unwrap();
    // Nobody writes that, and if somebody does, it does not replace what others may be reading.
    store.put_module(&digest, text("other")).await.unwrap();
    assert_eq!(store.get_module(&digest, 100).await, Ok(Some(text("first"))));
    assert_eq!(store.get_module(&Digest::of(b"another"), 100).await, Ok(None));
}

async fn no_more_of_a_module_is_read_than_asked_for(store: &dyn ModuleStore) {
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

async fn what_is_large_is_kept_whole(store: &dyn ModuleStore) {
    let content = large(251);
    let digest = Digest::of(&content);
    store.put_module(&digest, content.clone()).await.unwrap();
    // A power of two, which is a multiple of any that a request reads; and the whole, more and less.
    for limit in [16 << 20, LARGE - 1, LARGE, LARGE + 1] {
        let found = store.get_module(&digest, limit as u64).await.unwrap().unwrap();
        assert!(found == content[..limit.min(LARGE)], "{} bytes of {limit} came back", found.len());
    }
    let listed = store.modules().await.unwrap();
    assert!(listed.iter().any(|module| module.digest == digest && module.size == LARGE as u64), "{listed:?}");
}

async fn of_many_who_put_a_module_all_succeed(open: &impl Fn() -> Arc<dyn ModuleStore>) {
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

async fn modules_are_listed_by_digest_and_removed(store: &dyn ModuleStore) {
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

async fn what_is_put_again_is_not_removed_as_old(store: &dyn ModuleStore, next_second: impl AsyncFn()) {
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

async fn control_is_read_only_where_it_has_changed(store: &dyn ModuleStore) {
    let job = election("conditional");
    let stale = Version("\"0x0\"".to_owned());
    assert_eq!(store.read_control(&job, None).await, Ok(Reading::Nothing));
    assert_eq!(store.read_control(&job, Some(&stale)).await, Ok(Reading::Nothing));
    let first = store.write_control(&job, None, text("a")).await.unwrap();
    let found = |version: &Version, content| Ok(Reading::Found(version.clone(), text(content)));
    assert_eq!(store.read_control(&job, None).await, found(&first, "a"));
    assert_eq!(store.read_control(&job, Some(&stale)).await, found(&first, "a"));
    for _ in 0..3 {
        assert_eq!(store.read_control(&job, Some(&first)).await, Ok(Reading::Unchanged));
    }
    let second = store.write_control(&job, Some(&first), text("b")).await.unwrap();
    assert_eq!(store.read_control(&job, Some(&first)).await, found(&second, "b"));
    assert_eq!(store.read_control(&job, Some(&second)).await, Ok(Reading::Unchanged));
}

async fn a_control_write_needs_the_version(store: &dyn ModuleStore) {
    let job = election("version");
    let stale = Version("\"0x0\"".to_owned());
    assert_eq!(store.write_control(&job, Some(&stale), text("a")).await, Err(Refusal::Conflict));
    assert_eq!(store.read_control(&job, None).await, Ok(Reading::Nothing));
    let first = store.write_control(&job, None, text("a")).await.unwrap();
    assert_eq!(store.write_control(&job, None, text("b")).await, Err(Refusal::Conflict));
    let second = store.write_control(&job, Some(&first), text("b")).await.unwrap();
    assert_ne!(first, second);
    assert_eq!(store.write_control(&job, Some(&first), text("c")).await, Err(Refusal::Conflict));
    assert_eq!(store.read_control(&job, None).await, Ok(Reading::Found(second, text("b"))));
}

async fn of_many_control_writers_one_succeeds_in_each_round(open: &impl Fn() -> Arc<dyn ModuleStore>) {
    let job = election("race");
    let mut expected = None;
    for round in 0..5 {
        let mut writers = JoinSet::new();
        for writer in 0..12 {
            let (store, job, expected) = (open(), job.clone(), expected.clone());
            writers.spawn(async move {
                let content = text(&format!("{round} {writer}"));
                loop {
                    // A store that is busy has not written, as the reading in the end shows.
                    match store.write_control(&job, expected.as_ref(), content.clone()).await {
                        Err(Refusal::Unknown(_)) => {}
                        answer => return (content, answer),
                    }
                }
            });
        }
        let answers = writers.join_all().await;
        let won: Vec<_> =
            answers.iter().filter_map(|(content, answer)| Some((content, answer.as_ref().ok()?))).collect();
        let lost = answers.iter().filter(|(_, answer)| *answer == Err(Refusal::Conflict)).count();
        let [(content, version)] = won[..] else { panic!("not one has won round {round}: {answers:?}") };
        assert_eq!(lost, 11, "{answers:?}");
        let read = open().read_control(&job, expected.as_ref()).await;
        assert_eq!(read, Ok(Reading::Found(version.clone(), content.clone())));
        expected = Some(version.clone());
    }
}

async fn versions_never_come_back(store: &dyn ModuleStore) {
    let job = election("versions");
    let mut seen = vec![store.write_control(&job, None, text("same")).await.unwrap()];
    for _ in 0..20 {
        let next = store.write_control(&job, seen.last(), text("same")).await.unwrap();
        assert!(!seen.contains(&next), "{next:?} was there before");
        seen.push(next);
    }
}

async fn nodes_say_what_they_have_and_take_it_back(store: &dyn ModuleStore) {
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

async fn elections_are_apart(store: &dyn ModuleStore) {
    // The first has the name of a folder, the others begin alike.
    let names = ["modules", "one", "one-more"].map(election);
    let digest = Digest::of(b"apart");
    store.put_module(&digest, text("apart")).await.unwrap();
    let before = store.modules().await.unwrap();
    let mut versions = Vec::new();
    for name in &names {
        versions.push(store.write_control(name, None, text(name.as_str())).await.unwrap());
        store.announce(name, "node", text(name.as_str())).await.unwrap();
    }
    for (name, other) in [(0, 1), (1, 2), (2, 0)] {
        let taken = store.write_control(&names[name], Some(&versions[other]), text("x")).await;
        assert_eq!(taken, Err(Refusal::Conflict));
    }
    let controlled = store.controlled().await.unwrap();
    assert!(controlled.is_sorted() && names.iter().all(|name| controlled.contains(name)), "{controlled:?}");
    assert!(!controlled.contains(&election("nodes")), "nodes have said something there, and nothing was pushed");
    store.withdraw(&names[1], "node").await.unwrap();
    for (name, version) in names.iter().zip(versions) {
        let content = text(name.as_str());
        assert_eq!(store.read_control(name, None).await, Ok(Reading::Found(version, content.clone())));
        let left = if *name == names[1] { vec![] } else { vec![("node".to_owned(), content)] };
        assert_eq!(store.announcements(name).await, Ok(left), "{name}");
    }
    assert_eq!(store.modules().await, Ok(before));
}

/// Whatever characters its id has, and whatever else its name would be the same as.
async fn any_node_has_its_own_place(store: &dyn ModuleStore) {
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

/// So many bytes that repeat with this period.
pub fn large(period: usize) -> Bytes {
    (0..LARGE).map(|n| (n % period) as u8).collect()
}
