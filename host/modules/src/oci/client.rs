//! The requests of the OCI distribution protocol that are needed to pull from one repository.
//!
//! Baton has its own client, because registries are untrusted. The crate `oci-client` (0.18) reads manifests, tokens
//! and errors without a size limit, so an endless response would exhaust the node's memory. The crate sends passwords
//! to any address that a response names, even over plain HTTP. The crate panics if a token is not a valid header value.

use bytes::Bytes;
use docker_credential::DockerCredential;
use reqwest::header::{ACCEPT, AUTHORIZATION, HeaderValue, LOCATION};
use reqwest::{Method, Response, StatusCode};
use url::Url;

use super::artifact::MANIFESTS;
use super::authorization::Authorization;
use super::transport::{AskError, Transport, content, send, successful};
use baton_store::Digest;

/// Maximum size of a manifest, in bytes. Registries usually have the same limit.
const LARGEST_MANIFEST: usize = 4 << 20;
const REDIRECTS: usize = 5;

pub struct Client {
    transport: Transport,
    repository: Url,
    authorization: Authorization,
    /// True once the client has asked the registry for a challenge.
    has_met: bool,
}

/// The kind of the requested object, which decides where the registry may redirect the request.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Wanted {
    Manifest,
    /// The content of a layer. Registries often store blobs on other servers.
    Blob,
}

impl Client {
    /// Loads the system's certificates. The error is the reason why TLS cannot be set up.
    pub fn open(url: &Url, repository: &str, credential: Option<DockerCredential>) -> Result<Self, String> {
        let (transport, authorization) = (Transport::open(url)?, Authorization::new(repository, credential));
        Ok(Self { transport, repository: url.clone(), authorization, has_met: false })
    }

    /// Returns the digest of the manifest to which this tag points, as stated by the registry.
    pub async fn digest(&mut self, tag: &str) -> Result<String, AskError> {
        let path = format!("manifests/{tag}");
        let response = self.ask(Method::HEAD, &path, Wanted::Manifest).await?;
        let status = response.status();
        if let Some(digest) = response.headers().get("Docker-Content-Digest").filter(|_| status == StatusCode::OK) {
            let digest = digest.to_str().map_err(|_| AskError::Unclear("its digest is not text".to_owned()))?;
            return Ok(digest.to_owned());
        }
        if status == StatusCode::UNAUTHORIZED || status == StatusCode::TOO_MANY_REQUESTS {
            return Err(AskError::Status(status, Bytes::new()));
        }
        // Otherwise, request the manifest itself. Some registries send no digest header, and a HEAD response has no
        // body that could explain an error.
        Ok(Digest::of(&self.manifest(tag).await?).to_string())
    }

    /// Returns the manifest with this tag or digest. The caller must verify the manifest.
    pub async fn manifest(&mut self, name: &str) -> Result<Bytes, AskError> {
        let response = self.ask(Method::GET, &format!("manifests/{name}"), Wanted::Manifest).await?;
        content(response, "its manifest", LARGEST_MANIFEST).await
    }

    /// Requests a blob, and returns the response before its body has arrived. The caller must read and verify the body.
    pub async fn blob(&mut self, digest: &Digest) -> Result<Response, AskError> {
        successful(self.ask(Method::GET, &format!("blobs/{digest}"), Wanted::Blob).await?).await
    }

    async fn ask(&mut self, method: Method, path: &str, wanted: Wanted) -> Result<Response, AskError> {
        if !self.has_met {
            // Request a challenge first. If an anonymous client requests a private object, some registries respond that
            // the object does not exist, instead of sending a challenge.
            let answer = send(self.transport.client().get(self.at("/v2/")?)).await?;
            self.authorization.challenged(answer.headers());
            self.has_met = true;
        }
        let url = self.at(path)?;
        let shown = self.authorization.header(&self.transport).await?;
        let response = self.follow(&method, url.clone(), shown.as_ref(), wanted).await?;
        if response.status() != StatusCode::UNAUTHORIZED || !self.transport.is_registry(response.url()) {
            return Ok(response);
        }
        self.authorization.challenged(response.headers());
        let other = self.authorization.header(&self.transport).await?;
        if other.is_none() || other == shown {
            return Ok(response);
        }
        self.follow(&method, url, other.as_ref(), wanted).await
    }

    fn at(&self, path: &str) -> Result<Url, AskError> {
        self.repository.join(path).map_err(|error| AskError::Unclear(error.to_string()))
    }

    /// Follows redirects. Sends the credentials only to the registry itself.
    async fn follow(
        &self,
        method: &Method,
        mut url: Url,
        shown: Option<&HeaderValue>,
        wanted: Wanted,
    ) -> Result<Response, AskError> {
        for _ in 0..=REDIRECTS {
            let mut request = self.transport.client().request(method.clone(), url.clone());
            if wanted == Wanted::Manifest {
                request = request.header(ACCEPT, MANIFESTS.join(", "));
            }
            if let Some(shown) = shown.filter(|_| self.transport.is_registry(&url)) {
                request = request.header(AUTHORIZATION, shown.clone());
            }
            let response = send(request).await?;
            let Some(place) = leads_to(&response)? else { return Ok(response) };
            let may_leave = wanted == Wanted::Blob;
            if !self.transport.may_redirect_to(&place) || !(may_leave || self.transport.is_registry(&place)) {
                let what = if may_leave { "the module" } else { "the manifest" };
                return Err(AskError::elsewhere(what, &place));
            }
            url = place;
        }
        Err(AskError::Redirects)
    }
}

fn leads_to(response: &Response) -> Result<Option<Url>, AskError> {
    let place = match response.status().as_u16() {
        301 | 302 | 303 | 307 | 308 => response.headers().get(LOCATION),
        _ => None,
    };
    let Some(place) = place else { return Ok(None) };
    let url = place.to_str().ok().and_then(|place| response.url().join(place).ok());
    url.map(Some).ok_or_else(|| AskError::Unclear("it redirects to an invalid address".to_owned()))
}
