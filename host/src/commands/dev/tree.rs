//! Finds the source files of a project, and detects changes to them.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use baton_modules::watch::Stamp;
use baton_store::Digest;

/// Maximum number of files to scan. A folder with more files is probably not a project.
const MOST_FILES: usize = 20_000;

/// Largest file whose content is compared, in bytes. For larger files, only the metadata is compared.
const LARGEST: u64 = 1 << 20;

/// Folders that tools write to. Folders whose names start with a dot are also skipped.
const GENERATED_FOLDERS: [&str; 4] = ["target", "node_modules", "__pycache__", "venv"];

/// Suffixes of the names of files that builds and editors write.
const GENERATED: [&str; 7] = [".wasm", ".minisig", ".pyc", ".swp", ".tmp", "~", "Cargo.lock"];

#[derive(Default)]
pub(super) struct Tree {
    files: BTreeMap<PathBuf, File>,
    pub folders: BTreeSet<PathBuf>,
    /// True if the scan stopped at [`MOST_FILES`].
    pub is_too_large: bool,
}

struct File {
    stamp: Stamp,
    content: Content,
}

/// The data by which two scans compare a file. If a build rewrites a file with the same content, the file counts as
/// unchanged.
#[derive(PartialEq, Eq)]
enum Content {
    Digest(Digest),
    Stamp(Stamp),
}

impl Tree {
    /// Scans a folder, except for `target`. Does not read files that are unchanged since `before`. Blocks.
    pub fn scan(folder: &Path, target: Option<&Path>, before: &Self) -> Self {
        let mut tree = Self::default();
        tree.add_folder(folder, target, before);
        tree
    }

    pub fn difference<'a>(&'a self, other: &'a Self) -> Option<&'a Path> {
        let content = |tree: &'a Self, path| tree.files.get(path).map(|file| &file.content);
        let differs = |path: &&'a PathBuf| content(self, *path) != content(other, *path);
        self.files.keys().chain(other.files.keys()).find(differs).map(PathBuf::as_path)
    }

    fn add_folder(&mut self, folder: &Path, target: Option<&Path>, before: &Self) {
        self.folders.insert(folder.to_owned());
        for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
            let (name, path) = (entry.file_name(), entry.path());
            // Skip names that are not UTF-8: compilers do not read such files.
            let Some(name) = name.to_str() else { continue };
            let is_folder = entry.file_type().is_ok_and(|kind| kind.is_dir());
            if name.starts_with(['.', '#']) || target == Some(&path) {
                continue;
            }
            if self.files.len() >= MOST_FILES {
                self.is_too_large = true;
                return;
            }
            if is_folder {
                if !GENERATED_FOLDERS.contains(&name) {
                    self.add_folder(&path, target, before);
                }
            } else if !GENERATED.iter().any(|end| name.ends_with(end)) {
                self.files.extend(File::of(&path, before.files.get(&path)).map(|file| (path, file)));
            }
        }
    }
}

impl File {
    /// Returns `None` if the file no longer exists or is not a regular file.
    fn of(path: &Path, before: Option<&Self>) -> Option<Self> {
        let metadata = fs::metadata(path).ok().filter(fs::Metadata::is_file)?;
        let stamp = Stamp::from(&metadata);
        let content = match before {
            Some(File { stamp: known, content: Content::Digest(digest) }) if *known == stamp => {
                Content::Digest(*digest)
            }
            _ if metadata.len() > LARGEST => Content::Stamp(stamp),
            _ => fs::read(path).map_or(Content::Stamp(stamp), |bytes| Content::Digest(Digest::of(&bytes))),
        };
        Some(Self { stamp, content })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may panic")]
    use super::*;

    #[test]
    fn only_hand_written_files_count_as_changes() {
        let folder = tempfile::tempdir().unwrap();
        let place = |place: &str| folder.path().join(place);
        let write = |file: &str, text: &str| {
            fs::create_dir_all(place(file).parent().unwrap()).unwrap();
            fs::write(place(file), text).unwrap();
        };
        let target = place("out");
        let scan = |before: &Tree| Tree::scan(folder.path(), Some(&target), before);
        write("src/lib.rs", "one");
        write("Cargo.toml", "");
        let mut tree = scan(&Tree::default());
        assert!(tree.folders.contains(&place("src")));
        let mut changed = || {
            let now = scan(&tree);
            let changed = now.difference(&tree).map(|path| path.strip_prefix(folder.path()).unwrap().to_owned());
            tree = now;
            changed.map(|path| path.to_str().unwrap().to_owned())
        };
        assert_eq!(changed(), None);
        for tools in [
            "target/x.rs",
            "node_modules/x.js",
            ".git/HEAD",
            "out/x.rs",
            "src/.lib.rs.swp",
            "src/lib.rs~",
            "job.wasm",
            "src/#lib.rs#",
            "src/__pycache__/a.pyc",
            ".venv/bin/x",
            "Cargo.lock",
        ] {
            write(tools, "made");
            assert_eq!(changed(), None, "{tools}");
        }
        write("src/lib.rs", "one");
        assert_eq!(changed(), None, "the same again");
        write("src/lib.rs", "two");
        assert_eq!(changed().as_deref(), Some("src/lib.rs"));
        write("src/deep/er/new.rs", "");
        assert_eq!(changed().as_deref(), Some("src/deep/er/new.rs"));
        fs::remove_file(place("Cargo.toml")).unwrap();
        assert_eq!(changed().as_deref(), Some("Cargo.toml"));
        std::os::unix::fs::symlink(folder.path(), place("src/loop")).unwrap();
        assert_eq!(changed(), None, "a link to a folder is not followed");
        write("wit/large.wit", &"x".repeat(2 << 20));
        assert_eq!(changed().as_deref(), Some("wit/large.wit"));
        assert_eq!(changed(), None);
        write("wit/large.wit", &"y".repeat(2 << 20));
        assert_eq!(changed().as_deref(), Some("wit/large.wit"));
    }
}
