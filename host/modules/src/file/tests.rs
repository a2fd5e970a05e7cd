//! Tests that replace a watched file in all the usual ways.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on fails")]

use std::fs::{self, File};
use std::fs::{OpenOptions, Permissions};
use std::io::Write;
use std::os::unix::fs::{PermissionsExt, symlink};

use tempfile::TempDir;

use baton_test_support::fuse::Fuse;
use baton_test_support::patience::Patience;

use super::*;

const NEVER: Duration = Duration::from_secs(3600);

/// If nothing happens for this long, a test concludes that nothing will happen. Events take only a fraction of this
/// time.
const A_WHILE: Duration = Duration::from_millis(700);

fn component(text: &str) -> Vec<u8> {
    let mut bytes = b"\0asm\x0d\0\x01\0".to_vec();
    let size = u8::try_from(text.len() + 2).unwrap();
    assert!(size < 0x80, "a longer one needs more digits");
    bytes.extend([0, size, 1, b'x']);
    bytes.extend(text.as_bytes());
    bytes
}

fn source(path: &Path) -> FileSource {
    FileSource::new(path.to_owned())
}

/// A source that checks its files only after inotify has reported a change.
fn hinted(path: &Path) -> FileSource {
    FileSource { pace: WatchIntervals { poll: NEVER, ..PACE }, ..source(path) }
}

/// A source that waits forever until a half-written file is complete.
fn patient(path: &Path) -> FileSource {
    FileSource { pace: WatchIntervals { patience: NEVER, ..PACE }, ..source(path) }
}

async fn next(source: &mut FileSource) -> Result<Offer, SourceError> {
    Patience::of_future(source.next()).await.expect("nothing is offered")
}

async fn offered(source: &mut FileSource) -> Vec<u8> {
    next(source).await.unwrap().bytes.to_vec()
}

async fn says_nothing(source: &mut FileSource) {
    let said = tokio::time::timeout(A_WHILE, source.next()).await;
    assert!(said.is_err(), "{said:?}");
}

/// Makes the change only once the source is idle. Otherwise, the source might find the change without inotify.
async fn offered_upon(source: &mut FileSource, change: impl FnOnce()) -> Vec<u8> {
    let mut patience = Patience::default();
    loop {
        let early = tokio::time::timeout(PACE.settle, source.next()).await;
        assert!(early.is_err(), "{early:?}");
        // The next check of a source with a watch must be far in the future, so that only a hint can start the check. A
        // source without a watch gets no hints, and may check its files soon.
        let rests = if source.watch.is_some() { NEVER / 2 } else { Duration::ZERO };
        if source.looks_at.is_some_and(|at| at > Instant::now() + rests) {
            break;
        }
        assert!(patience.lasts(), "it does not rest");
    }
    change();
    offered(source).await
}

fn folder() -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("job.wasm");
    (folder, path)
}

fn replace(path: &Path, bytes: &[u8]) {
    let aside = path.with_extension("new");
    fs::write(&aside, bytes).unwrap();
    fs::rename(&aside, path).unwrap();
}

#[tokio::test]
async fn first_offer_is_the_file_or_the_reason_why_not() {
    let (_folder, path) = folder();
    fs::write(&path, component("one")).unwrap();
    assert_eq!(offered(&mut source(&path)).await, component("one"));
    // The source does not check the content of a module. The node checks the content later, when it prepares the
    // module.
    fs::write(&path, "text").unwrap();
    assert_eq!(offered(&mut patient(&path)).await, b"text");

    let wrong = |path: &Path, words: &str| {
        let (mut source, words) = (patient(path), words.to_owned());
        async move {
            let error = next(&mut source).await.unwrap_err();
            assert!(matches!(error, SourceError::Unusable(_)) && error.to_string().contains(&words), "{error:?}");
            says_nothing(&mut source).await;
        }
    };
    let missing = path.with_file_name("missing.wasm");
    let words = format!("there is no module at {}: build the module", missing.display());
    wrong(&missing, &words).await;
    wrong(&path.join("below"), "Not a directory").await;
    wrong(path.parent().unwrap(), "is a folder or a device, not a regular file").await;
    fs::write(&path, "").unwrap();
    wrong(&path, "is empty: was the build interrupted?").await;
    File::create(&path).unwrap().set_len((64 << 20) + 1).unwrap();
    wrong(&path, "has 65 MiB; the limit is 64 MiB").await;
    fs::remove_file(&path).unwrap();
    symlink(&path, &path).unwrap();
    wrong(&path, "cannot read the module").await;
}

