//! Modules: reading, judging and compiling components.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde::Serialize;
use sha2::{Digest, Sha256};
use wasmtime::component::{Component, Linker};

use super::engine::Engine;
use super::guest::{self, CONTRACT, CONTRACT_VERSION, CoordinatorPre, GRANTED, Guest};

/// A larger module is refused before it is read whole, in bytes.
pub const LARGEST_MODULE: u64 = 64 << 20;

/// What an import of the state's interface begins with.
const STATE: &str = "baton:host/state@";

/// Why a module cannot run here.
#[derive(Debug, thiserror::Error)]
pub enum ModuleError {
    /// The file cannot be read.
    #[error("cannot read the module {path}")]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// It is not a file with bytes in it.
    #[error("the module {0} is a folder or a device, not a regular file")]
    NotAFile(PathBuf),
    /// It has no bytes.
    #[error("the module {0} is empty: was the build interrupted?")]
    Empty(PathBuf),
    /// It has too many.
    #[error("the module {path} has {} MiB; the limit is {} MiB", .size.div_ceil(1 << 20), LARGEST_MODULE >> 20)]
    TooLarge {
        /// The file.
        path: PathBuf,
        /// Its size in bytes.
        size: u64,
    },
    /// It is something else.
    #[error(
        "the module {0} is not WebAssembly: it must be a component, as `cargo build --target wasm32-wasip2` makes it"
    )]
    NotWasm(PathBuf),
    /// It is a core module.
    #[error(
        "the module {0} is a core module, not a component: build it with `--target wasm32-wasip2`, or wrap it with `wasm-tools component new`"
    )]
    CoreModule(PathBuf),
    /// It is a component that wasmtime does not take.
    #[error("the module {path} cannot be compiled: {why}")]
    Invalid {
        /// The file.
        path: PathBuf,
        /// What wasmtime said.
        why: String,
    },
    /// It is a component for another world.
    #[error("the module {path} cannot run here: {}", .problems.join("; "))]
    Unsuitable {
        /// The file.
        path: PathBuf,
        /// Everything that is missing or unknown, each with the way out.
        problems: Vec<String>,
    },
}

/// A compiled component, ready to be instantiated. Clones share the code.
#[derive(Clone)]
pub struct Module {
    digest: String,
    size: u64,
    uses_state: bool,
    pub(super) engine: Engine,
    pub(super) pre: CoordinatorPre<Guest>,
}

/// What is known of a component, for `baton check`.
#[derive(Clone, Debug, Serialize)]
pub struct Inspection {
    /// The file.
    pub module: PathBuf,
    /// Whether it would run here.
    pub runs: bool,
    /// The world that it is made for, with its version.
    pub world: Option<String>,
    /// `sha256:` and 64 hexadecimal digits.
    pub digest: String,
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

/// One interface that a component needs.
#[derive(Clone, Debug, Serialize)]
pub struct Import {
    /// Its name and version.
    pub name: String,
    /// Whether it is granted.
    pub granted: bool,
    /// What it takes to be granted; empty where it is.
    pub needs: String,
}

impl Module {
    /// Reads, judges and compiles the component in a file. Takes as long as compiling takes: seconds for a
    /// large one, so not on a thread that others wait for.
    ///
    /// # Errors
    /// [`ModuleError`] says what is wrong with it.
    pub fn load(engine: &Engine, path: &Path) -> Result<Self, ModuleError> {
        let bytes = read(path)?;
        let component = compile(engine, path, &bytes)?;
        let (imports, _, mut problems) = judge(engine, &component);
        if problems.is_empty() {
            match prepare(engine, &component) {
                Ok(pre) => {
                    let size = bytes.len() as u64;
                    let uses_state = imports.iter().any(|import| import.name.starts_with(STATE));
                    return Ok(Self { digest: digest(&bytes), size, uses_state, engine: engine.clone(), pre });
                }
                Err(error) => problems.push(plain(&error)),
            }
        }
        Err(ModuleError::Unsuitable { path: path.to_owned(), problems })
    }

    /// Tells what is known of the component in a file, whether it would run or not.
    ///
    /// # Errors
    /// [`ModuleError`] where it is no component at all.
    #[expect(clippy::disallowed_methods, reason = "how long compiling took is told to a person, and decides nothing")]
    pub fn inspect(engine: &Engine, path: &Path) -> Result<Inspection, ModuleError> {
        let bytes = read(path)?;
        let started = Instant::now();
        let component = compile(engine, path, &bytes)?;
        let compile_time = started.elapsed();
        let (imports, exports, mut problems) = judge(engine, &component);
        if problems.is_empty()
            && let Err(error) = prepare(engine, &component)
        {
            problems.push(plain(&error));
        }
        let world = exports.iter().find_map(|export| {
            let version = export.strip_prefix(CONTRACT)?.strip_prefix("/task@")?;
            Some(format!("{CONTRACT}/coordinator@{version}"))
        });
        Ok(Inspection {
            module: path.to_owned(),
            runs: problems.is_empty(),
            world,
            digest: digest(&bytes),
            size: bytes.len() as u64,
            compile_ms: milliseconds(compile_time),
            imports,
            exports,
            problems,
        })
    }

    /// `sha256:` and 64 hexadecimal digits: what the module is.
    pub fn digest(&self) -> &str {
        &self.digest
    }

    /// Whether it has a state, which its term claims first.
    pub(super) fn uses_state(&self) -> bool {
        self.uses_state
    }

