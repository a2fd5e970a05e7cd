//! How the host proves to Azure who it is: what users expect to work, in the order in which it is tried.

use std::env::var;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use azure_core::auth::{AccessToken, Secret, TokenCredential};
use azure_core::error::{Error, ErrorKind};
use azure_identity::{AzureCliCredential, TokenCredentialOptions, WorkloadIdentityCredential};
use azure_storage::{ConnectionString, EndpointProtocol, StorageCredentials};
use futures::future::BoxFuture;
use time::OffsetDateTime;
use tokio::task::JoinHandle;

use super::managed_identity::ManagedIdentity;

/// Why there are no credentials that can be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct CredentialError(String);

impl CredentialError {
    pub(super) fn new(problem: String) -> Self {
        Self(problem)
    }
}

/// Variables that hold a connection string, the strongest first.
const CONNECTION_STRING: [&str; 2] = ["BATON_STORE_CONNECTION_STRING", "AZURE_STORAGE_CONNECTION_STRING"];
const KEY: [&str; 2] = ["AZURE_STORAGE_KEY", "AZURE_STORAGE_ACCOUNT_KEY"];
const SAS: [&str; 1] = ["AZURE_STORAGE_SAS_TOKEN"];

/// The blob service's URL where it is not the public cloud's, as for the Azure CLI.
const ENDPOINT: [&str; 1] = ["AZURE_STORAGE_SERVICE_ENDPOINT"];

/// How an account is reached.
#[derive(Debug)]
pub(super) struct Access {
    pub credentials: StorageCredentials,
    /// The blob service's URL, where it is not the public cloud's.
    pub endpoint: Option<String>,
}

/// A variable that is set and not empty.
fn set(name: &str) -> Option<String> {
    var(name).ok().filter(|value| !value.is_empty())
}

fn first_of(names: &[&'static str]) -> Option<(&'static str, String)> {
    names.iter().find_map(|name| Some((*name, set(name)?)))
}

/// The access to an account: by a connection string, a key or a SAS from the environment, else by tokens of
/// the workload's, the managed or the command line's identity.
pub(super) fn from_environment(account: &str) -> Result<Access, CredentialError> {
    if let Some((name, value)) = first_of(&CONNECTION_STRING) {
        return from_connection_string(name, &value, account);
    }
    let credentials = if let Some((name, key)) = first_of(&KEY) {
        StorageCredentials::access_key(account, Secret::new(checked_key(name, &key)?.to_owned()))
    } else if let Some((name, sas)) = first_of(&SAS) {
        let sas = sas.trim().trim_start_matches('?');
        if !sas.contains("sig=") {
            return Err(CredentialError(format!(
                "{name} is no signature (it has no `sig=`): check that it was copied whole"
            )));
        }
        StorageCredentials::sas_token(sas).map_err(|_| unusable(name))?
    } else {
        let source = Box::new(|scopes| Box::pin(fetch(scopes)) as BoxFuture<'static, _>);
        StorageCredentials::token_credential(Arc::new(KeptToken::from(source)))
    };
    let endpoint = first_of(&ENDPOINT).map(|(name, url)| checked_endpoint(name, &url)).transpose()?;
    Ok(Access { credentials, endpoint })
}

/// The emulator's well-known key, unless the environment gives another.
pub(super) fn for_emulator() -> Result<StorageCredentials, CredentialError> {
    match first_of(&CONNECTION_STRING) {
        Some((name, value)) => {
            ConnectionString::new(&value).and_then(|parsed| parsed.storage_credentials()).map_err(|_| unusable(name))
        }
        None => Ok(StorageCredentials::emulator()),
    }
}

fn from_connection_string(name: &str, text: &str, account: &str) -> Result<Access, CredentialError> {
    let parsed = ConnectionString::new(text).map_err(|_| unusable(name))?;
    if let Some(other) = parsed.account_name.filter(|other| *other != account) {
        return Err(CredentialError(format!("{name} is for the account {other}, and the store's URL names {account}")));
    }
    let protocol = match parsed.default_endpoints_protocol {
        Some(EndpointProtocol::Http) => "http",
        Some(EndpointProtocol::Https) | None => "https",
    };
    let endpoint = match (parsed.blob_endpoint, parsed.endpoint_suffix) {
        (Some(url), _) => Some(checked_endpoint(name, url)?),
        (None, Some(suffix)) => Some(checked_endpoint(name, &format!("{protocol}://{account}.blob.{suffix}"))?),
        (None, None) => None,
    };
    if let Some(key) = parsed.account_key {
        checked_key(name, key)?;
    }
    let credentials = parsed.storage_credentials().map_err(|_| unusable(name))?;
    Ok(Access { credentials, endpoint })
}

/// A key that is not Base64 would be found out when the first request is signed, and again with each one.
fn checked_key<'a>(name: &str, key: &'a str) -> Result<&'a str, CredentialError> {
    let key = key.trim();
    match azure_core::base64::decode(key) {
        Ok(bytes) if !bytes.is_empty() => Ok(key),
        _ => Err(CredentialError(format!("{name} has no key (it is not Base64): check that it was copied whole"))),
    }
}

