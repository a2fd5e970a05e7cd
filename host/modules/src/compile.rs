//! Compiles modules in child processes.
//!
//! A malicious module can make the compiler run forever, exhaust its memory or crash, but this affects only the child.
//! The child runs the same program with the hidden command `compile-module`, under tight limits. The child reads the
//! module from stdin, and writes either an artifact or a description of the module to stdout. The child writes errors
//! to stderr.
//!
//! The time limit is on CPU time, because elapsed time depends more on the machine's load than on the module. The child
//! monitors its own CPU time. The parent also limits the elapsed time, but to a much longer time. The child exits when
//! its host exits.

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
use super::slow_notice::notify_after;
use super::watch::run_blocking;
use baton_runtime::confine::{self, Code};
use baton_runtime::{Engine, Inspection, LARGEST_MODULE, Module, ModuleError};
use baton_store::Digest;

/// Name of the hidden command.
pub const COMPILE_MODULE: &str = "compile-module";

/// Exit status of the child if the module itself cannot be compiled.
const BAD_MODULE: u8 = 3;

/// Exit status of the child once it has used up its CPU time.
const TOO_SLOW: u8 = 4;

/// Limit on the elapsed time of a compilation: this multiple of the CPU time limit, but at least this duration. A busy
/// machine may need this long to give the compiler its CPU time.
const PATIENCE: (u32, Duration) = (10, Duration::from_secs(600));

/// Length of a compiler's turn (see [`Turns`]). On two CPUs, even the largest modules seen in practice compile in half
/// of this time.
const TURN: Duration = Duration::from_secs(10);

/// Maximum number of compilers that run at the same time. Each compiler may use 4 GiB of memory.
const AT_ONCE: usize = 2;

/// Limit on a compiler's memory, in bytes: 64 times the size of the largest module.
const MEMORY: u64 = 4 << 30;

/// Maximum number of compiling threads. The limit leaves the other CPUs to the instances.
const THREADS: usize = 4;

/// Maximum size of the child's error message, in bytes. The rest is discarded.
const LONGEST_MESSAGE: u64 = 16 << 10;

/// Maximum size of the child's description of a module, in bytes.
const LONGEST_INSPECTION: u64 = 16 << 20;

/// Maximum number of characters quoted from the message of a compiler that failed.
const LONGEST_CAUSE: usize = 500;

/// Runs compilers, usually one at a time. Clones share the limit on concurrent compilers.
#[derive(Clone, Debug)]
pub struct Compiler {
    program: PathBuf,
    least_patience: Duration,
    turns: Arc<Turns>,
}

/// Limits the number of concurrent compilers. Normally, only one compiler runs at a time, because this needs the least
/// memory. A compiler that is still running after [`TURN`] loses its turn but keeps running, and a second compiler may
/// start. A slow module therefore does not delay other modules. An election compiles only one module at a time, so a
/// single election cannot occupy both of the [`AT_ONCE`] places.
#[derive(Debug)]
struct Turns {
    places: Semaphore,
    turn: Semaphore,
}

/// The task that a host gives to its child process, which runs the command [`COMPILE_MODULE`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Assignment {
    /// Size of the module, in bytes.
    pub size: u64,
    /// Limit on the total CPU time of all threads.
    pub cpu: Duration,
    /// If set, the child returns a description of the module instead of compiled code. The string is the module's name
    /// in the description.
    pub inspect: Option<String>,
}

#[derive(Debug)]
pub(super) enum CompileError {
    Module(String),
    TooSlow,
    /// The parent gave up after this elapsed time. By then, the compiler had used less CPU time than its limit.
    Starved(Duration),
    /// Exit status and message of the compiler that crashed.
    Broken(String),
    Killed,
    System(io::Error),
}

impl From<io::Error> for CompileError {
    fn from(error: io::Error) -> Self {
        Self::System(error)
    }
}

