//! Authorization at a registry, with a password or with a token that is fetched and cached.

use std::time::Duration;

use base64::prelude::{BASE64_STANDARD, Engine as _};
use docker_credential::DockerCredential;
use reqwest::header::{AUTHORIZATION, HeaderMap, HeaderValue};
use reqwest::{RequestBuilder, Response, StatusCode};
use serde::Deserialize;
use serde_json::Value;
use tokio::time::Instant;
use url::Url;

use super::challenge::Challenge;
use super::transport::{AskError, Transport, content, secret, send};

/// Upper bound on the size of a token server's response, in bytes.
const LARGEST_ANSWER: usize = 64 << 10;
/// Default and maximum lifetime of a token, in seconds. The default applies if the response states no lifetime.
const LIFETIME: (u64, u64) = (60, 24 * 60 * 60);

pub struct Authorization {
    repository: String,
    credential: Option<DockerCredential>,
    challenge: Option<Challenge>,
    token: Option<Token>,
}

struct Token {
    shown: HeaderValue,
    /// Time from which a new token is needed.
    until: Instant,
}

impl Token {
    /// Parses a token server's response. `asked` is the time at which the request was sent. Discards the parser's
    /// error, because the error might quote a secret.
    fn of(answer: &[u8], asked: Instant) -> Option<Self> {
        let granted: Granted = serde_json::from_slice(answer).ok()?;
        let token = if granted.token.is_empty() { granted.access_token } else { granted.token };
        let shown =
            Some(token).filter(|token| !token.is_empty()).and_then(|token| secret(&format!("Bearer {token}")))?;
        let lifetime = granted.expires_in.as_u64().unwrap_or(LIFETIME.0).min(LIFETIME.1);
        // The margin of one quarter allows for requests in flight and for differences between clocks.
        Some(Self { shown, until: asked + Duration::from_secs(lifetime) * 3 / 4 })
    }
}

/// The specification allows two field names for the token.
#[derive(Deserialize)]
struct Granted {
    #[serde(default)]
    token: String,
    #[serde(default)]
    access_token: String,
    #[serde(default)]
    expires_in: Value,
}

impl Authorization {
    pub fn new(repository: &str, credential: Option<DockerCredential>) -> Self {
        Self { repository: repository.to_owned(), credential, challenge: None, token: None }
    }

    /// Handles the registry's challenge. Drops the cached token, because a registry sends a challenge only if it
    /// rejects the token or has received none.
    pub fn challenged(&mut self, headers: &HeaderMap) {
        self.token = None;
        if let Some(challenge) = Challenge::of(headers) {
            self.challenge = Some(challenge);
        }
    }

    /// Returns the authorization header, which the caller must send only to the registry. Returns `None` if the
    /// registry has not asked for credentials. Also returns `None` if this host does not have the credentials for which
    /// the registry asks.
    pub async fn header(&mut self, transport: &Transport) -> Result<Option<HeaderValue>, AskError> {
        let (realm, service) = match &self.challenge {
            None => return Ok(None),
            Some(Challenge::Basic) => return Ok(self.password()),
            Some(Challenge::Bearer { realm, service }) => (realm, service.as_deref()),
        };
        if let Some(token) = self.token.as_ref().filter(|token| Instant::now() < token.until) {
            return Ok(Some(token.shown.clone()));
        }
        let token = self.fetch(transport, realm, service).await?;
        Ok(Some(self.token.insert(token).shown.clone()))
    }

    fn password(&self) -> Option<HeaderValue> {
        match &self.credential {
            Some(DockerCredential::UsernamePassword(user, password)) => {
                secret(&format!("Basic {}", BASE64_STANDARD.encode(format!("{user}:{password}"))))
            }
            // Identity tokens must be sent to token servers only.
            Some(DockerCredential::IdentityToken(_)) | None => None,
        }
    }

    async fn fetch(&self, transport: &Transport, realm: &str, service: Option<&str>) -> Result<Token, AskError> {
        let realm = Url::parse(realm)
            .map_err(|_| AskError::Unclear("the address of its token server is invalid".to_owned()))?;
        if !transport.may_redirect_to(&realm) {
            return Err(AskError::elsewhere("a token", &realm));
        }
        let asked = Instant::now();
        let response = granted(send(self.request(transport, realm, service)).await?)?;
        let answer = content(response, "its token", LARGEST_ANSWER).await?;
        Token::of(&answer, asked).ok_or_else(|| AskError::Unclear("its token server sent no token".to_owned()))
    }

    /// The scope is always this repository, even if the registry's challenge names another scope.
    fn request(&self, transport: &Transport, mut realm: Url, service: Option<&str>) -> RequestBuilder {
        let scope = format!("repository:{}:pull", self.repository);
        let mut parameters = vec![("scope", scope.as_str())];
        parameters.extend(service.map(|service| ("service", service)));
        if let Some(DockerCredential::IdentityToken(token)) = &self.credential {
            // Send an OAuth 2 refresh request, as Docker does if `docker login` received a token instead of a password.
            parameters.extend([("grant_type", "refresh_token"), ("client_id", "baton"), ("refresh_token", token)]);
            return transport.client().post(realm).form(&parameters);
        }
        realm.query_pairs_mut().extend_pairs(parameters);
        let request = transport.client().get(realm);
        match self.password() {
            Some(password) => request.header(AUTHORIZATION, password),
            None => request,
        }
    }
}

/// Parses a token server's response in fuzz tests, for [`crate::untrusted`].
pub(super) fn token(answer: &[u8]) {
    let asked = Instant::now();
    if let Some(Token { shown, until }) = Token::of(answer, asked) {
        assert!(shown.is_sensitive(), "no log shows it");
        assert!(until >= asked && until <= asked + Duration::from_secs(LIFETIME.1), "it lasts a day at the most");
    }
}

fn granted(response: Response) -> Result<Response, AskError> {
    match response.status() {
        status if status.is_redirection() => Err(AskError::Unclear("its token server sent a redirect".to_owned())),
        StatusCode::TOO_MANY_REQUESTS => Ok(response),
        status if status.is_client_error() => Err(AskError::Denied),
        _ => Ok(response),
    }
}
