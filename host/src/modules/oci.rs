//! Modules from OCI registries, where the ecosystem keeps them: `oci://REGISTRY/REPOSITORY:TAG`.
//!
//! A tag is followed: the digest of its manifest is asked for again and again, and only another one is pulled.
//! A digest is pulled once, and then nobody is asked any more. `registry` asks, with what `credentials` finds;
//! `artifact` says what of it is a module.

mod artifact;
mod credentials;
mod registry;

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use async_trait::async_trait;
use oci_client::Reference;
use tokio::task::{JoinError, JoinSet};
use tokio::time::{Instant, sleep_until};

pub use credentials::RegistryCredentials;

use super::digest::Digest;
use super::jitter::between;
use super::source::{Offer, Source, SourceError};
use artifact::Content;
use registry::{Failure, Registry};

/// From one look at a tag to the next, at least and at most.
const PACE: (Duration, Duration) = (Duration::from_secs(5), Duration::from_secs(10));
/// The first wait after a failure, each further one is twice as long; and the longest. Chance adds a quarter.
const BACK_OFF: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(48));

/// What follows `oci://`: a registry, a repository in it, and a tag or a digest of that.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct OciReference(Reference);

/// Why a text is no [`OciReference`].
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("`oci://{reference}` names no module: {why}; it is `oci://REGISTRY/REPOSITORY:TAG` or `…@sha256:DIGEST`")]
pub struct InvalidOciReference {
    reference: String,
    why: String,
}

impl FromStr for OciReference {
    type Err = InvalidOciReference;

    fn from_str(text: &str) -> Result<Self, InvalidOciReference> {
        let invalid = |why: &str| InvalidOciReference { reference: text.to_owned(), why: why.to_owned() };
        // The convention says which registry and tag are meant where none is named. Here they are named.
        let (registry, rest) = text.split_once('/').unwrap_or(("", text));
        if !registry.contains(['.', ':']) && registry != "localhost" {
            return Err(invalid("it does not begin with a registry, such as `ghcr.io` or `localhost:5000`"));
        }
        if !rest.contains([':', '@']) {
            return Err(invalid("it has no tag"));
        }
        let reference: Reference = text.parse().map_err(|error: oci_client::ParseError| invalid(&error.to_string()))?;
        let Some(digest) = reference.digest() else { return Ok(Self(reference)) };
        let digest: Digest = digest.parse().map_err(|_| invalid("its digest is no SHA-256"))?;
        Ok(Self(reference.clone_with_digest(digest.to_string())))
    }
}

impl fmt::Display for OciReference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl OciReference {
    /// The one manifest that it can mean; none if it is a tag, which can move.
    fn manifest(&self) -> Option<Digest> {
        self.0.digest()?.parse().ok()
    }
}

/// A module in a registry.
pub struct OciSource {
    reference: OciReference,
    credentials: RegistryCredentials,
    /// The look that is under way: it goes on while nobody waits for it, and ends with the source.
    look: JoinSet<Looked>,
    /// What earlier looks have found.
    known: Known,
    /// The registry, to be asked again with the same credentials.
    registry: Option<Registry>,
    /// What was returned last, unless it is over.
    told: Option<SourceError>,
    failures: u32,
    due: Instant,
}

/// What a look needs not pull again, each with the digest of its manifest.
#[derive(Clone, Default)]
struct Known {
    offered: Option<Digest>,
    unfit: Option<(Digest, String)>,
}

impl Known {
    /// Whether nothing more can come of this manifest.
    fn settles(&self, manifest: Digest) -> bool {
        self.offered == Some(manifest) || self.unfit.as_ref().is_some_and(|(unfit, _)| *unfit == manifest)
    }
}

/// What comes of a look, and the registry, unless it wants other credentials.
type Looked = (Option<Registry>, Result<Found, Failure>);

enum Found {
    Unchanged,
    New(Digest, Offer),
}

impl OciSource {
    /// A source of what this reference means, as long as it lives.
    #[must_use]
    pub fn new(reference: OciReference, credentials: RegistryCredentials) -> Self {
        Self {
            reference,
            credentials,
            look: JoinSet::new(),
            known: Known::default(),
            registry: None,
            told: None,
            failures: 0,
            due: Instant::now(),
        }
    }

