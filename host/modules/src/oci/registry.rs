//! Sends requests to a registry, with limits on time and size, and formats the registry's errors.

use std::path::PathBuf;
use std::time::Duration;

use bytes::Bytes;
use reqwest::StatusCode;
use serde::Deserialize;
use tokio::time::timeout;

use super::SourceError;
use super::artifact::{Layer, short};
use super::client::Client;
use super::credentials::RegistryCredentials;
use super::reference::{OciReference, Version};
use super::transport::{AskError, SILENCE, cause, read};
use baton_base::shell;
use baton_store::Digest;

/// Timeout for every response except a module. Includes the time to fetch a token.
const ANSWER: Duration = Duration::from_secs(15);
/// Timeout for pulling a module.
const MODULE: Duration = Duration::from_secs(600);
/// Maximum number of characters quoted from a registry's error message.
const QUOTED: usize = 200;

pub struct Registry {
    client: Client,
    reference: OciReference,
    /// The file that contains the credentials or names their helper, if any.
    file: Option<PathBuf>,
}

/// The reason why a poll has found no module. The comment on each variant says when to poll again.
#[derive(Debug)]
pub enum Failure {
    /// The registry does not respond properly. Retry with backoff.
    Unreachable(String),
    /// The registry refuses these credentials. Retry with backoff, and read the credentials again each time.
    Denied(String),
    /// The registry's response is unacceptable. Retry with backoff.
    Refused(String),
    /// The module does not exist yet. Poll again at the normal interval, without backoff.
    Missing(String),
    /// The manifest with this digest does not belong to a module. Poll again at the normal interval, but do not pull
    /// this manifest again.
    Unfit(Digest, String),
}

impl From<Failure> for SourceError {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Unreachable(why) => Self::Unreachable(why),
            Failure::Denied(why) | Failure::Refused(why) | Failure::Missing(why) | Failure::Unfit(_, why) => {
                Self::Unusable(why)
            }
        }
    }
}

#[derive(Deserialize)]
struct Envelope {
    errors: Vec<Complaint>,
}

#[derive(Deserialize)]
struct Complaint {
    code: String,
    #[serde(default)]
    message: String,
}

impl Complaint {
    fn of(answer: &[u8]) -> Option<Self> {
        let Envelope { errors } = serde_json::from_slice(answer).ok()?;
        errors.into_iter().next()
    }
}

impl Registry {
    pub async fn open(reference: &OciReference, credentials: &RegistryCredentials) -> Result<Self, Failure> {
        let found = credentials.of(reference.host()).await.map_err(|error| Failure::Refused(error.to_string()))?;
        let (credential, file) = found.unzip();
        let (url, repository) = (reference.url().clone(), reference.repository().to_owned());
        let client = tokio::task::spawn_blocking(move || Client::open(&url, &repository, credential))
            .await
            .map_err(|error| Failure::Refused(error.to_string()))?
            .map_err(|why| {
                Failure::Refused(format!(
                    "cannot set up TLS ({why}): install the package ca-certificates, or set SSL_CERT_FILE"
                ))
            })?;
        Ok(Self { client, reference: reference.clone(), file })
    }

    /// Returns the digest of the manifest to which the reference leads. If the reference has a tag, asks the registry
    /// each time, because a tag can move to another manifest.
    pub async fn digest(&mut self) -> Result<Digest, Failure> {
        let tag = match self.reference.version() {
            Version::Digest(digest) => return Ok(*digest),
            Version::Tag(tag) => tag,
        };
        let answer = timeout(ANSWER, self.client.digest(tag)).await;
        let digest = self.answered(ANSWER, answer)?;
        digest.parse().map_err(|_| {
            let (registry, digest) = (self.reference.registry(), short(&digest));
            Failure::Refused(format!(
                "the registry {registry} reports `{digest}` as the digest of {}, but this is not a SHA-256 digest",
                self.reference
            ))
        })
    }

    pub async fn manifest(&mut self, digest: &Digest) -> Result<Bytes, Failure> {
        let answer = timeout(ANSWER, self.client.manifest(&digest.to_string())).await;
        let manifest = self.answered(ANSWER, answer)?;
        if Digest::of(&manifest) == *digest {
            return Ok(manifest);
        }
        let (registry, reference) = (self.reference.registry(), &self.reference);
        Err(Failure::Refused(format!(
            "the manifest of {reference} in the registry {registry} is damaged: its digest is not {digest}; push it \
             again"
        )))
    }

    pub async fn blob(&mut self, layer: &Layer) -> Result<Bytes, Failure> {
        let answer = timeout(ANSWER, self.client.blob(&layer.digest)).await;
        let response = self.answered(ANSWER, answer)?;
        let size = usize::try_from(layer.size).map_err(|_| self.damaged(layer))?;
        let read = timeout(MODULE, read(response, size)).await;
        let (bytes, is_all) = self.answered(MODULE, read)?;
        if !is_all || bytes.len() != size {
            return Err(self.damaged(layer));
        }
        let (module, digest) = (bytes.clone(), layer.digest);
        match tokio::task::spawn_blocking(move || Digest::of(&module) == digest).await {
            Ok(true) => Ok(bytes),
            _ => Err(self.damaged(layer)),
        }
    }

