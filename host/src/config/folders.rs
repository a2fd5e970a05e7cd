//! Folders of the host that a coordinator may use: `HOST::GUEST`, or `HOST::GUEST:ro`.

use std::fmt;
use std::path::PathBuf;

use super::Surroundings;

/// How to write one.
const FORM: &str = "HOST::GUEST, or HOST::GUEST:ro to read only, as in /srv/data::/data";

/// A folder that a coordinator may use.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Folder {
    /// Where it is on the host.
    pub host: PathBuf,
    /// Where the coordinator finds it: an absolute path, without a slash at its end.
    pub guest: String,
    /// Whether it may only be read.
    pub read_only: bool,
}

/// The parts of a text, not yet checked.
pub(super) struct Parts<'a> {
    pub host: &'a str,
    pub guest: &'a str,
    pub read_only: bool,
}

impl<'a> Parts<'a> {
    /// # Errors
    /// How to write it, for what has another form.
    pub(super) fn of(text: &'a str) -> Result<Self, String> {
        let (host, guest) = text.rsplit_once("::").unwrap_or_default();
        let (guest, read_only) = match guest.strip_suffix(":ro") {
            Some(guest) => (guest, true),
            None => (guest, false),
        };
        let guest = if guest == "/" { guest } else { guest.strip_suffix('/').unwrap_or(guest) };
        let is_path =
            guest.starts_with('/') && !guest.contains([':', '\0']) && !host.is_empty() && !host.contains('\0');
        let is_plain = guest.split('/').all(|part| part != "." && part != "..");
        let parts = (is_path && is_plain).then_some(Self { host, guest, read_only });
        parts.ok_or_else(|| format!("{text:?} is not a folder and its place: write {FORM}"))
    }
}

impl fmt::Display for Parts<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}::{}{}", self.host, self.guest, if self.read_only { ":ro" } else { "" })
    }
}

impl Folder {
    /// The folder that a text names, looked at so that what is wrong is said at once.
    ///
    /// # Errors
    /// Why it cannot be used, and what to do.
    pub(super) fn find(text: &str, around: &Surroundings) -> Result<Self, String> {
        let Parts { host: named, guest, read_only } = Parts::of(text)?;
        let folder = Self { host: around.path(named), guest: guest.to_string(), read_only };
        match std::fs::metadata(&folder.host) {
            Ok(meta) if !meta.is_dir() => Err(format!("{named:?} is not a folder: name the one that it is in")),
            Ok(_) => Ok(folder),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                Err(format!("there is no folder {named:?}: make it, or mend the path"))
            }
            Err(error) => Err(format!("the folder {named:?} cannot be used: {error}")),
        }
    }
}

impl fmt::Display for Folder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let host = self.host.to_string_lossy();
        Parts { host: &host, guest: &self.guest, read_only: self.read_only }.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_is_written_with_its_place() {
        for (text, shown) in [
            ("/srv/data::/data", Some("/srv/data::/data")),
            ("data::/data/:ro", Some("data::/data:ro")),
            ("a::b::/", Some("a::b::/")),
            ("/data", None),
            ("/data:/data", None),
            ("::/data", None),
            ("/data::", None),
            ("/data::data", None),
            ("/data::/data:rw", None),
            ("/data::/x/../data", None),
        ] {
            assert_eq!(Parts::of(text).ok().map(|parts| parts.to_string()).as_deref(), shown, "{text}");
        }
    }
}