fn checked_endpoint(name: &str, text: &str) -> Result<String, CredentialError> {
    let url = url::Url::parse(text).ok().filter(|url| url.has_host() && ["http", "https"].contains(&url.scheme()));
    match url {
        // A path is kept: the emulator's ends with the account.
        Some(url) if url.query().is_none() => Ok(url.as_str().trim_end_matches('/').to_owned()),
        _ => Err(CredentialError(format!(
            "{name} names no endpoint that can be used: write a URL like https://ACCOUNT.blob.core.windows.net"
        ))),
    }
}

fn unusable(name: &str) -> CredentialError {
    CredentialError(format!("{name} cannot be used: check that it was copied whole"))
}

/// A token that has less than this left is fetched anew while the old one is still in use.
const AHEAD: Duration = Duration::from_secs(600);

/// How long one source of tokens may take.
pub(super) const SOURCE_WITHIN: Duration = Duration::from_secs(10);

type Fetch = JoinHandle<Result<AccessToken, Error>>;

/// Where tokens come from.
type Source = dyn Fn(Vec<String>) -> BoxFuture<'static, Result<AccessToken, Error>> + Send + Sync;

/// Keeps a token and fetches the next one ahead of need, off the path of whoever asks.
struct KeptToken {
    source: Box<Source>,
    state: Mutex<State>,
}

impl KeptToken {
    fn from(source: Box<Source>) -> Self {
        Self { source, state: Mutex::default() }
    }
}

#[derive(Default)]
struct State {
    token: Option<AccessToken>,
    fetching: Option<Fetch>,
}

impl fmt::Debug for KeptToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("KeptToken")
    }
}

impl Drop for KeptToken {
    fn drop(&mut self) {
        if let Some(fetching) = &self.state.get_mut().unwrap_or_else(PoisonError::into_inner).fetching {
            fetching.abort();
        }
    }
}

#[async_trait::async_trait]
impl TokenCredential for KeptToken {
    async fn get_token(&self, scopes: &[&str]) -> azure_core::Result<AccessToken> {
        let scopes: Vec<String> = scopes.iter().map(|scope| (*scope).to_owned()).collect();
        loop {
            let fetching = {
                let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
                let left = state.token.as_ref().map(|token| token.expires_on - OffsetDateTime::now_utc());
                if left.is_none_or(|left| left < AHEAD) && state.fetching.is_none() {
                    state.fetching = Some(tokio::spawn((self.source)(scopes.clone())));
                }
                if state.fetching.as_ref().is_some_and(JoinHandle::is_finished) {
                    state.fetching.take()
                } else if let (Some(token), Some(true)) = (&state.token, left.map(time::Duration::is_positive)) {
                    return Ok(token.clone());
                } else {
                    None
                }
            };
            match fetching {
                Some(fetching) => {
                    let fetched = fetching.await.map_err(|error| Error::new(ErrorKind::Credential, error))?;
                    let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
                    match (fetched, &state.token) {
                        (Ok(token), _) => state.token = Some(token),
                        // The old token is good for a while, and the next request asks again.
                        (Err(_), Some(token)) if token.expires_on > OffsetDateTime::now_utc() => {
                            return Ok(token.clone());
                        }
                        (Err(error), _) => return Err(error),
                    }
                }
                // Nothing to go on with until the first token is there.
                None => tokio::time::sleep(Duration::from_millis(20)).await,
            }
        }
    }

