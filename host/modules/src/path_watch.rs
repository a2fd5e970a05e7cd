//! Resolves a path in the same way as the kernel: one name after another, each in its folder.
//!
//! A user who can change any of these folders controls where the path leads.

use std::io;
use std::path::{Component, Path, PathBuf};

/// Maximum number of symbolic links that the kernel follows in a path.
const LINKS: u32 = 40;

/// The result of resolving a path.
pub struct PathLookups {
    /// One entry for each name that was looked up, in order.
    pub lookups: Vec<PathLookup>,
    /// The location to which the path leads, without links, `.` or `..`. Parts that do not exist are kept as they are
    /// written.
    pub end: PathBuf,
}

/// One name on the path, which was looked up in a folder.
pub struct PathLookup {
    /// The folder that contains the name, resolved like [`PathLookups::end`].
    pub folder: PathBuf,
    /// True if the name is a link, or is the last name in the path. A replacement of the link or the file can make the
    /// path lead to a different file.
    pub decides: bool,
}

impl PathLookups {
    /// Resolves a path from the root, or from the working folder if the path is relative. Keeps names that do not exist
    /// as they are written. May block for as long as the file system does.
    ///
    /// # Errors
    /// Fails if the path is empty, or relative to a working folder that no longer exists.
    pub fn to(path: &Path) -> io::Result<Self> {
        let mut ahead = parts(&std::path::absolute(path)?);
        let (mut lookups, mut links, mut at) = (Vec::new(), 0, PathBuf::new());
        while let Some(part) = ahead.pop() {
            if part == Path::new("..") {
                at.pop();
                continue;
            }
            let next = at.join(&part);
            let target = if links < LINKS { std::fs::read_link(&next).ok() } else { None };
            // There is no lookup for the root itself.
            if part.is_relative() {
                lookups.push(PathLookup { folder: at.clone(), decides: target.is_some() || ahead.is_empty() });
            }
            match target {
                Some(target) => {
                    links += 1;
                    ahead.extend(parts(&target));
                }
                None => at = next,
            }
        }
        Ok(Self { lookups, end: at })
    }
}

/// Returns a path's parts in reverse order, so that the caller can pop the next part off the end. The root counts as a
/// part. If the target of a link begins with the root, joining the root replaces the path so far.
fn parts(path: &Path) -> Vec<PathBuf> {
    path.components()
        .rev()
        .filter(|part| *part != Component::CurDir)
        .map(|part| PathBuf::from(part.as_os_str()))
        .collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may panic")]
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn way_lists_each_folder_that_decides_where_a_path_leads() {
        let base = tempfile::tempdir().unwrap();
        let base = base.path().canonicalize().unwrap();
        fs::create_dir_all(base.join("a/b")).unwrap();
        fs::create_dir(base.join("c")).unwrap();
        fs::write(base.join("c/file"), "").unwrap();
        symlink("../../c", base.join("a/b/link")).unwrap();
        let way = PathLookups::to(&base.join("a/./b/link/file")).unwrap();
        let folders: Vec<&Path> = way.lookups.iter().map(|lookup| &*lookup.folder).collect();
        let known = folders.len() - 5;
        assert_eq!(folders[known..], [&*base, &base.join("a"), &base.join("a/b"), &base, &base.join("c")]);
        let decide = way.lookups.iter().filter(|lookup| lookup.decides).map(|lookup| &*lookup.folder);
        assert!(decide.eq([&*base.join("a/b"), &base.join("c")]));
        assert_eq!(way.end, base.join("c/file"));

        // Parts of the path that do not exist stay as they are.
        let way = PathLookups::to(&base.join("a/b/link/../none/file")).unwrap();
        assert_eq!(way.end, base.join("none/file"));
        assert_eq!(PathLookups::to(Path::new("/")).unwrap().end, Path::new("/"));
        // A link that leads to itself is followed only `LINKS` times.
        symlink("loop", base.join("loop")).unwrap();
        assert_eq!(PathLookups::to(&base.join("loop")).unwrap().end, base.join("loop"));
    }
}