    /// Takes in what a look has found. Returns what there is to tell of it.
    fn conclude(&mut self, looked: Result<Looked, JoinError>) -> Option<Result<Offer, SourceError>> {
        // The crate has panicked, over a token that is no header's value, say. The panic was printed where it happened.
        let (registry, found) = looked.unwrap_or_else(|_| {
            let registry = self.reference.0.registry();
            (None, Err(Failure::Refused(format!("what the registry {registry} answers cannot be understood"))))
        });
        self.registry = registry;
        let wait = match &found {
            Ok(_) | Err(Failure::Missing(_) | Failure::Unfit(..)) => {
                self.failures = 0;
                between(PACE.0, PACE.1)
            }
            Err(Failure::Unreachable(_) | Failure::Denied(_) | Failure::Refused(_)) => {
                let wait = (BACK_OFF.0 * (1 << self.failures.min(10))).min(BACK_OFF.1);
                self.failures = self.failures.saturating_add(1);
                between(wait, wait * 5 / 4)
            }
        };
        self.due = Instant::now() + wait;
        match found {
            Ok(Found::Unchanged) => {
                self.told = None;
                None
            }
            Ok(Found::New(manifest, offer)) => {
                self.told = None;
                self.known = Known { offered: Some(manifest), unfit: None };
                Some(Ok(offer))
            }
            Err(failure) => {
                if let Failure::Unfit(manifest, why) = &failure {
                    self.known.unfit = Some((*manifest, why.clone()));
                }
                let error = SourceError::from(failure);
                let told = self.told.replace(error.clone());
                (told.as_ref() != Some(&error)).then_some(Err(error))
            }
        }
    }
}

#[async_trait]
impl Source for OciSource {
    async fn next(&mut self) -> Result<Offer, SourceError> {
        loop {
            if self.reference.manifest().is_some_and(|manifest| self.known.settles(manifest)) {
                return std::future::pending().await;
            }
            if self.look.is_empty() {
                sleep_until(self.due).await;
                let (reference, credentials) = (self.reference.clone(), self.credentials.clone());
                self.look.spawn(look(reference, credentials, self.registry.take(), self.known.clone()));
            }
            let Some(looked) = self.look.join_next().await else { continue };
            if let Some(told) = self.conclude(looked) {
                return told;
            }
        }
    }
}

/// Looks once, with the registry as it was reached before, or anew.
async fn look(
    reference: OciReference,
    credentials: RegistryCredentials,
    before: Option<Registry>,
    known: Known,
) -> Looked {
    if let Some(registry) = before {
        // Credentials end, and others are there by then.
        match find(&reference, &registry, &known).await {
            Err(Failure::Denied(_)) => {}
            found => return (Some(registry), found),
        }
    }
    match Registry::open(&reference.0, &credentials).await {
        Ok(registry) => {
            let found = find(&reference, &registry, &known).await;
            (Some(registry).filter(|_| !matches!(found, Err(Failure::Denied(_)))), found)
        }
        Err(failure) => (None, Err(failure)),
    }
}

async fn find(reference: &OciReference, registry: &Registry, known: &Known) -> Result<Found, Failure> {
    let named = match reference.manifest() {
        Some(manifest) => manifest,
        None => registry.digest().await?,
    };
    if known.offered == Some(named) {
        return Ok(Found::Unchanged);
    }
    if let Some((unfit, why)) = known.unfit.as_ref().filter(|(unfit, _)| *unfit == named) {
        return Err(Failure::Unfit(*unfit, why.clone()));
    }
    let unfit = |why: artifact::Unfit| Failure::Unfit(named, format!("{reference} is no module: {why}"));
    let mut manifest = registry.manifest(&named).await?;
    if let Content::Elsewhere(digest) = artifact::content(&manifest).map_err(unfit)? {
        manifest = registry.manifest(&digest).await?;
    }
    match artifact::content(&manifest).map_err(unfit)? {
        Content::Module(layer) => {
            let bytes = registry.blob(&layer).await?;
            Ok(Found::New(named, Offer { bytes, signature: layer.signature }))
        }
        Content::Elsewhere(_) => Err(unfit(artifact::Unfit::Nested)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reference_is_read_as_it_is_written() {
        let digest = format!("sha256:{}", "0a".repeat(32));
        for text in ["ghcr.io/acme/billing:1.2", "localhost/a/b/c:latest", &format!("127.0.0.1:5000/a@{digest}")] {
            assert_eq!(text.parse::<OciReference>().map(|reference| reference.to_string()).as_deref(), Ok(text));
        }
        let upper = format!("a.b/c@sha256:{}", "0A".repeat(32)).parse::<OciReference>();
        assert_eq!(upper.map(|reference| reference.to_string()), Ok(format!("a.b/c@{digest}")), "digests are compared");
    }

    #[test]
    fn what_names_no_module_says_why() {
        let sha512 = format!("a.b/c@sha512:{}", "0".repeat(128));
        for (text, why) in [
            ("", "begin with a registry"),
            ("billing:1", "begin with a registry"),
            ("acme/billing:1", "begin with a registry"),
            ("ghcr.io/acme/billing", "no tag"),
            ("ghcr.io/Acme/billing:1", "invalid reference"),
            ("ghcr.io/billing:", "invalid reference"),
            ("ghcr.io/billing@sha256:00", "invalid reference"),
            (&sha512, "SHA-256"),
        ] {
            let error = text.parse::<OciReference>().map_err(|error| error.to_string());
            assert!(error.as_ref().is_err_and(|error| error.contains(why)), "{text}: {error:?}");
        }
    }
}
