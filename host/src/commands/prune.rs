//! `baton prune`: removes old versions, and modules that no version references.

use std::collections::{BTreeMap, BTreeSet};
use std::process::ExitCode;

use anyhow::{Context, bail};
use baton_election::{ElectionName, Snapshot, StoreError};
use time::{Duration, OffsetDateTime};

use super::modules::now;
use super::{TRIES, announced, in_time, open_store, patiently, read};
use crate::cli;
use baton_base::escape::escape;
use baton_modules::{EditError, ListedVersion, VersionList};
use baton_modules::{edit_versions, read_versions};
use baton_store::ModuleStore as _;
use baton_store::withdraw;
use baton_store::{Announcement, Digest, GONE, StoredModule};
use baton_store::{Reading, Store, StoreUrl, VersionedObject};

/// Age above which an unreferenced module is removed. A younger module may belong to a push that is in progress.
const UNNAMED: Duration = Duration::hours(1);

pub(super) async fn prune(
    elections: &[ElectionName],
    store: &StoreUrl,
    keep: usize,
    dry_run: bool,
) -> anyhow::Result<ExitCode> {
    let (place, store) = (store, open_store(store)?);
    let removed = Pruner { store: &*store, keep, dry_run, now: now() }.prune(elections).await;
    let removed = removed.with_context(|| format!("cannot prune {place}"))?;
    cli::print(&removed.report(dry_run))?;
    Ok(ExitCode::SUCCESS)
}

struct Pruner<'a> {
    store: &'a dyn Store,
    keep: usize,
    dry_run: bool,
    now: OffsetDateTime,
}

#[derive(Debug, Default, PartialEq, Eq)]
struct Removed {
    versions: Vec<(ElectionName, ListedVersion)>,
    modules: Vec<StoredModule>,
    /// Elections that no longer exist and whose steering commands were removed.
    steering: Vec<ElectionName>,
    /// Unreferenced modules that are too young to be removed.
    young: Vec<StoredModule>,
}

