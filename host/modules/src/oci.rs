//! Modules from OCI registries, where the WebAssembly ecosystem publishes them: `oci://REGISTRY/REPOSITORY:TAG`.
//!
//! The source follows a tag: it polls the digest of the tag's manifest, and pulls the module only if the digest has
//! changed. Each digest is pulled once. `client` sends requests over `transport`, which limits time and size.
//! `authorization` answers the registry's `challenge` with the credentials that `credentials` finds. `registry`
//! verifies responses and formats errors, and `artifact` finds the module in a manifest.

mod artifact;
mod authorization;
mod challenge;
mod client;
mod credentials;
mod reference;
mod registry;
mod transport;
pub(super) mod untrusted;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tokio::task::{JoinError, JoinSet};
use tokio::time::{Instant, sleep_until};

pub use credentials::RegistryCredentials;
pub use reference::{InvalidOciReference, OciReference};

use super::slow_notice::notify_if_slow;
use super::source::{Offer, Source, SourceError};
use artifact::Content;
use baton_base::jitter::{between, doubled};
use baton_store::Digest;
use registry::{Failure, Registry};

/// Minimum and maximum interval between polls of a tag.
const PACE: (Duration, Duration) = (Duration::from_secs(5), Duration::from_secs(10));
/// Initial and maximum wait after a failure. The wait doubles after each further failure. A random extra wait of up to
/// a quarter keeps nodes from retrying at the same time.
const BACK_OFF: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(48));

/// A module in a registry.
pub struct OciSource {
    reference: OciReference,
    credentials: RegistryCredentials,
    pulling: Pulling,
    /// The poll in progress. The poll continues even when no caller awaits it, and ends when the source is dropped.
    look: JoinSet<Looked>,
    known: Known,
    /// The open registry, if the next poll can use the same credentials.
    registry: Option<Registry>,
    /// The last error that was returned, unless a poll has succeeded since.
    told: Option<SourceError>,
    failures: u32,
    due: Instant,
}

type Pulling = Arc<dyn Fn(Digest) + Send + Sync>;

/// The digests of the manifests that earlier polls have already handled: the manifest of the offered module, and a
/// manifest that does not belong to a module. A poll need not pull these manifests again.
#[derive(Clone, Default)]
struct Known {
    offered: Option<Digest>,
    unfit: Option<(Digest, String)>,
}

impl Known {
    fn settles(&self, manifest: Digest) -> bool {
        self.offered == Some(manifest) || self.unfit.as_ref().is_some_and(|(unfit, _)| *unfit == manifest)
    }
}

/// The result of a poll. Contains the open registry if the next poll can use the same credentials.
type Looked = (Option<Registry>, Result<Finding, Failure>);

enum Finding {
    Unchanged,
    New(Digest, Offer),
}

impl OciSource {
    /// Creates a source that follows this reference.
    #[must_use]
    pub fn new(reference: OciReference, credentials: RegistryCredentials) -> Self {
        Self {
            reference,
            credentials,
            pulling: Arc::new(|_| {}),
            look: JoinSet::new(),
            known: Known::default(),
            registry: None,
            told: None,
            failures: 0,
            due: Instant::now(),
        }
    }

    /// Sets a function to call with the digest of a module that takes a long time to pull.
    #[must_use]
    pub fn telling(self, pulling: impl Fn(Digest) + Send + Sync + 'static) -> Self {
        Self { pulling: Arc::new(pulling), ..self }
    }

    /// Processes the result of a poll, and schedules the next poll. Returns the offer or the error that `next` should
    /// return, or `None` if the caller already knows it.
    fn conclude(&mut self, looked: Result<Looked, JoinError>) -> Option<Result<Offer, SourceError>> {
        // A poll should never panic, no matter what the registry sends. If a poll panics, the panic message has already
        // been printed.
        let (registry, found) = looked.unwrap_or_else(|_| {
            let registry = self.reference.registry();
            (None, Err(Failure::Refused(format!("the registry {registry} sent an invalid response"))))
        });
        self.registry = registry;
        let wait = match &found {
            Ok(_) | Err(Failure::Missing(_) | Failure::Unfit(..)) => {
                self.failures = 0;
                between(PACE.0, PACE.1)
            }
            Err(Failure::Unreachable(_) | Failure::Denied(_) | Failure::Refused(_)) => {
                let wait = doubled(BACK_OFF, self.failures);
                self.failures = self.failures.saturating_add(1);
                between(wait, wait * 5 / 4)
            }
        };
        self.due = Instant::now() + wait;
        match found {
            Ok(Finding::Unchanged) => {
                self.told = None;
                None
            }
            Ok(Finding::New(manifest, offer)) => {
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
                let (pulling, known) = (Arc::clone(&self.pulling), self.known.clone());
                self.look.spawn(look(reference, credentials, self.registry.take(), known, pulling));
            }
            let Some(looked) = self.look.join_next().await else { continue };
            if let Some(told) = self.conclude(looked) {
                return told;
            }
        }
    }
}

/// `before` is the registry from the previous poll, if that poll kept it.
async fn look(
    reference: OciReference,
    credentials: RegistryCredentials,
    before: Option<Registry>,
    known: Known,
    pulling: Pulling,
) -> Looked {
    // After any error except `Failure::Unfit`, the next poll opens the registry again, because somebody may have
    // replaced the credentials or certificates that caused the error.
    let kept = |registry, found: &_| Some(registry).filter(|_| matches!(found, Ok(_) | Err(Failure::Unfit(..))));
    if let Some(mut registry) = before {
        // The credentials may have expired. If so, try again with new credentials.
        match find(&reference, &mut registry, &known, &pulling).await {
            Err(Failure::Denied(_)) => {}
            found => return (kept(registry, &found), found),
        }
    }
    match Registry::open(&reference, &credentials).await {
        Ok(mut registry) => {
            let found = find(&reference, &mut registry, &known, &pulling).await;
            (kept(registry, &found), found)
        }
        Err(failure) => (None, Err(failure)),
    }
}

async fn find(
    reference: &OciReference,
    registry: &mut Registry,
    known: &Known,
    pulling: &Pulling,
) -> Result<Finding, Failure> {
    let named = registry.digest().await?;
    if known.offered == Some(named) {
        return Ok(Finding::Unchanged);
    }
    if let Some((unfit, why)) = known.unfit.as_ref().filter(|(unfit, _)| *unfit == named) {
        return Err(Failure::Unfit(*unfit, why.clone()));
    }
    let unfit = |why: artifact::Unfit| Failure::Unfit(named, format!("{reference} is not a module: {why}"));
    let mut manifest = registry.manifest(&named).await?;
    if let Content::Elsewhere(digest) = artifact::content(&manifest).map_err(unfit)? {
        manifest = registry.manifest(&digest).await?;
    }
    match artifact::content(&manifest).map_err(unfit)? {
        Content::Module(layer) => {
            let bytes = notify_if_slow(registry.blob(&layer), || pulling(layer.digest)).await?;
            Ok(Finding::New(named, Offer { bytes, signature: layer.signature }))
        }
        Content::Elsewhere(_) => Err(unfit(artifact::Unfit::Nested)),
    }
}
