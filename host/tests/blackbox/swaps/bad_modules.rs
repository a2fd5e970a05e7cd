//! Bad modules from each kind of module source. No bad module may run or stop the running version.

use std::os::unix::fs::symlink;
use std::path::PathBuf;

use baton_store::Digest;
use time::OffsetDateTime;

use super::versions::{Version, component};
use super::{LONG_GRACE, LONG_LEASE};
use crate::fleet::{ELECTION, Fleet};
use crate::minisign::Signer;
use crate::modules;
use crate::publisher::{Publisher, REPOSITORY, manifest};
use crate::registry::Registry;
use crate::scenarios;
use crate::store::Store;

scenarios! {
    on_sqlite: [
        bad_modules_in_the_store_neither_run_nor_stop_another,
    ],
}

/// Limit on the CPU time of a compilation. It suffices for the guest, but the slow module would take most of a minute.
const COMPILE_TIMEOUT: &str = "6s";

fn bad_modules_in_the_store_neither_run_nor_stop_another(fleet: Fleet) {
    bad_modules_neither_run_nor_stop_another(&fleet, &Source::Store);
}

#[test]
fn bad_modules_in_a_file_neither_run_nor_stop_another() {
    let fleet = Fleet::new(Store::sqlite());
    let file = Source::File(fleet.home.path().join("current"));
    bad_modules_neither_run_nor_stop_another(&fleet, &file);
}

#[test]
fn bad_modules_in_a_registry_neither_run_nor_stop_another() {
    bad_modules_neither_run_nor_stop_another(&Fleet::new(Store::sqlite()), &Source::Registry(Registry::start()));
}

#[test]
fn unpinned_version_is_not_run() {
    let fleet = Fleet::new(Store::sqlite());
    let [first, other, next] = ["works 1", "works 2", "works 3"].map(|name| fleet.version(name));
    fleet.push(&first);
    let pinned = [("--pin", &*first.digest), ("--pin", &*next.digest), LONG_LEASE, LONG_GRACE];
    let node = fleet.launch_pushed("alpha", &pinned).start();
    let term = fleet.runs(&first, 0).term;
    fleet.push(&other);
    let refused = node.event("the refusal", |event| event.name == "module_refused");
    assert_eq!(refused.text("module"), other.digest, "{refused:?}");
    assert!(refused.text("error").contains(&format!("--pin {}", other.digest)), "{refused:?}");
    fleet.push(&next);
    let between = fleet.between(term, fleet.runs(&next, term).term);
    assert!(between <= fleet.failures(&first) + fleet.failures(&next), "{between} ran in between");
    assert_eq!((fleet.starts(&other), fleet.events("module_refused").len()), (0, 1));
    fleet.check_that_it_led_throughout(&node);
    fleet.check_swaps();
    fleet.check_the_count();
}

fn bad_modules_neither_run_nor_stop_another(fleet: &Fleet, source: &Source) {
    let signer = Signer::with_new_key();
    let [first, next] = ["works 1", "works 2"].map(|name| {
        let version = fleet.version(name);
        let signature = signer.sign(&version.bytes());
        std::fs::write(format!("{}.minisig", version.path.display()), signature).expect("written");
        version
    });
    source.publish(fleet, &first);
    let trust = signer.public().display().to_string();
    let flags = [("--trust", &*trust), ("--compile-timeout", COMPILE_TIMEOUT), LONG_LEASE, LONG_GRACE];
    let node = fleet.launch_from("alpha", source.name(), &flags).start();
    let term = fleet.runs(&first, 0).term;

    let bad = bad_modules(&signer, source, fleet.store.is_sqlite());
    for (number, (module, why)) in bad.iter().enumerate() {
        source.offer(fleet, module);
        let refused = fleet
            .journal
            .wait(why, |events| events.iter().filter(|event| event.name == "module_refused").nth(number).cloned());
        assert!(refused.text("error").contains(why), "not {why:?}: {refused:?}");
        let now = OffsetDateTime::now_utc();
        let beat = fleet.beat("the old version to go on", |event| event.ts > now);
        assert!(beat.term == term && first.printed(beat.text("line")), "{beat:?}");
    }
    source.publish(fleet, &next);
    let between = fleet.between(term, fleet.runs(&next, term).term);
    assert!(between <= fleet.failures(&first) + fleet.failures(&next), "{between} ran in between");
    assert_eq!(fleet.starts(&first) + fleet.starts(&next), fleet.events("started").len(), "nothing else ran");
    let refused = fleet.events("module_refused");
    assert_eq!(refused.len(), bad.len(), "each module is refused once: {refused:?}");
    fleet.check_that_it_led_throughout(&node);
    fleet.check_swaps();
    fleet.check_the_count();
}

