//! URLs of stores.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use baton_base::address::without_user;

const AZURITE_CONTAINER: &str = "baton";
const SQLITE: &str = "sqlite:";
/// The shortest and the longest lease that a SQLite store supports.
pub const SQLITE_LEASE_RANGE: (Duration, Duration) = (Duration::from_secs(2), Duration::from_secs(60));
/// The shortest and the longest lease that Azure allows.
pub const AZURE_LEASE_RANGE: (Duration, Duration) = (Duration::from_secs(15), Duration::from_secs(60));
const AZURITE_ADDRESS: &str = "127.0.0.1:10000";

/// The URL of a store. It contains no secrets: credentials come from the environment.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum StoreUrl {
    /// The memory of this process, for `baton dev`. No URL selects this store.
    Memory,
    /// `sqlite:DIR`: a folder for the hosts on this machine.
    Sqlite(PathBuf),
    /// `azure://ACCOUNT/CONTAINER` or `https://ACCOUNT.blob.core.windows.net/CONTAINER`: a container of an Azure
    /// storage account.
    Azure {
        /// The storage account.
        account: String,
        /// The container.
        container: String,
    },
    /// `azurite` or `azurite://HOST:PORT/CONTAINER`: the local emulator.
    Azurite {
        /// Host and port.
        address: String,
        /// The container.
        container: String,
    },
}

/// The part of a public cloud URL that follows the account's name.
const PUBLIC_CLOUD: &str = ".blob.core.windows.net/";

/// The error for a string that is not a valid store URL.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not a store: {problem}; write sqlite:DIR, azure://ACCOUNT/CONTAINER or azurite")]
pub struct StoreUrlError {
    text: String,
    problem: &'static str,
}

impl StoreUrl {
    /// The shortest and the longest lease that the store supports.
    pub fn lease_range(&self) -> (Duration, Duration) {
        match self {
            Self::Memory => super::memory::LEASE_RANGE,
            Self::Sqlite(_) => SQLITE_LEASE_RANGE,
            Self::Azure { .. } | Self::Azurite { .. } => AZURE_LEASE_RANGE,
        }
    }
}

impl FromStr for StoreUrl {
    type Err = StoreUrlError;

    fn from_str(text: &str) -> Result<Self, StoreUrlError> {
        let wrong = |problem| StoreUrlError { text: redacted(text), problem };
        if text.contains(['?', '#', ';', '@']) && !text.starts_with(SQLITE) {
            return Err(wrong("credentials come from the environment, never from the URL"));
        }
        if text == "azurite" {
            return Ok(Self::Azurite { address: AZURITE_ADDRESS.to_owned(), container: AZURITE_CONTAINER.to_owned() });
        }
        if let Some(folder) = text.strip_prefix(SQLITE) {
            return match folder {
                "" => Err(wrong("the URL contains no folder")),
                // The shell has not expanded `~` here, and nobody wants a folder with that name.
                "~" => Err(wrong("`~` is not expanded here: write the whole path")),
                folder if folder.starts_with("~/") => Err(wrong("`~` is not expanded here: write the whole path")),
                folder => Ok(Self::Sqlite(PathBuf::from(folder))),
            };
        }
        let unknown = || wrong("it does not begin with a known scheme");
        let (scheme, rest) = text.split_once("://").ok_or_else(unknown)?;
        if scheme == "https" {
            // The portal and the Azure CLI show a container's URL in this form.
            let (account, container) = rest.split_once(PUBLIC_CLOUD).ok_or_else(|| {
                wrong(
                    "an https:// store is https://ACCOUNT.blob.core.windows.net/CONTAINER; set another endpoint in the \
                     environment",
                )
            })?;
            return format!("azure://{account}/{}", container.trim_end_matches('/')).parse();
        }
        if !["azure", "azurite"].contains(&scheme) {
            return Err(unknown());
        }
        let (place, container) = rest.split_once('/').ok_or_else(|| wrong("the URL contains no container"))?;
        if !is_container(container) {
            return Err(wrong("a container's name has 3 to 63 characters: a-z, 0-9 and single hyphens"));
        }
        let container = container.to_owned();
        match scheme {
            "azure" if is_account(place) => Ok(Self::Azure { account: place.to_owned(), container }),
            "azure" => Err(wrong("a storage account's name has 3 to 24 characters: a-z and 0-9")),
            "azurite" if place.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok()) => {
                Ok(Self::Azurite { address: place.to_owned(), container })
            }
            _ => Err(wrong("the URL contains no HOST:PORT of the emulator")),
        }
    }
}

fn is_account(name: &str) -> bool {
    (3..=24).contains(&name.len()) && name.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit())
}

fn is_container(name: &str) -> bool {
    let legal = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    (3..=63).contains(&name.len())
        && name.bytes().all(legal)
        && !name.starts_with('-')
        && !name.ends_with('-')
        && !name.contains("--")
}