impl Pruner<'_> {
    async fn prune(&self, elections: &[ElectionName]) -> anyhow::Result<Removed> {
        // List the modules before reading the version lists. A module that a push stores after this point is then not
        // removed: the module is not listed, or `remove` sees that the module was stored again.
        let stored = patiently(TRIES, async || self.store.modules().await).await.context("cannot list the modules")?;
        let all =
            patiently(TRIES, async || self.store.controlled().await).await.context("cannot list the elections")?;
        let known =
            patiently(TRIES, async || self.store.elections().await).await.context("cannot list the elections")?;
        if let Some(missing) = elections.iter().find(|election| !all.contains(election) && !known.contains(election)) {
            bail!("there is no election {missing} in this store: nothing was removed");
        }
        // The nodes of elections to which no module was pushed may also have left stale announcements. Call `in_use`
        // for these elections, too, because it withdraws stale announcements.
        for election in known.iter().filter(|election| !all.contains(election)) {
            if elections.is_empty() || elections.contains(election) {
                self.in_use(election).await?;
            }
        }
        let mut removed = Removed::default();
        let mut controls = BTreeMap::new();
        for election in all {
            let control = if elections.is_empty() || elections.contains(&election) {
                let (versions, control) = self.prune_versions(&election).await?;
                removed.versions.extend(versions.into_iter().map(|entry| (election.clone(), entry)));
                control
            } else {
                self.control(&election).await?
            };
            controls.insert(election, control);
        }
        removed.steering = self.prune_steering(elections, &controls).await?;
        let named: BTreeSet<Digest> =
            controls.values().flat_map(|control| &control.pushed).map(|entry| entry.digest).collect();
        for module in stored {
            if named.contains(&module.digest) {
                continue;
            }
            if self.now - module.stored <= UNNAMED {
                removed.young.push(module);
            } else if self.remove(&module).await? {
                removed.modules.push(module);
            }
        }
        Ok(removed)
    }

    /// Returns the removed versions, and the list of the remaining ones.
    async fn prune_versions(&self, election: &ElectionName) -> anyhow::Result<(Vec<ListedVersion>, VersionList)> {
        let in_use = self.in_use(election).await?;
        let prune = |control: &mut VersionList| {
            let removed = control.prune(self.keep, &in_use);
            (removed, control.clone())
        };
        if self.dry_run {
            return Ok(prune(&mut self.control(election).await?));
        }
        let edit = edit_versions(self.store, election, |control| Ok::<_, EditError>(prune(control)));
        self.in_time(election, edit).await
    }

    /// Removes the steering commands of elections that have no lease, no versions and no announcements, because no node
    /// is left that could obey these commands.
    async fn prune_steering(
        &self,
        elections: &[ElectionName],
        pushed: &BTreeMap<ElectionName, VersionList>,
    ) -> anyhow::Result<Vec<ElectionName>> {
        let store = self.store;
        let held = super::elections(store).await.context("cannot list the elections")?;
        let steered = patiently(TRIES, async || store.elections_with(VersionedObject::Steering).await).await;
        let mut removed = Vec::new();
        for election in steered.context("cannot list the steering commands")? {
            let is_selected = elections.is_empty() || elections.contains(&election);
            let has_shards = held.iter().any(|one| one.shard().is_some() && one.group() == election.as_str());
            if !is_selected
                || has_shards
                || pushed.contains_key(&election)
                || read(store, &election).await? != Snapshot::Nothing
            {
                continue;
            }
            let cannot = || format!("cannot read the steering commands of {election}");
            let nodes = patiently(TRIES, async || store.announced_nodes(&election).await).await.with_context(cannot)?;
            let found = patiently(TRIES, async || store.read(VersionedObject::Steering, &election, None).await).await;
            if let (true, Reading::Found(version, _)) = (nodes.is_empty(), found.with_context(cannot)?) {
                // Delete only this version of the object, so that a command that was written in the meantime is kept.
                let delete = async || store.delete(VersionedObject::Steering, &election, &version).await;
                match if self.dry_run { Ok(()) } else { patiently(TRIES, delete).await } {
                    Ok(()) => removed.push(election),
                    Err(StoreError::Conflict) => {}
                    Err(error) => {
                        return Err(error).context(format!("cannot remove the steering commands of {election}"));
                    }
                }
            }
        }
        Ok(removed)
    }

    async fn control(&self, election: &ElectionName) -> anyhow::Result<VersionList> {
        Ok(self.in_time(election, read_versions(self.store, election)).await?.unwrap_or_default())
    }

    async fn in_time<T>(
        &self,
        election: &ElectionName,
        request: impl Future<Output = Result<T, EditError>>,
    ) -> anyhow::Result<T> {
        let cannot = || format!("cannot prune the versions of {election}");
        in_time(request).await.with_context(cannot)?.with_context(cannot)
    }

    /// Returns the modules that an election's nodes run. Withdraws the announcements of nodes that have not announced
    /// themselves for a long time.
    async fn in_use(&self, election: &ElectionName) -> anyhow::Result<BTreeSet<Digest>> {
        let announced = announced(self.store, election).await;
        let mut in_use = BTreeSet::new();
        let cannot = || format!("cannot read the announcements of the nodes of {election}");
        for (node, content) in announced.with_context(cannot)? {
            let Some(announcement) = Announcement::decode(&content) else { continue };
            let is_gone = announcement.when().is_none_or(|at| self.now - at > GONE);
            if !is_gone {
                in_use.extend(announcement.runs);
            } else if !self.dry_run {
                patiently(TRIES, async || {
                    withdraw(self.store, self.store, election, &node, &announcement.all_recalled(election)).await
                })
                .await
                .with_context(|| format!("cannot withdraw the announcement of {node}"))?;
            }
        }
        Ok(in_use)
    }

    /// Returns false, and keeps the module, if it has been stored again since it was listed.
    async fn remove(&self, module: &StoredModule) -> anyhow::Result<bool> {
        if self.dry_run {
            return Ok(true);
        }
        patiently(TRIES, async || self.store.remove_module(&module.digest, Some(module.stored)).await)
            .await
            .with_context(|| format!("cannot remove {}", module.digest))
    }
}

