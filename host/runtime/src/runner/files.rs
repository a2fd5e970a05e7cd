//! Files in the folders that a coordinator was granted.
//!
//! Wraps wasmtime's implementation, so that each access to a file must pass the gate. The gate is checked only when an
//! operation starts: the runner cannot cancel an operation that has already started.

use std::sync::Arc;

use bytes::Bytes;
use tokio::task::spawn_blocking;
use wasmtime::component::{HasData, Linker, Resource};
use wasmtime_wasi::filesystem::{Descriptor, Dir, OpenMode, WasiFilesystemCtx, WasiFilesystemCtxView};
use wasmtime_wasi::p2::bindings::filesystem::{preopens, types};
use wasmtime_wasi::p2::{
    DynInputStream, DynOutputStream, FsError, FsResult, InputStream, OutputStream, Pollable, StreamError, StreamResult,
};
use wasmtime_wasi::{FsPerms, async_trait};

use crate::Folder;
use crate::runner::denied::Denials;
use crate::runner::guest::Guest;
use crate::runner::holdings::{Holdings, TooMuch};
use crate::runner::listing::Listing;
use crate::runner::weight::BUFFER;
use crate::wire::limits::EffectKind;
use crate::wire::page::RunnerGate;

pub(crate) fn link(linker: &mut Linker<Guest>) -> wasmtime::Result<()> {
    types::add_to_linker::<Guest, Files>(linker, FileAccess::of)?;
    preopens::add_to_linker::<Guest, Files>(linker, FileAccess::of)
}

#[derive(Clone)]
pub(crate) struct Folders {
    gate: Arc<RunnerGate>,
    open: Vec<(Dir, String)>,
}

impl Folders {
    /// Opens the granted folders. Rejects a folder that has been replaced since the host started, because the operator
    /// granted the original folder.
    pub(crate) fn open(gate: &Arc<RunnerGate>, folders: &[Folder]) -> wasmtime::Result<Self> {
        let open = folders.iter().map(open).collect::<Result<_, _>>()?;
        Ok(Self { gate: Arc::clone(gate), open })
    }
}

/// The error that a granted folder cannot be opened on this node. The cause lies on the node, so this error does not
/// count against the module's version.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct NoFolder(String);

fn open(folder: &Folder) -> wasmtime::Result<(Dir, String)> {
    let (perms, mode) = match folder.read_only {
        true => (FsPerms::ReadOnly, OpenMode::READ),
        false => (FsPerms::ReadWrite, OpenMode::READ | OpenMode::WRITE),
    };
    let dir = folder.open().map_err(|reason| wasmtime::Error::from(NoFolder(reason)))?;
    Ok((Dir::new(dir.into(), perms, mode, false), folder.guest.clone()))
}

struct Files;

impl HasData for Files {
    type Data<'a> = FileAccess<'a>;
}

struct FileAccess<'a> {
    ctx: &'a mut WasiFilesystemCtx,
    held: &'a mut Holdings,
    folders: &'a Folders,
    denials: &'a mut Denials,
}

impl FileAccess<'_> {
    fn of(guest: &mut Guest) -> FileAccess<'_> {
        let Guest { wasi, held, folders, denials, .. } = guest;
        FileAccess { ctx: wasi.filesystem(), held, folders, denials }
    }

    fn inner(&mut self) -> WasiFilesystemCtxView<'_> {
        WasiFilesystemCtxView { ctx: self.ctx, table: self.held.table() }
    }
}

impl preopens::Host for FileAccess<'_> {
    fn get_directories(&mut self) -> wasmtime::Result<Vec<(Resource<Descriptor>, String)>> {
        if self.folders.open.is_empty() {
            self.denials.tell_no_folders();
        }
        let mut granted = Vec::new();
        for (dir, guest) in &self.folders.open {
            granted.push((self.held.table.push(Descriptor::Dir(dir.clone()))?, guest.clone()));
        }
        Ok(granted)
    }
}

