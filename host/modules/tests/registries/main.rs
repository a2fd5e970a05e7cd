//! Tests of modules from a real registry: Debian's docker-registry, on loopback.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on fails")]
#![allow(clippy::disallowed_methods, reason = "nobody suspends the machine while it is tested")]

mod failing;
mod fake;
mod helpers;
mod remote;
mod tokens;

use std::time::Duration;

use base64::prelude::{BASE64_STANDARD, Engine as _};
use baton_modules::{OciSource, Offer, RegistryCredentials, Source, SourceError};
use baton_store::Digest;

use serde_json::{Value, json};
use tokio::time::timeout;

use baton_test_support::patience::Patience;
use baton_test_support::publisher::{INDEX, MANIFEST, Publisher, REPOSITORY, manifest};
use baton_test_support::registry::{Registry, USER};

#[tokio::test]
async fn a_tag_is_pulled_and_followed() {
    let registry = Registry::start();
    let publisher = Publisher::of(&registry);
    publisher.push("1", b"first").await;
    let mut source = source(&registry, ":1");
    assert_eq!(offered(&mut source).await, unsigned(b"first"));

    publisher.push("2", b"another tag").await;
    looked(&mut source, || registry.requests("HEAD", "manifests/1") >= 3).await;
    assert_eq!(registry.requests("GET", "manifests/"), 1, "what has not changed is not pulled");

    publisher.push("1", b"second").await;
    assert_eq!(offered(&mut source).await, unsigned(b"second"));
}

#[tokio::test]
async fn a_digest_is_pulled_once() {
    let registry = Registry::start();
    let publisher = Publisher::of(&registry);
    let digest = publisher.push("1", b"first").await;
    publisher.push("1", b"second").await;
    let mut source = source(&registry, &format!("@{digest}"));
    assert_eq!(offered(&mut source).await, unsigned(b"first"));
    let asked = || registry.requests("GET", "") + registry.requests("HEAD", "");
    let before = asked();
    // If the reference were a tag, the source would poll at least twice during this time.
    timeout(Duration::from_secs(25), source.next()).await.expect_err("nothing can change");
    // The count may be one too high: the registry may log the last request of the pull only now.
    assert!(asked() <= before + 1, "nobody is asked: {}", registry.log());
}

#[tokio::test]
async fn pull_continues_when_next_is_dropped() {
    let registry = Registry::start();
    Publisher::of(&registry).push("1", b"first").await;
    let mut source = source(&registry, ":1");
    let offer = async {
        loop {
            // This timeout is too short for a whole pull, so the pull takes many calls.
            if let Ok(offer) = timeout(Duration::from_micros(100), source.next()).await {
                return offer;
            }
        }
    };
    assert_eq!(Patience::of_future(offer).await, Ok(Ok(unsigned(b"first"))));
    let asked = Patience::poll(Duration::from_millis(10), || {
        Some(registry.requests("GET", "manifests/")).filter(|asked| *asked > 0)
    });
    assert_eq!(asked, Ok(1), "each step is done once");
}

#[tokio::test]
async fn offer_includes_the_signature_of_the_manifest() {
    let registry = Registry::start();
    let publisher = Publisher::of(&registry);
    let mut manifest = manifest(&[publisher.layer("application/wasm", b"first").await]);
    publisher.push_manifest("1", &manifest).await;
    let mut source = source(&registry, ":1");
    assert_eq!(offered(&mut source).await, unsigned(b"first"));
    manifest["annotations"] = json!({"dev.baton.minisig": "untrusted comment: none\n"});
    publisher.push_manifest("1", &manifest).await;
    let signature = Some("untrusted comment: none\n".to_owned());
    let signed = Offer { signature, ..unsigned(b"first") };
    assert_eq!(offered(&mut source).await, signed, "the same module, signed anew, is offered anew");
}

