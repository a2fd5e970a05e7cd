//! Reads files whose paths come from the user. A user's path may lead to a pipe, a device or a huge file.

use std::fs::{File, metadata};
use std::io::{self, Read as _};
use std::path::Path;

/// The reason a file was not read.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// The path leads to a folder, a pipe or a device.
    #[error("is not a regular file")]
    NotRegular,
    /// The file has at least this many bytes, so it was probably named by mistake.
    #[error("is too large: it has at least {0} bytes")]
    TooLong(u64),
    /// Reading the file failed.
    #[error("cannot be read: {0}")]
    Unreadable(#[from] io::Error),
}

/// Reads a regular file of at most `longest` bytes.
///
/// # Errors
/// [`FileError`] if the path does not lead to a regular file, if the file is too large, or if reading fails. The
/// function never waits for a pipe's writer, and never reads a device to its end.
pub fn read_file(path: &Path, longest: u64) -> Result<Vec<u8>, FileError> {
    // Check the type before opening: opening a pipe would block until the pipe has a writer.
    let found = metadata(path)?;
    if !found.is_file() {
        return Err(FileError::NotRegular);
    }
    if found.len() > longest {
        return Err(FileError::TooLong(found.len()));
    }
    let mut bytes = Vec::new();
    // Limit the read: the file may grow in the meantime.
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
    fn only_regular_files_up_to_the_limit_are_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        assert!(matches!(read_file(&path, 3), Err(FileError::Unreadable(_))));
        std::fs::write(&path, "abc").unwrap();
        assert_eq!(read_file(&path, 3).unwrap(), b"abc");
        assert!(matches!(read_file(&path, 2), Err(FileError::TooLong(3))));
        assert!(matches!(read_file(folder.path(), 3), Err(FileError::NotRegular)));
        assert!(matches!(read_file(Path::new("/dev/zero"), 3), Err(FileError::NotRegular)));
        // The kernel reports a size of 0 for this file, but the file has content.
        assert!(matches!(read_file(Path::new("/proc/self/status"), 3), Err(FileError::TooLong(4))));
        let pipe = folder.path().join("pipe");
        mkfifoat(CWD, &pipe, Mode::RUSR).unwrap();
        assert!(matches!(read_file(&pipe, 3), Err(FileError::NotRegular)));
    }
}
