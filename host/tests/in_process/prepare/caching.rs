//! Tests of the cache for compiled code.

use std::path::{Path, PathBuf};

use baton_modules::{Cache, Compiler, PrepareError, Preparer};

use super::modules::command;
use super::{offer, preparer};

fn with_cache(folder: &Path) -> Preparer {
    // Keep the key outside the cache folder, as a host does.
    let key = folder.with_extension("key");
    Preparer { cache: Some(Cache::open(folder, &key).unwrap()), ..preparer() }
}

fn entries(folder: &Path) -> Vec<PathBuf> {
    std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect()
}

#[tokio::test]
async fn cached_module_is_not_compiled_again() {
    let folder = tempfile::tempdir().unwrap();
    let cache = folder.path().join("cache");
    let first = with_cache(&cache).prepare(&offer(command(1))).await.unwrap();
    assert!(!first.cached);
    // The second preparer has the same cache, like a host after a restart, but no working compiler. It can therefore
    // only use the cache.
    let compiler = Compiler::in_program("/nowhere/baton".into());
    let again = Preparer { compiler: compiler.clone(), ..with_cache(&cache) };
    let second = again.prepare(&offer(command(1))).await.unwrap();
    assert!(second.cached);
    assert_eq!((second.module.kind(), second.module.digest()), (first.module.kind(), first.module.digest()));
    // The preparer cannot prepare a module that is not in the cache, because it has no compiler.
    let refused = again.prepare(&offer(command(2))).await.err().unwrap();
    assert!(matches!(refused, PrepareError::System(_)), "{refused}");
}

#[tokio::test]
async fn damaged_entry_is_compiled_again_and_replaced() {
    let folder = tempfile::tempdir().unwrap();
    let cache = folder.path().join("cache");
    let preparer = with_cache(&cache);
    preparer.prepare(&offer(command(1))).await.unwrap();
    let path = entries(&cache).pop().unwrap();
    let whole = std::fs::read(&path).unwrap();
    let mut flipped = whole.clone();
    flipped[whole.len() / 2] ^= 1;
    for damaged in [flipped, whole[..whole.len() / 2].to_vec(), Vec::new()] {
        std::fs::write(&path, damaged).unwrap();
        assert!(!preparer.prepare(&offer(command(1))).await.unwrap().cached);
        assert!(entries(&cache).iter().eq([&path]));
        assert!(preparer.prepare(&offer(command(1))).await.unwrap().cached);
    }
}

#[tokio::test]
async fn cached_module_is_verified_first() {
    let folder = tempfile::tempdir().unwrap();
    let preparer = with_cache(&folder.path().join("cache"));
    preparer.prepare(&offer(command(1))).await.unwrap();
    let trust = baton_modules::Trust::new(vec![baton_store::Digest::of(b"another")], &[]).unwrap();
    let refused = Preparer { trust, ..preparer }.prepare(&offer(command(1))).await.err().unwrap();
    assert!(matches!(refused, PrepareError::Distrusted(_)), "{refused}");
}

#[tokio::test(flavor = "multi_thread")]
async fn concurrent_processes_share_a_cache() {
    let folder = tempfile::tempdir().unwrap();
    let cache = folder.path().join("cache");
    let mut tasks = tokio::task::JoinSet::new();
    // Each task has its own preparer and compiler, as separate host processes do.
    for task in 0..6 {
        let preparer = with_cache(&cache);
        tasks.spawn(async move {
            for number in [task % 3, 0, 1] {
                preparer.prepare(&offer(command(number))).await.unwrap();
            }
        });
    }
    while let Some(done) = tasks.join_next().await {
        done.unwrap();
    }
    assert_eq!(entries(&cache).len(), 3);
}