    /// Its size in bytes.
    pub fn size(&self) -> u64 {
        self.size
    }
}

fn read(path: &Path) -> Result<Vec<u8>, ModuleError> {
    let unreadable = |source| ModuleError::Unreadable { path: path.to_owned(), source };
    // Asked before it is opened: opening a pipe would wait for its writer.
    let metadata = std::fs::metadata(path).map_err(unreadable)?;
    if !metadata.is_file() {
        return Err(ModuleError::NotAFile(path.to_owned()));
    }
    if metadata.len() > LARGEST_MODULE {
        return Err(ModuleError::TooLarge { path: path.to_owned(), size: metadata.len() });
    }
    let mut bytes = Vec::new();
    // A file that grows meanwhile is not read for ever.
    File::open(path).map_err(unreadable)?.take(LARGEST_MODULE + 1).read_to_end(&mut bytes).map_err(unreadable)?;
    match bytes.len() as u64 {
        0 => Err(ModuleError::Empty(path.to_owned())),
        size if size > LARGEST_MODULE => Err(ModuleError::TooLarge { path: path.to_owned(), size }),
        _ => Ok(bytes),
    }
}

fn compile(engine: &Engine, path: &Path, bytes: &[u8]) -> Result<Component, ModuleError> {
    // The preamble: the magic, then a version and a layer of two bytes each.
    match bytes {
        [0, b'a', b's', b'm', _, _, 1, 0, ..] => {}
        [0, b'a', b's', b'm', _, _, 0, 0, ..] => return Err(ModuleError::CoreModule(path.to_owned())),
        _ => return Err(ModuleError::NotWasm(path.to_owned())),
    }
    Component::from_binary(engine.wasmtime(), bytes)
        .map_err(|error| ModuleError::Invalid { path: path.to_owned(), why: plain(&error) })
}

/// What the component needs and offers, and what of that this host cannot give or take.
fn judge(engine: &Engine, component: &Component) -> (Vec<Import>, Vec<String>, Vec<String>) {
    let ty = component.component_type();
    let imports: Vec<Import> = ty
        .imports(engine.wasmtime())
        .map(|(name, _)| {
            let needs = what_it_needs(name);
            Import { name: name.to_owned(), granted: needs.is_empty(), needs }
        })
        .collect();
    let exports: Vec<String> = ty.exports(engine.wasmtime()).map(|(name, _)| name.to_owned()).collect();
    let mut problems: Vec<String> = what_it_lacks(&exports).into_iter().collect();
    // By package: a language's runtime may import a dozen interfaces of one.
    let mut missing: BTreeMap<(&str, &str), Vec<&str>> = BTreeMap::new();
    for import in imports.iter().filter(|import| !import.granted) {
        let package = import.name.split('/').next().unwrap_or_default();
        missing.entry((package, &import.needs)).or_default().push(&import.name);
    }
    problems.extend(missing.into_iter().map(|((package, needs), names)| match names[..] {
        [name] => format!("it imports {name}: {needs}"),
        _ => format!("it imports {package} ({} interfaces): {needs}", names.len()),
    }));
    (imports, exports, problems)
}

/// Why it is no coordinator, if it is none.
fn what_it_lacks(exports: &[String]) -> Option<String> {
    let task = format!("{CONTRACT}/task@");
    let wanted = format!("{task}{CONTRACT_VERSION}");
    if exports.contains(&wanted) {
        return None;
    }
    if let Some(version) = exports.iter().find_map(|export| export.strip_prefix(&task)) {
        return Some(format!(
            "it is made for version {version} of {CONTRACT}, and this host knows {CONTRACT_VERSION}: build it with \
             another version of the SDK, or run it on another version of Baton"
        ));
    }
    let is_command = exports.iter().any(|export| export.starts_with("wasi:cli/run@"));
    let what = if is_command { "it is a command (`fn main`), not a coordinator: it" } else { "it" };
    Some(format!(
        "{what} does not export {wanted}, the function that a coordinator lives in: make it a library of type cdylib \
         with the guest SDK's `baton_sdk::coordinator!`"
    ))
}

/// What it takes for an import to be granted; nothing where it is.
fn what_it_needs(import: &str) -> String {
    let (interface, version) = import.split_once('@').unwrap_or((import, ""));
    if GRANTED.contains(&interface) {
        return if interface.starts_with(CONTRACT) && version != CONTRACT_VERSION {
            format!("this host knows version {CONTRACT_VERSION}")
        } else if interface.starts_with("wasi:") && !version.starts_with("0.2.") {
            "this host knows WASI 0.2: build it for the target wasm32-wasip2".to_owned()
        } else {
            String::new()
        };
    }
    match interface.split('/').next() {
        Some("wasi:filesystem") => "a coordinator has no files in this version; leave out what opens them".to_owned(),
        Some("wasi:sockets" | "wasi:http") => {
            "a coordinator has no network in this version; leave out what connects".to_owned()
        }
        _ => "this host does not have it".to_owned(),
    }
}

fn prepare(engine: &Engine, component: &Component) -> wasmtime::Result<CoordinatorPre<Guest>> {
    let mut linker = Linker::new(engine.wasmtime());
    guest::link(&mut linker)?;
    CoordinatorPre::new(linker.instantiate_pre(component)?)
}

fn digest(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    Sha256::digest(bytes).iter().fold("sha256:".to_owned(), |mut text, byte| {
        // Writing to a string does not fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// An error of wasmtime with its causes, in one line.
fn plain(error: &wasmtime::Error) -> String {
    format!("{error:#}").split_whitespace().collect::<Vec<_>>().join(" ")
}

fn milliseconds(length: Duration) -> u64 {
    u64::try_from(length.as_millis()).unwrap_or(u64::MAX)
}
