//! Endpoint and credentials of a storage account, from the environment variables that the Azure CLI and SDKs use. A
//! connection string contains both. With other kinds of credentials, another variable must name the endpoint if the
//! account is outside the public cloud.

use std::fmt;
use std::sync::Arc;

use azure_core::Url;
use azure_core::auth::Secret;
use azure_storage::{CloudLocation, ConnectionString, EndpointProtocol, StorageCredentials};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use super::tokens::KeptToken;
use baton_base::address::is_certainly_loopback;

/// The error returned if the endpoint or the credentials in the environment cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct CredentialError(String);

impl CredentialError {
    pub(super) fn new(problem: impl Into<String>) -> Self {
        Self(problem.into())
    }
}

/// The environment variable for a connection string. Only Baton reads this variable.
pub const OWN_CONNECTION_STRING: &str = "BATON_STORE_CONNECTION_STRING";
/// Variables that hold a connection string, in order of precedence.
const CONNECTION_STRING: [&str; 2] = [OWN_CONNECTION_STRING, "AZURE_STORAGE_CONNECTION_STRING"];
const KEY: [&str; 2] = ["AZURE_STORAGE_KEY", "AZURE_STORAGE_ACCOUNT_KEY"];
const SAS: [&str; 1] = ["AZURE_STORAGE_SAS_TOKEN"];
/// The variable for the account's endpoint. Used with all kinds of credentials except a connection string.
const ENDPOINT: &str = "AZURE_STORAGE_SERVICE_ENDPOINT";
const PUBLIC_SUFFIX: &str = "core.windows.net";
const EMULATOR_ACCOUNT: &str = "devstoreaccount1";

/// Looks up an environment variable. An empty variable counts as unset.
pub(super) type Variables<'a> = &'a dyn Fn(&str) -> Option<String>;

pub(super) fn of_process(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

#[derive(Debug)]
pub(super) struct AccountAccess {
    pub location: CloudLocation,
    pub credentials: StorageCredentials,
    /// The source of tokens. `None` if the credentials are a key or a SAS.
    pub token: Option<Arc<KeptToken>>,
    pub shown: ShownCredentials,
}

/// The part of the credentials that may appear in messages: the source, and the expiry and rights of a SAS. It contains
/// no secrets.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct ShownCredentials {
    source: String,
    /// The expiry of a SAS (`se`) and its rights (`sp`).
    sas: Option<(Option<OffsetDateTime>, Option<String>)>,
}

/// The rights that a host needs: read, create, write and list.
const RIGHTS: &str = "rcwl";

impl ShownCredentials {
    fn of(source: impl Into<String>) -> Self {
        Self { source: source.into(), sas: None }
    }

    fn of_sas(name: &str, sas: &str) -> Self {
        let value = |wanted: &str| {
            let pairs = url::form_urlencoded::parse(sas.trim().trim_start_matches('?').as_bytes());
            pairs.into_iter().find(|(name, _)| name == wanted).map(|(_, value)| value.into_owned())
        };
        let end = value("se").and_then(|end| OffsetDateTime::parse(&end, &Rfc3339).ok());
        Self { source: format!("the SAS of {name}"), sas: Some((end, value("sp"))) }
    }

    /// Returns advice for the operator if the credentials are a SAS that has expired.
    pub(super) fn expired(&self, now: OffsetDateTime) -> Option<String> {
        let end = self.sas.as_ref()?.0.filter(|end| *end <= now)?;
        Some(format!("the SAS expired at {}: create a new one", end.format(&Rfc3339).ok()?))
    }

    /// Returns advice for the operator if the credentials are a SAS without all the rights that a host needs.
    pub(super) fn lacks(&self) -> Option<String> {
        let given = self.sas.as_ref()?.1.as_ref()?;
        let missing: Vec<String> = RIGHTS.chars().filter(|right| !given.contains(*right)).map(String::from).collect();
        (!missing.is_empty())
            .then(|| format!("the SAS lacks the rights {} (sp={given}): create a new one", missing.join(", ")))
    }
}

impl fmt::Display for ShownCredentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.source)
    }
}

