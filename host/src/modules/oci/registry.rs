//! Asks a registry, within bounds of time and size, and says in words what it answers.

use std::error::Error;
use std::path::PathBuf;
use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt as _;
use oci_client::client::{ClientConfig, ClientProtocol};
use oci_client::errors::{DigestError, OciDistributionError, OciEnvelope, OciErrorCode};
use oci_client::manifest::{
    IMAGE_MANIFEST_LIST_MEDIA_TYPE, IMAGE_MANIFEST_MEDIA_TYPE, OCI_IMAGE_INDEX_MEDIA_TYPE, OCI_IMAGE_MEDIA_TYPE,
};
use oci_client::secrets::RegistryAuth;
use oci_client::{Client, Reference, RegistryOperation};
use tokio::time::timeout;

use super::artifact::Layer;
use super::credentials::RegistryCredentials;
use super::{Digest, SourceError};

const MANIFESTS: [&str; 4] =
    [OCI_IMAGE_MEDIA_TYPE, OCI_IMAGE_INDEX_MEDIA_TYPE, IMAGE_MANIFEST_MEDIA_TYPE, IMAGE_MANIFEST_LIST_MEDIA_TYPE];
/// How long a connection may take.
const CONNECT: Duration = Duration::from_secs(5);
/// How long a registry may say nothing.
const SILENCE: Duration = Duration::from_secs(10);
/// How long an answer may take that is no module: the token's, and the manifest's after it.
const ANSWER: Duration = Duration::from_secs(15);
/// How long a module may take.
const MODULE: Duration = Duration::from_secs(600);
/// How much of what a registry says of an error is repeated, in characters.
const QUOTED: usize = 200;

/// A registry that was not asked yet, or has answered.
pub struct Registry {
    client: Client,
    reference: Reference,
    auth: RegistryAuth,
    /// The file that has the credentials.
    file: Option<PathBuf>,
}

/// Why there is no module, named for when to ask again.
#[derive(Debug)]
pub enum Failure {
    /// The registry does not answer as it should: ever later.
    Unreachable(String),
    /// It does not give it to these credentials: ever later, with those that there are then.
    Denied(String),
    /// It does not give what it should: ever later.
    Refused(String),
    /// There is nothing yet: soon.
    Missing(String),
    /// This manifest is none of a module: once there is another.
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

impl Registry {
    /// One that this reference names, with the credentials that there are for it now.
    pub async fn open(reference: &Reference, credentials: &RegistryCredentials) -> Result<Self, Failure> {
        let registry = reference.resolve_registry().to_owned();
        let found = credentials.of(&registry).await.map_err(|error| Failure::Refused(error.to_string()))?;
        let (auth, file) = found.map_or((RegistryAuth::Anonymous, None), |(auth, file)| (auth, Some(file)));
        // It reads the certificates of the system.
        let client = tokio::task::spawn_blocking(move || client(&registry))
            .await
            .map_err(|error| Failure::Refused(error.to_string()))?
            .map_err(|error| {
                let why = cause(&error);
                Failure::Refused(format!(
                    "TLS cannot be set up ({why}): install the package ca-certificates, or set SSL_CERT_FILE"
                ))
            })?;
        Ok(Self { client, reference: reference.clone(), auth, file })
    }

    /// The digest of the manifest that the tag leads to at the moment.
    pub async fn digest(&self) -> Result<Digest, Failure> {
        let digest = timeout(ANSWER, self.client.fetch_manifest_digest(&self.reference, &self.auth)).await;
        let digest = self.answered(ANSWER, digest).await?;
        digest.parse().map_err(|_| {
            let registry = self.reference.registry();
            Failure::Refused(format!(
                "the registry {registry} gives the manifest of {} by `{digest}`, which is no SHA-256",
                self.reference
            ))
        })
    }

