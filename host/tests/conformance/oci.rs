//! Modules from a real registry: Debian's docker-registry on loopback.

use std::time::Duration;

use baton::modules::{Credentials, Digest, OciSource, Offer, Source, SourceError};
use oci_client::client::{ClientConfig, ClientProtocol};
use oci_client::manifest::OCI_IMAGE_MEDIA_TYPE;
use oci_client::secrets::RegistryAuth;
use oci_client::{Client, Reference};
use serde_json::{Value, json};
use tokio::time::timeout;

use crate::registry::{Registry, USER};

const REPOSITORY: &str = "acme/billing";
/// Longer than any wait of a source, on a machine that does other things besides.
const SOON: Duration = Duration::from_secs(120);

#[tokio::test]
async fn a_tag_is_pulled_and_followed() {
    let registry = Registry::start();
    let publisher = Publisher::of(&registry);
    publisher.push("1", b"first").await;
    let mut source = source(&registry, ":1");
    assert_eq!(offered(&mut source).await, unsigned(b"first"));
    publisher.push("2", b"another tag").await;
    publisher.push("1", b"second").await;
    assert_eq!(offered(&mut source).await, unsigned(b"second"));
}

fn source(registry: &Registry, rest: &str) -> OciSource {
    source_with(registry, rest, Credentials::default())
}

fn source_with(registry: &Registry, rest: &str, credentials: Credentials) -> OciSource {
    let reference = format!("{}/{REPOSITORY}{rest}", registry.address());
    OciSource::new(reference.parse().unwrap(), credentials)
}

async fn offered(source: &mut OciSource) -> Offer {
    told(source).await.unwrap()
}

async fn told(source: &mut OciSource) -> Result<Offer, SourceError> {
    timeout(SOON, source.next()).await.expect("the source tells something")
}

fn unsigned(bytes: &'static [u8]) -> Offer {
    Offer { bytes: bytes.into(), signature: None }
}

/// Who puts things into a registry.
struct Publisher {
    client: Client,
    registry: String,
    auth: RegistryAuth,
}

impl Publisher {
    fn of(registry: &Registry) -> Self {
        // The sources under test share it.
        let _ = tokio_rustls::rustls::crypto::ring::default_provider().install_default();
        let config = ClientConfig { protocol: ClientProtocol::Http, ..ClientConfig::default() };
        let auth = RegistryAuth::Basic(USER.0.to_owned(), USER.1.to_owned());
        Self { client: Client::try_from(config).unwrap(), registry: registry.address().to_string(), auth }
    }

    /// Pushes a module as `wkg oci push` does. Returns its manifest's digest.
    async fn push(&self, tag: &str, module: &'static [u8]) -> String {
        let manifest = manifest(&[self.layer("application/wasm", module).await]);
        self.push_manifest(tag, &manifest).await
    }

    /// Puts a blob there. Returns its description.
    async fn layer(&self, media_type: &str, blob: &'static [u8]) -> Value {
        let digest = Digest::of(blob).to_string();
        self.client.store_auth_if_needed(&self.registry, &self.auth).await;
        self.client.push_blob(&self.reference("any"), blob, &digest).await.unwrap();
        json!({"mediaType": media_type, "digest": digest, "size": blob.len()})
    }

    /// Puts a manifest there, and what it has for a configuration. Returns its digest.
    async fn push_manifest(&self, tag: &str, manifest: &Value) -> String {
        let config: &[u8] = b"{}";
        self.client.store_auth_if_needed(&self.registry, &self.auth).await;
        self.client.push_blob(&self.reference("any"), config, &Digest::of(config).to_string()).await.unwrap();
        let bytes = serde_json::to_vec(manifest).unwrap();
        let digest = Digest::of(&bytes).to_string();
        let media_type = manifest["mediaType"].as_str().unwrap().parse().unwrap();
        self.client.push_manifest_raw(&self.reference(tag), bytes, media_type).await.unwrap();
        digest
    }

    fn reference(&self, tag: &str) -> Reference {
        Reference::with_tag(self.registry.clone(), REPOSITORY.to_owned(), tag.to_owned())
    }
}

fn manifest(layers: &[Value]) -> Value {
    json!({
        "schemaVersion": 2,
        "mediaType": OCI_IMAGE_MEDIA_TYPE,
        "config": {"mediaType": "application/vnd.wasm.config.v0+json", "digest": Digest::of(b"{}"), "size": 2},
        "layers": layers,
    })
}
