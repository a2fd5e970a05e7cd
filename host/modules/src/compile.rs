//! Compiling in a child process.
//!
//! A module that is made to compile for ever, to eat memory or to break the compiler ends only the child: it is
//! this program once more, under the hidden command `compile-module`, with less of everything. It reads the
//! module from stdin and writes an artifact to stdout, or what is known of the module, or to stderr what is wrong.
//!
//! What it may take is counted in processor time: how long that lasts says more about what else the machine does than
//! about the module. The child watches that itself, and the parent gives up only after far longer. It ends when nobody waits
//! for it any more, and by itself when its host is gone. What all of a host's compilers take is bounded by turns.

use std::fs::File;
use std::io::{self, Read, Seek as _, Write};
use std::os::fd::AsFd as _;
use std::os::unix::process::ExitStatusExt as _;
use std::path::PathBuf;
use std::process::{ExitCode, ExitStatus, Stdio};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use rustix::process::{Resource, Rlimit, nice, setrlimit};
use rustix::time::{ClockId, clock_gettime};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::process::{Child, Command};
use tokio::sync::{AcquireError, Semaphore, SemaphorePermit};

use super::artifact::{Artifact, ArtifactKey, LARGEST_ARTIFACT};
use super::soon::unless_within;
use super::watch::run_blocking;
use baton_runtime::confine::{self, Code};
use baton_runtime::{Engine, Inspection, LARGEST_MODULE, Module, ModuleError, Purpose};
use baton_store::Digest;

/// The hidden command.
pub const COMPILE_MODULE: &str = "compile-module";

/// What the child ends with when the module is to blame.
const BAD_MODULE: u8 = 3;

/// What it ends with when it has used up its processor time.
const TOO_SLOW: u8 = 4;

/// So many times as long as its processor time may a compiler live, and so long at least: it has the lowest claim to a
/// busy machine.
const PATIENCE: (u32, Duration) = (10, Duration::from_secs(600));

/// A compiler's turn. The largest that people write take half of it, with two processors.
const TURN: Duration = Duration::from_secs(10);

/// So many compilers may work at a time, with 4 GiB of memory each.
const AT_ONCE: usize = 2;

/// The memory that compiling may take, in bytes: some forty times the largest module.
const MEMORY: u64 = 4 << 30;

/// The threads that compile: the others are for what runs.
const THREADS: usize = 4;

/// More of what the child says is no message, in bytes.
const LONGEST_MESSAGE: u64 = 16 << 10;

/// More of what the child says of a module is nothing that it was asked for, in bytes.
const LONGEST_INSPECTION: u64 = 16 << 20;

/// More of what a compiler says that broke is left out, in characters.
const LONGEST_CAUSE: usize = 500;

/// Starts compilers, one after the other. Clones share that.
#[derive(Clone, Debug)]
pub struct Compiler {
    program: PathBuf,
    least_patience: Duration,
    turns: Arc<Turns>,
}

/// Who compiles. One at a time takes the least memory, and has the processors for itself. One whose turn is over goes on
/// beside the next, so that what is slow keeps nobody waiting. An election has one module compiled at a time,
/// so that none takes all of the places.
#[derive(Debug)]
struct Turns {
    places: Semaphore,
    turn: Semaphore,
}

/// What the child needs to know.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Assignment {
    /// The module's size in bytes.
    pub size: u64,
    /// The processor time that it may take, of all its threads together.
    pub cpu: Duration,
    /// Whether the code is for a runner that is profiled.
    pub profile: bool,
    /// Not to make code of it, but to tell what is known of it under this name.
    pub inspect: Option<String>,
}

/// Why there is no code.
#[derive(Debug)]
pub(super) enum CompileError {
    /// The module is to blame, and this is what is wrong with it.
    Module(String),
    /// It used up its processor time.
    TooSlow,
    /// It was given up after so long, in which it did not get that much.
    Starved(Duration),
    /// The compiler was ended, or broke: how, and what it said.
    Broken(String),
    /// The compiler was killed from outside.
    Killed,
    /// The system let no compiler run.
    System(io::Error),
}

impl From<io::Error> for CompileError {
    fn from(error: io::Error) -> Self {
        Self::System(error)
    }
}

impl Default for Compiler {
    /// The compiler that is in this program, even if its file was replaced meanwhile.
    fn default() -> Self {
        Self::in_program("/proc/self/exe".into())
    }
}

impl Default for Turns {
    fn default() -> Self {
        Self { places: Semaphore::new(AT_ONCE), turn: Semaphore::new(1) }
    }
}

impl Turns {
    /// Waits for a place, which is kept as long as a compiler works, and for the turn, which is kept for [`TURN`]. Who has
    /// come first is first.
    async fn next(&self) -> Result<[SemaphorePermit<'_>; 2], AcquireError> {
        Ok([self.places.acquire().await?, self.turn.acquire().await?])
    }
}

impl Compiler {
    /// The compiler in that program, which must be this version of Baton.
    #[must_use]
    pub fn in_program(program: PathBuf) -> Self {
        Self { program, least_patience: PATIENCE.1, turns: Arc::default() }
    }