impl Default for Compiler {
    /// Uses the running program as the compiler, even if the program's file has been replaced since the start.
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
    /// Waits until a compiler may start: first for one of the [`AT_ONCE`] places, and then for the turn. The caller
    /// keeps the place until its compiler has ended, and the turn for at most [`TURN`]. Callers are served in the order
    /// in which they arrive.
    async fn next(&self) -> Result<[SemaphorePermit<'_>; 2], AcquireError> {
        Ok([self.places.acquire().await?, self.turn.acquire().await?])
    }
}

impl Compiler {
    /// Uses the program in this file as the compiler. The program must be the same version of Baton.
    #[must_use]
    pub fn in_program(program: PathBuf) -> Self {
        Self { program, least_patience: PATIENCE.1, turns: Arc::default() }
    }

    /// Replaces the default of 10 minutes for the shortest limit on a compiler's elapsed time. A longer limit applies
    /// if 10 times the CPU time limit is longer than this duration.
    #[must_use]
    pub fn with_min_lifetime(self, least_patience: Duration) -> Self {
        Self { least_patience, ..self }
    }

    /// `within` limits the CPU time. Dropping the future kills the child.
    pub(super) async fn compile(
        &self,
        key: &ArtifactKey,
        bytes: &Bytes,
        within: Duration,
    ) -> Result<Artifact, CompileError> {
        let code = self.run(&[], bytes, within).await?;
        let key = key.clone();
        let sealed = tokio::task::spawn_blocking(move || Artifact::seal(code, &key));
        let sealed = sealed.await.map_err(io::Error::from)?;
        sealed.map_err(|error| CompileError::Broken(error.to_string()))
    }

    /// `within` limits the CPU time, and `name` is the module's name in the description. Dropping the future kills the
    /// child.
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

    async fn run(&self, arguments: &[String], bytes: &Bytes, within: Duration) -> Result<File, CompileError> {
        // Waiting for a turn fails only if a semaphore has been closed, which never happens.
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
            // Without this setting, each thread allocates its own arena, and the arenas take most of the child's
            // memory.
            .env("MALLOC_ARENA_MAX", "2")
            .stdin(Stdio::piped())
            .stdout(written.try_clone()?)
            .stderr(Stdio::piped())
            // Without its own process group, Ctrl-C in a terminal would also kill the child, which would count against
            // the module.
            .process_group(0)
            .kill_on_drop(true);
        // Spawning blocks until the child's program is loaded, which may take arbitrarily long.
        let mut child = run_blocking(move || command.spawn()).await?;
        let longest = within.saturating_mul(PATIENCE.0).max(self.least_patience);
        let talk = notify_after(TURN, talk(&mut child, bytes), || drop(turn));
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
            // The child never kills itself with SIGKILL. The signal most likely comes from the kernel: when memory runs
            // out, the kernel kills the child before other processes.
            None if status.signal() == Some(libc::SIGKILL) => CompileError::Killed,
            _ => CompileError::Broken(describe_exit(status, &said)),
        })
    }
}

/// Parses the child's description of a module. The description is untrusted, because a malicious module may have taken
/// control of the child.
pub(super) fn inspection(said: impl io::Read) -> serde_json::Result<Inspection> {
    serde_json::from_reader(io::BufReader::new(said.take(LONGEST_INSPECTION)))
}