/// Returns bad modules, each with a part of the error that hosts report when they refuse that module.
fn bad_modules(signer: &Signer, source: &Source, with_slow: bool) -> Vec<(Offered, &'static str)> {
    let stranger = Signer::with_new_key();
    let damaged = |name: &str, damage: &dyn Fn(&mut Vec<u8>)| {
        let whole = component(name);
        let (mut bytes, signature) = (whole.clone(), Some(signer.sign(&whole)));
        damage(&mut bytes);
        Offered { whole, bytes, signature }
    };
    let undamaged = |bytes: Vec<u8>, signature| Offered { whole: bytes.clone(), bytes, signature };
    let signed = |bytes: Vec<u8>| {
        let signature = Some(signer.sign(&bytes));
        undamaged(bytes, signature)
    };
    let (half, others) = (component("works 3").len() / 2, component("works 1"));
    let mut bad = vec![
        (damaged("works 3", &|bytes| bytes.truncate(half)), source.damage_error()),
        (damaged("works 4", &|bytes| bytes[half] ^= 1), source.damage_error()),
        (signed(component("works 5")[..half].to_vec()), "cannot be compiled"),
        (undamaged(component("works 6"), None), "is not signed,"),
        (undamaged(component("works 7"), Some(stranger.sign(&component("works 7")))), "a key that this host trusts"),
        (undamaged(component("works 8"), Some(signer.sign(&others))), "does not match the module"),
        (signed(modules::component("", "baton:host/task@0.9.0")), "update the host"),
        (signed(vec![0; (64 << 20) + 1]), source.size_error()),
    ];
    // Hosts refuse this module only after 6 s of CPU time, wherever they load it from. So only one test includes it.
    if with_slow {
        bad.push((signed(modules::slow()), "more than 6s of CPU time"));
    }
    bad
}

/// `bytes` is the content that the source serves: `whole`, or a damaged copy of it.
struct Offered {
    whole: Vec<u8>,
    bytes: Vec<u8>,
    signature: Option<String>,
}

enum Source {
    /// A symbolic link to the module's folder. Replacing the link changes the module and its signature at the same
    /// time.
    File(PathBuf),
    Store,
    Registry(Registry),
}

impl Source {
    fn name(&self) -> String {
        match self {
            Self::File(folder) => folder.join("job.wasm").display().to_string(),
            Self::Store => format!("store://{ELECTION}"),
            Self::Registry(registry) => format!("oci://{}/{REPOSITORY}:1", registry.address()),
        }
    }

    fn publish(&self, fleet: &Fleet, version: &Version) {
        if matches!(self, Self::Store) {
            return fleet.push(version);
        }
        let (bytes, signature) = (version.bytes(), format!("{}.minisig", version.path.display()));
        let signature = Some(std::fs::read_to_string(signature).expect("a signature"));
        self.offer(fleet, &Offered { whole: bytes.clone(), bytes, signature });
    }

    fn offer(&self, fleet: &Fleet, Offered { whole, bytes, signature }: &Offered) {
        let digest = Digest::of(whole);
        match self {
            Self::File(current) => {
                let folder = tempfile::tempdir_in(fleet.home.path()).expect("a folder").keep();
                std::fs::write(folder.join("job.wasm"), bytes).expect("written");
                if let Some(text) = signature {
                    std::fs::write(folder.join("job.wasm.minisig"), text).expect("written");
                }
                symlink(&folder, folder.join("link")).expect("a link");
                std::fs::rename(folder.join("link"), current).expect("the link is renamed");
            }
            Self::Store => fleet.publish(&digest.to_string(), bytes.clone(), signature.clone()),
            Self::Registry(registry) => {
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
                runtime.block_on(async {
                    let publisher = Publisher::of(registry);
                    let mut manifest = manifest(&[publisher.layer("application/wasm", whole).await]);
                    if bytes != whole {
                        std::fs::write(registry.blob(&digest.hex()), bytes).expect("the blob is damaged");
                    }
                    if let Some(text) = signature {
                        manifest["annotations"] = serde_json::json!({ "dev.baton.minisig": text });
                    }
                    publisher.push_manifest("1", &manifest).await;
                });
            }
        }
    }

    fn size_error(&self) -> &'static str {
        match self {
            Self::File(_) | Self::Store => "the limit is 64 MiB",
            Self::Registry(_) => "at most 67108864 bytes",
        }
    }

    fn damage_error(&self) -> &'static str {
        match self {
            Self::File(_) => "does not match the module",
            Self::Store => "has different content",
            Self::Registry(_) => "is damaged",
        }
    }
}
