//! The boot clock, and its identity, which shows whether two times can be compared.

use std::fmt;
use std::io::ErrorKind;
use std::sync::Arc;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

use crate::witness::boot_id;
use baton_base::clock::Clock;

/// A boot clock and its identity. Times from two boot clocks can be compared only if both parts of the identity are
/// equal. The boot id alone is not enough, because containers on one machine may have time namespaces that shift the
/// clock.
#[derive(Clone)]
pub struct BootClock {
    /// The kernel's random id of this boot.
    pub id: String,
    /// The time namespace.
    pub time_namespace: String,
    /// Returns the time since boot, including suspends. The time never goes backwards.
    pub clock: Arc<dyn Fn() -> Duration + Send + Sync>,
    /// Returns a lower bound on the time that has passed ([`Clock::least`]). Can be compared only with other values in
    /// this process.
    pub least: Arc<dyn Fn() -> Duration + Send + Sync>,
}

impl BootClock {
    /// Returns the boot clock of this machine, as this process sees it.
    pub fn current() -> Self {
        // An unknown identity differs in each process. So the store measures another process's lease from the moment
        // when it first sees the lease.
        let unknown = || format!("unknown-{}-{:?}", std::process::id(), boot_time());
        let id = boot_id();
        let time_namespace = match std::fs::read_link("/proc/self/ns/time") {
            Ok(link) => link.to_string_lossy().into_owned(),
            // The kernel does not support time namespaces. The reason cannot be that `/proc` is missing, because then
            // the boot id would also be unknown.
            Err(error) if error.kind() == ErrorKind::NotFound && id.is_some() => "none".to_owned(),
            Err(_) => unknown(),
        };
        let id = id.unwrap_or_else(unknown);
        let clock = Clock::default();
        Self { id, time_namespace, clock: Arc::new(boot_time), least: Arc::new(move || clock.least()) }
    }

    pub(super) fn now(&self) -> Duration {
        (self.clock)()
    }
}

impl fmt::Debug for BootClock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "BootClock({}, {})", self.id, self.time_namespace)
    }
}

fn boot_time() -> Duration {
    let now = clock_gettime(ClockId::Boottime);
    let seconds = u64::try_from(now.tv_sec).unwrap_or(0);
    Duration::from_secs(seconds) + Duration::from_nanos(u64::try_from(now.tv_nsec).unwrap_or(0))
}
