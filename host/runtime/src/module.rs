//! Modules: reading, compiling and linking components, and what can be made one.
//!
//! A host has the code of a [`Module`] and runs none of it: only a template maps it and has it [`Linked`], for its runners.

use std::borrow::Cow;
use std::fs::File;
use std::io::{self, ErrorKind, Write as _};
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::fs::{MemfdFlags, memfd_create};
use serde::{Deserialize, Serialize};
use wasmtime::component::{Component, Linker};
use wasmtime_wasi::p2::bindings::CommandPre;

use super::component_size::{ComponentSize, component_size, most};
use super::componentize::{Unwrappable, Wrapped, componentize, is_for_preview1};
use super::engine::Engine;
use super::guest::{self, CONTRACT, CoordinatorPre, Guest};
use super::judge::{COMMAND, Import, Interfaces, Judged, ModuleKind, STATE, judge, needs_newer_wasi, newer_wasi};
use baton_store::Digest;

use crate::{FileError, read_file};

/// A larger module is refused before it is read whole, in bytes.
pub const LARGEST_MODULE: u64 = 64 << 20;

/// A component that takes more steps to be instantiated is refused by the compiler, before it takes the host's memory.
const MOST_STEPS: usize = 100_000;

/// Why a module cannot run here. It is named by its file, or by its digest where it is from elsewhere.
#[derive(Debug, thiserror::Error)]
pub enum ModuleError {
    /// The file cannot be read.
    #[error("cannot read the module {path}")]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// What the system says.
        source: std::io::Error,
    },
    /// There is none.
    #[error("there is no module at {0}: build the module, or correct the path")]
    Missing(PathBuf),
    /// It is not a file with bytes in it.
    #[error("the module {0} is a folder or a device, not a regular file")]
    NotAFile(PathBuf),
    /// It has no bytes.
    #[error("the module {0} is empty: was the build interrupted?")]
    Empty(String),
    /// It has too many.
    #[error("the module {module} has {} MiB; the limit is {} MiB", .size.div_ceil(1 << 20), LARGEST_MODULE >> 20)]
    TooLarge {
        /// What the module is called: its file.
        module: String,
        /// Its size in bytes.
        size: u64,
    },
    /// It is something else.
    #[error(
        "the module {0} is not WebAssembly: it must be a component, as built by `cargo build --target wasm32-wasip2`"
    )]
    NotWasm(String),
    /// It is a core module that nothing tells how to wrap.
    #[error(
        "the module {0} is a core module, not a component, and cannot be wrapped: it has no component types and does \
         not import WASI preview 1; build it with `--target wasm32-wasip2`, or wrap it with `wasm-tools component new`"
    )]
    CoreModule(String),
    /// It is a core module whose wrapping failed.
    #[error(
        "the core module {module} cannot be wrapped as a component: {why}; build it with tools of the same \
         release, or wrap it with `wasm-tools component new`"
    )]
    Unwrappable {
        /// What the module is called: its file.
        module: String,
        /// What the wrapping stumbled over.
        why: String,
    },
    /// It is a component that wasmtime does not take.
    #[error("the module {module} cannot be compiled: {why}")]
    Invalid {
        /// What the module is called: its file.
        module: String,
        /// What wasmtime said.
        why: String,
    },
    /// It is a component for another world.
    #[error("the module {module} cannot run here: {}", .problems.join("; "))]
    Unsuitable {
        /// What the module is called: its file.
        module: String,
        /// Everything that is missing or unknown, each with the way out.
        problems: Vec<String>,
    },
}

/// A compiled component, and what is known of it. Clones share the code.
#[derive(Clone)]
pub struct Module {
    digest: Digest,
    size: u64,
    outline: Outline,
    code: Arc<File>,
}

/// What must be known of a module beside its code.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Outline {
    pub(super) kind: ModuleKind,
    /// Whether it has a state, which its term claims first.
    pub(super) uses_state: bool,
    /// Whether it asks for folders before it does anything: preview 1 must, whatever its program wants.
    pub(super) asks_for_folders: bool,
    /// Whether instantiating it runs none of its code.
    pub(super) is_inert: bool,
    /// The core instances that were counted in it.
    instances: u64,
}

/// The length of an outline in bytes.
pub const OUTLINE: usize = 9;

impl Outline {
    /// Of a component and what it is made of, and the module that was made one.
    fn of(component: &[u8], ComponentSize { instances, is_inert, .. }: ComponentSize, bytes: &[u8]) -> Option<Self> {
        let Judged { kind, imports, .. } = judge(Interfaces::in_bytes(component).ok()?);
        let uses_state = imports.iter().any(|import| import.name.starts_with(STATE));
        Some(Self { kind: kind?, uses_state, asks_for_folders: is_for_preview1(bytes), is_inert, instances })
    }

