//! Reads, compiles and links modules: components, and core modules that can be wrapped as components.
//!
//! A host holds the code of a [`Module`] but runs none of it. The code is mapped and linked ([`Linked`]) only in a
//! template.

pub(crate) mod backtrace;
pub(crate) mod component_size;
pub(crate) mod componentize;
pub(crate) mod engine;
pub(crate) mod judge;
pub(crate) mod names;

use std::borrow::Cow;
use std::fs::File;
use std::io::{self, ErrorKind, Write as _};
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use rustix::fs::{MemfdFlags, memfd_create};
use serde::{Deserialize, Serialize};
use wasmtime::component::{Component, Linker};
use wasmtime_wasi::p2::bindings::CommandPre;

use crate::module::component_size::{ComponentSize, component_size, most};
use crate::module::componentize::{Unwrappable, Wrapped, componentize, is_for_preview1};
use crate::module::engine::Engine;
use crate::module::judge::{
    COMMAND, Import, Interfaces, Judged, ModuleKind, STATE, judge, needs_newer_wasi, newer_wasi,
};
use crate::runner::guest::{self, CONTRACT, CoordinatorPre, Guest};
use baton_base::clock::milliseconds;
use baton_store::Digest;

use crate::{FileError, read_file};

/// Maximum size of a module (bytes). A larger file is rejected without being read completely.
pub const LARGEST_MODULE: u64 = 64 << 20;

/// Maximum number of steps to instantiate a component. A component that needs more is rejected before it is compiled,
/// since compiling it could use too much host memory.
const MOST_STEPS: usize = 100_000;

/// The reason why a module cannot run here. The messages name the module's file, or the module's digest if there is no
/// file.
#[derive(Debug, thiserror::Error)]
pub enum ModuleError {
    /// The file cannot be read.
    #[error("cannot read the module {path}")]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The underlying I/O error.
        source: std::io::Error,
    },
    /// The file does not exist.
    #[error("there is no module at {0}: build the module, or correct the path")]
    Missing(PathBuf),
    /// The path is not a regular file.
    #[error("the module {0} is a folder or a device, not a regular file")]
    NotAFile(PathBuf),
    /// The module is empty.
    #[error("the module {0} is empty: was the build interrupted?")]
    Empty(String),
    /// The module is larger than [`LARGEST_MODULE`].
    #[error("the module {module} has {} MiB; the limit is {} MiB", .size.div_ceil(1 << 20), LARGEST_MODULE >> 20)]
    TooLarge {
        /// Name of the module: its file, or its digest.
        module: String,
        /// Size of the module's file (bytes).
        size: u64,
    },
    /// The bytes are not WebAssembly.
    #[error(
        "the module {0} is not WebAssembly: it must be a component, as built by `cargo build --target wasm32-wasip2`"
    )]
    NotWasm(String),
    /// The file is a core module that lacks the information needed to wrap it.
    #[error(
        "the module {0} is a core module, not a component, and cannot be wrapped: it has no component types and does \
         not import WASI preview 1; build it with `--target wasm32-wasip2`, or wrap it with `wasm-tools component new`"
    )]
    CoreModule(String),
    /// The file is a core module that could not be wrapped.
    #[error(
        "the core module {module} cannot be wrapped as a component: {why}; build it with tools of the same \
         release, or wrap it with `wasm-tools component new`"
    )]
    Unwrappable {
        /// Name of the module: its file, or its digest.
        module: String,
        /// The reason.
        why: String,
    },
    /// The file is a component that wasmtime rejects.
    #[error("the module {module} cannot be compiled: {why}")]
    Invalid {
        /// Name of the module: its file, or its digest.
        module: String,
        /// The reason.
        why: String,
    },
    /// The file is a component whose imports or exports are incompatible with this host.
    #[error("the module {module} cannot run here: {}", .problems.join("; "))]
    Unsuitable {
        /// Name of the module: its file, or its digest.
        module: String,
        /// Problems with the imports and exports, each with a remedy if there is one. A long list is cut off.
        problems: Vec<String>,
    },
}

/// A compiled component and its properties. Clones share the code.
#[derive(Clone)]
pub struct Module {
    digest: Digest,
    size: u64,
    outline: Outline,
    code: Arc<File>,
}