impl AccountAccess {
    /// Tries a connection string, then a key, then a SAS, and finally tokens for the identity of the workload, the
    /// machine or the CLI's user.
    pub fn of_account(account: &str, variables: Variables<'_>) -> Result<Self, CredentialError> {
        if let Some((name, text)) = first_of(variables, &CONNECTION_STRING)? {
            let parsed = parse(name, &text, account)?;
            if parsed.use_development_storage == Some(true) {
                return Err(CredentialError(format!("{name} is for the emulator: use `--store azurite`")));
            }
            let uri = endpoint_of(&parsed, account)
                .and_then(|uri| check_endpoint(&uri, account))
                .map_err(|problem| CredentialError(format!("the endpoint in {name} {problem}")))?;
            let (credentials, shown) = credentials_of(name, &parsed, account)?;
            return Ok(Self { location: location(account, &uri), credentials, token: None, shown });
        }
        let uri = match first_of(variables, &[ENDPOINT])? {
            Some((_, uri)) => uri,
            None => format!("https://{account}.blob.{PUBLIC_SUFFIX}"),
        };
        let uri = check_endpoint(&uri, account).map_err(|problem| CredentialError(format!("{ENDPOINT} {problem}")))?;
        let (credentials, shown) = if let Some((name, key)) = first_of(variables, &KEY)? {
            let key = StorageCredentials::access_key(account, checked_key(name, &key)?);
            (key, ShownCredentials::of(format!("the key of {name}")))
        } else if let Some((name, sas)) = first_of(variables, &SAS)? {
            (sas_token(&sas).ok_or_else(|| unusable(name))?, ShownCredentials::of_sas(name, &sas))
        } else if is_safe_for_tokens(&uri) {
            let token = Arc::new(KeptToken::of_this_machine());
            let credentials = StorageCredentials::token_credential(Arc::<KeptToken>::clone(&token));
            let shown = ShownCredentials::of("the identity token of this machine, workload or user");
            return Ok(Self { location: location(account, &uri), credentials, token: Some(token), shown });
        } else {
            return Err(CredentialError(format!(
                "{ENDPOINT} is an http:// URL, but Baton sends tokens to other machines only over TLS: write https://"
            )));
        };
        Ok(Self { location: location(account, &uri), credentials, token: None, shown })
    }

    /// Finds the emulator's credentials: its well-known key, unless a connection string contains other credentials.
    pub fn of_emulator(address: &str, variables: Variables<'_>) -> Result<Self, CredentialError> {
        let (host, port) = address.rsplit_once(':').unwrap_or((address, "10000"));
        let port = port.parse().map_err(|_| CredentialError(format!("`{port}` is not a port")))?;
        let location = CloudLocation::Emulator { address: host.to_owned(), port };
        let well_known = || (StorageCredentials::emulator(), ShownCredentials::of("the emulator's well-known key"));
        let (credentials, shown) = match first_of(variables, &CONNECTION_STRING)? {
            None => well_known(),
            Some((name, text)) => {
                let parsed = parse(name, &text, EMULATOR_ACCOUNT)?;
                match parsed.use_development_storage {
                    Some(true) => well_known(),
                    _ => credentials_of(name, &parsed, EMULATOR_ACCOUNT)?,
                }
            }
        };
        Ok(Self { location, credentials, token: None, shown })
    }
}

/// Returns the first of these variables that is set, and its value without a byte order mark or surrounding whitespace.
///
/// # Errors
/// Fails if the value is in quotation marks. For example, Docker does not strip the quotation marks in an `--env-file`.
fn first_of(
    variables: Variables<'_>,
    names: &[&'static str],
) -> Result<Option<(&'static str, String)>, CredentialError> {
    let Some((name, value)) = names.iter().find_map(|name| Some((*name, variables(name)?))) else { return Ok(None) };
    let value = value.trim_start_matches('\u{feff}').trim();
    if value.starts_with(['"', '\'']) {
        return Err(CredentialError(format!("the value of {name} begins with a quotation mark: remove the marks")));
    }
    Ok(Some((name, value.to_owned())))
}

/// The error for a malformed secret. It must not contain the secret.
fn unusable(name: &str) -> CredentialError {
    CredentialError(format!("{name} cannot be used: check that all of it was copied"))
}

fn parse<'a>(name: &str, text: &'a str, account: &str) -> Result<ConnectionString<'a>, CredentialError> {
    let parsed = ConnectionString::new(text).map_err(|_| unusable(name))?;
    match parsed.account_name {
        Some(other) if other != account => {
            Err(CredentialError(format!("{name} is for the account {other}, but the store is in {account}")))
        }
        _ => Ok(parsed),
    }
}

