//! Compiled code on its way from the process that made it, or from the cache, into this one.
//!
//! Code is run as it is, so nobody may be able to change it once it was looked at: an [`Artifact`] is a file in
//! memory that is sealed first and compared with its checksum then.

use std::fs::File;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::FileExt as _;

use rustix::fs::{MemfdFlags, SealFlags};
use sha2::{Digest as _, Sha256};

use baton_runtime::{Engine, Module, OUTLINE, Outline};
use baton_store::Digest;

/// Changes when the same module is to be compiled anew though wasmtime's version and settings are the same:
/// when a core module is wrapped in another way, or an artifact holds something else.
const WRAPPING: u32 = 3;

/// The length of the checksum behind the outline that follows the code, in bytes.
const CHECKSUM: u64 = 32;

/// More is no code of a module, in bytes.
pub(super) const LARGEST_ARTIFACT: u64 = 2 << 30;

/// What code is made of and made for: a module, and this very program's engine.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct ArtifactKey(String);

/// Code that is whole, and can no longer change.
pub(super) struct Artifact {
    file: File,
    checksum: [u8; CHECKSUM as usize],
    outline: Outline,
}

impl ArtifactKey {
    pub fn new(engine: &Engine, digest: &Digest) -> Self {
        let mut hasher = DefaultHasher::new();
        engine.wasmtime().precompile_compatibility_hash().hash(&mut hasher);
        (env!("CARGO_PKG_VERSION"), WRAPPING).hash(&mut hasher);
        Self(format!("{}.{:016x}", digest.hex(), hasher.finish()))
    }

    /// As a file's name.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    fn checksum(&self) -> Sha256 {
        Sha256::new_with_prefix(&self.0)
    }

    /// Writes code and its outline as an artifact of this key.
    ///
    /// # Errors
    /// Those of writing.
    pub fn write(&self, code: &[u8], outline: Outline, mut to: impl Write) -> io::Result<()> {
        let outline = outline.to_bytes();
        to.write_all(code)?;
        to.write_all(&outline)?;
        to.write_all(&self.checksum().chain_update(code).chain_update(outline).finalize())?;
        to.flush()
    }
}

impl Artifact {
    /// A file in memory for one to be written to.
    ///
    /// # Errors
    /// Where the system has no more of them.
    pub fn blank() -> io::Result<File> {
        Ok(File::from(rustix::fs::memfd_create("baton-code", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?))
    }

    /// Takes what was written to a blank file, if it is whole and was written for this key.
    ///
    /// # Errors
    /// Where it is not, or cannot be read.
    pub fn seal(mut file: File, key: &ArtifactKey) -> io::Result<Self> {
        let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::WRITE | SealFlags::SEAL;
        rustix::fs::fcntl_add_seals(&file, seals)?;
        let damaged = || io::Error::new(io::ErrorKind::InvalidData, "the code is damaged, or is another module's");
        let length = file.metadata()?.len();
        let outline_at = length.checked_sub(CHECKSUM + OUTLINE as u64).ok_or_else(damaged)?;
        let mut left = outline_at + OUTLINE as u64;
        file.rewind()?;
        let mut checksum = key.checksum();
        let mut buffer = vec![0; 1 << 20];
        while left > 0 {
            let most = usize::try_from(left).unwrap_or(usize::MAX).min(buffer.len());
            let part = &mut buffer[..most];
            file.read_exact(part)?;
            checksum.update(part);
            left -= most as u64;
        }
        let mut written = [0; CHECKSUM as usize];
        file.read_exact(&mut written)?;
        if checksum.finalize()[..] != written {
            return Err(damaged());
        }
        let mut outline = [0; OUTLINE];
        file.read_exact_at(&mut outline, outline_at)?;
        Ok(Self { file, checksum: written, outline: Outline::from_bytes(outline) })
    }

    /// The checksum of its key and all that it holds.
    pub fn checksum(&self) -> &[u8] {
        &self.checksum
    }

    /// Copies it to a file of the disk.
    ///
    /// # Errors
    /// Those of writing.
    pub fn copy_to(&self, to: &mut File) -> io::Result<()> {
        let mut from = &self.file;
        from.rewind()?;
        io::copy(&mut from, to).map(drop)
    }

    /// The module that it was made of, which has these bytes.
    ///
    /// # Errors
    /// Where the system has no more descriptors.
    pub fn module(&self, bytes: &[u8]) -> io::Result<Module> {
        Ok(Module::new(bytes, self.outline, self.file.try_clone()?))
    }
}