#[tokio::test]
async fn file_is_offered_when_replaced_or_overwritten() {
    let (_folder, path) = folder();
    fs::write(&path, component("0")).unwrap();
    let mut source = hinted(&path);
    next(&mut source).await.unwrap();
    for version in ["1", "2"] {
        let replaced = offered_upon(&mut source, || replace(&path, &component(version))).await;
        assert_eq!(replaced, component(version));
    }
    let overwritten = offered_upon(&mut source, || fs::write(&path, component("3")).unwrap()).await;
    assert_eq!(overwritten, component("3"));
}

#[tokio::test]
async fn last_of_many_changes_is_offered() {
    let (_folder, path) = folder();
    fs::write(&path, component("first")).unwrap();
    let mut source = hinted(&path);
    next(&mut source).await.unwrap();
    for version in 0..100 {
        replace(&path, &component(&version.to_string()));
    }
    assert_eq!(offered(&mut source).await, component("99"));
    says_nothing(&mut source).await;
}

#[tokio::test]
async fn file_overwritten_in_place_is_offered_once_complete() {
    let (_folder, path) = folder();
    fs::write(&path, component("old")).unwrap();
    let mut source = patient(&path);
    next(&mut source).await.unwrap();
    let new = component("a longer one");
    let mut file = OpenOptions::new().write(true).truncate(true).open(&path).unwrap();
    // At first the file is empty. Then the file ends within the preamble, and then within a section. Each of these
    // states lasts longer than the settling time.
    for part in [&new[..0], &new[..6], &new[6..15]] {
        file.write_all(part).unwrap();
        says_nothing(&mut source).await;
    }
    // The file is complete, although its writer has not closed it yet.
    file.write_all(&new[15..]).unwrap();
    assert_eq!(offered(&mut source).await, new);
}

#[tokio::test]
async fn file_is_not_offered_while_it_keeps_changing() {
    let (_folder, path) = folder();
    fs::write(&path, component("old")).unwrap();
    let mut source = FileSource { pace: WatchIntervals { settle: NEVER, ..PACE }, ..source(&path) };
    next(&mut source).await.unwrap();
    replace(&path, &component("new"));
    says_nothing(&mut source).await;
    source.pace.settle = Duration::ZERO;
    assert_eq!(offered(&mut source).await, component("new"));
}

#[tokio::test]
async fn file_that_stays_incomplete_is_offered_eventually() {
    let (_folder, path) = folder();
    fs::write(&path, component("old")).unwrap();
    let mut source = hinted(&path);
    next(&mut source).await.unwrap();
    let half = &component("new")[..10];
    fs::write(&path, half).unwrap();
    assert_eq!(offered(&mut source).await, half);
}

#[tokio::test]
async fn file_is_offered_when_its_link_is_flipped() {
    // Kubernetes updates a ConfigMap in this way. The file is a link that leads through another link, `..data`. To
    // update the file, Kubernetes makes `..data` point to a new folder.
    let (folder, path) = folder();
    let flip = |version: &str| {
        let data = folder.path().join(format!("..{version}"));
        fs::create_dir(&data).unwrap();
        fs::write(data.join("job.wasm"), component(version)).unwrap();
        fs::write(data.join("job.wasm.minisig"), version).unwrap();
        let link = folder.path().join("..data_tmp");
        symlink(format!("..{version}"), &link).unwrap();
        fs::rename(link, folder.path().join("..data")).unwrap();
    };
    flip("2026_11_20");
    symlink("..data/job.wasm", &path).unwrap();
    symlink("..data/job.wasm.minisig", signature_of(&path)).unwrap();
    let mut source = hinted(&path);
    next(&mut source).await.unwrap();
    assert_eq!(offered_upon(&mut source, || flip("2026_11_21")).await, component("2026_11_21"));
    flip("2026_11_22");
    let offer = next(&mut source).await.unwrap();
    let version = "2026_11_22";
    assert_eq!((&offer.bytes[..], offer.signature.as_deref()), (&component(version)[..], Some(version)));
    says_nothing(&mut source).await;
}