    fn answered<T, E>(&self, within: Duration, answer: Result<Result<T, AskError>, E>) -> Result<T, Failure> {
        match answer {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(error)) => Err(self.failure(error)),
            Err(_) => Err(self.slow(within)),
        }
    }

    fn failure(&self, error: AskError) -> Failure {
        let (registry, reference) = (self.reference.registry(), &self.reference);
        match error {
            AskError::Unreachable(error) if error.is_timeout() && !error.is_connect() => self.slow(SILENCE),
            AskError::Unreachable(error) => self.unreachable(&cause(&error)),
            AskError::Redirects => self.unreachable("too many redirects"),
            AskError::Elsewhere(what, place) => Failure::Refused(format!(
                "the registry {registry} must not redirect to {place} for {what} of {reference}: a redirect to another \
                 machine needs https, manifests come only from the registry itself, and only a registry on this \
                 machine may redirect to this machine"
            )),
            AskError::Denied => self.denied(),
            AskError::Status(code, body) => self.complains(code, &body),
            AskError::TooLarge(what, most) => Failure::Refused(format!(
                "the registry {registry} sent too long a response for {reference}: {what} has more than {most} bytes"
            )),
            AskError::Unclear(why) => {
                Failure::Refused(format!("the registry {registry} sent an invalid response for {reference}: {why}"))
            }
        }
    }

    /// Chooses the [`Failure`] for an error response. For client errors other than 401, a known error code in the body
    /// takes precedence over the HTTP status.
    fn complains(&self, status: StatusCode, body: &[u8]) -> Failure {
        let (registry, reference, code) = (self.reference.registry(), &self.reference, status.as_u16());
        let complaint = Complaint::of(body).filter(|_| status.is_client_error());
        match (complaint.as_ref().map(|complaint| complaint.code.as_str()), code) {
            (_, 401) | (Some("UNAUTHORIZED" | "DENIED"), _) => self.denied(),
            (Some("TOOMANYREQUESTS"), _) => self.limited(),
            (Some("BLOB_UNKNOWN" | "MANIFEST_UNKNOWN" | "NAME_UNKNOWN" | "NOT_FOUND"), _) => self.missing(),
            (_, 403) => self.denied(),
            (_, 404) => self.missing(),
            (_, 429) => self.limited(),
            (_, 500..) => {
                let says = quoted(&String::from_utf8_lossy(body));
                Failure::Unreachable(format!(
                    "the registry {registry} failed with status {code}{says} for {reference}: the host retries"
                ))
            }
            _ => match complaint {
                Some(complaint) => {
                    let says = quoted(&complaint.message);
                    Failure::Refused(format!("the registry {registry} rejected the request for {reference}{says}"))
                }
                None => {
                    let says = quoted(&String::from_utf8_lossy(body));
                    Failure::Refused(format!(
                        "the registry {registry} returned status {code}{says} for {reference}: is it a registry?"
                    ))
                }
            },
        }
    }

    fn denied(&self) -> Failure {
        let (registry, repository) = (self.reference.registry(), self.reference.repository());
        let whose = match &self.file {
            Some(file) => format!("with the credentials of {}", file.display()),
            None => "without credentials".to_owned(),
        };
        Failure::Denied(format!(
            "the registry {registry} denies access to {repository} {whose}: as the user that Baton runs as, run \
             `docker login {}` with an account that may pull it",
            shell::quoted(registry)
        ))
    }

    fn missing(&self) -> Failure {
        let (registry, reference) = (self.reference.registry(), &self.reference);
        Failure::Missing(format!(
            "the registry {registry} has no {reference}: push a module with `wkg oci push {} MODULE.wasm`",
            shell::quoted(&reference.to_string())
        ))
    }

    fn limited(&self) -> Failure {
        let registry = self.reference.registry();
        Failure::Unreachable(format!(
            "the registry {registry} limits the rate of requests (429): `docker login {}` often raises the limit",
            shell::quoted(registry)
        ))
    }

    fn slow(&self, within: Duration) -> Failure {
        Failure::Unreachable(format!(
            "the registry {} did not respond within {within:?}: the host retries",
            self.reference.registry()
        ))
    }

    fn unreachable(&self, cause: &str) -> Failure {
        let registry = self.reference.registry();
        let remedy = if cause.contains("certificate") {
            "add the registry's CA to the system's certificates, or name its file in SSL_CERT_FILE"
        } else {
            "the host retries; check the registry's name and the network"
        };
        Failure::Unreachable(format!("cannot reach the registry {registry} for {}: {cause}; {remedy}", self.reference))
    }

    fn damaged(&self, layer: &Layer) -> Failure {
        Failure::Refused(format!(
            "the module {} in the registry {} is damaged: it does not have the {} bytes and the digest {} that its \
             manifest lists; push it again",
            self.reference,
            self.reference.registry(),
            layer.size,
            layer.digest
        ))
    }
}

/// Parses and quotes an error response in fuzz tests, for [`crate::untrusted`].
pub(super) fn complaint(answer: &[u8]) {
    let message = Complaint::of(answer).map(|complaint| complaint.message);
    let says = quoted(&message.unwrap_or_else(|| String::from_utf8_lossy(answer).into_owned()));
    assert!(says.chars().count() <= QUOTED + " (\"…\")".chars().count(), "it is cut");
    assert!(!says.contains(char::is_control), "it is one line of text");
}

/// Formats a registry's message for the end of an error message. Returns an empty string if there is no message.
fn quoted(message: &str) -> String {
    let message: String = message
        .split(|letter: char| letter.is_whitespace() || letter.is_control())
        .filter(|word| !word.is_empty())
        .collect::<Vec<_>>()
        .join(" ");
    match message.char_indices().nth(QUOTED) {
        _ if message.is_empty() => String::new(),
        Some((end, _)) => format!(" (\"{}…\")", &message[..end]),
        None => format!(" (\"{message}\")"),
    }
}
