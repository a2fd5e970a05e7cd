//! Reading files that somebody has named, whatever they turn out to be.

use std::fs::{File, metadata};
use std::io::{self, Read as _};
use std::path::Path;

/// Why a file was not read.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// It is a folder, a pipe or a device.
    #[error("is not a regular file")]
    NotRegular,
    /// It has so many bytes, or more: it was named by mistake.
    #[error("is too large: it has at least {0} bytes")]
    TooLong(u64),
    /// The system does not give it.
    #[error("cannot be read: {0}")]
    Unreadable(#[from] io::Error),
}

/// All bytes of a regular file that has no more than `longest`.
///
/// # Errors
/// [`FileError`] for any other, at once: nobody waits for a pipe's writer or for the end of a device.
pub fn read_file(path: &Path, longest: u64) -> Result<Vec<u8>, FileError> {
    // Asked before it is opened: opening a pipe would wait for its writer.
    let found = metadata(path)?;
    if !found.is_file() {
        return Err(FileError::NotRegular);
    }
    if found.len() > longest {
        return Err(FileError::TooLong(found.len()));
    }
    let mut bytes = Vec::new();
    // A file that grows meanwhile is not read for ever.
    File::open(path)?.take(longest.saturating_add(1)).read_to_end(&mut bytes)?;
    match bytes.len() as u64 {
        size if size > longest => Err(FileError::TooLong(size)),
        _ => Ok(bytes),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may panic")]
    use rustix::fs::{CWD, Mode, mkfifoat};

    use super::*;

    #[test]
    fn only_regular_files_up_to_the_length_are_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        assert!(matches!(read_file(&path, 3), Err(FileError::Unreadable(_))));
        std::fs::write(&path, "abc").unwrap();
        assert_eq!(read_file(&path, 3).unwrap(), b"abc");
        assert!(matches!(read_file(&path, 2), Err(FileError::TooLong(3))));
        assert!(matches!(read_file(folder.path(), 3), Err(FileError::NotRegular)));
        assert!(matches!(read_file(Path::new("/dev/zero"), 3), Err(FileError::NotRegular)));
        // Its size says nothing.
        assert!(matches!(read_file(Path::new("/proc/self/status"), 3), Err(FileError::TooLong(4))));
        let pipe = folder.path().join("pipe");
        mkfifoat(CWD, &pipe, Mode::RUSR).unwrap();
        assert!(matches!(read_file(&pipe, 3), Err(FileError::NotRegular)));
    }
}