async fn talk(child: &mut Child, bytes: &Bytes) -> io::Result<(ExitStatus, String)> {
    let (stdin, stderr) = (child.stdin.take(), child.stderr.take());
    let hand_over = async {
        let mut stdin = stdin;
        if let Some(stdin) = &mut stdin {
            // Ignore the error: if the child exits before it has read everything, the child reports the reason.
            let _ = stdin.write_all(bytes).await;
        }
        // Keep stdin open, because the child exits when stdin is closed.
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

fn describe_exit(status: ExitStatus, said: &str) -> String {
    let how = match status.signal() {
        Some(libc::SIGABRT) if said.contains("memory allocation") => {
            format!("it needed more than {} GiB of memory", MEMORY >> 30)
        }
        _ => status.to_string(),
    };
    // Join the lines: a panic message has three lines.
    let said: Vec<&str> = said.split_whitespace().collect();
    let said: String = said.join(" ").chars().take(LONGEST_CAUSE).collect();
    if said.is_empty() { how } else { format!("{how}: {said}") }
}

/// Compiles the module from stdin. Runs in the child, and returns the exit status of the process.
#[must_use]
pub fn compile_for_parent(assignment: Assignment) -> ExitCode {
    let (status, message) = match serve(assignment) {
        Ok(()) => return ExitCode::SUCCESS,
        Err(Failure::Module(message)) => (BAD_MODULE, message),
        Err(Failure::Other(message)) => (1, message),
    };
    // Writing fails if the parent has exited.
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

fn serve(Assignment { size, cpu, inspect }: Assignment) -> Result<(), Failure> {
    restrain(cpu, if inspect.is_some() { Code::Loads } else { Code::HandsOver })?;
    let mut stdin = io::stdin();
    let mut bytes = Vec::new();
    (&mut stdin).take(size.min(LARGEST_MODULE)).read_to_end(&mut bytes)?;
    if bytes.len() as u64 != size {
        return Err(Failure::Other("the module arrived incomplete".to_owned()));
    }
    // This thread ends the process when the parent exits. The thread is never joined: it runs until the process ends.
    std::thread::Builder::new().name("parent".into()).spawn(move || {
        let _ = stdin.read(&mut [0]);
        std::process::exit(1);
    })?;
    std::thread::Builder::new().name("clock".into()).spawn(move || end_after(cpu))?;
    let engine = Engine::new();
    let engine = engine.map_err(|error| Failure::Other(format!("{error:#}")))?;
    let bad = |error: ModuleError| Failure::Module(format!("{:#}", anyhow::Error::from(error)));
    // Do not use `Stdout`, which scans the output for line ends.
    let stdout = File::from(io::stdout().as_fd().try_clone_to_owned()?);
    if let Some(name) = inspect {
        let inspection = Module::inspect(&engine, &name, &bytes).map_err(bad)?;
        return serde_json::to_writer(stdout, &inspection).map_err(|error| Failure::Other(error.to_string()));
    }
    let digest = Digest::of(&bytes);
    let (code, outline) = Module::precompile(&engine, &digest.to_string(), &bytes).map_err(bad)?;
    Ok(ArtifactKey::new(&engine, &digest).write(&code, outline, stdout)?)
}

fn end_after(cpu: Duration) -> ! {
    loop {
        let used = clock_gettime(ClockId::ProcessCPUTime);
        let used = Duration::try_from(used).unwrap_or(Duration::MAX);
        let left = cpu.saturating_sub(used);
        if left.is_zero() {
            std::process::exit(TOO_SLOW.into());
        }
        // Even if all threads run all the time, they cannot use up the remaining CPU time during this sleep.
        std::thread::sleep((left / (THREADS as u32 + 2)).max(Duration::from_millis(5)));
    }
}

fn restrain(cpu: Duration, code: Code) -> Result<(), Failure> {
    let limit = |resource, most: u64, then: u64| {
        setrlimit(resource, Rlimit { current: Some(most), maximum: Some(then) })
            .map_err(|error| Failure::Other(format!("cannot set its resource limits: {error}")))
    };
    limit(Resource::As, MEMORY, MEMORY)?;
    // This limit is a fallback, in case the thread that monitors the CPU time no longer runs. At this limit, the kernel
    // kills the child with SIGXCPU, which the parent sees.
    let seconds = cpu.as_secs().saturating_add(2);
    limit(Resource::Cpu, seconds, seconds.saturating_add(1))?;
    limit(Resource::Fsize, LARGEST_ARTIFACT, LARGEST_ARTIFACT)?;
    limit(Resource::Core, 0, 0)?;
    // Ignore errors: these calls are a courtesy to other processes, not a safety measure.
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
    fn next_compiler_starts_when_a_turn_ends_and_a_place_is_free() {
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
