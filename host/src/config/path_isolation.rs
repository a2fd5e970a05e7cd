//! Keeps the paths that the host opens out of the coordinators' writable folders.
//!
//! The host opens files and folders by path: when it starts or restarts, and for each term. A coordinator that may
//! write to a folder could replace a file in this folder: with a link to a file that the coordinator may not read, or
//! with a forged version of a file that the host trusts. No path that the host opens may therefore pass through such a
//! folder. The check compares folders by device and inode. Because of bind mounts, the check also compares their
//! locations in the file system, as shown by the kernel's list of mounts.

use std::ffi::OsString;
use std::fs::Metadata;
use std::os::fd::AsRawFd as _;
use std::os::unix::ffi::OsStringExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};

use super::{Config, ConfigError, Coordinator, Key};
use baton_admin::TlsFiles;
use baton_modules::ModuleSource;
use baton_modules::path_watch::PathLookups;
use baton_node::node::NodeChoice;
use baton_runtime::Folder;
use baton_store::{StoreUrl, witness};

/// A file or folder that the host opens by path.
pub struct TrustedPath {
    /// The setting that contains the path, or another place where the user can fix the problem.
    pub place: String,
    /// Description of the file or folder, for error messages.
    pub what: String,
    /// The path.
    pub path: PathBuf,
    /// True if this is a folder in which the host opens files.
    pub is_folder: bool,
}

impl Config {
    /// Fails if a path that the host opens passes through a folder that a coordinator may write to. Also fails if a
    /// coordinator could bypass its own read-only grant. Checks the paths in the configuration and `implicit_paths`.
    ///
    /// # Errors
    /// [`ConfigError`] that names the first such path and the folder.
    pub fn check_path_isolation(
        &self,
        implicit_paths: impl IntoIterator<Item = TrustedPath>,
    ) -> Result<(), ConfigError> {
        let mounts = Mounts::read();
        let writable: Vec<Writable<'_>> = self.folders().filter_map(|of| Writable::new(self, of, &mounts)).collect();
        if writable.is_empty() {
            return Ok(());
        }
        let mut relied = self.relied_on();
        relied.extend(implicit_paths);
        for TrustedPath { place, what, path, is_folder } in relied {
            let wrong = |error| ConfigError::new(&place, format!("cannot resolve the path of {what}: {error}"));
            let PathLookups { lookups, end } = PathLookups::to(&path).map_err(wrong)?;
            let looked_up_in = lookups.into_iter().map(|lookup| lookup.folder).chain(is_folder.then_some(end));
            for folder in looked_up_in {
                if let Some(writable) = writable.iter().find(|writable| writable.covers(&folder, &mounts)) {
                    return Err(ConfigError::new(&place, writable.problem(&what, &path, &folder)));
                }
            }
        }
        // Reject a read-only grant if another grant lets the same coordinator write to the folder, because `:ro` would
        // then have no effect. Other coordinators may write to the folder.
        for (coordinator, folder) in self.folders().filter(|(_, folder)| folder.read_only) {
            let mut own = writable.iter().filter(|writable| writable.election == coordinator.election.as_str());
            if let Some(writable) = own.find(|writable| writable.covers(folder.real(), &mounts)) {
                let problem = format!(
                    "{:?} is granted read-only, but the same coordinator may write to it through {:?}, granted as \
                     {:?}: remove one of these grants",
                    shown(&folder.host),
                    shown(&writable.folder.host),
                    writable.folder.guest
                );
                return Err(ConfigError::new(self.place_of_folder(coordinator, folder), problem));
            }
        }
        Ok(())
    }

    fn folders(&self) -> impl Iterator<Item = (&Coordinator, &Folder)> {
        self.coordinators.iter().flat_map(|of| of.folders.iter().map(move |folder| (of, folder)))
    }