    /// As it stands behind the code: the count in little endian, and a bit for each of the others.
    pub fn to_bytes(self) -> [u8; OUTLINE] {
        let bits = [self.kind == ModuleKind::Command, self.uses_state, self.asks_for_folders, self.is_inert];
        let bits = bits.iter().rev().fold(0, |bits, bit| bits << 1 | u8::from(*bit));
        let mut bytes = [bits; OUTLINE];
        bytes[..8].copy_from_slice(&self.instances.to_le_bytes());
        bytes
    }

    /// See [`Outline::to_bytes`].
    pub fn from_bytes(bytes: [u8; OUTLINE]) -> Self {
        let [instances @ .., bits] = bytes;
        let bit = |number: u8| bits >> number & 1 == 1;
        Self {
            kind: if bit(0) { ModuleKind::Command } else { ModuleKind::Coordinator },
            uses_state: bit(1),
            asks_for_folders: bit(2),
            is_inert: bit(3),
            instances: u64::from_le_bytes(instances),
        }
    }
}

/// A component that can be instantiated.
pub(super) struct Linked {
    pub(super) engine: Engine,
    pub(super) entry: EntryPoint,
    /// Of how many core instances it consists; of memories or tables where there are more of these.
    pub(super) instances: u64,
    pub(super) outline: Outline,
}

/// Where a component is entered.
#[derive(Clone)]
pub(super) enum EntryPoint {
    Coordinator(CoordinatorPre<Guest>),
    Command(CommandPre<Guest>),
}

/// What is known of a component, for `baton check`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Inspection {
    /// What it is called: its file.
    pub module: String,
    /// Whether it would run here.
    pub runs: bool,
    /// What it is; none where it is nothing that this host can run.
    pub kind: Option<ModuleKind>,
    /// How the file became a component; none where it is one.
    pub wrapped: Option<Wrapped>,
    /// The world that it is made for, with its version.
    pub world: Option<String>,
    /// Of the file's bytes.
    pub digest: Digest,
    /// In bytes.
    pub size: u64,
    /// How long compiling it took, in milliseconds.
    pub compile_ms: u64,
    /// The interfaces that it needs.
    pub imports: Vec<Import>,
    /// The interfaces that it offers.
    pub exports: Vec<String>,
    /// What is missing or unknown, each with the way out.
    pub problems: Vec<String>,
}

impl Module {
    /// Reads, judges and compiles the component in a file, in this process: for tests and measurements. Takes as long
    /// as compiling takes.
    ///
    /// # Errors
    /// [`ModuleError`] says what is wrong with it.
    pub fn load(engine: &Engine, path: &Path) -> Result<Self, ModuleError> {
        let name = path.display().to_string();
        let bytes = read(path)?;
        let (code, outline) = Self::precompile(engine, &name, &bytes)?;
        let unreadable = |source: io::Error| ModuleError::Unreadable { path: path.to_owned(), source };
        let file = memfd_create("baton-code", MemfdFlags::CLOEXEC).map_err(|error| unreadable(error.into()))?;
        let mut file = File::from(file);
        file.write_all(&code).map_err(unreadable)?;
        Ok(Self::new(&bytes, outline, file))
    }

    /// Compiles a module, after all the judging that can be done before; here or in another process with the same
    /// program and such an engine. `name` is for the errors.
    ///
    /// # Errors
    /// [`ModuleError`] says what is wrong with it.
    pub fn precompile(engine: &Engine, name: &str, bytes: &[u8]) -> Result<(Vec<u8>, Outline), ModuleError> {
        let (component, _) = as_component(engine, name, bytes)?;
        check(name, &component)?;
        let component_size = measure_component(name, &component)?;
        let code = engine.wasmtime().precompile_component(&component).map_err(|error| invalid(name, &error))?;
        let outline = Outline::of(&component, component_size, bytes);
        let outline = outline.ok_or_else(|| ModuleError::NotWasm(name.to_owned()))?;
        Ok((code, outline))
    }

    /// The module of these bytes, whose code and outline [`Module::precompile`] has made.
    pub fn new(bytes: &[u8], outline: Outline, code: File) -> Self {
        Self { digest: Digest::of(bytes), size: bytes.len() as u64, outline, code: Arc::new(code) }
    }

