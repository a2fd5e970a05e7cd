//! Decides which modules may run here, based on pinned digests and on signatures made with trusted keys.

use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};

use baton_election::ElectionName;
use minisign_verify::{PublicKey, Signature};

use baton_base::shell::quoted;
use baton_runtime::{FileError, read_file};
use baton_store::Digest;

/// Upper bound on the size of a key file, in bytes.
const LARGEST_KEY_FILE: u64 = 64 << 10;

/// The conditions that a module must meet to run here. By default, there are none.
#[derive(Clone, Debug, Default)]
pub struct Trust {
    pins: Vec<Digest>,
    /// Shared by all clones, so that [`Trust::renew`] replaces the keys in all of them.
    keys: Arc<RwLock<TrustedKeys>>,
    election: Option<ElectionName>,
}

/// The trusted public keys. A module must be signed with one of them. If there are no keys, modules need no signature.
#[derive(Clone, Debug, Default)]
pub struct TrustedKeys(Arc<[PublicKey]>);

impl TrustedKeys {
    /// Reads the keys in these files.
    ///
    /// # Errors
    /// [`TrustError`] if a file cannot be read, or contains anything other than minisign public keys.
    pub fn read(files: &[PathBuf]) -> Result<Self, TrustError> {
        let mut keys = Vec::new();
        for path in files {
            keys.extend(read(path).map_err(|why| TrustError { path: path.clone(), why })?);
        }
        Ok(Self(keys.into()))
    }
}

/// Prefix of an election's name in a signature's trusted comment. If the comment names elections, the signature is
/// valid only for these elections.
const ELECTION: &str = "election:";

/// The reason why a key file cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("cannot read public keys from {path}: {why}; `--trust` needs a file such as minisign.pub")]
pub struct TrustError {
    path: PathBuf,
    why: String,
}

/// The reason why a module may not run here.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Distrust {
    /// The module's digest is not pinned.
    #[error("the module is not among the pinned modules: to run it, start the host with `--pin {0}`")]
    NotPinned(Digest),
    /// The module has no signature, but needs one.
    #[error(
        "the module is not signed, and this host runs only signed modules (`--trust`): sign it with \
         `minisign -Sm MODULE`, and publish it with the file MODULE.minisig"
    )]
    Unsigned,
    /// The signature cannot be parsed.
    #[error("the signature is invalid ({0}): it must be the text of the file that `minisign -Sm MODULE` writes")]
    Unreadable(String),
    /// The signature was not made with a trusted key.
    #[error(
        "the module is not signed with a key that this host trusts (keys: {0}): sign it with a trusted key, or add its \
         key with `--trust`"
    )]
    UnknownKey(usize),
    /// The signature was made with a trusted key, but for different content.
    #[error("the signature does not match the module: sign the module's file again with `minisign -Sm MODULE`")]
    Wrong,
    /// The module is signed for other elections.
    #[error(
        "the module's signature is for other elections ({named}): to run the module in this election too, sign it \
         again with `minisign -Sm MODULE -t {}`",
        quoted(wanted)
    )]
    OtherElection {
        /// The elections that the signature names.
        named: String,
        /// A trusted comment with which the signature would be accepted.
        wanted: String,
    },
}

impl Trust {
    /// Trusts modules that have one of these digests, and a signature made with a key in one of these files. An empty
    /// list imposes no condition. The files are read only once, during this call.
    ///
    /// # Errors
    /// The same errors as [`TrustedKeys::read`].
    pub fn new(pins: Vec<Digest>, files: &[PathBuf]) -> Result<Self, TrustError> {
        let keys = TrustedKeys::read(files)?;
        Ok(Self { pins, keys: Arc::new(RwLock::new(keys)), election: None })
    }

    /// Replaces the trusted keys, in this value and in all its clones. Modules that have already been checked are not
    /// checked again.
    pub fn renew(&self, keys: TrustedKeys) {
        *self.keys.write().unwrap_or_else(PoisonError::into_inner) = keys;
    }

    /// Restricts trust to modules for one election. A signature that names elections is valid only for these elections.
    #[must_use]
    pub fn in_election(self, election: &ElectionName) -> Self {
        Self { election: Some(election.clone()), ..self }
    }

    /// Checks whether a module may run here. Computes a hash of the whole module if keys are set.
    ///
    /// # Errors
    /// [`Distrust`] if the module may not run here.
    pub fn check(&self, digest: Digest, bytes: &[u8], signature: Option<&str>) -> Result<(), Distrust> {
        if !self.pins.is_empty() && !self.pins.contains(&digest) {
            return Err(Distrust::NotPinned(digest));
        }
        let TrustedKeys(keys) = self.keys.read().unwrap_or_else(PoisonError::into_inner).clone();
        if keys.is_empty() {
            return Ok(());
        }
        let signature = signature.ok_or(Distrust::Unsigned)?;
        let signature = Signature::decode(signature).map_err(|error| Distrust::Unreadable(error.to_string()))?;
        let mut refused = Distrust::UnknownKey(keys.len());
        for key in keys.iter() {
            // Old versions of minisign sign the content itself instead of its hash. Accept both, since both are secure.
            match key.verify(bytes, &signature, true) {
                // The signature also covers the trusted comment.
                Ok(()) => return check_election(&signature, self.election.as_ref()),
                Err(minisign_verify::Error::UnexpectedKeyId) => {}
                Err(_) => refused = Distrust::Wrong,
            }
        }
        Err(refused)
    }
}

/// Checks the signature's trusted comment, which must name this election or no election.
///
/// # Errors
/// [`Distrust::OtherElection`] if the signature names elections, but not this one.
pub fn check_election(signature: &Signature, election: Option<&ElectionName>) -> Result<(), Distrust> {
    let words = signature.trusted_comment().split_whitespace();
    let named: Vec<&str> = words.filter_map(|word| word.strip_prefix(ELECTION)).collect();
    let own = election.map(ElectionName::as_str);
    if named.is_empty() || own.is_some_and(|own| named.contains(&own)) {
        return Ok(());
    }
    let wanted: Vec<String> = named.iter().copied().chain(own).map(|name| format!("{ELECTION}{name}")).collect();
    Err(Distrust::OtherElection { named: named.join(", "), wanted: wanted.join(" ") })
}

/// Skips comments. Each other line is a key.
fn read(path: &Path) -> Result<Vec<PublicKey>, String> {
    let text = match read_file(path, LARGEST_KEY_FILE) {
        Ok(bytes) => String::from_utf8(bytes).map_err(|error| error.to_string())?,
        Err(FileError::Unreadable(error)) => return Err(error.to_string()),
        Err(FileError::NotRegular | FileError::TooLong(_)) => {
            return Err("it is not a regular file, or is too large for a key file".to_owned());
        }
    };
    let mut keys = Vec::new();
    for (line, text) in text.lines().enumerate().map(|(index, text)| (index + 1, text.trim())) {
        if text.is_empty() || text.starts_with('#') || text.starts_with("untrusted comment:") {
            continue;
        }
        let key = PublicKey::from_base64(text);
        keys.push(key.map_err(|_| format!("line {line} is not a public key (is it a secret key, or a signature?)"))?);
    }
    if keys.is_empty() { Err("it contains no key".to_owned()) } else { Ok(keys) }
}