    async fn clear_cache(&self) -> azure_core::Result<()> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).token = None;
        Ok(())
    }
}

/// Asks each source that this machine may have. Each credential is made anew: one that reads a file would
/// otherwise read it once, and the file is rotated.
async fn fetch(scopes: Vec<String>) -> Result<AccessToken, Error> {
    let options = TokenCredentialOptions::default;
    let asked: Vec<&str> = scopes.iter().map(String::as_str).collect();
    let mut problems = Vec::new();
    if set("AZURE_FEDERATED_TOKEN_FILE").is_some() {
        let token = async { WorkloadIdentityCredential::create(options())?.get_token(&asked).await };
        match in_time(token).await {
            Ok(token) => return Ok(token),
            Err(error) => problems.push(format!("workload identity: {}", super::told(&error))),
        }
    } else {
        match in_time(ManagedIdentity::from_environment(set).token(&scopes)).await {
            Ok(token) => return Ok(token),
            Err(error) => problems.push(format!("managed identity: {}", super::told(&error))),
        }
        // A service that has identities has no command line.
        if set("IDENTITY_ENDPOINT").is_none() {
            let token = async { AzureCliCredential::create()?.get_token(&asked).await };
            match in_time(token).await {
                Ok(token) => return Ok(token),
                Err(error) => problems.push(format!("Azure CLI: {}", super::told(&error))),
            }
        }
    }
    let problem = format!(
        "no credentials: neither a connection string, a key nor a SAS is in the environment, and no identity gave a \
         token ({})",
        problems.join("; ")
    );
    Err(Error::message(ErrorKind::Credential, problem))
}

