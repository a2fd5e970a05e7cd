//! Tokens for the identity of a machine, a workload or a user.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use azure_core::auth::{AccessToken, TokenCredential};
use azure_core::error::{Error, ErrorKind, ResultExt};
use azure_core::{HttpClient, Request, Response, Url};
use azure_identity::{
    AppServiceManagedIdentityCredential, AzureCliCredential, TokenCredentialOptions,
    VirtualMachineManagedIdentityCredential, WorkloadIdentityCredential,
};

use super::access::{is_safe_for_tokens, of_process};

const SOURCE_WITHIN: Duration = Duration::from_secs(10);
/// Timeout for connecting to a machine's identity endpoint. The timeout is short, because the endpoint is nearby, and
/// because a machine without an endpoint should try the next source soon.
const ENDPOINT_WITHIN: Duration = Duration::from_secs(2);

/// Environment variable that selects one of the identities assigned to the machine or workload.
pub(super) const CLIENT_ID: &str = "AZURE_CLIENT_ID";
/// Environment variable for the token issuer. The default is the public cloud's issuer.
pub(super) const AUTHORITY_HOST: &str = "AZURE_AUTHORITY_HOST";
const PUBLIC_AUTHORITY: &str = "https://login.microsoftonline.com";
/// Environment variable that is set in a Kubernetes workload with an identity.
pub(super) const FEDERATED_TOKEN_FILE: &str = "AZURE_FEDERATED_TOKEN_FILE";
/// Environment variable that is set in an App Service, a function or a container app.
const IDENTITY_ENDPOINT: &str = "IDENTITY_ENDPOINT";
/// Environment variable that replaces the fixed address of a virtual machine's identity endpoint.
const MACHINE_ENDPOINT: &str = "AZURE_POD_IDENTITY_AUTHORITY_HOST";

/// Environment variables for the credentials of a service principal, which other tools support and Baton does not.
const UNSUPPORTED: [&str; 2] = ["AZURE_CLIENT_SECRET", "AZURE_CLIENT_CERTIFICATE_PATH"];

type Source = (String, azure_core::Result<Arc<dyn TokenCredential>>);

/// Tries each source of tokens on this machine. Creates a new credential for each attempt, because a credential reads
/// the workload's token file only once, and the platform replaces this file from time to time.
pub(super) async fn token(scopes: Vec<String>) -> Result<AccessToken, Error> {
    let scopes: Vec<&str> = scopes.iter().map(String::as_str).collect();
    let mut problems = Vec::new();
    for (name, source) in sources() {
        let token = match source {
            Ok(source) => tokio::time::timeout(SOURCE_WITHIN, source.get_token(&scopes))
                .await
                .unwrap_or_else(|_| Err(Error::message(ErrorKind::Credential, "no answer"))),
            Err(error) => Err(error),
        };
        match token {
            Ok(token) => return Ok(token),
            Err(error) => problems.push(format!("{name}: {}", super::error_chain(&error))),
        }
    }
    if let Some(name) = UNSUPPORTED.into_iter().find(|name| of_process(name).is_some()) {
        problems.push(format!("{name} is set, but Baton does not use it: give the machine or workload an identity"));
    }
    let problem = format!(
        "no credentials: the environment has no connection string, key or SAS, and no identity returned a token ({})",
        problems.join("; ")
    );
    Err(Error::message(ErrorKind::Credential, problem))
}

fn sources() -> Vec<Source> {
    if of_process(FEDERATED_TOKEN_FILE).is_some() {
        let workload = authority().and_then(WorkloadIdentityCredential::create).map(shared);
        return vec![("workload identity".to_owned(), workload)];
    }
    let name = match of_process(CLIENT_ID) {
        Some(id) => format!("managed identity {id} (from {CLIENT_ID})"),
        None => format!("system-assigned managed identity (set {CLIENT_ID} to use another)"),
    };
    if of_process(IDENTITY_ENDPOINT).is_some() {
        let service = AssignedClient::at(None).and_then(AppServiceManagedIdentityCredential::create).map(shared);
        return vec![(name, service)];
    }
    let endpoint = of_process(MACHINE_ENDPOINT)
        .map(|url| Url::parse(&url).with_context(ErrorKind::Credential, || format!("{MACHINE_ENDPOINT} is not a URL")))
        .transpose();
    let machine = endpoint.and_then(AssignedClient::at).map(VirtualMachineManagedIdentityCredential::new).map(shared);
    vec![(name, machine), ("Azure CLI".to_owned(), AzureCliCredential::create().map(shared))]
}

/// Returns the token issuer. Adds the scheme if it is missing: some users omit the scheme, as the SDKs' own constants
/// do.
fn authority() -> azure_core::Result<TokenCredentialOptions> {
    let host = match of_process(AUTHORITY_HOST) {
        None => PUBLIC_AUTHORITY.to_owned(),
        Some(host) if host.contains("://") => host,
        Some(host) => format!("https://{host}"),
    };
    if !is_safe_for_tokens(&host) {
        let problem = format!("{AUTHORITY_HOST} is not an https:// address");
        return Err(Error::message(ErrorKind::Credential, problem));
    }
    let mut options = TokenCredentialOptions::default();
    options.set_authority_host(host);
    Ok(options)
}

fn shared<T: TokenCredential + 'static>(credential: T) -> Arc<dyn TokenCredential> {
    Arc::new(credential)
}

/// Requests tokens for the configured identity from a machine's endpoint. `azure_identity` cannot select an identity at
/// such an endpoint. Never uses a proxy.
struct AssignedClient {
    client: reqwest::Client,
    client_id: Option<String>,
    endpoint: Option<Url>,
}

impl AssignedClient {
    fn at(endpoint: Option<Url>) -> azure_core::Result<Arc<dyn HttpClient>> {
        let client = reqwest::Client::builder()
            .connect_timeout(ENDPOINT_WITHIN)
            .no_proxy()
            .build()
            .context(ErrorKind::Credential, "an HTTP client cannot be created")?;
        Ok(Arc::new(Self { client, client_id: of_process(CLIENT_ID), endpoint }))
    }
}

impl fmt::Debug for AssignedClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("AssignedClient")
    }
}

#[async_trait::async_trait]
impl HttpClient for AssignedClient {
    async fn execute_request(&self, request: &Request) -> azure_core::Result<Response> {
        let mut request = request.clone();
        if let Some(id) = &self.client_id {
            request.url_mut().query_pairs_mut().append_pair("client_id", id);
        }
        if let Some(endpoint) = &self.endpoint {
            let mut url = endpoint.clone();
            url.set_path(&format!("{}{}", endpoint.path().trim_end_matches('/'), request.url().path()));
            url.set_query(request.url().query());
            *request.url_mut() = url;
        }
        self.client.execute_request(&request).await
    }
}