    /// The same, given up earlier on a machine that lets it not work: after so long, or ten times its processor time.
    #[must_use]
    pub fn impatient(self, least_patience: Duration) -> Self {
        Self { least_patience, ..self }
    }

    /// Compiles a module within so much processor time. Dropping the future kills the child.
    pub(super) async fn compile(
        &self,
        engine: &Engine,
        key: &ArtifactKey,
        bytes: &Bytes,
        within: Duration,
    ) -> Result<Artifact, CompileError> {
        let profile = engine.purpose().profile.then(|| "--profile".to_owned());
        let code = self.run(profile.as_slice(), bytes, within).await?;
        let key = key.clone();
        let sealed = tokio::task::spawn_blocking(move || Artifact::seal(code, &key));
        let sealed = sealed.await.map_err(io::Error::from)?;
        sealed.map_err(|error| CompileError::Broken(error.to_string()))
    }

    /// Compiles a module only to tell what is known of it, under this name, within so much processor time. Dropping
    /// the future kills the child.
    pub(super) async fn inspect(
        &self,
        name: &str,
        bytes: &Bytes,
        within: Duration,
    ) -> Result<Inspection, CompileError> {
        let mut said = self.run(&[format!("--inspect={name}")], bytes, within).await?;
        said.rewind()?;
        inspection(&said).map_err(|error| CompileError::Broken(error.to_string()))
    }

    /// Has a child work on a module, and returns what it writes to stdout.
    async fn run(&self, arguments: &[String], bytes: &Bytes, within: Duration) -> Result<File, CompileError> {
        // They are never closed.
        let turn = self.turns.next().await;
        let [_place, turn] = turn.map_err(|closed| CompileError::Broken(closed.to_string()))?;
        let threads = std::thread::available_parallelism().map_or(1, usize::from).min(THREADS);
        let written = Artifact::blank()?;
        let mut command = Command::new(&self.program);
        command
            .arg(COMPILE_MODULE)
            .args(arguments)
            .args(["--size", &bytes.len().to_string()])
            .args(["--cpu", &humantime::format_duration(within).to_string()])
            .env_clear()
            .env("RAYON_NUM_THREADS", threads.to_string())
            // Else each thread would reserve an arena of its own, and they would be most of its memory.
            .env("MALLOC_ARENA_MAX", "2")
            .stdin(Stdio::piped())
            .stdout(written.try_clone()?)
            .stderr(Stdio::piped())
            // What is typed at a terminal to end the host is no verdict on a module.
            .process_group(0)
            .kill_on_drop(true);
        // It waits until the child has loaded its program, which may take any time.
        let mut child = run_blocking(move || command.spawn()).await?;
        let longest = within.saturating_mul(PATIENCE.0).max(self.least_patience);
        let talk = unless_within(TURN, talk(&mut child, bytes), || drop(turn));
        let ended = match tokio::time::timeout(longest, talk).await {
            Ok(ended) => ended,
            Err(_) => {
                child.kill().await?;
                return Err(CompileError::Starved(longest));
            }
        };
        let (status, said) = ended?;
        if status.success() {
            return Ok(written);
        }
        Err(match status.code() {
            Some(code) if code == i32::from(BAD_MODULE) => CompileError::Module(said),
            Some(code) if code == i32::from(TOO_SLOW) => CompileError::TooSlow,
            None if status.signal() == Some(libc::SIGXCPU) => CompileError::TooSlow,
            // It never kills itself. The kernel does as memory runs out, and takes it first.
            None if status.signal() == Some(libc::SIGKILL) => CompileError::Killed,
            _ => CompileError::Broken(how_it_ended(status, &said)),
        })
    }
}

/// What a child says of a module, which may have taken it over.
pub(super) fn inspection(said: impl io::Read) -> serde_json::Result<Inspection> {
    serde_json::from_reader(io::BufReader::new(said.take(LONGEST_INSPECTION)))
}

/// Gives the module to the child, and waits for its end.
async fn talk(child: &mut Child, bytes: &Bytes) -> io::Result<(ExitStatus, String)> {
    let (stdin, stderr) = (child.stdin.take(), child.stderr.take());
    let hand_over = async {
        let mut stdin = stdin;
        if let Some(stdin) = &mut stdin {
            // A child that ends before it has read everything says why.
            let _ = stdin.write_all(bytes).await;
        }
        // Kept open: the child ends when it is closed.
        stdin
    };
    let listen = async {
        let mut said = Vec::new();
        if let Some(mut stderr) = stderr {
            (&mut stderr).take(LONGEST_MESSAGE).read_to_end(&mut said).await?;
            tokio::io::copy(&mut stderr, &mut tokio::io::sink()).await?;
        }
        io::Result::Ok(String::from_utf8_lossy(&said).trim().to_owned())
    };
    let (_stdin, said) = tokio::join!(hand_over, listen);
    Ok((child.wait().await?, said?))
}

