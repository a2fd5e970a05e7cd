//! Digests of modules: the SHA-256 of their bytes.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

/// The SHA-256 of a module's bytes as they were published, written `sha256:` and 64 hexadecimal digits.
///
/// # Example
/// ```
/// use baton_store::{Digest, DigestPrefix};
///
/// let digest = Digest::of(b"a module");
/// assert_eq!(digest.to_string().parse(), Ok(digest));
/// // People may give the first digits only.
/// let prefix: DigestPrefix = digest.hex()[..12].parse()?;
/// assert!(prefix.fits(&digest));
/// # Ok::<(), baton_store::InvalidPrefix>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Digest([u8; 32]);

/// The error for a string that is not a valid [`Digest`].
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("`{0}` is not a digest: expected `sha256:` and 64 hexadecimal digits, as `baton check` prints")]
pub struct InvalidDigest(String);

impl Digest {
    /// Number of digits to display where a digest only has to be distinguished from a few others.
    pub const SHOWN: usize = 12;

    /// Computes the digest of `bytes`.
    #[must_use]
    pub fn of(bytes: &[u8]) -> Self {
        Self(Sha256::digest(bytes).into())
    }

    /// The digest's bytes.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// The 64 hexadecimal digits, in lower case.
    #[must_use]
    pub fn hex(&self) -> String {
        self.0.iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

/// The first 8 to 64 hexadecimal digits of a digest, with or without `sha256:`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DigestPrefix(String);

/// The error for a string that is not a valid [`DigestPrefix`].
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("`{0}` is not a digest: give the first 8 or more hexadecimal digits that `baton modules` prints")]
pub struct InvalidPrefix(String);

impl DigestPrefix {
    /// True if the digest begins with this prefix.
    #[must_use]
    pub fn fits(&self, digest: &Digest) -> bool {
        digest.hex().starts_with(&self.0)
    }
}

impl FromStr for DigestPrefix {
    type Err = InvalidPrefix;

    fn from_str(text: &str) -> Result<Self, InvalidPrefix> {
        let hex = text.strip_prefix("sha256:").unwrap_or(text);
        if (8..=64).contains(&hex.len()) && hex.bytes().all(|digit| digit.is_ascii_hexdigit()) {
            Ok(Self(hex.to_ascii_lowercase()))
        } else {
            Err(InvalidPrefix(text.to_owned()))
        }
    }
}

impl fmt::Display for DigestPrefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sha256:{}", self.0)
    }
}

impl FromStr for Digest {
    type Err = InvalidDigest;

    fn from_str(text: &str) -> Result<Self, InvalidDigest> {
        let invalid = || InvalidDigest(text.to_owned());
        let hex = text.strip_prefix("sha256:").filter(|hex| hex.len() == 64).ok_or_else(invalid)?;
        let mut bytes = [0; 32];
        for (byte, digits) in bytes.iter_mut().zip(hex.as_bytes().chunks(2)) {
            let digit = |digit: u8| char::from(digit).to_digit(16);
            let (Some(high), Some(low)) = (digit(digits[0]), digit(digits[1])) else { return Err(invalid()) };
            *byte = u8::try_from(high * 16 + low).map_err(|_| invalid())?;
        }
        Ok(Self(bytes))
    }
}

impl TryFrom<String> for Digest {
    type Error = InvalidDigest;

    fn try_from(text: String) -> Result<Self, InvalidDigest> {
        text.parse()
    }
}

impl From<Digest> for String {
    fn from(digest: Digest) -> Self {
        digest.to_string()
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sha256:{}", self.hex())
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digest_round_trips_through_its_text() {
        let digest = Digest::of(b"");
        assert_eq!(digest.hex(), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
        assert_eq!(digest.to_string().parse(), Ok(digest));
        assert_eq!(digest.to_string().to_uppercase().replace("SHA", "sha").parse(), Ok(digest));
    }

    #[test]
    fn malformed_digest_is_refused() {
        for text in ["", "sha256:", "sha256:00", &"0".repeat(64), &format!("sha256:{}", "é".repeat(32))] {
            assert!(text.parse::<Digest>().is_err(), "{text}");
        }
    }

    #[test]
    fn prefix_has_at_least_8_digits() {
        let digest = Digest::of(b"");
        for text in ["e3b0c442", "sha256:e3b0c442", "E3B0C44298", &digest.hex(), &digest.to_string()] {
            assert_eq!(text.parse::<DigestPrefix>().map(|prefix| prefix.fits(&digest)), Ok(true), "{text}");
        }
        assert_eq!("e3b0c443".parse::<DigestPrefix>().map(|prefix| prefix.fits(&digest)), Ok(false));
        for text in ["", "e3b0c44", "sha256:e3b0c44", "e3b0c44x", "ééééé", &"0".repeat(65)] {
            assert!(text.parse::<DigestPrefix>().is_err(), "{text}");
        }
    }
}