    /// The manifest with this digest, verified.
    pub async fn manifest(&self, digest: &Digest) -> Result<Bytes, Failure> {
        let reference = self.reference.clone_with_digest(digest.to_string());
        // With a digest in the reference, the crate compares the answer with it.
        let answer = timeout(ANSWER, self.client.pull_manifest_raw(&reference, &self.auth, &MANIFESTS)).await;
        Ok(self.answered(ANSWER, answer).await?.0)
    }

    /// The module, verified.
    pub async fn blob(&self, layer: &Layer) -> Result<Bytes, Failure> {
        timeout(MODULE, self.pull(layer)).await.unwrap_or_else(|_| Err(self.slow(MODULE)))
    }

    async fn pull(&self, layer: &Layer) -> Result<Bytes, Failure> {
        self.client.store_auth_if_needed(self.reference.resolve_registry(), &self.auth).await;
        let digest = layer.digest.to_string();
        let answer = timeout(ANSWER, self.client.pull_blob_stream(&self.reference, digest.as_str())).await;
        let mut stream = self.answered(ANSWER, answer).await?;
        let mut bytes = Vec::new();
        while let Some(part) = stream.next().await {
            // The crate compares the whole with the digest, and ends with an error if they differ.
            let part =
                part.map_err(|error| match error.get_ref().and_then(|inner| inner.downcast_ref::<DigestError>()) {
                    Some(_) => self.damaged(layer),
                    None => self.unreachable(&error),
                })?;
            bytes.extend_from_slice(&part);
            if bytes.len() as u64 > layer.size {
                return Err(self.damaged(layer));
            }
        }
        if bytes.len() as u64 == layer.size { Ok(bytes.into()) } else { Err(self.damaged(layer)) }
    }

    async fn answered<T, E>(
        &self,
        within: Duration,
        answer: Result<Result<T, OciDistributionError>, E>,
    ) -> Result<T, Failure> {
        match answer {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(error)) => Err(self.failure(error).await),
            Err(_) => Err(self.slow(within)),
        }
    }

    async fn failure(&self, error: OciDistributionError) -> Failure {
        let (registry, reference) = (self.reference.registry(), &self.reference);
        match error {
            // An address may have a signature in it that is as good as a password.
            OciDistributionError::RequestError(error) => self.unreachable(&error.without_url()),
            OciDistributionError::UnauthorizedError { .. } => self.unauthorized().await,
            OciDistributionError::ServerError { code: 401 | 403, .. } => self.denied(),
            OciDistributionError::ServerError { code: 404, .. } => self.missing(),
            OciDistributionError::ServerError { code: 429, .. } => self.limited(),
            OciDistributionError::ServerError { code: code @ 500.., message, .. } => {
                let says = quoted(&message);
                Failure::Unreachable(format!(
                    "the registry {registry} fails with status {code}{says} when asked for {reference}: it is asked again"
                ))
            }
            OciDistributionError::ServerError { code, message, .. } => {
                let says = quoted(&message);
                Failure::Refused(format!(
                    "the registry {registry} answers {code}{says} when asked for {reference}: is it a registry?"
                ))
            }
            OciDistributionError::RegistryError { envelope, .. } => self.answers(&envelope),
            OciDistributionError::DigestError(DigestError::VerificationError { expected, .. }) => {
                Failure::Refused(format!(
                    "the manifest of {reference} in the registry {registry} is damaged: it is not {expected}; push it again"
                ))
            }
            error => Failure::Refused(format!(
                "the registry {registry} answers what cannot be understood when asked for {reference}: {}",
                cause(&error)
            )),
        }
    }

    fn answers(&self, envelope: &OciEnvelope) -> Failure {
        match envelope.errors.first() {
            Some(error) => match error.code {
                OciErrorCode::Unauthorized | OciErrorCode::Denied => self.denied(),
                OciErrorCode::Toomanyrequests => self.limited(),
                OciErrorCode::BlobUnknown
                | OciErrorCode::ManifestUnknown
                | OciErrorCode::NameUnknown
                | OciErrorCode::NotFound => self.missing(),
                _ => Failure::Refused(format!(
                    "the registry {} refuses {}{}",
                    self.reference.registry(),
                    self.reference,
                    quoted(&error.message)
                )),
            },
            None => self.missing(),
        }
    }

