//! Puts things into a registry of artifacts, as those who publish modules do.

use baton_store::Digest;
use bytes::Bytes;
use oci_client::client::{ClientConfig, ClientProtocol};
use oci_client::manifest::OCI_IMAGE_MEDIA_TYPE;
use oci_client::secrets::RegistryAuth;
use oci_client::{Client, Reference};
use serde_json::{Value, json};

use crate::registry::{Registry, USER};

/// The repository of all that is published.
pub const REPOSITORY: &str = "acme/billing";

/// Who puts things into a registry.
pub struct Publisher {
    client: Client,
    registry: String,
    auth: RegistryAuth,
}

impl Publisher {
    /// To this registry, as [`USER`].
    pub fn of(registry: &Registry) -> Self {
        // The sources under test share it.
        let _ = tokio_rustls::rustls::crypto::ring::default_provider().install_default();
        let config = ClientConfig { protocol: ClientProtocol::Http, ..ClientConfig::default() };
        let auth = RegistryAuth::Basic(USER.0.to_owned(), USER.1.to_owned());
        Self { client: Client::try_from(config).unwrap(), registry: registry.address().to_string(), auth }
    }

    /// Pushes a module as `wkg oci push` does. Returns its manifest's digest.
    pub async fn push(&self, tag: &str, module: &[u8]) -> String {
        let manifest = manifest(&[self.layer("application/wasm", module).await]);
        self.push_manifest(tag, &manifest).await
    }

    /// Puts a blob there. Returns its description.
    pub async fn layer(&self, media_type: &str, blob: &[u8]) -> Value {
        let digest = Digest::of(blob).to_string();
        self.client.store_auth_if_needed(&self.registry, &self.auth).await;
        self.client.push_blob(&self.reference("any"), Bytes::copy_from_slice(blob), &digest).await.unwrap();
        json!({"mediaType": media_type, "digest": digest, "size": blob.len()})
    }

    /// Puts a manifest there, and what it has for a configuration. Returns its digest.
    pub async fn push_manifest(&self, tag: &str, manifest: &Value) -> String {
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

/// A manifest with these layers.
pub fn manifest(layers: &[Value]) -> Value {
    json!({
        "schemaVersion": 2,
        "mediaType": OCI_IMAGE_MEDIA_TYPE,
        "config": {"mediaType": "application/vnd.wasm.config.v0+json", "digest": Digest::of(b"{}"), "size": 2},
        "layers": layers,
    })
}
