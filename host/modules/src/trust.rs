//! Which modules may run here: those that are pinned, and those that somebody signed who is trusted.

use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};

use baton_election::ElectionName;
use minisign_verify::{PublicKey, Signature};

use baton_runtime::shell::quoted;
use baton_runtime::{FileError, read_file};
use baton_store::Digest;

/// No file of public keys is larger, in bytes.
const LARGEST_KEY_FILE: u64 = 64 << 10;

/// What a module must be to run here. By default, anything.
#[derive(Clone, Debug, Default)]
pub struct Trust {
    pins: Vec<Digest>,
    /// All clones have the same.
    keys: Arc<RwLock<TrustedKeys>>,
    election: Option<ElectionName>,
}

/// Keys of which one must have signed a module; none, and nobody need have.
#[derive(Clone, Debug, Default)]
pub struct TrustedKeys(Arc<[PublicKey]>);

impl TrustedKeys {
    /// Those in these files.
    ///
    /// # Errors
    /// [`TrustError`] for a file that cannot be read, or that holds anything but minisign's public keys.
    pub fn read(files: &[PathBuf]) -> Result<Self, TrustError> {
        let mut keys = Vec::new();
        for path in files {
            keys.extend(read(path).map_err(|why| TrustError { path: path.clone(), why })?);
        }
        Ok(Self(keys.into()))
    }
}

/// Begins the words of a signature's trusted comment that name the elections it is for.
const ELECTION: &str = "election:";

/// Why a file of keys cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("cannot read public keys from {path}: {why}; `--trust` needs a file such as minisign.pub")]
pub struct TrustError {
    /// The file.
    path: PathBuf,
    /// What is wrong with the file.
    why: String,
}

/// Why a module may not run here.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Distrust {
    /// It is another one.
    #[error("the module is not among the pinned modules: to run it, start the host with `--pin {0}`")]
    NotPinned(Digest),
    /// It has no signature, and needs one.
    #[error(
        "the module is not signed, and this host runs only signed modules (`--trust`): sign it with \
         `minisign -Sm MODULE`, and publish it with the file MODULE.minisig"
    )]
    Unsigned,
    /// What came with it is no signature.
    #[error("the signature is invalid ({0}): it must be the text of the file that `minisign -Sm MODULE` writes")]
    Unreadable(String),
    /// Somebody else signed it.
    #[error(
        "the module is not signed with a key that this host trusts (keys: {0}): sign it with a trusted key, or add its \
         key with `--trust`"
    )]
    UnknownKey(usize),
    /// One that is trusted signed something else.
    #[error("the signature does not match the module: sign the module's file again with `minisign -Sm MODULE`")]
    Wrong,
    /// It is signed for other elections than this one.
    #[error(
        "the module's signature is for other elections ({named}): to run the module in this election too, sign it \
         again with `minisign -Sm MODULE -t {}`",
        quoted(wanted)
    )]
    OtherElection {
        /// What the signature names.
        named: String,
        /// The comment that would do.
        wanted: String,
    },
}

impl Trust {
    /// Trusts what has one of these digests, if there are any, and is signed with one of the keys in these
    /// files, if there are any. The files are read once, here.
    ///
    /// # Errors
    /// As for [`TrustedKeys::read`].
    pub fn new(pins: Vec<Digest>, files: &[PathBuf]) -> Result<Self, TrustError> {
        let keys = TrustedKeys::read(files)?;
        Ok(Self { pins, keys: Arc::new(RwLock::new(keys)), election: None })
    }

    /// Trusts these keys from now on, here and in all clones. What was checked before stays as it was judged.
    pub fn renew(&self, keys: TrustedKeys) {
        *self.keys.write().unwrap_or_else(PoisonError::into_inner) = keys;
    }

    /// The same for the modules of an election. A signature that names elections is good for those alone.
    #[must_use]
    pub fn in_election(self, election: &ElectionName) -> Self {
        Self { election: Some(election.clone()), ..self }
    }

    /// Whether a module may run here. Takes as long as hashing it does.
    ///
    /// # Errors
    /// [`Distrust`] says why not.
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
            // Signatures of old versions of minisign are over the bytes instead of their hash: both are sound.
            match key.verify(bytes, &signature, true) {
                // It covers the comment, too.
                Ok(()) => return check_election(&signature, self.election.as_ref()),
                Err(minisign_verify::Error::UnexpectedKeyId) => {}
                Err(_) => refused = Distrust::Wrong,
            }
        }
        Err(refused)
    }
}

/// Whether a signature is for this election, by what it says itself.
///
/// # Errors
/// [`Distrust::OtherElection`] if it names some, and this is none of them.
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

/// The keys in a file: one on each line, comments aside.
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