/// Properties of a module. The file that contains the module's compiled code also contains these properties, after the
/// code.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Outline {
    pub(crate) kind: ModuleKind,
    /// True if the module uses state. The state must then be claimed for a term before the term's instance starts.
    pub(crate) uses_state: bool,
    /// True if the module always asks for folders at startup, even if its program needs none, as a preview 1 module
    /// does.
    pub(crate) asks_for_folders: bool,
    /// True if instantiation runs no code of the module.
    pub(crate) is_inert: bool,
    instances: u64,
}

/// Size of an encoded outline (bytes).
pub const OUTLINE: usize = 9;

impl Outline {
    /// Builds the outline of `component`, which was made from the module `bytes`. Returns `None` if the host cannot run
    /// the component.
    fn of(component: &[u8], ComponentSize { instances, is_inert, .. }: ComponentSize, bytes: &[u8]) -> Option<Self> {
        let Judged { kind, imports, .. } = judge(Interfaces::in_bytes(component).ok()?);
        let uses_state = imports.iter().any(|import| import.name.starts_with(STATE));
        Some(Self { kind: kind?, uses_state, asks_for_folders: is_for_preview1(bytes), is_inert, instances })
    }

    /// Encodes the outline: the number of instances (little endian), followed by one bit for each of the other
    /// properties.
    pub fn to_bytes(self) -> [u8; OUTLINE] {
        let bits = [self.kind == ModuleKind::Command, self.uses_state, self.asks_for_folders, self.is_inert];
        let bits = bits.iter().rev().fold(0, |bits, bit| bits << 1 | u8::from(*bit));
        let mut bytes = [bits; OUTLINE];
        bytes[..8].copy_from_slice(&self.instances.to_le_bytes());
        bytes
    }

    /// Decodes the result of [`Outline::to_bytes`].
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

pub(crate) struct Linked {
    pub(crate) engine: Engine,
    pub(crate) entry: EntryPoint,
    /// The highest of three numbers: core instances, memories and tables.
    pub(crate) instances: u64,
    pub(crate) outline: Outline,
}

#[derive(Clone)]
pub(crate) enum EntryPoint {
    Coordinator(CoordinatorPre<Guest>),
    Command(CommandPre<Guest>),
}

/// The properties of a component, for `baton check`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Inspection {
    /// Name of the module: its file, or its digest.
    pub module: String,
    /// True if the module would run here.
    pub runs: bool,
    /// Kind of the module; `None` if the module's interfaces match no kind that this host supports.
    pub kind: Option<ModuleKind>,
    /// The kind of core module that was wrapped; `None` if the file is a component.
    pub wrapped: Option<Wrapped>,
    /// The world that the module targets, with its version.
    pub world: Option<String>,
    /// Digest of the file.
    pub digest: Digest,
    /// Size of the file (bytes).
    pub size: u64,
    /// Compile time (ms).
    pub compile_ms: u64,
    /// The interfaces that the module imports.
    pub imports: Vec<Import>,
    /// The interfaces that the module exports.
    pub exports: Vec<String>,
    /// The reasons why the module would not run here, each with a remedy if there is one. A long list is cut off.
    pub problems: Vec<String>,
}

impl Module {
    /// Reads, checks and compiles the component in a file, in this process. For tests and benchmarks.
    ///
    /// # Errors
    /// [`ModuleError`] says why the module cannot run here.
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

    /// Checks a module as far as possible without compiling, and then compiles the module. The result is valid in every
    /// process that runs this same program with an equally configured engine. `name` is for error messages.
    ///
    /// # Errors
    /// [`ModuleError`] says why the module cannot run here.
    pub fn precompile(engine: &Engine, name: &str, bytes: &[u8]) -> Result<(Vec<u8>, Outline), ModuleError> {
        let (component, _) = as_component(engine, name, bytes)?;
        check(name, &component)?;
        let component_size = measure_component(name, &component)?;
        let code = engine.wasmtime().precompile_component(&component).map_err(|error| invalid(name, &error))?;
        let outline = Outline::of(&component, component_size, bytes);
        let outline = outline.ok_or_else(|| ModuleError::NotWasm(name.to_owned()))?;
        Ok((code, outline))
    }

    /// Creates a module from its bytes, and from the code and outline that [`Module::precompile`] returned for them.
    pub fn new(bytes: &[u8], outline: Outline, code: File) -> Self {
        Self { digest: Digest::of(bytes), size: bytes.len() as u64, outline, code: Arc::new(code) }
    }