impl fmt::Display for StoreUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Memory => f.write_str("memory"),
            Self::Sqlite(folder) => write!(f, "{SQLITE}{}", folder.display()),
            Self::Azure { account, container } => write!(f, "azure://{account}/{container}"),
            Self::Azurite { address, container } => write!(f, "azurite://{address}/{container}"),
        }
    }
}

/// Removes secrets from a store's URL: the user and password, the query (a SAS), the fragment, and the values in a
/// connection string.
fn redacted(store: &str) -> String {
    if store.contains(';') {
        return store.split(';').map(redact_pair).collect::<Vec<_>>().join(";");
    }
    let (body, hidden) = match store.find(['?', '#']) {
        Some(at) => (&store[..at], format!("{}***", &store[at..=at])),
        None => (store, String::new()),
    };
    let body = if body.contains("://") { without_user(body) } else { redact_pair(body) };
    body + &hidden
}

fn redact_pair(pair: &str) -> String {
    const HARMLESS: [&str; 5] =
        ["AccountName", "DefaultEndpointsProtocol", "EndpointSuffix", "BlobEndpoint", "UseDevelopmentStorage"];
    match pair.split_once('=') {
        Some((name, value)) if HARMLESS.iter().any(|word| name.trim().ends_with(word)) => {
            let value = value.split(['?', '#']).next().unwrap_or_default();
            format!("{name}={value}")
        }
        Some((name, _)) => format!("{name}=***"),
        None => pair.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn url_round_trips_through_its_text() {
        for text in ["sqlite:/var/lib/baton", "azure://account1/leases", "azurite://127.0.0.1:1000/con-tainer"] {
            assert_eq!(text.parse::<StoreUrl>().map(|url| url.to_string()).as_deref(), Ok(text));
        }
        for text in ["https://account1.blob.core.windows.net/leases", "https://account1.blob.core.windows.net/leases/"]
        {
            assert_eq!(text.parse::<StoreUrl>().map(|url| url.to_string()).as_deref(), Ok("azure://account1/leases"));
        }
        assert_eq!(
            "azurite".parse::<StoreUrl>().map(|url| url.to_string()).as_deref(),
            Ok("azurite://127.0.0.1:10000/baton")
        );
    }

    #[test]
    fn redaction_hides_only_secrets() {
        for (store, shown) in [
            ("sqlite:/var/lib/baton", "sqlite:/var/lib/baton"),
            ("azure://acct/box", "azure://acct/box"),
            ("azurite", "azurite"),
            ("azure://acct/box?sv=2024&sig=abc%3D", "azure://acct/box?***"),
            ("azure://acct:key@host/box", "azure://***@host/box"),
            ("azure://acct/box/of@host", "azure://acct/box/of@host"),
            ("azure://acct/box#frag", "azure://acct/box#***"),
            (
                "DefaultEndpointsProtocol=https;AccountName=a;AccountKey=S3cr3t==;EndpointSuffix=core.windows.net",
                "DefaultEndpointsProtocol=https;AccountName=a;AccountKey=***;EndpointSuffix=core.windows.net",
            ),
            (
                "BlobEndpoint=https://a.b/?sig=x;SharedAccessSignature=sv=1&sig=y",
                "BlobEndpoint=https://a.b/;SharedAccessSignature=***",
            ),
            ("AccountKey=S3cr3t==", "AccountKey=***"),
        ] {
            assert_eq!(redacted(store), shown);
        }
    }

    #[test]
    fn url_error_names_the_problem() {
        for (text, problem) in [
            ("sqlit:/tmp", "known scheme"),
            ("https://account.blob.core.windows.net", "blob.core.windows.net/CONTAINER"),
            ("https://account.blob.core.usgovcloudapi.net/box", "in the environment"),
            ("https://a.b.blob.core.windows.net/box", "storage account"),
            ("sqlite:", "contains no folder"),
            ("azure:account/container", "known scheme"),
            ("azure://account", "contains no container"),
            ("azure://Account/container", "storage account"),
            ("azure://account/a", "a container's name"),
            ("azurite://localhost/container", "HOST:PORT"),
            ("s3://bucket/container", "known scheme"),
            ("sqlite:~/leases", "whole path"),
            ("azure://account/container?sv=2024&sig=c2VjcmV0", "never from the URL"),
            ("azure://key:c2VjcmV0@account/container", "never from the URL"),
            ("AccountName=account;AccountKey=c2VjcmV0", "never from the URL"),
        ] {
            let error = text.parse::<StoreUrl>().map_err(|error| error.to_string());
            assert!(error.as_ref().is_err_and(|error| error.contains(problem)), "{text}: {error:?}");
            assert!(!format!("{error:?}").contains("c2VjcmV0"), "{error:?}");
        }
    }
}