impl FileAccess<'_> {
    fn pass(&self) -> FsResult<()> {
        self.folders.gate.pass(EffectKind::File).map_err(|_| types::ErrorCode::NotPermitted.into())
    }

    /// Returns true if the descriptor comes from a folder that is granted with `:ro`.
    fn is_read_only(&self, descriptor: &Resource<Descriptor>) -> FsResult<bool> {
        let perms = match self.held.table.get(descriptor)? {
            Descriptor::File(file) => file.perms,
            Descriptor::Dir(folder) => folder.perms,
        };
        Ok(matches!(perms, FsPerms::ReadOnly))
    }

    fn report_denied_write(&mut self, read_only: bool, error: &FsError) {
        if read_only && matches!(error.downcast_ref(), Some(types::ErrorCode::NotPermitted)) {
            self.denials.report_read_only();
        }
    }

    fn may_open(&mut self) -> FsResult<()> {
        self.held.open().map_err(|_| types::ErrorCode::Quota.into())
    }

    fn guard(&mut self, file: &Resource<Descriptor>) -> FsResult<Guard> {
        let buffer = self.held.buffer().map_err(no_memory)?;
        let kept = self.held.table.get(file)?.clone();
        Ok(Guard { gate: Arc::clone(&self.folders.gate), _kept: kept, _buffer: buffer })
    }

    fn guard_writes(&mut self, stream: Resource<DynOutputStream>, guard: Guard) -> FsResult<Resource<DynOutputStream>> {
        let stream = self.held.table.delete(stream)?;
        let guarded: DynOutputStream = Box::new(Guarded { stream, guard });
        Ok(self.held.table.push(guarded)?)
    }
}

/// Forwards read-only calls to wasmtime's implementation, if the gate is open.
macro_rules! reads {
    ($($name:ident($($argument:ident: $type:ty),*) -> $answer:ty;)*) => {$(
        async fn $name(&mut self, $($argument: $type),*) -> FsResult<$answer> {
            self.pass()?;
            types::HostDescriptor::$name(&mut self.inner(), $($argument),*).await
        }
    )*};
}

/// Like `reads!`, for calls that change a file or folder. Reports the calls that fail because the folder is granted
/// read-only.
macro_rules! writes {
    ($($name:ident($changed:ident: $kind:ty $(, $argument:ident: $type:ty)*) -> $answer:ty;)*) => {$(
        async fn $name(&mut self, $changed: $kind $(, $argument: $type)*) -> FsResult<$answer> {
            self.pass()?;
            let read_only = self.is_read_only(&$changed)?;
            let done = types::HostDescriptor::$name(&mut self.inner(), $changed $(, $argument)*).await;
            done.inspect_err(|error| self.report_denied_write(read_only, error))
        }
    )*};
}