fn how_it_ended(status: ExitStatus, said: &str) -> String {
    let how = match status.signal() {
        Some(libc::SIGABRT) if said.contains("memory allocation") => {
            format!("it needed more than {} GiB of memory", MEMORY >> 30)
        }
        _ => status.to_string(),
    };
    // A panic takes three lines.
    let said: Vec<&str> = said.split_whitespace().collect();
    let said: String = said.join(" ").chars().take(LONGEST_CAUSE).collect();
    if said.is_empty() { how } else { format!("{how}: {said}") }
}

/// The child's side: compiles what comes from stdin, and gives the exit status of the process.
#[must_use]
pub fn compile_for_parent(assignment: Assignment) -> ExitCode {
    let (status, message) = match serve(assignment) {
        Ok(()) => return ExitCode::SUCCESS,
        Err(Failure::Module(message)) => (BAD_MODULE, message),
        Err(Failure::Other(message)) => (1, message),
    };
    // The parent may be gone.
    let _ = writeln!(io::stderr(), "{message}");
    ExitCode::from(status)
}

enum Failure {
    Module(String),
    Other(String),
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Self::Other(error.to_string())
    }
}

fn serve(Assignment { size, cpu, profile, inspect }: Assignment) -> Result<(), Failure> {
    restrain(cpu, if inspect.is_some() { Code::Loads } else { Code::HandsOver })?;
    let mut stdin = io::stdin();
    let mut bytes = Vec::new();
    (&mut stdin).take(size.min(LARGEST_MODULE)).read_to_end(&mut bytes)?;
    if bytes.len() as u64 != size {
        return Err(Failure::Other("the module arrived incomplete".to_owned()));
    }
    // Not joined: it sees the parent's end, and this process ends with it or before it.
    std::thread::Builder::new().name("parent".into()).spawn(move || {
        let _ = stdin.read(&mut [0]);
        std::process::exit(1);
    })?;
    std::thread::Builder::new().name("clock".into()).spawn(move || end_after(cpu))?;
    let engine = Engine::new(Purpose { profile, ..Purpose::default() });
    let engine = engine.map_err(|error| Failure::Other(format!("{error:#}")))?;
    let bad = |error: ModuleError| Failure::Module(format!("{:#}", anyhow::Error::from(error)));
    // Not by way of `Stdout`, which would look for the ends of lines.
    let stdout = File::from(io::stdout().as_fd().try_clone_to_owned()?);
    if let Some(name) = inspect {
        let inspection = Module::inspect(&engine, &name, &bytes).map_err(bad)?;
        return serde_json::to_writer(stdout, &inspection).map_err(|error| Failure::Other(error.to_string()));
    }
    let digest = Digest::of(&bytes);
    let (code, outline) = Module::precompile(&engine, &digest.to_string(), &bytes).map_err(bad)?;
    Ok(ArtifactKey::new(&engine, &digest).write(&code, outline, stdout)?)
}

/// Ends this process once it has used so much processor time.
fn end_after(cpu: Duration) -> ! {
    loop {
        let used = clock_gettime(ClockId::ProcessCPUTime);
        let used = Duration::try_from(used).unwrap_or(Duration::MAX);
        let left = cpu.saturating_sub(used);
        if left.is_zero() {
            std::process::exit(TOO_SLOW.into());
        }
        // All threads together use it up no sooner.
        std::thread::sleep((left / (THREADS as u32 + 2)).max(Duration::from_millis(5)));
    }
}

/// Leaves this process less than the others have, for good.
fn restrain(cpu: Duration, code: Code) -> Result<(), Failure> {
    let limit = |resource, most: u64, then: u64| {
        setrlimit(resource, Rlimit { current: Some(most), maximum: Some(then) })
            .map_err(|error| Failure::Other(format!("cannot set its resource limits: {error}")))
    };
    limit(Resource::As, MEMORY, MEMORY)?;
    // For whatever might stop the thread that watches it more closely. The first limit's signal says which one it was.
    let seconds = cpu.as_secs().saturating_add(2);
    limit(Resource::Cpu, seconds, seconds.saturating_add(1))?;
    limit(Resource::Fsize, LARGEST_ARTIFACT, LARGEST_ARTIFACT)?;
    limit(Resource::Core, 0, 0)?;
    // Kindness, not safety: a system that lacks one of them does without.
    let _ = nice(10);
    let _ = std::fs::write("/proc/self/oom_score_adj", "1000");
    confine::to_computing(code).map_err(|error| Failure::Other(error.to_string()))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may panic")]
    use futures::FutureExt as _;

    use super::*;

    #[test]
    fn one_compiles_at_a_time_and_one_whose_turn_is_over_beside_it() {
        let turns = Turns::default();
        let next = || turns.next().now_or_never().map(Result::unwrap);
        let [place, turn] = next().unwrap();
        assert!(next().is_none(), "one has its turn");
        drop(turn);
        let second = next().unwrap();
        drop(place);
        assert!(next().is_none(), "the second has its turn");
        drop(second);
        let mut slow: Vec<_> = (0..AT_ONCE).map(|_| next().unwrap()).map(|[place, _turn]| place).collect();
        assert!(next().is_none(), "there is no place");
        slow.pop();
        assert!(next().is_some(), "one has ended");
    }
}
