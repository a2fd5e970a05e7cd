//! File systems whose locks may have no effect on other machines. The store must refuse such file systems.

use baton_election::{Op, StoreError};
use baton_store::{LeaseStore, SqliteStore};

use crate::fuse::Fuse;
use crate::suite::job;

#[tokio::test]
async fn fuse_file_system_is_refused() {
    let Some(fuse) = Fuse::mount("lease.db") else { return };
    assert!(std::fs::symlink_metadata(fuse.path().join("lease.db")).unwrap().is_file(), "it is served");
    let store = SqliteStore::new(fuse.path());
    for answer in
        [store.create().await, store.request(&job(), Op::Read).await.map(drop), store.elections().await.map(drop)]
    {
        let Err(StoreError::Misconfigured(why)) = &answer else { panic!("{answer:?}") };
        for word in [fuse.path().to_str().unwrap(), "FUSE", "local disk"] {
            assert!(why.contains(word), "`{word}` is not said: {why}");
        }
    }
}
