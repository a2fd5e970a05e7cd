//! An instance's calls of the system that may block: reading a secret, whatever it does with files.
//!
//! Nothing ends such a call but its own end; dropping whoever waits for it does not. So they run on threads
//! that belong to the instance, and it is gone only once these have ended: a write that hangs keeps it from
//! being gone, and the watchdog ends the process in time if it hangs for too long.

use std::sync::OnceLock;

use tokio::runtime::{Builder, Handle, Runtime};

use crate::config::SecretSource;

/// Calls of one instance that may run at a time; further ones wait for their turn, and are never made if it is
/// killed before.
const THREADS: usize = 4;

/// The threads of one instance, made when they are first needed. Dropping it waits for the calls that have
/// begun.
#[derive(Debug, Default)]
pub(super) struct Own(OnceLock<Runtime>);

impl Own {
    /// A handle whose blocking calls the instance waits for.
    pub(super) fn handle(&self) -> std::io::Result<Handle> {
        if let Some(runtime) = self.0.get() {
            return Ok(runtime.handle().clone());
        }
        // Without timers, and no task ever runs on it: it is a pool of threads for calls that block.
        let runtime = Builder::new_current_thread().max_blocking_threads(THREADS).thread_name("files").build()?;
        Ok(self.0.get_or_init(|| runtime).handle().clone())
    }

    /// The secrets as they are now.
    ///
    /// # Errors
    /// Which one cannot be read, and why.
    pub(super) async fn secrets(&self, sources: &[SecretSource]) -> wasmtime::Result<Vec<(String, String)>> {
        let read = |sources: &[SecretSource]| {
            let read = |source: &SecretSource| Ok((source.name().to_owned(), source.read()?.expose().to_owned()));
            sources.iter().map(read).collect::<Result<_, String>>()
        };
        let secrets = if sources.iter().any(|source| source.file().is_some()) {
            let sources = sources.to_vec();
            self.handle()?.spawn_blocking(move || read(&sources)).await?
        } else {
            read(sources)
        };
        secrets.map_err(|problem| wasmtime::format_err!("the secret {problem}"))
    }
}

impl Drop for Own {
    fn drop(&mut self) {
        if let Some(runtime) = self.0.take() {
            tokio::task::block_in_place(|| drop(runtime));
        }
    }
}
