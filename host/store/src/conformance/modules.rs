//! The suite's cases about modules and announcements.

use std::time::Duration;

use bytes::Bytes;
use tokio::task::JoinSet;

use super::bench::{Finding, Verdict, ensure, ensure_eq};
use super::suite::{StoreBench, accepted};
use super::versioned::{election, text};
use crate::{Digest, ModuleStore as _, Reading};

/// Size of a large module, in bytes: larger than any store reads in one request, and not a multiple of any store's
/// request size.
const LARGE: usize = (20 << 20) + 12_345;

pub(super) async fn first_content_of_a_module_is_kept(bench: StoreBench) -> Verdict {
    let store = &bench.store;
    let digest = Digest::of(b"first");
    ensure_eq!(store.get_module(&digest, 100).await, Ok(None));
    accepted!(store.put_module(&digest, text("first")).await);
    // A put with other content must not replace the module, because other clients may be reading it.
    accepted!(store.put_module(&digest, text("other")).await);
    ensure_eq!(store.get_module(&digest, 100).await, Ok(Some(text("first"))));
    ensure_eq!(store.get_module(&Digest::of(b"another"), 100).await, Ok(None));
    Ok(())
}

pub(super) async fn module_is_read_only_up_to_the_limit(bench: StoreBench) -> Verdict {
    let store = &bench.store;
    let digest = Digest::of(b"0123456789");
    accepted!(store.put_module(&digest, text("0123456789")).await);
    for limit in 0..12 {
        let expected = &"0123456789"[..limit.min(10)];
        ensure_eq!(store.get_module(&digest, limit as u64).await, Ok(Some(text(expected))), "{limit}");
    }
    ensure_eq!(store.get_module(&digest, u64::MAX).await, Ok(Some(text("0123456789"))));
    let empty = Digest::of(b"");
    accepted!(store.put_module(&empty, Bytes::new()).await);
    ensure_eq!(store.get_module(&empty, 10).await, Ok(Some(Bytes::new())));
    Ok(())
}

pub(super) async fn large_module_is_kept_whole(bench: StoreBench) -> Verdict {
    let store = &bench.store;
    let content = large(251);
    let digest = Digest::of(&content);
    accepted!(store.put_module(&digest, content.clone()).await);
    // The first limit is a power of two, and therefore a multiple of every store's request size. The others are close
    // to the size of the module.
    for limit in [16 << 20, LARGE - 1, LARGE, LARGE + 1] {
        let found = accepted!(store.get_module(&digest, limit as u64).await).unwrap_or_default();
        ensure!(found == content[..limit.min(LARGE)], "{} bytes of {limit} came back", found.len());
    }
    let listed = accepted!(store.modules().await);
    ensure!(listed.iter().any(|module| module.digest == digest && module.size == LARGE as u64), "{listed:?}");
    Ok(())
}

pub(super) async fn concurrent_puts_of_a_module_all_succeed(bench: StoreBench) -> Verdict {
    let content = large(13).slice(..1 << 20);
    let digest = Digest::of(&content);
    let mut writers = JoinSet::new();
    for _ in 0..8 {
        let (store, content) = (bench.open(), content.clone());
        writers.spawn(async move { store.put_module(&digest, content).await });
    }
    ensure_eq!(writers.join_all().await, vec![Ok(()); 8]);
    ensure!(bench.store.get_module(&digest, u64::MAX).await == Ok(Some(content)), "it is there");
    Ok(())
}

pub(super) async fn modules_are_listed_by_digest_and_removed(bench: StoreBench) -> Verdict {
    let store = &bench.store;
    ensure_eq!(store.modules().await, Ok(vec![]));
    let mut digests = Vec::new();
    for n in 0..20 {
        let content = text(&"x".repeat(n));
        digests.push((Digest::of(&content), n as u64));
        accepted!(store.put_module(&digests[n].0, content).await);
    }
    digests.sort();
    let listed = accepted!(store.modules().await);
    ensure_eq!(listed.iter().map(|module| (module.digest, module.size)).collect::<Vec<_>>(), digests);
    let (removed, _) = digests.remove(7);
    for _ in 0..2 {
        ensure_eq!(store.remove_module(&removed, None).await, Ok(true), "a second removal is harmless");
    }
    ensure_eq!(store.get_module(&removed, 100).await, Ok(None));
    let listed = accepted!(store.modules().await);
    ensure_eq!(listed.iter().map(|module| (module.digest, module.size)).collect::<Vec<_>>(), digests);
    Ok(())
}