#[tokio::test]
async fn file_is_offered_when_a_link_on_its_path_is_flipped() {
    // Deployments that keep several releases use such a path: `current` is a link to one of the releases.
    let folder = tempfile::tempdir().unwrap();
    let flip = |version: &str| {
        fs::create_dir_all(folder.path().join("releases").join(version).join("bin")).unwrap();
        let file = format!("releases/{version}/bin/job.wasm");
        fs::write(folder.path().join(file), component(version)).unwrap();
        let link = folder.path().join("next");
        symlink(folder.path().join("releases").join(version), &link).unwrap();
        fs::rename(link, folder.path().join("current")).unwrap();
    };
    flip("1");
    let mut source = hinted(&folder.path().join("releases/../current/./bin/job.wasm"));
    assert_eq!(offered(&mut source).await, component("1"));
    assert_eq!(offered_upon(&mut source, || flip("2")).await, component("2"));
}

#[tokio::test]
async fn vanished_file_is_reported_once_and_offered_when_back() {
    let (_folder, path) = folder();
    fs::write(&path, component("old")).unwrap();
    let mut source = hinted(&path);
    next(&mut source).await.unwrap();
    fs::remove_file(&path).unwrap();
    let error = next(&mut source).await.unwrap_err();
    assert!(matches!(&error, SourceError::Unusable(text) if text.contains("there is no module")), "{error:?}");
    says_nothing(&mut source).await;
    fs::write(&path, component("new")).unwrap();
    assert_eq!(offered(&mut source).await, component("new"));
    // After an error, the source offers the content again, even if it is unchanged.
    let aside = path.with_extension("aside");
    fs::rename(&path, &aside).unwrap();
    assert_eq!(next(&mut source).await, Err(error));
    fs::rename(&aside, &path).unwrap();
    assert_eq!(offered(&mut source).await, component("new"));
}

#[tokio::test]
async fn file_that_vanishes_briefly_is_not_reported() {
    let (_folder, path) = folder();
    fs::write(&path, component("old")).unwrap();
    let mut source = patient(&path);
    next(&mut source).await.unwrap();
    fs::remove_file(&path).unwrap();
    says_nothing(&mut source).await;
    fs::write(&path, component("old")).unwrap();
    says_nothing(&mut source).await;
    fs::write(&path, component("new")).unwrap();
    assert_eq!(offered(&mut source).await, component("new"));
}

#[tokio::test]
async fn file_is_offered_when_its_folder_is_replaced() {
    let folder = tempfile::tempdir().unwrap();
    let (there, aside) = (folder.path().join("there"), folder.path().join("aside"));
    let path = there.join("job.wasm");
    fs::create_dir(&there).unwrap();
    fs::write(&path, component("old")).unwrap();
    let mut source = source(&path);
    next(&mut source).await.unwrap();
    fs::rename(&there, &aside).unwrap();
    fs::create_dir(&there).unwrap();
    fs::write(&path, component("new")).unwrap();
    assert_eq!(offered(&mut source).await, component("new"));
    // The source also watches the new folder.
    source.pace.poll = NEVER;
    let newer = offered_upon(&mut source, || replace(&path, &component("newer"))).await;
    assert_eq!(newer, component("newer"));
}

#[tokio::test]
async fn source_checks_more_often_when_changes_give_no_hint() {
    let local = tempfile::tempdir().unwrap();
    let shared = Fuse::mount("job.wasm");
    let shared = shared.as_ref().map(|shared| (shared.path(), PACE.shared));
    for (folder, rests) in [(local.path(), PACE.poll)].into_iter().chain(shared) {
        let mut source = source(&folder.join("job.wasm"));
        source.look().await;
        assert_eq!(source.rests, PACE.unwatched, "{}", folder.display());
        source.watch = Some(Arc::new(Watch::new().unwrap()));
        source.look().await;
        assert_eq!(source.rests, rests, "{}", folder.display());
    }
}