impl Removed {
    fn report(&self, dry_run: bool) -> String {
        let removed = if dry_run { "would remove" } else { "removed" };
        let mut text = String::new();
        for (election, ListedVersion { digest, by, at, .. }) in &self.versions {
            text.push_str(&format!(
                "{removed} from {election}: {digest} (pushed by {} at {})\n",
                escape(by),
                escape(at)
            ));
        }
        for election in &self.steering {
            text.push_str(&format!(
                "{removed} the steering commands of {election}, which has no lease, version or node\n"
            ));
        }
        for StoredModule { digest, size, .. } in &self.modules {
            text.push_str(&format!("{removed} from the store: {digest} ({size} bytes)\n"));
        }
        let bytes = |modules: &[StoredModule]| modules.iter().map(|module| module.size).sum::<u64>();
        let (versions, modules) = (self.versions.len(), self.modules.len());
        let all = bytes(&self.modules);
        text.push_str(&format!("{removed} in total: versions {versions}, modules {modules}, bytes {all}\n"));
        if !self.young.is_empty() {
            text.push_str(&format!(
                "not needed by any version, but kept for now because they were stored less than an hour ago: modules \
                 {}, bytes {}; run prune again later\n",
                self.young.len(),
                bytes(&self.young)
            ));
        }
        text
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may panic")]

    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};

    use baton_election::{ModuleVersion, Op, Record, Term};
    use bytes::Bytes;

    use baton_store::ObjectStore as _;

    use super::*;
    use baton_modules::{Judgement, Publication, Verdict};
    use baton_store::LeaseStore;
    use baton_store::ModuleStore;
    use baton_store::memory::MemoryStore;

    struct PruneBench {
        store: MemoryStore,
        seconds: Arc<AtomicU64>,
    }

    impl PruneBench {
        fn new() -> Self {
            let seconds = Arc::new(AtomicU64::new(1_000_000));
            let clock = Arc::clone(&seconds);
            let now = move || std::time::Duration::from_secs(clock.load(Ordering::SeqCst));
            Self { store: MemoryStore::new(Arc::new(now)), seconds }
        }

        fn now(&self) -> OffsetDateTime {
            OffsetDateTime::UNIX_EPOCH + Duration::seconds(self.seconds.load(Ordering::SeqCst).cast_signed())
        }

        fn advance(&self, length: Duration) {
            self.seconds.fetch_add(length.whole_seconds().unsigned_abs(), Ordering::SeqCst);
        }

        async fn put(&self, name: &str) -> Digest {
            let digest = Digest::of(name.as_bytes());
            self.store.put_module(&digest, Bytes::copy_from_slice(name.as_bytes())).await.unwrap();
            digest
        }

        async fn push(&self, election: &str, name: &str) {
            let digest = self.put(name).await;
            let (by, at) = ("ann@desk".to_owned(), "today".to_owned());
            let new = Publication { digest, size: name.len() as u64, by, at, signature: None };
            let name = ElectionName::new(election).unwrap();
            edit_versions(&self.store, &name, |control| control.push(new.clone()).map_err(EditError::from))
                .await
                .unwrap();
        }

        /// Writes an announcement of this age for a node in the election `one`. The announcement contains the module
        /// that the node runs, and the highest term that the node has seen.
        async fn said(&self, age: Duration, node: &str, name: &str, term: Term) {
            let then = u64::try_from((self.now() - age).unix_timestamp()).unwrap();
            let at = baton_base::clock::rfc3339(std::time::Duration::from_secs(then));
            let now = Announcement::now(node, "i", "", vec![], Some(Digest::of(name.as_bytes())));
            let said = Announcement { at, term, ..now };
            self.store.announce(&ElectionName::new("one").unwrap(), node, said.encode()).await.unwrap();
        }