impl types::HostDescriptor for FileAccess<'_> {
    reads! {
        advise(file: Resource<Descriptor>, at: u64, length: u64, advice: types::Advice) -> ();
        sync_data(file: Resource<Descriptor>) -> ();
        get_flags(file: Resource<Descriptor>) -> types::DescriptorFlags;
        get_type(file: Resource<Descriptor>) -> types::DescriptorType;
        read(file: Resource<Descriptor>, length: u64, at: u64) -> (Vec<u8>, bool);
        sync(file: Resource<Descriptor>) -> ();
        stat(file: Resource<Descriptor>) -> types::DescriptorStat;
        stat_at(folder: Resource<Descriptor>, how: types::PathFlags, path: String) -> types::DescriptorStat;
        readlink_at(folder: Resource<Descriptor>, path: String) -> String;
        metadata_hash(file: Resource<Descriptor>) -> types::MetadataHashValue;
        metadata_hash_at(folder: Resource<Descriptor>, how: types::PathFlags, path: String) -> types::MetadataHashValue;
    }

    writes! {
        set_size(file: Resource<Descriptor>, size: u64) -> ();
        set_times(file: Resource<Descriptor>, accessed: types::NewTimestamp, modified: types::NewTimestamp) -> ();
        write(file: Resource<Descriptor>, bytes: Vec<u8>, at: u64) -> u64;
        create_directory_at(folder: Resource<Descriptor>, path: String) -> ();
        link_at(
            folder: Resource<Descriptor>,
            how: types::PathFlags,
            path: String,
            to: Resource<Descriptor>,
            new_path: String
        ) -> ();
        remove_directory_at(folder: Resource<Descriptor>, path: String) -> ();
        rename_at(folder: Resource<Descriptor>, path: String, to: Resource<Descriptor>, new_path: String) -> ();
        symlink_at(folder: Resource<Descriptor>, path: String, new_path: String) -> ();
        unlink_file_at(folder: Resource<Descriptor>, path: String) -> ();
    }

    /// Sets a file's times through a descriptor. The runner's filter forbids setting times by path, since Landlock does
    /// not restrict setting times. The times of a symbolic link cannot be set, since the link itself cannot be opened.
    async fn set_times_at(
        &mut self,
        folder: Resource<Descriptor>,
        how: types::PathFlags,
        path: String,
        accessed: types::NewTimestamp,
        modified: types::NewTimestamp,
    ) -> FsResult<()> {
        let follows = how.contains(types::PathFlags::SYMLINK_FOLLOW);
        let open = (types::OpenFlags::empty(), types::DescriptorFlags::READ);
        let file =
            self.open_at(folder, how, path, open.0, open.1).await.map_err(|error| match error.downcast_ref() {
                Some(types::ErrorCode::Loop) if !follows => types::ErrorCode::Unsupported.into(),
                _ => error,
            })?;
        let set = self.set_times(Resource::new_borrow(file.rep()), accessed, modified).await;
        self.held.table.delete(file)?;
        set
    }

    async fn open_at(
        &mut self,
        folder: Resource<Descriptor>,
        how: types::PathFlags,
        path: String,
        open: types::OpenFlags,
        flags: types::DescriptorFlags,
    ) -> FsResult<Resource<Descriptor>> {
        self.pass()?;
        self.may_open()?;
        let writes = flags.contains(types::DescriptorFlags::WRITE)
            || flags.contains(types::DescriptorFlags::MUTATE_DIRECTORY)
            || open.contains(types::OpenFlags::CREATE)
            || open.contains(types::OpenFlags::TRUNCATE);
        let denied = writes && self.is_read_only(&folder)?;
        let opened = self.inner().open_at(folder, how, path, open, flags).await;
        let opened = opened.inspect_err(|error| self.report_denied_write(denied, error))?;
        let file = match self.held.table.get(&opened)? {
            Descriptor::File(file) => Arc::clone(&file.file),
            Descriptor::Dir(folder) => Arc::clone(&folder.dir),
        };
        self.held.opened(&file);
        Ok(opened)
    }

    async fn read_directory(
        &mut self,
        folder: Resource<Descriptor>,
    ) -> FsResult<Resource<types::DirectoryEntryStream>> {
        self.pass()?;
        self.may_open()?;
        self.held.keep(BUFFER).map_err(no_memory)?;
        let folder = match self.held.table.get(&folder)? {
            Descriptor::Dir(folder) => Arc::clone(&folder.dir),
            Descriptor::File(_) => return Err(types::ErrorCode::NotDirectory.into()),
        };
        let listing = spawn_blocking(move || Listing::new(&folder)).await.map_err(FsError::trap)??;
        if let Some(open) = listing.open() {
            self.held.opened(open);
        }
        Ok(Resource::new_own(self.held.table.push(listing)?.rep()))
    }

    async fn is_same_object(&mut self, a: Resource<Descriptor>, b: Resource<Descriptor>) -> wasmtime::Result<bool> {
        self.inner().is_same_object(a, b).await
    }

    fn read_via_stream(&mut self, file: Resource<Descriptor>, at: u64) -> FsResult<Resource<DynInputStream>> {
        let guard = self.guard(&file)?;
        let stream = self.inner().read_via_stream(file, at)?;
        let stream = self.held.table.delete(stream)?;
        let guarded: DynInputStream = Box::new(Guarded { stream, guard });
        Ok(self.held.table.push(guarded)?)
    }

    fn write_via_stream(&mut self, file: Resource<Descriptor>, at: u64) -> FsResult<Resource<DynOutputStream>> {
        let guard = self.guard(&file)?;
        let stream = self.inner().write_via_stream(file, at)?;
        self.guard_writes(stream, guard)
    }

    fn append_via_stream(&mut self, file: Resource<Descriptor>) -> FsResult<Resource<DynOutputStream>> {
        let guard = self.guard(&file)?;
        let stream = self.inner().append_via_stream(file)?;
        self.guard_writes(stream, guard)
    }

    fn drop(&mut self, file: Resource<Descriptor>) -> wasmtime::Result<()> {
        self.held.table.delete(file)?;
        Ok(())
    }
}

