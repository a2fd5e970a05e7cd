//! The location of a coordinator's modules, in the form in which users write it.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use baton_election::ElectionName;

use super::oci::{InvalidOciReference, OciReference};
use baton_base::address::without_user;

const STORE: &str = "store://";
const OCI: &str = "oci://";

/// The location of a coordinator's modules.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ModuleSource {
    /// A file, which is watched for changes.
    File(PathBuf),
    /// Modules that users push for this election, into the store that also contains the lease.
    Published(ElectionName),
    /// A repository in an OCI registry.
    Oci(OciReference),
}

/// The reason why a string is not a valid [`ModuleSource`].
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum InvalidModuleSource {
    /// The string is empty.
    #[error("is empty: name the component's file")]
    Empty,
    /// The part after `store://` is not an election's name.
    #[error(
        "`{STORE}{0}` does not contain the name of an election: write {STORE}ELECTION, with 1 to 63 characters: a-z, \
         0-9 and hyphens, starting with a letter"
    )]
    Election(String),
    /// The part after `oci://` is not a reference to a module.
    #[error(transparent)]
    Oci(#[from] InvalidOciReference),
    /// The string has a scheme that this version does not support.
    #[error("`{0}` is an unknown kind of source: write a path, {STORE}ELECTION or {OCI}REGISTRY/REPOSITORY:TAG")]
    Scheme(String),
}

impl FromStr for ModuleSource {
    type Err = InvalidModuleSource;

    fn from_str(text: &str) -> Result<Self, InvalidModuleSource> {
        if let Some(name) = text.strip_prefix(STORE) {
            let invalid = || InvalidModuleSource::Election(without_user(name));
            let election = ElectionName::new(name).map_err(|_| invalid())?;
            // The shards of a group share one list of versions, under the group's name.
            Some(election).filter(|election| election.shard().is_none()).map(Self::Published).ok_or_else(invalid)
        } else if let Some(reference) = text.strip_prefix(OCI) {
            Ok(Self::Oci(reference.parse()?))
        } else if text.is_empty() {
            Err(InvalidModuleSource::Empty)
        } else if is_path(text) {
            Ok(Self::File(PathBuf::from(text)))
        } else {
            Err(InvalidModuleSource::Scheme(without_user(text)))
        }
    }
}

impl fmt::Display for ModuleSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(path) => path.display().fmt(f),
            Self::Published(election) => write!(f, "{STORE}{election}"),
            Self::Oci(reference) => write!(f, "{OCI}{reference}"),
        }
    }
}

impl ModuleSource {
    /// Returns the module's bare name, without folder, extension, registry or tag.
    #[must_use]
    pub fn stem(&self) -> String {
        match self {
            Self::File(path) => path.file_stem().and_then(|stem| stem.to_str()).unwrap_or_default().to_owned(),
            Self::Published(election) => election.to_string(),
            Self::Oci(reference) => {
                let reference = reference.to_string();
                let name = reference.split('@').next().unwrap_or_default();
                let name = name.rsplit('/').next().unwrap_or_default();
                name.split(':').next().unwrap_or_default().to_owned()
            }
        }
    }
}

/// Returns true if `text` is a path rather than `SCHEME://…`. A path that looks as if it starts with a scheme can be
/// written as `./…`.
pub fn is_path(text: &str) -> bool {
    let scheme = text.split_once("://").map_or("", |(scheme, _)| scheme);
    scheme.is_empty() || !scheme.bytes().all(|c| c.is_ascii_alphanumeric())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may panic")]
    use super::*;

    #[test]
    fn source_round_trips_through_its_text_and_has_a_stem() {
        for (text, stem) in [
            ("heartbeat.wasm", "heartbeat"),
            ("/a/b/My_Job.v2.wasm", "My_Job.v2"),
            ("./s3://x.wasm", "x"),
            ("store://nightly-report", "nightly-report"),
            ("oci://ghcr.io/acme/report:1.2", "report"),
            ("oci://localhost:5000/report:latest", "report"),
        ] {
            let source: ModuleSource = text.parse().unwrap();
            assert_eq!((source.to_string().as_str(), source.stem().as_str()), (text, stem));
        }
    }

    #[test]
    fn invalid_source_is_refused_with_advice() {
        for (text, needs) in [
            ("", "name the component's file"),
            ("store://", "store://ELECTION"),
            ("store://Not a name", "store://ELECTION"),
            ("oci://report", "REGISTRY/REPOSITORY"),
            ("s3://bucket/report.wasm", "write a path, store://ELECTION or oci://"),
            ("https://example.com/report.wasm", "write a path"),
            (
                "https://me:c2VjcmV0@example.com/report.wasm",
                "`https://***@example.com/report.wasm` is an unknown kind of source",
            ),
            ("store://me:c2VjcmV0@example.com/report", "store://ELECTION"),
            ("oci://me:c2VjcmV0@example.com/report:1", "`oci://***@example.com/report:1`"),
        ] {
            let error = text.parse::<ModuleSource>().unwrap_err().to_string();
            assert!(error.contains(needs) && !error.contains("c2VjcmV0"), "{text}: {error}");
        }
    }
}