fn credentials_of(
    name: &str,
    parsed: &ConnectionString<'_>,
    account: &str,
) -> Result<(StorageCredentials, ShownCredentials), CredentialError> {
    match (parsed.sas, parsed.account_key) {
        (Some(sas), _) => Ok((sas_token(sas).ok_or_else(|| unusable(name))?, ShownCredentials::of_sas(name, sas))),
        (None, Some(key)) => Ok((
            StorageCredentials::access_key(account, checked_key(name, key)?),
            ShownCredentials::of(format!("the key of {name}")),
        )),
        (None, None) => {
            Err(CredentialError(format!("{name} has neither an AccountKey nor a SharedAccessSignature: add one")))
        }
    }
}

fn sas_token(sas: &str) -> Option<StorageCredentials> {
    let sas = sas.trim().trim_start_matches('?');
    StorageCredentials::sas_token(sas).ok().filter(|_| sas.contains("sig="))
}

/// Checks that a key is valid Base64. The SDK would notice a malformed key only when it signs a request.
fn checked_key(name: &str, key: &str) -> Result<Secret, CredentialError> {
    let key = key.trim();
    match azure_core::base64::decode(key) {
        Ok(bytes) if !bytes.is_empty() => Ok(Secret::new(key.to_owned())),
        _ => Err(CredentialError(format!("the key in {name} is not Base64: check that all of it was copied"))),
    }
}

fn endpoint_of(parsed: &ConnectionString<'_>, account: &str) -> Result<String, String> {
    if let Some(uri) = parsed.blob_endpoint {
        return Ok(uri.to_owned());
    }
    let protocol = parsed.default_endpoints_protocol.as_ref().unwrap_or(&EndpointProtocol::Https);
    let suffix = parsed.endpoint_suffix.unwrap_or(PUBLIC_SUFFIX);
    if suffix.contains(['/', '?', '#', '@', ':']) {
        return Err("has an invalid EndpointSuffix: write it like core.windows.net".to_owned());
    }
    Ok(format!("{protocol}://{account}.blob.{suffix}"))
}

/// Checks that an endpoint belongs to the account, and strips its final slash. Errors do not repeat `text`, because
/// `text` may contain a SAS.
fn check_endpoint(text: &str, account: &str) -> Result<String, String> {
    const FORM: &str = "is malformed: write it like https://ACCOUNT.blob.core.windows.net";
    let url = Url::parse(text).map_err(|error| format!("{FORM} ({error})"))?;
    let host = url.host_str().filter(|_| ["http", "https"].contains(&url.scheme())).ok_or(FORM)?;
    if url.query().is_some() || url.fragment().is_some() || !url.username().is_empty() || url.password().is_some() {
        return Err("contains more than an address: set a signature as SharedAccessSignature or \
                    AZURE_STORAGE_SAS_TOKEN"
            .to_owned());
    }
    // If the host is an IP address, the account is in the path. If the host is a custom domain, the URL does not
    // contain the account at all.
    let in_path = url.path_segments().and_then(|mut segments| segments.next()).filter(|first| !first.is_empty());
    let in_host = host.split_once('.').filter(|(_, rest)| format!(".{rest}").contains(".blob."));
    match in_path.or(in_host.map(|(first, _)| first)) {
        Some(other) if other != account => Err(format!("is for the account {other}, but the store is in {account}")),
        _ => Ok(text.trim_end_matches('/').to_owned()),
    }
}

fn location(account: &str, uri: &str) -> CloudLocation {
    CloudLocation::Custom { account: account.to_owned(), uri: uri.to_owned() }
}