#[tokio::test]
async fn an_index_leads_to_its_module() {
    let registry = Registry::start();
    let publisher = Publisher::of(&registry);
    let manifest = manifest(&[publisher.layer("application/vnd.wasm.content.layer.v1+wasm", b"first").await]);
    let digest = publisher.push_manifest("only", &manifest).await;
    let size = serde_json::to_vec(&manifest).unwrap().len();
    let entry = json!({"mediaType": MANIFEST, "digest": digest, "size": size});
    let index = json!({"schemaVersion": 2, "mediaType": INDEX, "manifests": [entry]});
    publisher.push_manifest("1", &index).await;
    assert_eq!(offered(&mut source(&registry, ":1")).await, unsigned(b"first"));
}

#[tokio::test]
async fn image_is_refused_once_until_the_tag_moves() {
    let registry = Registry::start();
    let publisher = Publisher::of(&registry);
    let tar = "application/vnd.oci.image.layer.v1.tar";
    publisher.push_manifest("1", &manifest(&[publisher.layer(tar, b"an image").await])).await;
    let mut source = source(&registry, ":1");
    let why = unusable(&mut source).await;
    for part in ["is not a module", tar, "wkg oci push", "oras push", REPOSITORY] {
        assert!(why.contains(part), "{why}");
    }
    looked(&mut source, || registry.requests("HEAD", "manifests/1") >= 3).await;
    assert_eq!(registry.requests("GET", "manifests/"), 1, "it is not pulled again");
    publisher.push("1", b"first").await;
    assert_eq!(offered(&mut source).await, unsigned(b"first"));
}

#[tokio::test]
async fn missing_tag_is_offered_once_it_is_pushed() {
    let registry = Registry::start();
    let mut source = source(&registry, ":1");
    let why = unusable(&mut source).await;
    assert!(why.contains(&format!("has no {}/{REPOSITORY}:1", registry.address())), "{why}");
    let publisher = Publisher::of(&registry);
    publisher.push("2", b"another tag").await;
    looked(&mut source, || registry.requests("HEAD", "manifests/1") >= 3).await;
    publisher.push("1", b"first").await;
    assert_eq!(offered(&mut source).await, unsigned(b"first"));
}

#[tokio::test]
async fn a_module_that_is_too_large_is_not_pulled() {
    let registry = Registry::start();
    let publisher = Publisher::of(&registry);
    let mut layer = publisher.layer("application/wasm", b"first").await;
    layer["size"] = json!((64 << 20) + 1);
    publisher.push_manifest("1", &manifest(&[layer])).await;
    let why = unusable(&mut source(&registry, ":1")).await;
    assert!(why.contains("at most 67108864 bytes"), "{why}");
    assert_eq!(registry.requests("GET", "blobs/"), 0);
}

#[tokio::test]
async fn module_is_refused_when_its_size_differs_from_the_manifest() {
    let registry = Registry::start();
    let publisher = Publisher::of(&registry);
    for (tag, size) in [("1", 4), ("2", 6)] {
        let mut layer = publisher.layer("application/wasm", b"first").await;
        layer["size"] = json!(size);
        publisher.push_manifest(tag, &manifest(&[layer])).await;
        let why = unusable(&mut source(&registry, &format!(":{tag}"))).await;
        assert!(why.contains("is damaged") && why.contains(&format!("{size} bytes")), "{why}");
    }
}

#[tokio::test]
async fn damaged_module_is_refused_until_it_is_repaired() {
    let registry = Registry::start();
    Publisher::of(&registry).push("1", b"first").await;
    let blob = registry.blob(&Digest::of(b"first").hex());
    std::fs::write(&blob, b"fIrst").unwrap();
    let mut source = source(&registry, ":1");
    let why = unusable(&mut source).await;
    assert!(why.contains("is damaged") && why.contains("push it again"), "{why}");
    std::fs::write(&blob, b"first").unwrap();
    assert_eq!(offered(&mut source).await, unsigned(b"first"));
}