    /// Returns all paths in the configuration that the host opens.
    fn relied_on(&self) -> Vec<TrustedPath> {
        let mut relied = Vec::new();
        let mut add = |place: String, what: &str, path: &Path, is_folder| {
            relied.push(TrustedPath { place, what: what.to_owned(), path: path.to_owned(), is_folder });
        };
        let place = |key| self.place(None, key, None);
        add(place(Key::Config), "the configuration file", &self.file, false);
        if let StoreUrl::Sqlite(folder) = &self.store {
            add(place(Key::Store), "the store", folder, true);
        }
        // Hosts use this folder even if the store is on Azure: see `witness::folder`.
        if let Some(leases) = witness::folder(&self.store, self.state.as_deref()).filter(|_| self.witness) {
            add(place(Key::Reclaim), "the folder for lock files and lease notes", &leases, true);
        }
        if let NodeChoice::Slot { folder, .. } = &self.node {
            add(place(Key::Node), "the lock file for the node's name", folder, true);
        }
        if let Some(folder) = &self.cache {
            add(place(Key::Cache), "the cache", folder, true);
        }
        if let Some(key) = self.cache.as_ref().and(self.cache_key.as_ref()) {
            add(place(Key::Cache), "the cache's key", key, false);
        }
        if let Some(path) = &self.admin.token_file {
            add(place(Key::AdminTokenFile), "the endpoint's token file", path, false);
        }
        if let Some(TlsFiles { certificate, key }) = &self.admin.tls {
            add(place(Key::AdminTlsCert), "the endpoint's certificate", certificate, false);
            add(place(Key::AdminTlsKey), "the key for the endpoint's certificate", key, false);
        }
        for coordinator in &self.coordinators {
            let place = |key| self.place(Some(coordinator), key, None);
            if let ModuleSource::File(path) = &coordinator.module {
                // The signature file needs no entry of its own, since it is in the same folder.
                add(place(Key::Module), "the module", path, false);
            }
            for path in &coordinator.trust {
                add(place(Key::Trust), "the public key", path, false);
            }
            if let Some(path) = &coordinator.http_ca {
                add(place(Key::HttpCa), "the certificate file", path, false);
            }
            for secret in &coordinator.secrets {
                let place = self.place(Some(coordinator), Key::Secret, Some(secret.name()));
                if let Some(path) = secret.file() {
                    add(place, &format!("the secret {:?}", secret.name()), path, false);
                }
            }
            for folder in &coordinator.folders {
                // The host opens the folder, but no files in it, so `is_folder` is false.
                let what = format!("the folder {:?}", folder.guest);
                add(self.place_of_folder(coordinator, folder), &what, &folder.host, false);
            }
        }
        relied
    }

    fn place_of_folder(&self, coordinator: &Coordinator, folder: &Folder) -> String {
        self.place(Some(coordinator), Key::Dir, Some(&folder.guest))
    }

    fn place(&self, of: Option<&Coordinator>, key: Key, part: Option<&str>) -> String {
        let election = of.map(|coordinator| coordinator.election.as_str());
        let row = self
            .rows
            .iter()
            .find(|row| (row.key, row.election.as_deref(), row.part.as_deref()) == (key, election, part));
        row.map_or_else(|| key.flag(), |row| row.origin.place(key))
    }
}

struct Writable<'a> {
    folder: &'a Folder,
    place: String,
    election: &'a str,
    identity: Option<(u64, u64)>,
    spots: Vec<Spot>,
}

impl<'a> Writable<'a> {
    fn new(config: &Config, (coordinator, folder): (&'a Coordinator, &'a Folder), mounts: &Mounts) -> Option<Self> {
        (!folder.read_only).then(|| Self {
            folder,
            place: config.place_of_folder(coordinator, folder),
            election: coordinator.election.as_str(),
            identity: identity(folder.real()),
            spots: mounts.spots_within(folder.real()),
        })
    }

    /// True if `folder` is this writable folder, or is inside it. `folder` need not exist.
    fn covers(&self, folder: &Path, mounts: &Mounts) -> bool {
        let is_in = |folder: &Path| self.identity.is_some() && identity(folder) == self.identity;
        folder.ancestors().any(is_in)
            || mounts.spot(folder).is_some_and(|spot| self.spots.iter().any(|own| spot.is_in(own)))
    }

    fn problem(&self, what: &str, path: &Path, through: &Path) -> String {
        format!(
            "the path of {what}, {:?}, passes through {:?}, where the coordinator `{}` may write (granted: {:?}, {}), \
             so it could redirect this host: move {what} out of that folder, or grant the folder with :ro",
            shown(path),
            shown(through),
            self.election,
            shown(&self.folder.host),
            self.place
        )
    }
}

fn shown(path: &Path) -> String {
    path.display().to_string()
}

fn identity(path: &Path) -> Option<(u64, u64)> {
    let identity = |metadata: Metadata| (metadata.dev(), metadata.ino());
    std::fs::symlink_metadata(path).ok().map(identity)
}

/// A folder's location in its file system, independent of mount points.
struct Spot {
    device: String,
    path: PathBuf,
}

impl Spot {
    fn is_in(&self, other: &Self) -> bool {
        self.device == other.device && self.path.starts_with(&other.path)
    }
}

/// The mounts that this process can see. The list is empty if `/proc` is missing, but then the host does not run
/// anyway.
pub(super) struct Mounts(Vec<Mount>);

struct Mount {
    id: String,
    device: String,
    /// The mounted folder, as a path within its file system.
    root: PathBuf,
    point: PathBuf,
}

