//! The folders that settings grant to coordinators.

use std::io;

use baton_runtime::{Folder, FolderGrant};

use super::Environment;

/// Opens the granted folder, so that the host reports errors when it starts. An error says why the folder cannot be
/// used, and what to do.
pub(super) fn find(text: &str, around: &Environment) -> Result<Folder, String> {
    let FolderGrant { host: named, guest, read_only } = FolderGrant::of(text)?;
    match Folder::at(around.path(named), guest.to_string(), read_only) {
        Ok(folder) => Ok(folder),
        Err(error) if error.kind() == io::ErrorKind::NotADirectory => {
            Err(format!("{named:?} is not a folder: name the folder that contains it"))
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            Err(format!("there is no folder {named:?}: create it, or fix the path"))
        }
        Err(error) => Err(format!("the folder {named:?} cannot be used: {error}")),
    }
}