    /// Whether it is the credentials, or that nobody is there to judge them: the crate does not say.
    async fn unauthorized(&self) -> Failure {
        match timeout(ANSWER, self.client.auth(&self.reference, &self.auth, RegistryOperation::Pull)).await {
            Err(_) => self.slow(ANSWER),
            Ok(Err(OciDistributionError::RequestError(error))) => self.unreachable(&error.without_url()),
            Ok(_) => self.denied(),
        }
    }

    fn denied(&self) -> Failure {
        let (registry, repository) = (self.reference.registry(), self.reference.repository());
        let whose = match &self.file {
            Some(file) => format!("with the credentials of {}", file.display()),
            None => "to one without credentials".to_owned(),
        };
        Failure::Denied(format!(
            "the registry {registry} does not give {repository} {whose}: as the user that Baton runs as, \
             `docker login {registry}` as somebody who may pull it"
        ))
    }

    fn missing(&self) -> Failure {
        let (registry, reference) = (self.reference.registry(), &self.reference);
        Failure::Missing(format!(
            "the registry {registry} has no {reference}: `wkg oci push {reference} MODULE.wasm` puts a module there"
        ))
    }

    fn limited(&self) -> Failure {
        let registry = self.reference.registry();
        Failure::Unreachable(format!(
            "the registry {registry} is asked too often for its liking (429): `docker login {registry}` often raises the limit"
        ))
    }

    fn slow(&self, within: Duration) -> Failure {
        Failure::Unreachable(format!(
            "the registry {} does not answer within {within:?}: it is asked again",
            self.reference.registry()
        ))
    }

    fn unreachable(&self, error: &(dyn Error + 'static)) -> Failure {
        let (registry, cause) = (self.reference.registry(), cause(error));
        let remedy = if cause.contains("certificate") {
            "put its authority among the system's certificates, or name the file in SSL_CERT_FILE"
        } else {
            "it is asked again; check its name and the network"
        };
        Failure::Unreachable(format!(
            "the registry {registry} cannot be asked for {}: {cause}; {remedy}",
            self.reference
        ))
    }

    fn damaged(&self, layer: &Layer) -> Failure {
        Failure::Refused(format!(
            "the module {} in the registry {} is damaged: it is not the {} bytes {} that its manifest names; push it again",
            self.reference,
            self.reference.registry(),
            layer.size,
            layer.digest
        ))
    }
}

/// Plain HTTP is for registries on this machine, as everywhere.
fn client(registry: &str) -> Result<Client, OciDistributionError> {
    // The crate would panic without one. It is harmless if there is one already.
    let _ = tokio_rustls::rustls::crypto::ring::default_provider().install_default();
    Client::try_from(ClientConfig {
        protocol: if is_loopback(registry) { ClientProtocol::Http } else { ClientProtocol::Https },
        connect_timeout: Some(CONNECT),
        read_timeout: Some(SILENCE),
        user_agent: concat!("baton/", env!("CARGO_PKG_VERSION")),
        ..ClientConfig::default()
    })
}

fn is_loopback(registry: &str) -> bool {
    let host = registry.rsplit_once(':').map_or(registry, |(host, _)| host);
    host == "localhost" || host.parse().is_ok_and(|address: std::net::Ipv4Addr| address.is_loopback())
}

/// What is at the bottom of an error. What is above it may name addresses, with what is secret in them.
fn cause(error: &(dyn Error + 'static)) -> String {
    let mut cause = error;
    while let Some(source) = cause.source() {
        cause = source;
    }
    cause.to_string()
}

fn quoted(message: &str) -> String {
    let message: String = message.split_whitespace().collect::<Vec<_>>().join(" ");
    match message.char_indices().nth(QUOTED) {
        _ if message.is_empty() => String::new(),
        Some((end, _)) => format!(" (\"{}…\")", &message[..end]),
        None => format!(" (\"{message}\")"),
    }
}