impl Mounts {
    fn read() -> Self {
        Self::of(&std::fs::read("/proc/self/mountinfo").unwrap_or_default())
    }

    pub(super) fn of(listed: &[u8]) -> Self {
        Self(listed.split(|byte| *byte == b'\n').filter_map(Mount::parse).collect())
    }

    /// Finds the location of a folder, which need not exist.
    fn spot(&self, folder: &Path) -> Option<Spot> {
        let (existing, id) = folder.ancestors().find_map(|folder| Some((folder, mount_of(folder)?)))?;
        let inside = self.0.iter().find(|mount| mount.id == id).and_then(|mount| {
            let path = mount.root.join(existing.strip_prefix(&mount.point).ok()?);
            Some(Spot { device: mount.device.clone(), path })
        });
        // The kernel's list omits mounts whose root this process cannot see, so this function does not know the device
        // of such a mount. The mount's id can replace the device: within one mount, comparing the paths is enough.
        Some(inside.unwrap_or_else(|| Spot { device: id, path: existing.to_owned() }))
    }

    /// Returns the locations of a folder and of all mounts inside it.
    fn spots_within(&self, folder: &Path) -> Vec<Spot> {
        let within = self.0.iter().filter(|mount| mount.point.starts_with(folder));
        let within = within.map(|mount| Spot { device: mount.device.clone(), path: mount.root.clone() });
        self.spot(folder).into_iter().chain(within).collect()
    }
}

impl Mount {
    /// Parses a line as in `proc_pid_mountinfo(5)`: `36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 - ext3 /dev/root rw`.
    fn parse(line: &[u8]) -> Option<Self> {
        let mut fields = line.split(|byte| *byte == b' ');
        let text = |field: &[u8]| String::from_utf8_lossy(field).into_owned();
        let (id, device) = (text(fields.next()?), text(fields.nth(1)?));
        Some(Self { id, device, root: unescaped(fields.next()?), point: unescaped(fields.next()?) })
    }
}

/// Returns the id of the mount that contains a folder; `None` if the folder does not exist.
fn mount_of(folder: &Path) -> Option<String> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let folder = rustix::fs::open(folder, flags, Mode::empty()).ok()?;
    let info = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", folder.as_raw_fd())).ok()?;
    info.lines().find_map(|line| Some(line.strip_prefix("mnt_id:")?.trim().to_owned()))
}

/// Decodes a path from the list of mounts, in which whitespace and backslashes are written as three octal digits.
fn unescaped(field: &[u8]) -> PathBuf {
    let mut bytes = Vec::new();
    let mut rest = field;
    while let Some((&byte, after)) = rest.split_first() {
        let code = after.get(..3).filter(|_| byte == b'\\').and_then(|code| str::from_utf8(code).ok());
        let code = code.and_then(|code| u8::from_str_radix(code, 8).ok());
        bytes.push(code.unwrap_or(byte));
        rest = if code.is_some() { &after[3..] } else { after };
    }
    OsString::from_vec(bytes).into()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may panic")]
    use super::*;

    #[test]
    fn mount_is_parsed_with_escaped_paths() {
        let line = br"36 35 98:0 /a\040b /mnt\134x\011y rw,noatime master:1 - ext3 /dev/root rw";
        let mount = Mount::parse(line).unwrap();
        assert_eq!((&*mount.id, &*mount.device), ("36", "98:0"));
        assert_eq!((&*mount.root, &*mount.point), (Path::new("/a b"), Path::new("/mnt\\x\ty")));
        assert!(Mount::parse(b"").is_none() && Mount::parse(b"36 35 98:0 /").is_none());
        assert_eq!(unescaped(br"a\9\04"), Path::new(r"a\9\04"));
    }

    #[test]
    fn folder_is_within_itself_and_its_parents() {
        let base = tempfile::tempdir().unwrap();
        let (mounts, base) = (Mounts::read(), base.path().canonicalize().unwrap());
        let spot = |path: &str| mounts.spot(&base.join(path)).unwrap();
        std::fs::create_dir_all(base.join("a/b")).unwrap();
        std::fs::create_dir(base.join("ab")).unwrap();
        assert!(spot("a").is_in(&spot("a")) && spot("a/b").is_in(&spot("a")) && spot("a/none/x").is_in(&spot("a")));
        assert!(!spot("a").is_in(&spot("a/b")) && !spot("ab").is_in(&spot("a")));
        assert!(!mounts.spot(Path::new("/proc")).unwrap().is_in(&spot("a")));
        assert!(
            mounts.spots_within(Path::new("/")).iter().any(|own| mounts.spot(Path::new("/proc")).unwrap().is_in(own))
        );
    }
}
