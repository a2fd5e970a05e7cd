//! The way to what a path names: each name that is looked up, and the folder that it is looked up in.
//!
//! A user who can change one of these folders decides where the path leads.

use std::io;
use std::path::{Component, Path, PathBuf};

/// So many links on the way to a file the kernel follows.
const LINKS: u32 = 40;

/// The way to what a path names, as it is now.
pub struct Way {
    /// Each lookup, in order.
    pub lookups: Vec<Lookup>,
    /// Where it ends: a path without links, dots or double dots, as far as there is something at it.
    pub end: PathBuf,
}

/// One name that is looked up.
pub struct Lookup {
    /// The folder that it is looked up in, as plain a path as [`Way::end`].
    pub folder: PathBuf,
    /// Whether the name is that of a link, or the last one.
    pub decides: bool,
}

impl Way {
    /// The way from the root, or from the working folder's place. What is not there has no links. May block as long
    /// as the file system does.
    ///
    /// # Errors
    /// Where the path is empty, or seen from a working folder that is gone.
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
            // The root is found without a folder.
            if part.is_relative() {
                lookups.push(Lookup { folder: at.clone(), decides: target.is_some() || ahead.is_empty() });
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

/// A path's parts, the last one first. The root is one, and joined to anything it is the root again.
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
    fn each_folder_that_decides_where_a_path_leads_is_on_the_way() {
        let base = tempfile::tempdir().unwrap();
        let base = base.path().canonicalize().unwrap();
        fs::create_dir_all(base.join("a/b")).unwrap();
        fs::create_dir(base.join("c")).unwrap();
        fs::write(base.join("c/file"), "").unwrap();
        symlink("../../c", base.join("a/b/link")).unwrap();
        let way = Way::to(&base.join("a/./b/link/file")).unwrap();
        let folders: Vec<&Path> = way.lookups.iter().map(|lookup| &*lookup.folder).collect();
        let known = folders.len() - 5;
        assert_eq!(folders[known..], [&*base, &base.join("a"), &base.join("a/b"), &base, &base.join("c")]);
        let decide = way.lookups.iter().filter(|lookup| lookup.decides).map(|lookup| &*lookup.folder);
        assert!(decide.eq([&*base.join("a/b"), &base.join("c")]));
        assert_eq!(way.end, base.join("c/file"));

        // What is not there is taken as it is written.
        let way = Way::to(&base.join("a/b/link/../none/file")).unwrap();
        assert_eq!(way.end, base.join("none/file"));
        assert_eq!(Way::to(Path::new("/")).unwrap().end, Path::new("/"));
        // Nor is there an end to following links.
        symlink("loop", base.join("loop")).unwrap();
        assert_eq!(Way::to(&base.join("loop")).unwrap().end, base.join("loop"));
    }
}