        async fn nodes(&self) -> Vec<String> {
            let said = self.store.announcements(&ElectionName::new("one").unwrap()).await.unwrap();
            said.into_iter().map(|(node, _)| node).collect()
        }

        async fn prune(&self, elections: &[&str], keep: usize, dry_run: bool) -> anyhow::Result<Removed> {
            let elections: Vec<_> = elections.iter().map(|name| ElectionName::new(name).unwrap()).collect();
            Pruner { store: &self.store, keep, dry_run, now: self.now() }.prune(&elections).await
        }

        /// Returns the sizes of the modules that are left. The sizes identify the modules, because each module has a
        /// different size.
        async fn left(&self) -> Vec<u64> {
            let mut left: Vec<u64> = self.store.modules().await.unwrap().iter().map(|module| module.size).collect();
            left.sort_unstable();
            left
        }
    }

    fn sizes(removed: &Removed) -> (Vec<u64>, Vec<u64>) {
        let mut modules: Vec<u64> = removed.modules.iter().map(|module| module.size).collect();
        modules.sort_unstable();
        (removed.versions.iter().map(|(_, entry)| entry.size).collect(), modules)
    }

    #[tokio::test]
    async fn unreferenced_modules_are_removed_once_old() {
        let bench = PruneBench::new();
        for name in ["a", "bb", "ccc", "dddd"] {
            bench.push("one", name).await;
        }
        bench.push("two", "bb").await;
        bench.put("eeeee").await;
        // The version list keeps `dddd`, and `ccc` as the version to roll back to. The store keeps the module `bb`,
        // because the election `two` uses it.
        assert_eq!(sizes(&bench.prune(&["one"], 1, true).await.unwrap()), (vec![1, 2], vec![]));
        let removed = bench.prune(&["one"], 1, false).await.unwrap();
        assert_eq!(sizes(&removed), (vec![1, 2], vec![]));
        let report = removed.report(false);
        let young = "not needed by any version, but kept for now because they were stored less than an hour ago: \
                     modules 2, bytes 6; run prune again later\n";
        assert!(report.ends_with(&format!("removed in total: versions 2, modules 0, bytes 0\n{young}")), "{report}");
        assert_eq!(bench.left().await, [1, 2, 3, 4, 5], "somebody may be about to name them");
        bench.advance(Duration::minutes(61));
        assert_eq!(sizes(&bench.prune(&[], 1, true).await.unwrap()), (vec![], vec![1, 5]));
        assert_eq!(bench.left().await.len(), 5, "a dry run removes nothing");
        let removed = bench.prune(&[], 1, false).await.unwrap();
        assert_eq!(sizes(&removed), (vec![], vec![1, 5]));
        assert!(removed.report(false).ends_with("removed in total: versions 0, modules 2, bytes 6\n"));
        assert_eq!(bench.left().await, [2, 3, 4]);
    }

    #[tokio::test]
    async fn steering_of_an_election_without_nodes_is_removed() {
        let bench = PruneBench::new();
        bench.push("one", "a").await;
        let names = ["one", "two", "three"].map(|name| ElectionName::new(name).unwrap());
        for election in &names {
            bench.store.write(VersionedObject::Steering, election, None, "{}".into()).await.unwrap();
        }
        let said = Announcement::now("alpha", "i", "", vec![], None);
        bench.store.announce(&names[2], "alpha", said.encode()).await.unwrap();
        for dry_run in [true, false] {
            let removed = bench.prune(&[], 1, dry_run).await.unwrap();
            assert_eq!(removed.steering, [names[1].clone()], "the others are there");
            let report = removed.report(dry_run);
            assert!(report.contains("the steering commands of two"), "{report}");
        }
        let left = bench.store.elections_with(VersionedObject::Steering).await.unwrap();
        assert_eq!(left, [names[0].clone(), names[2].clone()]);
    }