#[tokio::test]
async fn a_damaged_manifest_is_refused() {
    let registry = Registry::start();
    let digest = Publisher::of(&registry).push("1", b"first").await;
    let blob = registry.blob(digest.strip_prefix("sha256:").unwrap());
    let mut bytes = std::fs::read(&blob).unwrap();
    let place = bytes.windows(5).position(|part| part == b"layer").unwrap();
    bytes[place] ^= 1;
    std::fs::write(&blob, bytes).unwrap();
    let error = told(&mut source(&registry, ":1")).await.unwrap_err();
    assert!(error.to_string().contains(REPOSITORY), "{error}");
}

#[tokio::test]
async fn source_recovers_when_the_registry_comes_back() {
    let mut registry = Registry::start();
    let publisher = Publisher::of(&registry);
    publisher.push("1", b"first").await;
    registry.stop();
    let mut source = source(&registry, ":1");
    let why = unreachable(&mut source).await;
    assert!(why.contains(&registry.address().to_string()) && why.contains("refused"), "{why}");
    registry.restart();
    assert_eq!(offered(&mut source).await, unsigned(b"first"));

    registry.stop();
    unreachable(&mut source).await;
    registry.restart();
    publisher.push("1", b"second").await;
    assert_eq!(offered(&mut source).await, unsigned(b"second"), "and not the first one again");
}

#[tokio::test]
async fn credentials_are_read_from_dockers_configuration() {
    let registry = Registry::start_closed();
    Publisher::of(&registry).push("1", b"first").await;
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("config.json");
    let login = |password: &str| {
        let auth = BASE64_STANDARD.encode(format!("{}:{password}", USER.0));
        let config = json!({"auths": {registry.address().to_string(): {"auth": auth}}});
        std::fs::write(&file, config.to_string()).unwrap();
    };
    let mut source = source_with(&registry, ":1", RegistryCredentials::of_files([file.clone()]));

    let why = unusable(&mut source).await;
    assert!(why.contains("without credentials") && why.contains("docker login"), "{why}");
    login("guessed-wrong");
    let why = unusable(&mut source).await;
    assert!(why.contains(&file.display().to_string()) && !why.contains("guessed-wrong"), "{why}");
    std::fs::write(&file, r#"{"auths": {"hush"#).unwrap();
    let why = unusable(&mut source).await;
    assert!(why.contains(&file.display().to_string()) && !why.contains("hush"), "{why}");
    login(USER.1);
    assert_eq!(offered(&mut source).await, unsigned(b"first"));
}

fn described(module: &[u8]) -> String {
    let layer = json!({"mediaType": "application/wasm", "digest": Digest::of(module), "size": module.len()});
    manifest(&[layer]).to_string()
}

fn source(registry: &Registry, rest: &str) -> OciSource {
    source_with(registry, rest, RegistryCredentials::default())
}

fn source_with(registry: &Registry, rest: &str, credentials: RegistryCredentials) -> OciSource {
    let reference = format!("{}/{REPOSITORY}{rest}", registry.address());
    OciSource::new(reference.parse().unwrap(), credentials)
}

async fn offered(source: &mut OciSource) -> Offer {
    told(source).await.unwrap()
}

async fn told(source: &mut OciSource) -> Result<Offer, SourceError> {
    Patience::of_future(source.next()).await.expect("the source tells something")
}

async fn unusable(source: &mut OciSource) -> String {
    match told(source).await {
        Err(SourceError::Unusable(why)) => why,
        other => panic!("it should be unusable: {other:?}"),
    }
}

async fn unreachable(source: &mut OciSource) -> String {
    match told(source).await {
        Err(SourceError::Unreachable(why)) => why,
        other => panic!("it should be unreachable: {other:?}"),
    }
}

/// Keeps the source running until `enough` returns true. Fails if the source offers anything in the meantime.
async fn looked(source: &mut OciSource, enough: impl Fn() -> bool) {
    let seen = async {
        while !enough() {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::select! {
        told = source.next() => panic!("it should tell nothing: {told:?}"),
        seen = Patience::of_future(seen) => seen.expect("it asks"),
    }
}

fn unsigned(bytes: &'static [u8]) -> Offer {
    Offer { bytes: bytes.into(), signature: None }
}