/// The error has no details, since [`Holdings`] has already reported them to the host.
fn no_memory(_: TooMuch) -> FsError {
    types::ErrorCode::InsufficientMemory.into()
}

/// Returns the listing behind a guest's handle. The handle never refers to wasmtime's own type, which would read the
/// whole folder at once.
fn listing(entries: &Resource<types::DirectoryEntryStream>) -> Resource<Listing> {
    if entries.owned() { Resource::new_own(entries.rep()) } else { Resource::new_borrow(entries.rep()) }
}

impl types::HostDirectoryEntryStream for FileAccess<'_> {
    async fn read_directory_entry(
        &mut self,
        entries: Resource<types::DirectoryEntryStream>,
    ) -> FsResult<Option<types::DirectoryEntry>> {
        self.pass()?;
        self.held.table.get_mut(&listing(&entries))?.next().await
    }

    fn drop(&mut self, entries: Resource<types::DirectoryEntryStream>) -> wasmtime::Result<()> {
        self.held.table.delete(listing(&entries))?;
        Ok(())
    }
}

impl types::Host for FileAccess<'_> {
    fn convert_error_code(&mut self, error: FsError) -> wasmtime::Result<types::ErrorCode> {
        self.inner().convert_error_code(error)
    }

    fn filesystem_error_code(
        &mut self,
        error: Resource<wasmtime::Error>,
    ) -> wasmtime::Result<Option<types::ErrorCode>> {
        self.inner().filesystem_error_code(error)
    }
}

struct Guarded<S> {
    stream: S,
    guard: Guard,
}

/// The gate of a [`Guarded`] stream. Also keeps the file and the buffer's token until the stream is dropped, so that
/// [`Holdings`] counts both as in use.
struct Guard {
    gate: Arc<RunnerGate>,
    _kept: Descriptor,
    _buffer: Arc<()>,
}

impl Guard {
    fn pass(&self) -> StreamResult<()> {
        self.gate.pass(EffectKind::File).map_err(|refused| StreamError::LastOperationFailed(refused.into()))
    }
}

#[async_trait]
impl Pollable for Guarded<DynInputStream> {
    async fn ready(&mut self) {
        self.stream.ready().await;
    }
}

#[async_trait]
impl InputStream for Guarded<DynInputStream> {
    fn read(&mut self, size: usize) -> StreamResult<Bytes> {
        self.guard.pass()?;
        self.stream.read(size)
    }

    async fn blocking_read(&mut self, size: usize) -> StreamResult<Bytes> {
        self.guard.pass()?;
        self.stream.blocking_read(size).await
    }

    async fn cancel(&mut self) {
        self.stream.cancel().await;
    }
}

#[async_trait]
impl Pollable for Guarded<DynOutputStream> {
    async fn ready(&mut self) {
        self.stream.ready().await;
    }
}

#[async_trait]
impl OutputStream for Guarded<DynOutputStream> {
    fn write(&mut self, bytes: Bytes) -> StreamResult<()> {
        self.guard.pass()?;
        // Limit the size, since the runner keeps the bytes in memory until they are written.
        if bytes.len() > BUFFER {
            return Err(StreamError::trap("the coordinator wrote more at once than `check-write` permits"));
        }
        self.stream.write(bytes)
    }

    fn flush(&mut self) -> StreamResult<()> {
        self.stream.flush()
    }

    fn check_write(&mut self) -> StreamResult<usize> {
        self.stream.check_write()
    }

    async fn blocking_write_and_flush(&mut self, bytes: Bytes) -> StreamResult<()> {
        self.guard.pass()?;
        self.stream.blocking_write_and_flush(bytes).await
    }

    async fn cancel(&mut self) {
        self.stream.cancel().await;
    }
}