    /// Checks a module without compiling it. The module must be WebAssembly. A component must have a known kind and
    /// import only available interfaces. The check is fast.
    ///
    /// # Errors
    /// [`ModuleError`] says why the module cannot run here.
    pub fn precheck(name: &str, bytes: &[u8]) -> Result<(), ModuleError> {
        match layer(name, bytes)? {
            Layer::Component => check(name, bytes),
            Layer::Core => Ok(()),
        }
    }

    /// Compiles a module and returns its properties, even if the module would not run here. `name` identifies the
    /// module in the result.
    ///
    /// # Errors
    /// [`ModuleError`] if the module is not a component and cannot be wrapped as one, or does not compile.
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

    /// Returns the module's kind.
    pub fn kind(&self) -> ModuleKind {
        self.outline.kind
    }

    /// Returns the digest of the module's file.
    pub fn digest(&self) -> Digest {
        self.digest
    }

    pub(crate) fn uses_state(&self) -> bool {
        self.outline.uses_state
    }

    pub(crate) fn outline(&self) -> Outline {
        self.outline
    }

    pub(crate) fn code(&self) -> io::Result<OwnedFd> {
        self.code.try_clone().map(Into::into)
    }

    /// Returns the size of the module's file (bytes).
    pub fn size(&self) -> u64 {
        self.size
    }
}

impl Linked {
    /// Maps and links the code of the module with this outline.
    ///
    /// # Errors
    /// Returns the reasons why the module cannot run here.
    ///
    /// # Safety
    /// The file must begin with the code that [`Module::precompile`] returned and must never change, because the code
    /// is run later.
    pub(crate) unsafe fn map(engine: &Engine, outline: Outline, code: &OwnedFd) -> Result<Self, Vec<String>> {
        let path = PathBuf::from(format!("/proc/self/fd/{}", code.as_raw_fd()));
        // SAFETY: the caller promises that the file begins with what `Module::precompile` returned and never changes.
        // `path` names that file, since its descriptor stays open during the call.
        let component = unsafe { Component::deserialize_file(engine.wasmtime(), path) };
        let component = component.map_err(|error| vec![plain(&error)])?;
        let judged = judge(Interfaces::of(engine, &component));
        if judged.kind != Some(outline.kind) || !judged.problems.is_empty() {
            return Err(judged.problems);
        }
        let entry = prepare(engine, &component, outline.kind).map_err(|error| vec![plain(&error)])?;
        Ok(Self { engine: engine.clone(), entry, instances: most(&component, outline.instances), outline })
    }
}

/// Reads a module's file.
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

enum Layer {
    Component,
    Core,
}

fn layer(name: &str, bytes: &[u8]) -> Result<Layer, ModuleError> {
    // The preamble: magic (4 bytes), version (2), layer (2).
    match bytes {
        [] => Err(ModuleError::Empty(name.to_owned())),
        [0, b'a', b's', b'm', _, _, 1, 0, ..] => Ok(Layer::Component),
        [0, b'a', b's', b'm', _, _, 0, 0, ..] => Ok(Layer::Core),
        _ => Err(ModuleError::NotWasm(name.to_owned())),
    }
}

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

/// Rejects a component whose instantiation would take too many steps.
fn measure_component(name: &str, component: &[u8]) -> Result<ComponentSize, ModuleError> {
    let counted = component_size(component).map_err(|error| invalid(name, &error))?;
    if counted.steps > MOST_STEPS {
        let steps = counted.steps;
        let why = format!(
            "instantiating it takes {steps} steps, including its globals and segments, but the limit is {MOST_STEPS}: \
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

/// Checks a component's interfaces without compiling the component. Accepts damaged bytes, since the compiler later
/// rejects them with a more detailed message.
fn check(name: &str, component: &[u8]) -> Result<(), ModuleError> {
    match Interfaces::in_bytes(component).map(judge) {
        Ok(Judged { problems, .. }) if !problems.is_empty() => {
            Err(ModuleError::Unsuitable { module: name.to_owned(), problems })
        }
        _ => Ok(()),
    }
}

fn prepare(engine: &Engine, component: &Component, kind: ModuleKind) -> wasmtime::Result<EntryPoint> {
    let entry = enter(engine, component, kind)?;
    // Create the image of the guest's initial memory now, so that the first instance does not have to wait for it. The
    // image may contain a 20 MB interpreter.
    component.initialize_copy_on_write_image()?;
    Ok(entry)
}

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

fn plain(error: &wasmtime::Error) -> String {
    one_line(&format!("{error:#}"))
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}
