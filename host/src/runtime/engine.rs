//! The engine that all instances share, and the thread that drives its epochs.

use std::num::NonZeroUsize;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use wasmtime::Config;

use super::backtrace::FRAMES;

/// While instances run, a busy one is made to yield this often.
pub(super) const YIELD_EVERY: Duration = Duration::from_millis(10);

/// While one is being killed, it is interrupted this often: a single bump can be lost to a callback that
/// has just looked.
const KILL_EVERY: Duration = Duration::from_millis(1);

/// Compiles modules and runs instances. Clones share it.
#[derive(Clone)]
pub struct Engine {
    wasmtime: wasmtime::Engine,
    ticker: Arc<Ticker>,
}

impl Engine {
    /// Starts an engine and its ticker.
    ///
    /// # Errors
    /// Where the processor is not supported, or the system has no thread left.
    pub fn start() -> wasmtime::Result<Self> {
        Self::start_with(false)
    }

    /// Starts an engine whose instances' traps can be dumped, or not. Code that was compiled for one serves the other.
    ///
    /// # Errors
    /// As for [`Engine::start`].
    pub fn start_with(core_dumps: bool) -> wasmtime::Result<Self> {
        let mut config = Config::new();
        config.coredump_on_trap(core_dumps);
        config.wasm_component_model(true).epoch_interruption(true);
        config.wasm_backtrace_max_frames(NonZeroUsize::new(FRAMES));
        let wasmtime = wasmtime::Engine::new(&config)?;
        let ticker = Arc::new(Ticker::start(wasmtime.clone())?);
        Ok(Self { wasmtime, ticker })
    }

    /// The engine underneath.
    pub fn wasmtime(&self) -> &wasmtime::Engine {
        &self.wasmtime
    }

    /// Makes busy guests yield for as long as the guard lives, once [`Engine::wake_ticker`] was called. Two
    /// calls, so that whoever starts an instance wakes the thread that runs it first.
    pub(super) fn ticking(&self) -> Ticking {
        Ticking::begin(&self.ticker, |ticks| &mut ticks.instances)
    }

    /// Lets the ticker see that there is something to tick for.
    pub(super) fn wake_ticker(&self) {
        self.ticker.shared.1.notify_one();
    }

    /// Interrupts busy guests now, without waiting for a thread to wake, and every millisecond for as long
    /// as the guard lives.
    pub(super) fn killing(&self) -> Ticking {
        let killing = Ticking::begin(&self.ticker, |ticks| &mut ticks.kills);
        self.wasmtime.increment_epoch();
        self.wake_ticker();
        killing
    }
}

/// What the ticker ticks for.
#[derive(Debug, Default)]
struct Ticks {
    instances: usize,
    kills: usize,
    ended: bool,
}

/// One thread that bumps the epoch, asleep while no instance runs.
struct Ticker {
    shared: Arc<(Mutex<Ticks>, Condvar)>,
    thread: Option<JoinHandle<()>>,
}

fn lock(ticks: &Mutex<Ticks>) -> MutexGuard<'_, Ticks> {
    ticks.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Ticker {
    fn start(engine: wasmtime::Engine) -> std::io::Result<Self> {
        let shared = Arc::new((Mutex::new(Ticks::default()), Condvar::new()));
        let its = Arc::clone(&shared);
        let thread = std::thread::Builder::new().name("ticker".into()).spawn(move || {
            let (ticks, changed) = &*its;
            let mut state = lock(ticks);
            while !state.ended {
                state = match (state.kills, state.instances) {
                    (0, 0) => changed.wait(state).unwrap_or_else(PoisonError::into_inner),
                    (kills, _) => {
                        let every = if kills > 0 { KILL_EVERY } else { YIELD_EVERY };
                        let (waited, _) = changed.wait_timeout(state, every).unwrap_or_else(PoisonError::into_inner);
                        engine.increment_epoch();
                        waited
                    }
                };
            }
        })?;
        Ok(Self { shared, thread: Some(thread) })
    }
}

impl Drop for Ticker {
    fn drop(&mut self) {
        lock(&self.shared.0).ended = true;
        self.shared.1.notify_one();
        if let Some(thread) = self.thread.take() {
            // It does nothing that can panic, and if it did there is nobody left to tick for.
            let _ = thread.join();
        }
    }
}

/// A reason to tick, while it lives.
pub(super) struct Ticking {
    ticker: Arc<Ticker>,
    count: fn(&mut Ticks) -> &mut usize,
}

impl Ticking {
    fn begin(ticker: &Arc<Ticker>, count: fn(&mut Ticks) -> &mut usize) -> Self {
        *count(&mut lock(&ticker.shared.0)) += 1;
        Self { ticker: Arc::clone(ticker), count }
    }
}

impl Drop for Ticking {
    fn drop(&mut self) {
        *(self.count)(&mut lock(&self.ticker.shared.0)) -= 1;
    }
}
