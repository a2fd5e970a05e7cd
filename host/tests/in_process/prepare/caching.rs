//! Code that is kept.

use std::path::{Path, PathBuf};

use baton_modules::{Cache, Compiler, PrepareError, Preparer};

use super::modules::command;
use super::{offer, preparer};

/// Keeps what it compiles in that folder.
fn keeping(folder: &Path) -> Preparer {
    // Elsewhere than the entries, as a host has it.
    let key = folder.with_extension("key");
    Preparer { cache: Some(Cache::open(folder, &key).unwrap()), ..preparer() }
}

fn entries(folder: &Path) -> Vec<PathBuf> {
    std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect()
}

#[tokio::test]
async fn what_was_compiled_once_is_not_compiled_again() {
    let folder = tempfile::tempdir().unwrap();
    let cache = folder.path().join("cache");
    let first = keeping(&cache).prepare(&offer(command(1))).await.unwrap();
    assert!(!first.cached);
    // As after a restart; and without a compiler, to be sure.
    let compiler = Compiler::in_program("/nowhere/baton".into());
    let again = Preparer { compiler: compiler.clone(), ..keeping(&cache) };
    let second = again.prepare(&offer(command(1))).await.unwrap();
    assert!(second.cached);
    assert_eq!((second.module.kind(), second.module.digest()), (first.module.kind(), first.module.digest()));
    // Another module is another one.
    let refused = again.prepare(&offer(command(2))).await.err().unwrap();
    assert!(matches!(refused, PrepareError::System(_)), "{refused}");
}

#[tokio::test]
async fn a_damaged_entry_is_compiled_anew_and_replaced() {
    let folder = tempfile::tempdir().unwrap();
    let cache = folder.path().join("cache");
    let preparer = keeping(&cache);
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
async fn what_is_in_the_cache_is_still_verified_first() {
    let folder = tempfile::tempdir().unwrap();
    let preparer = keeping(&folder.path().join("cache"));
    preparer.prepare(&offer(command(1))).await.unwrap();
    let trust = baton_modules::Trust::new(vec![baton_store::Digest::of(b"another")], &[]).unwrap();
    let refused = Preparer { trust, ..preparer }.prepare(&offer(command(1))).await.err().unwrap();
    assert!(matches!(refused, PrepareError::Distrusted(_)), "{refused}");
}

#[tokio::test(flavor = "multi_thread")]
async fn several_at_once_share_a_folder() {
    let folder = tempfile::tempdir().unwrap();
    let cache = folder.path().join("cache");
    let mut tasks = tokio::task::JoinSet::new();
    // Each with a compiler of its own, as processes have.
    for task in 0..6 {
        let preparer = keeping(&cache);
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
