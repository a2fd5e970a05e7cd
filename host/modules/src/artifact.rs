//! Compiled code that this process loads from the compiler's process or from the cache.
//!
//! Wasmtime runs the code without verifying it, so the code must not change after it has been checked. An [`Artifact`]
//! is therefore an in-memory file that is sealed before its checksum is verified.

use std::fs::File;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::FileExt as _;

use rustix::fs::{MemfdFlags, SealFlags};
use sha2::{Digest as _, Sha256};

use baton_runtime::{Engine, Module, OUTLINE, Outline};
use baton_store::Digest;

/// Version of the artifact's format. Raise this version if the content of artifacts changes, or the way in which Baton
/// turns core modules into components. Otherwise, hosts of the same Baton version would keep using the old artifacts in
/// their caches.
const WRAPPING: u32 = 3;

/// Length of the checksum, in bytes. The checksum follows the code and the outline.
const CHECKSUM: u64 = 32;

/// Upper bound on the size of an artifact, in bytes.
pub(super) const LARGEST_ARTIFACT: u64 = 2 << 30;

/// Names the code of one module for one compiler. The key contains a hash of this program's engine and version, because
/// code for another engine cannot run in this process.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct ArtifactKey(String);

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

    pub fn as_str(&self) -> &str {
        &self.0
    }

    fn checksum(&self) -> Sha256 {
        Sha256::new_with_prefix(&self.0)
    }

    pub fn write(&self, code: &[u8], outline: Outline, mut to: impl Write) -> io::Result<()> {
        let outline = outline.to_bytes();
        to.write_all(code)?;
        to.write_all(&outline)?;
        to.write_all(&self.checksum().chain_update(code).chain_update(outline).finalize())?;
        to.flush()
    }
}

impl Artifact {
    pub fn blank() -> io::Result<File> {
        Ok(File::from(rustix::fs::memfd_create("baton-code", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?))
    }

    /// Seals the file, so that its content can no longer change, and then verifies the checksum. Fails if the file is
    /// damaged or was written under another key.
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

    pub fn checksum(&self) -> &[u8] {
        &self.checksum
    }

    pub fn copy_to(&self, to: &mut File) -> io::Result<()> {
        let mut from = &self.file;
        from.rewind()?;
        io::copy(&mut from, to).map(drop)
    }

    pub fn module(&self, bytes: &[u8]) -> io::Result<Module> {
        Ok(Module::new(bytes, self.outline, self.file.try_clone()?))
    }
}