    #[tokio::test]
    async fn dry_run_counts_modules_that_become_unreferenced() {
        let bench = PruneBench::new();
        for name in ["a", "bb", "ccc"] {
            bench.push("one", name).await;
        }
        bench.advance(Duration::minutes(61));
        let dry = bench.prune(&[], 0, true).await.unwrap();
        assert_eq!(sizes(&dry), (vec![1], vec![1]));
        assert_eq!(bench.prune(&[], 0, false).await.unwrap(), dry);
        assert_eq!(bench.left().await, [2, 3]);
    }

    #[tokio::test]
    async fn running_modules_stay_until_their_node_is_long_gone() {
        let bench = PruneBench::new();
        for name in ["a", "bb", "ccc", "dddd"] {
            bench.push("one", name).await;
        }
        let one = ElectionName::new("one").unwrap();
        let is_good = edit_versions(&bench.store, &one, |control| {
            let version = ModuleVersion { digest: Digest::of(b"dddd").to_string(), serial: control.serial };
            let good = Judgement { version, term: 1, verdict: Verdict::Good };
            Ok::<_, EditError>(control.judge(&good, "n", ""))
        });
        assert!(is_good.await.unwrap());
        bench.said(Duration::hours(23), "alpha", "a", 0).await;
        bench.said(Duration::hours(25), "beta", "bb", 0).await;
        assert_eq!(sizes(&bench.prune(&[], 1, true).await.unwrap()).0, [2, 3]);
        assert_eq!(bench.nodes().await, ["alpha", "beta"]);
        assert_eq!(sizes(&bench.prune(&[], 1, false).await.unwrap()).0, [2, 3]);
        assert_eq!(bench.nodes().await, ["alpha"]);
    }

    #[tokio::test]
    async fn announcement_stays_while_only_it_knows_the_highest_term() {
        let bench = PruneBench::new();
        bench.push("one", "a").await;
        for (node, term) in [("alpha", 6), ("beta", 7), ("gamma", 0)] {
            bench.said(Duration::hours(25), node, "a", term).await;
        }
        bench.prune(&[], 1, false).await.unwrap();
        assert_eq!(bench.nodes().await, ["alpha", "beta"], "there is no record");
        let record = Record {
            term: 6,
            node: None,
            incarnation: String::new(),
            since: std::time::Duration::ZERO,
            lease: std::time::Duration::from_secs(15),
            module: None,
            outcome: None,
            failures: 0,
            released: true,
            paused_until: None,
            progress: None,
        };
        bench.store.request(&ElectionName::new("one").unwrap(), Op::Create { record }).await.unwrap();
        bench.prune(&[], 1, false).await.unwrap();
        assert_eq!(bench.nodes().await, ["beta"]);
    }

    #[tokio::test]
    async fn module_stored_again_since_the_listing_stays() {
        let bench = PruneBench::new();
        bench.put("a").await;
        bench.push("one", "bb").await;
        bench.advance(Duration::minutes(61));
        let stored = bench.store.modules().await.unwrap();
        let digest = bench.put("a").await;
        let pruner = Pruner { store: &bench.store, keep: 1, dry_run: false, now: bench.now() };
        let listed = stored.iter().find(|module| module.digest == digest).unwrap();
        assert!(!pruner.remove(listed).await.unwrap());
        assert_eq!(bench.left().await, [1, 2]);
    }

    #[tokio::test]
    async fn nothing_is_removed_if_an_election_is_unreadable_or_unknown() {
        let bench = PruneBench::new();
        bench.push("one", "a").await;
        bench.put("bb").await;
        bench.advance(Duration::minutes(61));
        let misspelt = bench.prune(&["on"], 1, false).await.unwrap_err();
        assert!(misspelt.to_string().contains("there is no election on"), "{misspelt}");
        let two = ElectionName::new("two").unwrap();
        bench.store.write_control(&two, None, "{\"format\":2}".into()).await.unwrap();
        let later = bench.prune(&["one"], 1, false).await.unwrap_err();
        assert!(format!("{later:#}").contains("format 2"), "{later:#}");
        assert_eq!(bench.left().await, [1, 2]);
    }
}
