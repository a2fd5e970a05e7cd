//! From an offer to a module that can be started.
//!
//! Nothing of an offer is believed: its size, its digest and its signature are looked at before its content,
//! and its content is compiled in a process of its own. See [`Trust`], [`Compiler`] and [`Cache`].

use std::time::{Duration, Instant};

use bytes::Bytes;

use super::artifact::{Artifact, ArtifactKey};
use super::cache::Cache;
use super::compile::{CompileError, Compiler};
use super::source::Offer;
use super::trust::{Distrust, Trust};
use baton_runtime::{Engine, Inspection, LARGEST_MODULE, Module, ModuleError, RunnerError, Runners};
use baton_store::Digest;

/// Makes modules of offers, for one coordinator.
#[derive(Clone)]
pub struct Preparer {
    /// What the modules run on.
    pub engine: Engine,
    /// What they must be.
    pub trust: Trust,
    /// What makes code of them.
    pub compiler: Compiler,
    /// How much processor time that may take.
    pub compile_timeout: Duration,
    /// Where code is kept; none, and it is made anew each time.
    pub cache: Option<Cache>,
    /// What runs them. A module that no runner can be made ready for is not prepared.
    pub runners: Runners,
}

/// A module that is verified, compiled and linked.
#[derive(Clone)]
pub struct Preparation {
    /// The module itself.
    pub module: Module,
    /// Whether its code was in the cache.
    pub cached: bool,
    /// How long all of it took.
    pub took: Duration,
}

/// Why an offer is not prepared. Its text goes on from "the module …".
#[derive(Debug, thiserror::Error)]
pub enum PrepareError {
    /// It has too many bytes.
    #[error("the module has {} MiB; the limit is {} MiB", .0.div_ceil(1 << 20), LARGEST_MODULE >> 20)]
    TooLarge(u64),
    /// It may not run here.
    #[error(transparent)]
    Distrusted(#[from] Distrust),
    /// It cannot run here.
    #[error(transparent)]
    Unusable(#[from] ModuleError),
    /// It cannot be compiled, or cannot run here, as the compiler says.
    #[error("{0}")]
    Refused(String),
    /// Compiling it took too much.
    #[error(
        "compiling the module takes more than {} of CPU time: if the module is as intended, raise `--compile-timeout`",
        humantime::format_duration(*.0)
    )]
    TooSlow(Duration),
    /// The machine let it not be compiled for far longer than that: that may pass.
    #[error(
        "the machine is too busy: within {}, the compiler received less than the {} of CPU time that \
         `--compile-timeout` allows",
        humantime::format_duration(*.longest),
        humantime::format_duration(*.within)
    )]
    Starved {
        /// The processor time that it may take.
        within: Duration,
        /// For how long it was waited for.
        longest: Duration,
    },
    /// It was too much for the compiler.
    #[error(
        "the compiler failed: {0}; make the module smaller; if it is an ordinary module, report this as a Baton bug"
    )]
    Broken(String),
    /// Its compiler was killed: that may pass.
    #[error(
        "the compiler was killed, most likely because the machine, container or service ran out of memory \
         (memory.max, MemoryMax=, a Kubernetes limit); check the kernel's log, and provide more memory or make the \
         module smaller"
    )]
    Killed,
    /// The system let it not be compiled: that may pass.
    #[error("the module cannot be compiled now: {0}")]
    System(std::io::Error),
    /// No process is ready to run it.
    #[error("the module cannot run here: {0}")]
    NotReady(RunnerError),
}

impl From<RunnerError> for PrepareError {
    fn from(error: RunnerError) -> Self {
        Self::NotReady(error)
    }
}

impl PrepareError {
    /// Whether it says something about this machine at this moment, and nothing about the module or the settings.
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

/// Finds out what a module is, whether it would run here or not, before an operator publishes it: with the
/// compiler and the bounds that it meets on a node. `name` is what it is called.
///
/// # Errors
/// [`PrepareError`] where it is no component at all, or is too much for the compiler.
pub async fn inspect(
    compiler: &Compiler,
    name: &str,
    module: &Bytes,
    within: Duration,
) -> Result<Inspection, PrepareError> {
    compiler.inspect(name, module, within).await.map_err(|error| PrepareError::of(error, within))
}

impl Preparer {
    /// Verifies a module, compiles it, and makes a runner ready for it. Dropping the future ends the compiler.
    ///
    /// # Errors
    /// [`PrepareError`] says what is wrong with it and what to do.
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

    /// All that is done before anything is compiled. Also what the cache has of it.
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
        let code = self.compiler.compile(&self.engine, &key, &offer.bytes, self.compile_timeout).await;
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

/// Does what would hold up the thread of others.
async fn run_blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, PrepareError> + Send + 'static,
) -> Result<T, PrepareError> {
    let done = tokio::task::spawn_blocking(work).await;
    done.unwrap_or_else(|error| Err(PrepareError::System(error.into())))
}
