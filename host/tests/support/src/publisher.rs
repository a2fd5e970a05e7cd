//! Publishes modules to an artifact registry.

use baton_store::Digest;
use reqwest::header::{CONTENT_TYPE, LOCATION};
use reqwest::{Client, RequestBuilder, Response, Url};
use serde_json::{Value, json};

use crate::registry::{Registry, USER};

/// The repository to which the publisher pushes.
pub const REPOSITORY: &str = "acme/billing";

/// The media type of an image manifest.
pub const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";

/// The media type of an image index.
pub const INDEX: &str = "application/vnd.oci.image.index.v1+json";

/// A client that pushes to a registry as the distribution specification
/// [describes](https://github.com/opencontainers/distribution-spec/blob/v1.1.1/spec.md#push).
pub struct Publisher {
    client: Client,
    repository: Url,
}

impl Publisher {
    /// A publisher that pushes to `registry` as [`USER`].
    pub fn of(registry: &Registry) -> Self {
        let repository = format!("http://{}/v2/{REPOSITORY}/", registry.address());
        Self { client: Client::new(), repository: repository.parse().unwrap() }
    }

    /// Pushes a module as `wkg oci push` does. Returns the digest of its manifest.
    pub async fn push(&self, tag: &str, module: &[u8]) -> String {
        let manifest = manifest(&[self.layer("application/wasm", module).await]);
        self.push_manifest(tag, &manifest).await
    }

    /// Pushes a blob. Returns its descriptor.
    pub async fn layer(&self, media_type: &str, blob: &[u8]) -> Value {
        let digest = self.push_blob(blob).await;
        json!({"mediaType": media_type, "digest": digest, "size": blob.len()})
    }

    /// Pushes a manifest and its configuration blob. Returns the manifest's digest.
    pub async fn push_manifest(&self, tag: &str, manifest: &Value) -> String {
        self.push_blob(CONFIG).await;
        let bytes = serde_json::to_vec(manifest).unwrap();
        let digest = Digest::of(&bytes).to_string();
        let media_type = manifest["mediaType"].as_str().unwrap();
        let put = self.client.put(self.url(&format!("manifests/{tag}")));
        accepted(put.header(CONTENT_TYPE, media_type).body(bytes)).await;
        digest
    }

    async fn push_blob(&self, blob: &[u8]) -> String {
        let digest = Digest::of(blob).to_string();
        let begun = accepted(self.client.post(self.url("blobs/uploads/"))).await;
        // According to the specification, the `Location` may be an absolute URL or a path.
        let mut upload = self.repository.join(begun.headers()[LOCATION].to_str().unwrap()).unwrap();
        upload.query_pairs_mut().append_pair("digest", &digest);
        accepted(self.client.put(upload).body(blob.to_vec())).await;
        digest
    }

    fn url(&self, path: &str) -> Url {
        self.repository.join(path).unwrap()
    }
}

/// The configuration blob of a module's manifest.
const CONFIG: &[u8] = b"{}";

async fn accepted(request: RequestBuilder) -> Response {
    let response = request.basic_auth(USER.0, Some(USER.1)).send().await.unwrap();
    response.error_for_status().unwrap()
}

/// A manifest with these layers.
pub fn manifest(layers: &[Value]) -> Value {
    json!({
        "schemaVersion": 2,
        "mediaType": MANIFEST,
        "config": {"mediaType": "application/vnd.wasm.config.v0+json", "digest": Digest::of(CONFIG), "size": CONFIG.len()},
        "layers": layers,
    })
}
