//! Finds a module in a registry's manifest. A module is an artifact with a single layer of WebAssembly, as created by
//! `wkg oci push` and `oras push`.

use std::collections::BTreeMap;

use base64::prelude::{BASE64_STANDARD, Engine as _};
use serde::Deserialize;

use baton_runtime::LARGEST_MODULE;
use baton_store::Digest;

pub const MANIFESTS: [&str; 4] = [
    "application/vnd.oci.image.manifest.v1+json",
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.docker.distribution.manifest.v2+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
];
const SIGNATURE: &str = "dev.baton.minisig";
/// Media types of a layer that contains a module: the type that `wkg` uses, and its predecessor.
const MODULES: [&str; 2] = ["application/wasm", "application/vnd.wasm.content.layer.v1+wasm"];

#[derive(PartialEq, Eq, Debug)]
pub enum Content {
    Module(Layer),
    /// The manifest is an index. The digest is that of the only manifest in this index that can be a module's manifest.
    Elsewhere(Digest),
}

#[derive(PartialEq, Eq, Debug)]
pub struct Layer {
    pub digest: Digest,
    /// Size in bytes, at most `LARGEST_MODULE`.
    pub size: u64,
    pub signature: Option<String>,
}

#[derive(PartialEq, Eq, Debug, thiserror::Error)]
pub enum Unfit {
    #[error("its manifest is invalid ({0})")]
    Manifest(String),
    #[error(
        "it has {0}, but a module has one layer of type application/wasm: push it with `wkg oci push REFERENCE \
         MODULE.wasm` or `oras push REFERENCE MODULE.wasm:application/wasm`"
    )]
    Layers(String),
    #[error(
        "its manifest describes a layer of {size} bytes with the digest `{digest}`; expected at most {LARGEST_MODULE} \
         bytes and a SHA-256 digest"
    )]
    Layer { digest: String, size: i64 },
    #[error("it is an index of {manifests} manifests, of which {modules} are for WebAssembly: name one by its digest")]
    Index { manifests: usize, modules: usize },
    #[error("it is an index of indexes: name the module's manifest by its digest")]
    Nested,
}

#[derive(Deserialize)]
struct Manifest {
    layers: Option<Vec<Described>>,
    manifests: Option<Vec<IndexEntry>>,
    annotations: Option<Annotations>,
}

