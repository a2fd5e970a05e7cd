//! Turns an offer into a module that can be started.
//!
//! Offers are untrusted. The preparer checks the size, digest and signature of a module before its content, and
//! compiles the content in a separate process. See [`Trust`], [`Compiler`] and [`Cache`].

use std::time::{Duration, Instant};

use bytes::Bytes;

use super::artifact::{Artifact, ArtifactKey};
use super::cache::Cache;
use super::compile::{CompileError, Compiler};
use super::source::Offer;
use super::trust::{Distrust, Trust};
use baton_runtime::{Engine, Inspection, LARGEST_MODULE, Module, ModuleError, RunnerError, Runners};
use baton_store::Digest;

/// Prepares the modules of one coordinator.
#[derive(Clone)]
pub struct Preparer {
    /// The engine that runs the modules.
    pub engine: Engine,
    /// The conditions that a module must meet.
    pub trust: Trust,
    /// The compiler.
    pub compiler: Compiler,
    /// Limit on the CPU time of one compilation.
    pub compile_timeout: Duration,
    /// The cache of compiled code. Without a cache, modules are compiled every time.
    pub cache: Option<Cache>,
    /// Starts the runners. The preparation of a module fails if no runner can be made ready for the module.
    pub runners: Runners,
}

/// A module that is verified, compiled and linked.
#[derive(Clone)]
pub struct Preparation {
    /// The module.
    pub module: Module,
    /// True if the compiled code was in the cache.
    pub cached: bool,
    /// Duration of the entire preparation.
    pub took: Duration,
}

/// The reason why a version could not be prepared to run.
#[derive(Debug, thiserror::Error)]
pub enum PrepareError {
    /// The module is too large. The number is its size in bytes.
    #[error("the module has {} MiB; the limit is {} MiB", .0.div_ceil(1 << 20), LARGEST_MODULE >> 20)]
    TooLarge(u64),
    /// This host does not trust the module.
    #[error(transparent)]
    Distrusted(#[from] Distrust),
    /// The module cannot run here.
    #[error(transparent)]
    Unusable(#[from] ModuleError),
    /// The compiler reports that the module cannot be compiled, or cannot run here.
    #[error("{0}")]
    Refused(String),
    /// The compilation used up its limit of CPU time.
    #[error(
        "compiling the module takes more than {} of CPU time: if the module is as intended, raise `--compile-timeout`",
        humantime::format_duration(*.0)
    )]
    TooSlow(Duration),
    /// The machine was too busy to compile the module. May be temporary.
    #[error(
        "the machine is too busy: within {}, the compiler received less than the {} of CPU time that \
         `--compile-timeout` allows",
        humantime::format_duration(*.longest),
        humantime::format_duration(*.within)
    )]
    Starved {
        /// The limit on the CPU time.
        within: Duration,
        /// The time after which the host gave up.
        longest: Duration,
    },
    /// The compiler crashed.
    #[error(
        "the compiler failed: {0}; make the module smaller; if it is an ordinary module, report this as a Baton bug"
    )]
    Broken(String),
    /// The compiler was killed. May be temporary.
    #[error(
        "the compiler was killed, most likely because the machine, container or service ran out of memory \
         (memory.max, MemoryMax=, a Kubernetes limit); check the kernel's log, and provide more memory or make the \
         module smaller"
    )]
    Killed,
    /// The system could not run a compiler. May be temporary.
    #[error("the module cannot be compiled now: {0}")]
    System(std::io::Error),
    /// No runner could be made ready for the module.
    #[error("the module cannot run here: {0}")]
    NotReady(RunnerError),
}

impl From<RunnerError> for PrepareError {
    fn from(error: RunnerError) -> Self {
        Self::NotReady(error)
    }
}

impl PrepareError {
    /// Returns true if the error is caused by the state of this machine, and not by the module or the settings.
    #[must_use]
    pub fn may_pass(&self) -> bool {
        use RunnerError::{Lost, System, Template};
        matches!(
            self,
            Self::Starved { .. } | Self::Killed | Self::System(_) | Self::NotReady(Lost(_) | System(_) | Template(_))
        )
    }

    fn of(error: CompileError, within: Duration) -> Self {
        match error {
            CompileError::Module(why) => Self::Refused(why),
            CompileError::TooSlow => Self::TooSlow(within),
            CompileError::Starved(longest) => Self::Starved { within, longest },
            CompileError::Broken(how) => Self::Broken(how),
            CompileError::Killed => Self::Killed,
            CompileError::System(error) => Self::System(error),
        }
    }
}

/// Describes a module before an operator publishes it, even if the module cannot run here. Uses the same compiler and
/// limits as a node. `name` is the module's name in the description.
///
/// # Errors
/// [`PrepareError`] if the module is not a component, or exceeds the compiler's limits.
pub async fn inspect(
    compiler: &Compiler,
    name: &str,
    module: &Bytes,
    within: Duration,
) -> Result<Inspection, PrepareError> {
    compiler.inspect(name, module, within).await.map_err(|error| PrepareError::of(error, within))
}

impl Preparer {
    /// Verifies a module, compiles it, and makes a runner ready for it. Dropping the future kills the compiler.
    ///
    /// # Errors
    /// Returns a [`PrepareError`], which says what is wrong and what the operator can do.
    #[expect(clippy::disallowed_methods, reason = "how long it took is told to a person, and decides nothing")]
    pub async fn prepare(&self, offer: &Offer) -> Result<Preparation, PrepareError> {
        let started = Instant::now();
        let (its, of) = (self.clone(), offer.clone());
        let (key, kept) = run_blocking(move || its.verify(&of)).await?;
        let cached = kept.is_some();
        let module = match kept {
            Some(module) => module,
            None => self.compile(offer, key).await?,
        };
        self.runners.make_ready(&module).await?;
        Ok(Preparation { module, cached, took: started.elapsed() })
    }

    /// Checks a module without compiling it. Returns the module, too, if its compiled code is in the cache.
    fn verify(&self, offer: &Offer) -> Result<(ArtifactKey, Option<Module>), PrepareError> {
        let bytes = &offer.bytes;
        let size = bytes.len() as u64;
        if size > LARGEST_MODULE {
            return Err(PrepareError::TooLarge(size));
        }
        let digest = Digest::of(bytes);
        self.trust.check(digest, bytes, offer.signature.as_deref())?;
        Module::precheck(&digest.to_string(), bytes)?;
        let key = ArtifactKey::new(&self.engine, &digest);
        let kept = self.cache.as_ref().and_then(|cache| cache.get(&key));
        let module = kept.map(|code| code.module(bytes)).transpose().map_err(PrepareError::System)?;
        Ok((key, module))
    }

    async fn compile(&self, offer: &Offer, key: ArtifactKey) -> Result<Module, PrepareError> {
        let code = self.compiler.compile(&key, &offer.bytes, self.compile_timeout).await;
        let code: Artifact = code.map_err(|error| PrepareError::of(error, self.compile_timeout))?;
        let (its, bytes) = (self.clone(), offer.bytes.clone());
        run_blocking(move || {
            if let Some(cache) = &its.cache {
                cache.put(&key, &code);
            }
            code.module(&bytes).map_err(PrepareError::System)
        })
        .await
    }
}

async fn run_blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, PrepareError> + Send + 'static,
) -> Result<T, PrepareError> {
    let done = tokio::task::spawn_blocking(work).await;
    done.unwrap_or_else(|error| Err(PrepareError::System(error.into())))
}