async fn in_time(token: impl Future<Output = Result<AccessToken, Error>>) -> Result<AccessToken, Error> {
    let answer = tokio::time::timeout(SOURCE_WITHIN, token).await;
    answer.unwrap_or_else(|_| Err(Error::message(ErrorKind::Credential, "no answer")))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on fails")]

    use std::collections::VecDeque;

    use tokio::sync::oneshot;

    use super::*;

    type Fetched = Result<AccessToken, Error>;

    fn token(name: &str, seconds_left: i64) -> Fetched {
        let expires_on = OffsetDateTime::now_utc() + time::Duration::seconds(seconds_left);
        Ok(AccessToken::new(name.to_owned(), expires_on))
    }

    fn no_token() -> Fetched {
        Err(Error::message(ErrorKind::Credential, "no token"))
    }

    /// A kept token whose source gives what the test sends, one for each fetch.
    fn kept(fetches: usize) -> (KeptToken, Vec<oneshot::Sender<Fetched>>) {
        let (senders, answers): (Vec<_>, VecDeque<_>) = (0..fetches).map(|_| oneshot::channel()).unzip();
        let answers = Mutex::new(answers);
        let source = move |_| -> BoxFuture<'static, Fetched> {
            let answer = answers.lock().unwrap().pop_front().expect("a fetch that the test foresees");
            Box::pin(async move { answer.await.unwrap() })
        };
        (KeptToken::from(Box::new(source)), senders)
    }

    async fn ask(kept: &KeptToken) -> Result<String, Error> {
        kept.get_token(&["scope"]).await.map(|token| token.token.secret().to_owned())
    }

    #[tokio::test]
    async fn the_next_token_is_fetched_ahead_and_nobody_waits_for_it() {
        let (kept, mut answers) = kept(2);
        let (first, second) = (answers.remove(0), answers.remove(0));
        assert!(first.send(token("first", 300)).is_ok());
        assert_eq!(ask(&kept).await.unwrap(), "first");
        // Less than ten minutes are left: the second is under way, and may take its time.
        for _ in 0..3 {
            assert_eq!(ask(&kept).await.unwrap(), "first");
        }
        assert!(second.send(token("second", 3600)).is_ok());
        while ask(&kept).await.unwrap() != "second" {
            tokio::task::yield_now().await;
        }
        // It lasts: a third fetch would panic.
        assert_eq!(ask(&kept).await.unwrap(), "second");
    }

    #[tokio::test]
    async fn a_fetch_that_fails_leaves_the_token_in_use_until_it_ends() {
        let (kept, mut answers) = kept(3);
        let (first, second, third) = (answers.remove(0), answers.remove(0), answers.remove(0));
        assert!(first.send(no_token()).is_ok());
        assert!(ask(&kept).await.is_err());
        assert!(second.send(token("second", 300)).is_ok());
        assert!(third.send(no_token()).is_ok());
        assert_eq!(ask(&kept).await.unwrap(), "second");
        while kept.state.lock().unwrap().fetching.as_ref().is_some_and(|fetching| !fetching.is_finished()) {
            tokio::task::yield_now().await;
        }
        assert_eq!(ask(&kept).await.unwrap(), "second");
    }

    #[tokio::test]
    async fn a_token_that_has_ended_is_not_used() {
        let (kept, mut answers) = kept(2);
        let (first, second) = (answers.remove(0), answers.remove(0));
        assert!(first.send(token("first", 3600)).is_ok());
        assert_eq!(ask(&kept).await.unwrap(), "first");
        kept.state.lock().unwrap().token = token("first", -1).ok();
        assert!(second.send(no_token()).is_ok());
        assert!(ask(&kept).await.is_err());
    }

    #[test]
    fn it_does_not_show_what_it_keeps() {
        let (kept, _) = kept(0);
        kept.state.lock().unwrap().token = token("secret", 60).ok();
        assert_eq!(format!("{kept:?}"), "KeptToken");
    }

    #[test]
    fn a_connection_string_says_where_the_account_is() {
        let account = "AccountName=contoso;AccountKey=c2VjcmV0";
        for (more, endpoint) in [
            ("", None),
            (
                ";DefaultEndpointsProtocol=https;EndpointSuffix=core.chinacloudapi.cn",
                Some("https://contoso.blob.core.chinacloudapi.cn"),
            ),
            (";DefaultEndpointsProtocol=http;EndpointSuffix=localhost:99", Some("http://contoso.blob.localhost:99")),
            (";BlobEndpoint=http://127.0.0.1:10000/contoso/;EndpointSuffix=x", Some("http://127.0.0.1:10000/contoso")),
        ] {
            let access = from_connection_string("STRING", &format!("{account}{more}"), "contoso").unwrap();
            assert_eq!(access.endpoint.as_deref(), endpoint, "{more}");
        }
        for (text, problem) in [
            (format!("{account};BlobEndpoint=nowhere"), "STRING names no endpoint"),
            (format!("{account};BlobEndpoint=https://a.b/?sig=s3cr3t"), "STRING names no endpoint"),
            (account.replace("contoso", "other"), "STRING is for the account other"),
            (account.replace("c2VjcmV0", "s3cr3t!"), "STRING has no key"),
            ("AccountName=contoso".to_owned(), "STRING cannot be used"),
        ] {
            let error = from_connection_string("STRING", &text, "contoso").unwrap_err().to_string();
            assert!(error.starts_with(problem) && !error.contains("s3cr3t"), "{error}");
        }
    }
}
