//! Which of the things that registries keep are modules: artifacts with one layer of WebAssembly, as
//! `wkg oci push` and `oras push` write them.

use std::collections::BTreeMap;

use oci_client::manifest::{
    ImageIndexEntry, OciDescriptor, OciImageIndex, OciImageManifest, OciManifest, WASM_LAYER_MEDIA_TYPE,
};

use super::Digest;
use crate::runtime::LARGEST_MODULE;

/// The annotation that has the text of the module's minisign signature.
const SIGNATURE: &str = "dev.baton.minisig";
/// What a layer is that is a module: as `wkg` says it, and as it was said before.
const MODULES: [&str; 2] = ["application/wasm", WASM_LAYER_MEDIA_TYPE];

/// What a manifest leads to.
#[derive(PartialEq, Eq, Debug)]
pub enum Content {
    /// A module.
    Module(Layer),
    /// The one manifest of an index that may have one.
    Elsewhere(Digest),
}

/// A module, as its manifest describes it.
#[derive(PartialEq, Eq, Debug)]
pub struct Layer {
    /// What it must be.
    pub digest: Digest,
    /// How many bytes it must have, never more than the largest module.
    pub size: u64,
    /// The text of its signature.
    pub signature: Option<String>,
}

/// Why a manifest leads to no module.
#[derive(PartialEq, Eq, Debug, thiserror::Error)]
pub enum Unfit {
    /// Somebody else's.
    #[error("its manifest cannot be understood ({0})")]
    Manifest(String),
    /// A container image, say.
    #[error(
        "it has {0}, and a module is one layer of type application/wasm: push it with `wkg oci push REFERENCE \
         MODULE.wasm` or `oras push REFERENCE MODULE.wasm:application/wasm`"
    )]
    Layers(String),
    /// Too large, or damaged.
    #[error(
        "its layer is described as {size} bytes with the digest `{digest}`; it must be SHA-256, and at most {LARGEST_MODULE} bytes"
    )]
    Layer {
        /// As it is written.
        digest: String,
        /// As it is written, in bytes.
        size: i64,
    },
    /// Several things, and nobody has said which.
    #[error("it is an index of {manifests} manifests, of which {modules} are for WebAssembly: name one by its digest")]
    Index {
        /// How many there are.
        manifests: usize,
        /// How many may be modules.
        modules: usize,
    },
    /// An index of indexes.
    #[error("it is an index of indexes: name the module's manifest by its digest")]
    Nested,
}

/// What this manifest leads to.
pub fn content(manifest: &[u8]) -> Result<Content, Unfit> {
    match serde_json::from_slice(manifest).map_err(|error| Unfit::Manifest(error.to_string()))? {
        OciManifest::Image(manifest) => module(manifest).map(Content::Module),
        OciManifest::ImageIndex(index) => only(&index).map(Content::Elsewhere),
    }
}

fn module(manifest: OciImageManifest) -> Result<Layer, Unfit> {
    let [layer] = &manifest.layers[..] else { return Err(Unfit::Layers(listed(&manifest.layers))) };
    if !MODULES.contains(&layer.media_type.as_str()) {
        return Err(Unfit::Layers(listed(&manifest.layers)));
    }
    let unfit = || Unfit::Layer { digest: layer.digest.clone(), size: layer.size };
    let size = u64::try_from(layer.size).ok().filter(|size| *size <= LARGEST_MODULE).ok_or_else(unfit)?;
    let digest = layer.digest.parse().map_err(|_| unfit())?;
    let signature = |annotations: &Option<BTreeMap<String, String>>| annotations.as_ref()?.get(SIGNATURE).cloned();
    Ok(Layer { digest, size, signature: signature(&manifest.annotations).or_else(|| signature(&layer.annotations)) })
}

/// The layers' types, for a person; they may be many.
fn listed(layers: &[OciDescriptor]) -> String {
    const SHOWN: usize = 3;
    let mut types: Vec<&str> = layers.iter().take(SHOWN).map(|layer| layer.media_type.as_str()).collect();
    if layers.len() > SHOWN {
        types.push("…");
    }
    match layers.len() {
        0 => "no layers".to_owned(),
        1 => format!("a layer of type {}", types.join(", ")),
        number => format!("{number} layers ({})", types.join(", ")),
    }
}

/// The one entry that says that it is WebAssembly, or the one that there is.
fn only(index: &OciImageIndex) -> Result<Digest, Unfit> {
    let says_so = |text: &Option<String>| text.as_ref().is_some_and(|text| text.contains("wasm"));
    let modules: Vec<&ImageIndexEntry> = index
        .manifests
        .iter()
        .filter(|entry| {
            let platform = entry.platform.as_ref().map(|platform| platform.architecture.to_string());
            says_so(&platform) || says_so(&entry.artifact_type)
        })
        .collect();
    let entry = match (&modules[..], &index.manifests[..]) {
        ([entry], _) => entry,
        ([], [entry]) => entry,
        _ => return Err(Unfit::Index { manifests: index.manifests.len(), modules: modules.len() }),
    };
    entry.digest.parse().map_err(|_| Unfit::Layer { digest: entry.digest.clone(), size: entry.size })
}
