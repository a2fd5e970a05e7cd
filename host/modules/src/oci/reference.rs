//! References to modules in registries.

use std::fmt;
use std::str::FromStr;

use url::Url;

use super::transport::stays_here;
use baton_base::address::without_user;
use baton_store::Digest;

/// Docker Hub's name, and the former name, which is still the address of Docker Hub's registry.
const DOCKER_HUB: (&str, &str) = ("docker.io", "index.docker.io");
/// Maximum length of a repository's name, in characters.
const LONGEST_NAME: usize = 255;
/// Maximum length of a tag, in characters.
const LONGEST_TAG: usize = 128;

/// A reference, as written after `oci://`: a registry, a repository in it, and a tag or a digest.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct OciReference {
    registry: String,
    repository: String,
    version: Version,
    url: Url,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Version {
    Tag(String),
    Digest(Digest),
}

/// The error for a string that is not a valid [`OciReference`].
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "`oci://{reference}` is not a reference to a module: {why}; write `oci://REGISTRY/REPOSITORY:TAG` or \
     `…@sha256:DIGEST`"
)]
pub struct InvalidOciReference {
    reference: String,
    why: &'static str,
}

impl FromStr for OciReference {
    type Err = InvalidOciReference;

    fn from_str(text: &str) -> Result<Self, InvalidOciReference> {
        parse(text).map_err(|why| InvalidOciReference { reference: without_user(text), why })
    }
}

impl fmt::Display for OciReference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.registry, self.repository)?;
        match &self.version {
            Version::Tag(tag) => write!(f, ":{tag}"),
            Version::Digest(digest) => write!(f, "@{digest}"),
        }
    }
}

impl OciReference {
    pub(super) fn registry(&self) -> &str {
        &self.registry
    }

    /// Returns the registry's host, which is also the registry's key in Docker's configuration.
    pub(super) fn host(&self) -> &str {
        host(&self.registry)
    }

    pub(super) fn repository(&self) -> &str {
        &self.repository
    }

    pub(super) fn version(&self) -> &Version {
        &self.version
    }

    /// Uses plain HTTP only if the registry is on this machine.
    pub(super) fn url(&self) -> &Url {
        &self.url
    }

    /// Returns the digest of the manifest if the reference contains it. Returns `None` if the reference has a tag,
    /// because a tag can move to another manifest.
    pub(super) fn manifest(&self) -> Option<Digest> {
        match self.version {
            Version::Digest(digest) => Some(digest),
            Version::Tag(_) => None,
        }
    }
}

fn parse(text: &str) -> Result<OciReference, &'static str> {
    // Other tools have defaults for the registry and the tag. Baton requires both.
    let (registry, rest) = text.split_once('/').unwrap_or(("", text));
    if !registry.contains(['.', ':']) && registry != "localhost" {
        return Err("it does not begin with a registry, such as `ghcr.io` or `localhost:5000`");
    }
    let (name, digest) = rest.split_once('@').map_or((rest, None), |(name, digest)| (name, Some(digest)));
    let (name, tag) = name.split_once(':').map_or((name, None), |(name, tag)| (name, Some(tag)));
    if !tag.is_none_or(is_tag) {
        return Err("its tag is invalid: a tag has 1 to 128 letters, digits, `_`, `.` and `-`");
    }
    let version = match (tag, digest) {
        (_, Some(digest)) => Version::Digest(digest.parse().map_err(|_| "its digest is not SHA-256")?),
        (Some(tag), None) => Version::Tag(tag.to_owned()),
        (None, None) => return Err("it has no tag"),
    };
    let registry = if registry == DOCKER_HUB.1 { DOCKER_HUB.0 } else { registry };
    let repository =
        if registry == DOCKER_HUB.0 && !name.contains('/') { format!("library/{name}") } else { name.to_owned() };
    if repository.len() > LONGEST_NAME || !repository.split('/').all(is_component) {
        return Err(
            "its repository is invalid: a repository has lower-case letters and digits, separated by `/`, `.`, `_`, \
             `__` or `-`",
        );
    }
    let url = url(host(registry), &repository).ok_or("its registry is neither a host nor HOST:PORT")?;
    Ok(OciReference { registry: registry.to_owned(), repository, version, url })
}

fn host(registry: &str) -> &str {
    if registry == DOCKER_HUB.0 { DOCKER_HUB.1 } else { registry }
}

fn url(registry: &str, repository: &str) -> Option<Url> {
    let (host, port) = registry.split_once(':').map_or((registry, None), |(host, port)| (host, Some(port)));
    let is_label = |label: &str| {
        let ends = label.starts_with('-') || label.ends_with('-');
        !label.is_empty() && !ends && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
    };
    let is_port = |port: &str| port.bytes().all(|digit| digit.is_ascii_digit()) && port.parse::<u16>().is_ok();
    if !host.split('.').all(is_label) || !port.is_none_or(is_port) {
        return None;
    }
    let with = |scheme: &str| Url::parse(&format!("{scheme}://{registry}/v2/{repository}/")).ok();
    let url = with("https")?;
    if stays_here(&url) { with("http") } else { Some(url) }
}