type Annotations = BTreeMap<String, String>;

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Described {
    media_type: String,
    digest: String,
    size: i64,
    annotations: Option<Annotations>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct IndexEntry {
    digest: String,
    size: i64,
    artifact_type: Option<String>,
    platform: Option<Platform>,
}

#[derive(Deserialize)]
struct Platform {
    architecture: String,
}

/// Finds the module's layer in a manifest, or the module's manifest in an index.
pub fn content(manifest: &[u8]) -> Result<Content, Unfit> {
    let manifest: Manifest =
        serde_json::from_slice(manifest).map_err(|error| Unfit::Manifest(short(&error.to_string())))?;
    match (manifest.layers, manifest.manifests) {
        (Some(layers), None) => module(&layers, manifest.annotations.as_ref()).map(Content::Module),
        (None, Some(entries)) => only(&entries).map(Content::Elsewhere),
        (None, None) => Err(Unfit::Manifest("it has neither layers nor manifests".to_owned())),
        // Such a manifest is ambiguous: other programs might use the field that Baton does not use.
        (Some(_), Some(_)) => Err(Unfit::Manifest("it has both layers and manifests".to_owned())),
    }
}

fn module(layers: &[Described], annotations: Option<&Annotations>) -> Result<Layer, Unfit> {
    let [layer] = layers else { return Err(Unfit::Layers(listed(layers))) };
    if !MODULES.contains(&layer.media_type.as_str()) {
        return Err(Unfit::Layers(listed(layers)));
    }
    let unfit = || Unfit::Layer { digest: short(&layer.digest), size: layer.size };
    let size = u64::try_from(layer.size).ok().filter(|size| *size <= LARGEST_MODULE).ok_or_else(unfit)?;
    let digest = layer.digest.parse().map_err(|_| unfit())?;
    let signature = [annotations, layer.annotations.as_ref()].into_iter().flatten().find_map(signature);
    Ok(Layer { digest, size, signature })
}

/// The annotation may be in Base64, because `wkg` cannot push multi-line annotations.
fn signature(annotations: &Annotations) -> Option<String> {
    let text = annotations.get(SIGNATURE)?;
    let decoded = BASE64_STANDARD.decode(text).ok().and_then(|bytes| String::from_utf8(bytes).ok());
    Some(decoded.unwrap_or_else(|| text.clone()))
}

fn listed(layers: &[Described]) -> String {
    const SHOWN: usize = 3;
    let mut types: Vec<String> = layers.iter().take(SHOWN).map(|layer| short(&layer.media_type)).collect();
    if layers.len() > SHOWN {
        types.push("…".to_owned());
    }
    match layers.len() {
        0 => "no layers".to_owned(),
        1 => format!("a layer of type {}", types.join(", ")),
        number => format!("{number} layers ({})", types.join(", ")),
    }
}

/// Makes untrusted text safe for a message: at most 80 characters, and no control characters.
pub fn short(text: &str) -> String {
    const LONGEST: usize = 80;
    text.chars().filter(|letter| !letter.is_control()).take(LONGEST).collect()
}

/// Returns the digest of the entry that is marked as WebAssembly, if exactly one is marked. If none is marked and there
/// is only one entry, returns the digest of that entry.
fn only(entries: &[IndexEntry]) -> Result<Digest, Unfit> {
    let says_so = |entry: &&IndexEntry| {
        let platform = entry.platform.as_ref().map(|platform| &platform.architecture);
        platform.into_iter().chain(&entry.artifact_type).any(|text| text.contains("wasm"))
    };
    let modules: Vec<&IndexEntry> = entries.iter().filter(says_so).collect();
    let entry = match (&modules[..], entries) {
        ([entry], _) => entry,
        ([], [entry]) => entry,
        _ => return Err(Unfit::Index { manifests: entries.len(), modules: modules.len() }),
    };
    entry.digest.parse().map_err(|_| Unfit::Layer { digest: short(&entry.digest), size: entry.size })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    const DIGEST: &str = "sha256:f868d7b6e0eafd5bc15be7d296ad063f90a2c29a8b60fd9d3af50fe00a768eca";
    const MINISIG: &str = "untrusted comment: of a test\nRWQf6LRCGA9i5w==\ntrusted comment: none\nRWQf6LRCGA9i5w==\n";

    fn image(layers: &Value, annotations: &Value) -> Result<Content, Unfit> {
        let config = json!({"mediaType": "application/vnd.wasm.config.v0+json", "digest": DIGEST, "size": 687});
        let manifest = json!({"schemaVersion": 2, "config": config, "layers": layers, "annotations": annotations});
        content(manifest.to_string().as_bytes())
    }

    fn layer(media_type: &str) -> Value {
        json!({"mediaType": media_type, "digest": DIGEST, "size": 93339})
    }

    fn signed(signature: &str) -> Result<Content, Unfit> {
        Ok(Content::Module(Layer {
            digest: DIGEST.parse().unwrap_or_else(|_| Digest::of(b"")),
            size: 93339,
            signature: Some(signature.to_owned()),
        }))
    }

    #[test]
    fn signature_is_an_annotation_of_the_manifest_or_the_layer() {
        let encoded = BASE64_STANDARD.encode(MINISIG);
        for text in [MINISIG, &encoded] {
            let annotations = json!({SIGNATURE: text});
            assert_eq!(image(&json!([layer("application/wasm")]), &annotations), signed(MINISIG));
            let mut layer = layer(MODULES[1]);
            layer["annotations"] = annotations;
            assert_eq!(image(&json!([layer]), &Value::Null), signed(MINISIG));
        }
        // This text is not a valid signature, but reading the manifest does not fail. The signature is checked only
        // later.
        assert_eq!(image(&json!([layer("application/wasm")]), &json!({SIGNATURE: "?"})), signed("?"));
    }

    #[test]
    fn manifest_is_refused_unless_it_has_one_layer_of_wasm() {
        let tar = "application/vnd.oci.image.layer.v1.tar+gzip";
        for (layers, found) in [
            (json!([]), "no layers".to_owned()),
            (json!([layer(tar)]), format!("a layer of type {tar}")),
            (json!([layer("application/wasm"), layer(tar)]), format!("2 layers (application/wasm, {tar})")),
            (json!([layer(&"a\n".repeat(999))]), format!("a layer of type {}", "a".repeat(80))),
            (json!([layer("a"), layer("b"), layer("c"), layer("d")]), "4 layers (a, b, c, …)".to_owned()),
        ] {
            assert_eq!(image(&layers, &Value::Null), Err(Unfit::Layers(found)));
        }
        let both = br#"{"schemaVersion": 2, "layers": [], "manifests": []}"#;
        for manifest in [&b""[..], b"[]", b"{}", b"\xff", br#"{"schemaVersion": 1, "fsLayers": []}"#, both] {
            assert!(matches!(content(manifest), Err(Unfit::Manifest(_))), "{manifest:?}");
        }
    }

    #[test]
    fn layer_is_refused_when_its_size_or_digest_is_invalid() {
        for (key, value) in [
            ("size", json!(LARGEST_MODULE + 1)),
            ("size", json!(-1)),
            ("digest", json!("md5:00")),
            ("digest", json!(format!("sha512:{}", "0".repeat(128)))),
        ] {
            let mut layer = layer("application/wasm");
            layer[key] = value;
            assert!(matches!(image(&json!([layer]), &Value::Null), Err(Unfit::Layer { .. })), "{layer}");
        }
    }

    #[test]
    fn an_index_leads_to_its_only_module() {
        let entry = |platform: &str| {
            json!({"mediaType": "application/vnd.oci.image.manifest.v1+json", "digest": DIGEST,
            "size": 1, "platform": {"architecture": platform, "os": "linux"}})
        };
        let index =
            |entries: &[Value]| content(json!({"schemaVersion": 2, "manifests": entries}).to_string().as_bytes());
        let found = Ok(Content::Elsewhere(DIGEST.parse().unwrap_or_else(|_| Digest::of(b""))));
        assert_eq!(index(&[entry("amd64"), entry("wasm"), entry("arm64")]), found);
        assert_eq!(index(&[entry("amd64")]), found, "what it is, the manifest says");
        for (entries, manifests, modules) in
            [(&[][..], 0, 0), (&[entry("amd64"), entry("arm64")], 2, 0), (&[entry("wasm"), entry("wasm")], 2, 2)]
        {
            assert_eq!(index(entries), Err(Unfit::Index { manifests, modules }));
        }
    }
}