/// True if nobody on the network can read a token that is sent to this URI. Anybody who can read a token can use it
/// just as this host does.
pub(super) fn is_safe_for_tokens(uri: &str) -> bool {
    let Ok(url) = Url::parse(uri) else { return false };
    url.scheme() == "https" || url.host().is_some_and(|host| is_certainly_loopback(&host))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

    use azure_storage::clients::ServiceType;

    use super::super::identity::{AUTHORITY_HOST, CLIENT_ID, FEDERATED_TOKEN_FILE};
    use super::*;

    /// Baton does not read this variable, but the Azure SDK does.
    const TENANT_ID: &str = "AZURE_TENANT_ID";

    fn place(account: &str, environment: &[(&str, &str)]) -> Result<String, String> {
        let variables =
            |name: &str| environment.iter().find(|(own, _)| *own == name).map(|(_, text)| (*text).to_owned());
        match AccountAccess::of_account(account, &variables) {
            Ok(access) => Ok(access.location.url(ServiceType::Blob).unwrap().to_string()),
            Err(error) => Err(error.to_string()),
        }
    }

    #[test]
    fn connection_string_names_its_endpoint() {
        for (string, uri) in [
            ("AccountName=acct;AccountKey=a2V5", "https://acct.blob.core.windows.net/"),
            (
                "DefaultEndpointsProtocol=https;AccountName=acct;AccountKey=a2V5;EndpointSuffix=core.windows.net",
                "https://acct.blob.core.windows.net/",
            ),
            (
                "AccountName=acct;AccountKey=a2V5;EndpointSuffix=core.usgovcloudapi.net",
                "https://acct.blob.core.usgovcloudapi.net/",
            ),
            (
                "DefaultEndpointsProtocol=http;AccountName=acct;AccountKey=a2V5;EndpointSuffix=core.chinacloudapi.cn",
                "http://acct.blob.core.chinacloudapi.cn/",
            ),
            (
                // The format in which the Azure portal shows a SAS. It contains no account name.
                "BlobEndpoint=https://acct.blob.core.windows.net/;QueueEndpoint=https://acct.queue.core.windows.net/;\
                 SharedAccessSignature=sv=2024&sig=c2ln",
                "https://acct.blob.core.windows.net/",
            ),
            (
                "AccountName=acct;AccountKey=a2V5;BlobEndpoint=https://acct.z13.blob.storage.azure.net;\
                 EndpointSuffix=core.windows.net",
                "https://acct.z13.blob.storage.azure.net/",
            ),
            (
                "AccountName=acct;AccountKey=a2V5;BlobEndpoint=https://acct.privatelink.blob.core.windows.net",
                "https://acct.privatelink.blob.core.windows.net/",
            ),
            ("AccountName=acct;AccountKey=a2V5;BlobEndpoint=https://blobs.contoso.com", "https://blobs.contoso.com/"),
            ("AccountName=acct;AccountKey=a2V5;BlobEndpoint=http://127.0.0.1:10/acct/", "http://127.0.0.1:10/acct"),
        ] {
            assert_eq!(place("acct", &[(CONNECTION_STRING[1], string)]).as_deref(), Ok(uri), "{string}");
        }
    }

    #[test]
    fn connection_string_is_refused_if_foreign_or_malformed() {
        for (string, problem) in [
            ("AccountName=other;AccountKey=a2V5", "AZURE_STORAGE_CONNECTION_STRING is for the account other"),
            (
                "BlobEndpoint=https://other.blob.core.windows.net/;SharedAccessSignature=sig=c2VjcmV0",
                "the endpoint in AZURE_STORAGE_CONNECTION_STRING is for the account other",
            ),
            ("BlobEndpoint=http://127.0.0.1:10/other;SharedAccessSignature=sig=c2VjcmV0", "the account other"),
            ("AccountName=acct;AccountKey=a2V5;BlobEndpoint=acct.blob.core.windows.net", "write it like https://"),
            (
                "AccountName=acct;AccountKey=a2V5;BlobEndpoint=ftp://acct.blob.core.windows.net",
                "write it like https://",
            ),
            (
                "AccountName=acct;BlobEndpoint=https://acct.blob.core.windows.net?sig=c2VjcmV0",
                "as SharedAccessSignature",
            ),
            ("AccountName=acct;AccountKey=a2V5;EndpointSuffix=https://core.windows.net", "invalid EndpointSuffix"),
            ("AccountName=acct;EndpointSuffix=core.windows.net", "neither an AccountKey nor"),
            ("UseDevelopmentStorage=true", "--store azurite"),
            ("AccountKey", "all of it was copied"),
            ("AccountName=acct;AccountKey=c2VjcmV0!", "not Base64"),
            ("AccountName=acct;SharedAccessSignature=c2VjcmV0", "all of it was copied"),
        ] {
            let error = place("acct", &[(CONNECTION_STRING[1], string)]).unwrap_err();
            assert!(error.contains(problem) && !error.contains("c2VjcmV0"), "{string}: {error}");
        }
    }

    #[test]
    fn other_credentials_use_the_endpoint_variable() {
        let gov = (ENDPOINT, "https://acct.blob.core.usgovcloudapi.net/");
        for credential in [("AZURE_STORAGE_KEY", "a2V5"), ("AZURE_STORAGE_SAS_TOKEN", "?sv=2024&sig=c2ln"), ("", "")] {
            assert_eq!(place("acct", &[credential]).as_deref(), Ok("https://acct.blob.core.windows.net/"));
            assert_eq!(place("acct", &[credential, gov]).as_deref(), Ok("https://acct.blob.core.usgovcloudapi.net/"));
            let error = place("other", &[credential, gov]).unwrap_err();
            assert!(error.starts_with(ENDPOINT) && error.contains("the account acct"), "{error}");
        }
        let string = (CONNECTION_STRING[0], "AccountName=acct;AccountKey=a2V5");
        assert_eq!(place("acct", &[string, gov]).as_deref(), Ok("https://acct.blob.core.windows.net/"));
    }

    #[test]
    fn quotes_are_refused_and_line_ends_are_trimmed() {
        for mark in ["\"", "'"] {
            let quoted = format!("{mark}a2V5{mark}");
            for name in [CONNECTION_STRING[0], KEY[0], SAS[0], ENDPOINT] {
                let error = place("acct", &[(name, &quoted)]).unwrap_err();
                assert!(error.contains(name) && error.contains("quotation mark"), "{error}");
            }
        }
        for end in ["\n", "\r\n", " "] {
            assert!(place("acct", &[(KEY[0], &format!("a2V5{end}"))]).is_ok());
            assert!(
                place("acct", &[(CONNECTION_STRING[0], &format!("AccountName=acct;AccountKey=a2V5{end}"))]).is_ok()
            );
        }
    }

    #[test]
    fn sas_errors_name_expiry_and_missing_rights() {
        let now = OffsetDateTime::parse("2026-11-27T09:00:00Z", &Rfc3339).unwrap();
        let shown = ShownCredentials::of_sas("X", "?sv=2024&se=2026-11-27T08%3A00%3A00Z&sp=rl&sig=c2VjcmV0");
        assert!(shown.expired(now).unwrap().contains("2026-11-27T08:00:00Z"));
        assert!(shown.lacks().unwrap().contains("c, w"));
        assert!(!format!("{shown} {shown:?}").contains("c2VjcmV0"));
        let whole = ShownCredentials::of_sas("X", "se=2026-11-28T08:00:00Z&sp=racwdl&sig=c2VjcmV0");
        assert_eq!((whole.expired(now), whole.lacks()), (None, None));
        assert_eq!((ShownCredentials::of("a key").expired(now), ShownCredentials::of("a key").lacks()), (None, None));
    }

    #[test]
    fn token_is_never_sent_unencrypted_to_another_machine() {
        let far = (ENDPOINT, "http://acct.blob.contoso.com");
        assert!(place("acct", &[far]).unwrap_err().contains("write https://"));
        // A key only signs requests, and is never sent. HTTP is therefore allowed.
        assert!(place("acct", &[far, ("AZURE_STORAGE_KEY", "a2V5")]).is_ok());
        for here in ["http://127.0.0.1:10/acct", "http://[::1]:10/acct", "http://localhost:10/acct"] {
            assert_eq!(place("acct", &[(ENDPOINT, here)]).as_deref(), Ok(here));
        }
        for doubtful in ["http://localhost.:10/acct", "http://[::ffff:127.0.0.1]:10/acct"] {
            assert!(place("acct", &[(ENDPOINT, doubtful)]).unwrap_err().contains("write https://"), "{doubtful}");
        }
    }

    #[test]
    fn emulator_accepts_only_its_own_account() {
        let open = |string: &str| {
            AccountAccess::of_emulator("127.0.0.1:10", &|name| {
                (name == CONNECTION_STRING[0]).then(|| string.to_owned())
            })
            .map(|access| access.location.url(ServiceType::Blob).unwrap().to_string())
            .map_err(|error| error.to_string())
        };
        // The endpoint must come from the store's URL, not from the connection string.
        for string in ["UseDevelopmentStorage=true", "AccountKey=a2V5;BlobEndpoint=http://elsewhere/devstoreaccount1"] {
            assert_eq!(open(string).as_deref(), Ok("http://127.0.0.1:10/devstoreaccount1"));
        }
        assert!(open("AccountName=acct;AccountKey=a2V5").unwrap_err().contains("is for the account acct"));
    }

    #[test]
    fn docs_list_every_credential_variable() {
        let docs = include_str!("../../../../docs/azure.md");
        let rows = docs.lines().filter(|line| line.starts_with("| ") && line.contains('`'));
        let in_docs: Vec<Vec<&str>> = rows.map(|row| row.split('`').skip(1).step_by(2).collect()).collect();
        let (first, others) = in_docs.split_at(3);
        assert_eq!(first, [CONNECTION_STRING.to_vec(), KEY.to_vec(), SAS.to_vec()]);
        let of_identities =
            [vec![FEDERATED_TOKEN_FILE, CLIENT_ID, TENANT_ID, AUTHORITY_HOST], vec![CLIENT_ID], vec!["az login"]];
        assert_eq!(others, of_identities);
        assert!(docs.contains(&format!("`{ENDPOINT}`")));
    }
}