#[tokio::test]
async fn file_is_offered_when_its_missing_folder_returns() {
    let folder = tempfile::tempdir().unwrap();
    let there = folder.path().join("there");
    let path = there.join("job.wasm");
    let mut source = hinted(&path);
    next(&mut source).await.unwrap_err();
    says_nothing(&mut source).await;
    fs::create_dir(&there).unwrap();
    fs::write(&path, component("new")).unwrap();
    assert_eq!(offered(&mut source).await, component("new"));
    // The file is moved away and back. Its content and all its timestamps are unchanged.
    let aside = folder.path().join("aside");
    fs::rename(&there, &aside).unwrap();
    next(&mut source).await.unwrap_err();
    fs::rename(&aside, &there).unwrap();
    assert_eq!(offered(&mut source).await, component("new"));
}

#[tokio::test]
async fn unchanged_content_is_not_offered_again() {
    let (_folder, path) = folder();
    fs::write(&path, component("old")).unwrap();
    let mut source = hinted(&path);
    next(&mut source).await.unwrap();
    replace(&path, &component("old"));
    says_nothing(&mut source).await;
    fs::write(&path, component("old")).unwrap();
    says_nothing(&mut source).await;
    fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
    says_nothing(&mut source).await;
}

#[tokio::test]
async fn content_of_the_same_size_and_time_is_offered_if_it_differs() {
    let (_folder, path) = folder();
    fs::write(&path, component("old")).unwrap();
    let times = fs::metadata(&path).unwrap();
    let mut source = hinted(&path);
    next(&mut source).await.unwrap();
    fs::write(&path, component("new")).unwrap();
    File::open(&path).unwrap().set_modified(times.modified().unwrap()).unwrap();
    assert_eq!(offered(&mut source).await, component("new"));
}

#[tokio::test]
async fn file_is_offered_when_only_its_signature_changes() {
    let (_folder, path) = folder();
    let signature = path.with_file_name("job.wasm.minisig");
    fs::write(&path, component("signed")).unwrap();
    let mut source = hinted(&path);
    assert_eq!(next(&mut source).await.unwrap().signature, None);
    for text in ["by one key", "by another"] {
        fs::write(&signature, text).unwrap();
        let offer = next(&mut source).await.unwrap();
        assert_eq!((&offer.bytes[..], offer.signature.as_deref()), (&component("signed")[..], Some(text)));
    }
    fs::remove_file(&signature).unwrap();
    assert_eq!(next(&mut source).await.unwrap().signature, None);
    fs::create_dir(&signature).unwrap();
    let error = next(&mut source).await.unwrap_err();
    assert!(error.to_string().contains("job.wasm.minisig is not a signature"), "{error}");
}

#[tokio::test]
async fn source_sees_changes_without_hints() {
    let (_folder, path) = folder();
    fs::write(&path, component("old")).unwrap();
    let mut source = hinted(&path);
    next(&mut source).await.unwrap();
    source.watch = None;
    let new = offered_upon(&mut source, || replace(&path, &component("new"))).await;
    assert_eq!(new, component("new"));
}

#[tokio::test]
async fn change_is_not_lost_when_next_is_dropped() {
    let (_folder, path) = folder();
    fs::write(&path, component("old")).unwrap();
    let mut source = hinted(&path);
    next(&mut source).await.unwrap();
    replace(&path, &component("new"));
    // Each call is canceled before the file has settled, but together the calls last long enough.
    let mut patience = Patience::default();
    let offer = loop {
        if let Ok(offer) = tokio::time::timeout(PACE.settle / 2, source.next()).await {
            break offer.unwrap();
        }
        assert!(patience.lasts(), "each time it begins anew");
    };
    assert_eq!(offer.bytes, component("new"));
}
