//! The files that a build is made of.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use baton_modules::watch::Stamp;
use baton_store::Digest;

/// A folder with more files is no project that somebody works on.
const MOST_FILES: usize = 20_000;

/// A larger file's content is not compared, only what the file system says of it, in bytes.
const LARGEST: u64 = 1 << 20;

/// Folders that tools fill. What begins with a dot belongs to tools, too.
const FILLED: [&str; 4] = ["target", "node_modules", "__pycache__", "venv"];

/// What nobody writes by hand: what builds make, and what editors keep beside what they edit.
const MADE: [&str; 7] = [".wasm", ".minisig", ".pyc", ".swp", ".tmp", "~", "Cargo.lock"];

/// A project's files at a moment.
#[derive(Default)]
pub(super) struct Tree {
    files: BTreeMap<PathBuf, File>,
    /// The folders that they are in.
    pub folders: BTreeSet<PathBuf>,
    /// Whether there are more than this looks at.
    pub is_too_large: bool,
}

struct File {
    stamp: Stamp,
    content: Content,
}

/// By what two states of a file differ. A build may write what it makes into the project, and what it writes again
/// as it was is no change.
#[derive(PartialEq, Eq)]
enum Content {
    Digest(Digest),
    Stamp(Stamp),
}

impl Tree {
    /// Looks at the files in a folder, but for those beneath `target`. What it has seen `before` is not read again.
    /// May block.
    pub fn look(folder: &Path, target: Option<&Path>, before: &Self) -> Self {
        let mut tree = Self::default();
        tree.enter(folder, target, before);
        tree
    }

    /// The first file that is another, new or gone.
    pub fn difference<'a>(&'a self, other: &'a Self) -> Option<&'a Path> {
        let content = |tree: &'a Self, path| tree.files.get(path).map(|file| &file.content);
        let differs = |path: &&'a PathBuf| content(self, *path) != content(other, *path);
        self.files.keys().chain(other.files.keys()).find(differs).map(PathBuf::as_path)
    }

    fn enter(&mut self, folder: &Path, target: Option<&Path>, before: &Self) {
        self.folders.insert(folder.to_owned());
        for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
            let (name, path) = (entry.file_name(), entry.path());
            // A name that is no text is nothing that a compiler reads.
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
                if !FILLED.contains(&name) {
                    self.enter(&path, target, before);
                }
            } else if !MADE.iter().any(|end| name.ends_with(end)) {
                self.files.extend(File::of(&path, before.files.get(&path)).map(|file| (path, file)));
            }
        }
    }
}

impl File {
    /// What is at a path, unless it is no file or gone already.
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
    #![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
    use super::*;

    #[test]
    fn what_is_written_by_hand_is_seen_and_nothing_else() {
        let folder = tempfile::tempdir().unwrap();
        let place = |place: &str| folder.path().join(place);
        let write = |file: &str, text: &str| {
            fs::create_dir_all(place(file).parent().unwrap()).unwrap();
            fs::write(place(file), text).unwrap();
        };
        let target = place("out");
        let look = |before: &Tree| Tree::look(folder.path(), Some(&target), before);
        write("src/lib.rs", "one");
        write("Cargo.toml", "");
        let mut tree = look(&Tree::default());
        assert!(tree.folders.contains(&place("src")));
        let mut changed = || {
            let now = look(&tree);
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