    /// Judges a module by what can be seen without compiling it: that it is WebAssembly and, where it is a
    /// component already, what it is and whether it imports only what there is. Costs next to nothing.
    ///
    /// # Errors
    /// [`ModuleError`] says what is wrong with it.
    pub fn precheck(name: &str, bytes: &[u8]) -> Result<(), ModuleError> {
        match layer(name, bytes)? {
            Layer::Component => check(name, bytes),
            Layer::Core => Ok(()),
        }
    }

    /// Compiles a module to tell what is known of it, whether it would run or not. `name` is what it is called.
    ///
    /// # Errors
    /// [`ModuleError`] where it is no component at all, or one that is not compiled.
    #[expect(clippy::disallowed_methods, reason = "how long compiling took is told to a person, and decides nothing")]
    pub fn inspect(engine: &Engine, name: &str, bytes: &[u8]) -> Result<Inspection, ModuleError> {
        let started = Instant::now();
        let (component, wrapped) = as_component(engine, name, bytes)?;
        measure_component(name, &component)?;
        let component = compile(engine, name, &component)?;
        let compile_time = started.elapsed();
        let Judged { kind, mut imports, exports, mut problems } = judge(Interfaces::of(engine, &component));
        if problems.is_empty()
            && let Some(kind) = kind
            && let Err(error) = enter(engine, &component, kind)
        {
            problems.push(plain(&error));
            for import in imports.iter_mut().filter(|import| newer_wasi(&import.name).is_some()) {
                import.granted = false;
                import.needs = "newer than this host".to_owned();
            }
        }
        let world = exports.iter().find_map(|export| {
            let world = |prefix: &str, name: &str| Some(format!("{name}@{}", export.strip_prefix(prefix)?));
            match kind {
                Some(ModuleKind::Command) => world(COMMAND, "wasi:cli/command"),
                _ => world(&format!("{CONTRACT}/task@"), &format!("{CONTRACT}/coordinator")),
            }
        });
        Ok(Inspection {
            module: name.to_owned(),
            runs: problems.is_empty(),
            kind,
            wrapped,
            world,
            digest: Digest::of(bytes),
            size: bytes.len() as u64,
            compile_ms: milliseconds(compile_time),
            imports,
            exports,
            problems,
        })
    }

    /// What it is.
    pub fn kind(&self) -> ModuleKind {
        self.outline.kind
    }

    /// What the module is.
    pub fn digest(&self) -> Digest {
        self.digest
    }

    /// Whether it has a state, which its term claims first.
    pub(super) fn uses_state(&self) -> bool {
        self.outline.uses_state
    }

    /// See [`Outline`].
    pub(super) fn outline(&self) -> Outline {
        self.outline
    }

    /// Its code, for another process.
    pub(super) fn code(&self) -> io::Result<OwnedFd> {
        self.code.try_clone().map(Into::into)
    }

    /// Its size in bytes.
    pub fn size(&self) -> u64 {
        self.size
    }
}

impl Linked {
    /// Maps and links the code of a module that has this outline.
    ///
    /// # Errors
    /// Why it cannot run here.
    ///
    /// # Safety
    /// The file must hold what [`Module::precompile`] returned, and more behind it at most, and must never change: it is
    /// mapped, and run.
    pub(super) unsafe fn map(engine: &Engine, outline: Outline, code: &OwnedFd) -> Result<Self, Vec<String>> {
        let path = PathBuf::from(format!("/proc/self/fd/{}", code.as_raw_fd()));
        // SAFETY: the caller promises the same of the file that is asked for here, whose descriptor is open meanwhile.
        let component = unsafe { Component::deserialize_file(engine.wasmtime(), path) };
        let component = component.map_err(|error| vec![plain(&error)])?;
        let judged = judge(Interfaces::of(engine, &component));
        if judged.kind != Some(outline.kind) || !judged.problems.is_empty() {
            return Err(judged.problems);
        }
        let entry = prepare(engine, &component, outline.kind).map_err(|error| vec![plain(&error)])?;
        Ok(Self { engine: engine.clone(), entry, instances: most(&component, outline.instances), outline })
    }

    pub(super) fn component(&self) -> &Component {
        match &self.entry {
            EntryPoint::Coordinator(pre) => pre.instance_pre().component(),
            EntryPoint::Command(pre) => pre.instance_pre().component(),
        }
    }
}

/// The bytes of a module's file, in one go.
pub fn read(path: &Path) -> Result<Vec<u8>, ModuleError> {
    let module = || path.display().to_string();
    match read_file(path, LARGEST_MODULE) {
        Ok(bytes) if bytes.is_empty() => Err(ModuleError::Empty(module())),
        Ok(bytes) => Ok(bytes),
        Err(FileError::NotRegular) => Err(ModuleError::NotAFile(path.to_owned())),
        Err(FileError::TooLong(size)) => Err(ModuleError::TooLarge { module: module(), size }),
        Err(FileError::Unreadable(source)) if source.kind() == ErrorKind::NotFound => {
            Err(ModuleError::Missing(path.to_owned()))
        }
        Err(FileError::Unreadable(source)) => Err(ModuleError::Unreadable { path: path.to_owned(), source }),
    }
}