pub(super) async fn module_put_again_is_not_removed_as_old(bench: StoreBench) -> Verdict {
    let store = &bench.store;
    let digest = Digest::of(b"again");
    let stored = async || {
        accepted!(store.put_module(&digest, text("again")).await);
        let listed = accepted!(store.modules().await);
        let found = listed.iter().find(|module| module.digest == digest);
        found.map(|module| module.stored).ok_or_else(|| Finding::broken("a module that was put is not listed"))
    };
    let first = stored().await?;
    // The store records the time of a put in whole seconds. Wait until the next put is recorded with a later time.
    bench.wait_out(Duration::from_millis(1_001)).await;
    let second = stored().await?;
    ensure!(second > first, "{second} is not later than {first}");
    ensure_eq!(store.remove_module(&digest, Some(first)).await, Ok(false));
    ensure_eq!(store.get_module(&digest, 100).await, Ok(Some(text("again"))));
    ensure_eq!(store.remove_module(&digest, Some(second)).await, Ok(true));
    ensure_eq!(store.get_module(&digest, 100).await, Ok(None));
    ensure_eq!(store.remove_module(&digest, Some(first)).await, Ok(true));
    Ok(())
}

pub(super) async fn nodes_announce_and_withdraw(bench: StoreBench) -> Verdict {
    let store = &bench.store;
    let job = election("nodes");
    ensure_eq!(store.announcements(&job).await, Ok(vec![]));
    accepted!(store.announce(&job, "web-2-0", text("b")).await);
    accepted!(store.announce(&job, "web-1-0", text("a")).await);
    accepted!(store.announce(&job, "web-2-0", text("c")).await);
    let said = |node: &str, content| (node.to_owned(), text(content));
    ensure_eq!(store.announcements(&job).await, Ok(vec![said("web-1-0", "a"), said("web-2-0", "c")]));
    accepted!(store.withdraw(&job, "web-1-0").await);
    ensure_eq!(store.withdraw(&job, "web-1-0").await, Ok(()), "a second withdrawal");
    ensure_eq!(store.announcements(&job).await, Ok(vec![said("web-2-0", "c")]));
    Ok(())
}

pub(super) async fn elections_are_separate(bench: StoreBench) -> Verdict {
    let store = &bench.store;
    // A store could confuse these names: the first is also the name of a folder in the store, and the other two share a
    // prefix.
    let names = ["modules", "one", "one-more"].map(election);
    let digest = Digest::of(b"apart");
    accepted!(store.put_module(&digest, text("apart")).await);
    let before = accepted!(store.modules().await);
    for name in &names {
        accepted!(store.announce(name, "node", text(name.as_str())).await);
    }
    let controlled = accepted!(store.controlled().await);
    ensure!(controlled.is_empty(), "nothing was pushed to {controlled:?}");
    accepted!(store.withdraw(&names[1], "node").await);
    for name in &names {
        let left = if *name == names[1] { vec![] } else { vec![("node".to_owned(), text(name.as_str()))] };
        ensure_eq!(store.announcements(name).await, Ok(left), "{name}");
        let announced = store.announced(name, "node").await;
        ensure_eq!(announced, Ok((*name != names[1]).then(|| text(name.as_str()))), "{name}");
    }
    ensure_eq!(store.modules().await, Ok(before));
    ensure_eq!(store.elections().await, Ok(vec![]), "neither modules nor announcements look like an election");
    Ok(())
}

/// Tests ids with unusual characters, and ids that could be confused with other names.
pub(super) async fn any_node_id_has_its_own_announcement(bench: StoreBench) -> Verdict {
    let store = &bench.store;
    let job = election("places");
    let longest = "#".repeat(128);
    let mut nodes =
        ["lease", "a/b", "a~2fb", "a%2Fb", ".", "..", "../control", "a.", "A", "a", "\\", "?x=1&y", "<&>\"'", &longest];
    nodes.sort_unstable();
    for node in nodes {
        accepted!(store.announce(&job, node, text(node)).await);
    }
    let said = nodes.map(|node| (node.to_owned(), text(node)));
    ensure_eq!(store.announcements(&job).await, Ok(said.to_vec()));
    ensure_eq!(store.read_control(&job, None).await, Ok(Reading::Nothing));
    for node in nodes {
        accepted!(store.withdraw(&job, node).await);
    }
    ensure_eq!(store.announcements(&job).await, Ok(vec![]));
    Ok(())
}

/// Returns large content that repeats every `period` bytes.
pub fn large(period: usize) -> Bytes {
    (0..LARGE).map(|n| (n % period) as u8).collect()
}