fn is_tag(tag: &str) -> bool {
    let is_word = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    tag.len() <= LONGEST_TAG
        && tag.bytes().next().is_some_and(is_word)
        && tag.bytes().all(|byte| is_word(byte) || byte == b'.' || byte == b'-')
}

/// Returns true if `text` consists of words (lower-case letters and digits) with one separator between adjacent words.
fn is_component(text: &str) -> bool {
    let is_word = |letter: char| letter.is_ascii_lowercase() || letter.is_ascii_digit();
    let parts =
        |separator: &str| matches!(separator, "" | "." | "_" | "__") || separator.bytes().all(|byte| byte == b'-');
    text.starts_with(is_word) && text.ends_with(is_word) && text.split(is_word).all(parts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reference_round_trips_through_its_text() {
        let digest = format!("sha256:{}", "0a".repeat(32));
        for text in [
            "ghcr.io/acme/billing:1.2",
            "localhost/a/b/c:latest",
            "GHCR.io/a__b/c--d.e:_",
            &format!("127.0.0.1:5000/a@{digest}"),
        ] {
            assert_eq!(text.parse::<OciReference>().map(|reference| reference.to_string()).as_deref(), Ok(text));
        }
        for both in [format!("a.b/c@sha256:{}", "0A".repeat(32)), format!("a.b/c:1@{digest}")] {
            let reference = both.parse::<OciReference>().map(|reference| reference.to_string());
            assert_eq!(reference, Ok(format!("a.b/c@{digest}")), "digests are compared, and tags beside them are not");
        }
    }

    #[test]
    fn plain_http_is_used_only_on_this_machine() {
        for (text, url) in [
            ("ghcr.io/acme/billing:1", "https://ghcr.io/v2/acme/billing/"),
            ("10.0.0.1:80/a:1", "https://10.0.0.1:80/v2/a/"),
            ("localhost.example/a:1", "https://localhost.example/v2/a/"),
            ("localhost/a:1", "http://localhost/v2/a/"),
            ("127.8.9.1:443/a:1", "http://127.8.9.1:443/v2/a/"),
        ] {
            assert_eq!(text.parse::<OciReference>().map(|reference| reference.url.to_string()).as_deref(), Ok(url));
        }
    }

    #[test]
    fn docker_hub_is_known_under_all_its_names() -> Result<(), InvalidOciReference> {
        for text in ["docker.io/busybox:1", "index.docker.io/busybox:1", "docker.io/library/busybox:1"] {
            let reference: OciReference = text.parse()?;
            assert_eq!(reference.to_string(), "docker.io/library/busybox:1");
            assert_eq!(reference.host(), "index.docker.io");
            assert_eq!(reference.url().as_str(), "https://index.docker.io/v2/library/busybox/");
        }
        Ok(())
    }

    #[test]
    fn invalid_reference_is_refused_with_a_reason() {
        let (long, sha512) = ("a".repeat(256), format!("a.b/c@sha512:{}", "0".repeat(128)));
        for (text, why) in [
            ("", "begin with a registry"),
            ("billing:1", "begin with a registry"),
            ("acme/billing:1", "begin with a registry"),
            ("ghcr.io/acme/billing", "no tag"),
            ("ghcr.io/billing:", "its tag"),
            ("ghcr.io/billing:1/2", "its tag"),
            ("ghcr.io/billing:é", "its tag"),
            (&format!("ghcr.io/a:{long}"), "its tag"),
            ("ghcr.io/Acme/billing:1", "its repository"),
            ("ghcr.io/:1", "its repository"),
            ("ghcr.io/a//b:1", "its repository"),
            ("ghcr.io/../b:1", "its repository"),
            ("ghcr.io/a._b:1", "its repository"),
            ("ghcr.io/a?b:1", "its repository"),
            (&format!("ghcr.io/{long}:1"), "its repository"),
            ("ali@ghcr.io/a:1", "its registry"),
            ("ghcr..io/a:1", "its registry"),
            ("ghcr.io:99999/a:1", "its registry"),
            ("[::1]:5000/a:1", "its registry"),
            ("1.2.3.4.5/a:1", "its registry"),
            ("ghcr.io/billing@sha256:00", "SHA-256"),
            (&sha512, "SHA-256"),
        ] {
            let error = text.parse::<OciReference>().map_err(|error| error.to_string());
            assert!(error.as_ref().is_err_and(|error| error.contains(why)), "{text}: {error:?}");
        }
    }
}