/// What the preamble says a module is.
enum Layer {
    Component,
    Core,
}

fn layer(name: &str, bytes: &[u8]) -> Result<Layer, ModuleError> {
    // The preamble: the magic, then a version and a layer of two bytes each.
    match bytes {
        [] => Err(ModuleError::Empty(name.to_owned())),
        [0, b'a', b's', b'm', _, _, 1, 0, ..] => Ok(Layer::Component),
        [0, b'a', b's', b'm', _, _, 0, 0, ..] => Ok(Layer::Core),
        _ => Err(ModuleError::NotWasm(name.to_owned())),
    }
}

/// The component that a module is, or how it had to be wrapped to be one.
fn as_component<'a>(
    engine: &Engine,
    name: &str,
    bytes: &'a [u8],
) -> Result<(Cow<'a, [u8]>, Option<Wrapped>), ModuleError> {
    match layer(name, bytes)? {
        Layer::Component => Ok((Cow::Borrowed(bytes), None)),
        Layer::Core => {
            wasmtime::Module::validate(engine.wasmtime(), bytes).map_err(|error| invalid(name, &error))?;
            let (wrapped, how) = componentize(bytes).map_err(|error| match error {
                Unwrappable::Unmarked => ModuleError::CoreModule(name.to_owned()),
                Unwrappable::Wrong(why) => ModuleError::Unwrappable { module: name.to_owned(), why: one_line(&why) },
            })?;
            Ok((Cow::Owned(wrapped), Some(how)))
        }
    }
}

/// What a component is made of that is not compiled yet. One that takes the host too long is refused.
fn measure_component(name: &str, component: &[u8]) -> Result<ComponentSize, ModuleError> {
    let counted = component_size(component).map_err(|error| invalid(name, &error))?;
    if counted.steps > MOST_STEPS {
        let steps = counted.steps;
        let why = format!(
            "instantiating it takes {steps} steps, including its globals and segments, and the limit is {MOST_STEPS}: \
             simplify the module"
        );
        return Err(ModuleError::Invalid { module: name.to_owned(), why });
    }
    Ok(counted)
}

fn compile(engine: &Engine, name: &str, component: &[u8]) -> Result<Component, ModuleError> {
    Component::from_binary(engine.wasmtime(), component).map_err(|error| invalid(name, &error))
}

fn invalid(name: &str, error: &wasmtime::Error) -> ModuleError {
    ModuleError::Invalid { module: name.to_owned(), why: plain(error) }
}

/// Judges a component by its bytes. What is damaged is left to the compiler, which says more.
fn check(name: &str, component: &[u8]) -> Result<(), ModuleError> {
    match Interfaces::in_bytes(component).map(judge) {
        Ok(Judged { problems, .. }) if !problems.is_empty() => {
            Err(ModuleError::Unsuitable { module: name.to_owned(), problems })
        }
        _ => Ok(()),
    }
}

/// Does all that an instance need not do when its term begins.
fn prepare(engine: &Engine, component: &Component, kind: ModuleKind) -> wasmtime::Result<EntryPoint> {
    let entry = enter(engine, component, kind)?;
    // Else the first instance would wait for its memory's image, with 20 MB of an interpreter in it perhaps.
    component.initialize_copy_on_write_image()?;
    Ok(entry)
}

/// Links a component, and finds where it is entered.
fn enter(engine: &Engine, component: &Component, kind: ModuleKind) -> wasmtime::Result<EntryPoint> {
    let mut linker = Linker::new(engine.wasmtime());
    guest::link(&mut linker)?;
    let pre = linker.instantiate_pre(component).map_err(|error| {
        match needs_newer_wasi(&Interfaces::of(engine, component)) {
            Some(reason) => error.context(reason),
            None => error,
        }
    })?;
    Ok(match kind {
        ModuleKind::Coordinator => EntryPoint::Coordinator(CoordinatorPre::new(pre)?),
        ModuleKind::Command => EntryPoint::Command(CommandPre::new(pre)?),
    })
}

/// An error of wasmtime with its causes, in one line.
fn plain(error: &wasmtime::Error) -> String {
    one_line(&format!("{error:#}"))
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

fn milliseconds(length: Duration) -> u64 {
    u64::try_from(length.as_millis()).unwrap_or(u64::MAX)
}
