//! DNS lookups that can outlive the requests that wait for them. A lookup takes 5 s if the first of two name servers is
//! down, but a lease request times out after 1/12 of the lease duration. A later attempt must therefore be able to use
//! the lookup that an earlier attempt began.

use std::collections::HashMap;
use std::io;
use std::net::{SocketAddr, ToSocketAddrs as _};
use std::sync::{Arc, LazyLock, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use baton_election::Time;
use futures::FutureExt as _;
use futures::future::{BoxFuture, Shared};
use reqwest::dns::{Addrs, Name, Resolve, Resolving};

use baton_base::clock::Clock;

/// Time for which the result of a lookup is kept. It is longer than the wait between two attempts of a request, so that
/// the next attempt can use the result. After this time, a new connection looks up the name again, because the account
/// may have failed over to another region.
const KEPT: Duration = Duration::from_secs(10);

/// Time after which a new connection no longer waits for a lookup, but starts another one. The resolver's own timeout
/// for three name servers is 30 s (resolv.conf(5)). A new lookup may be faster, because the list of name servers may
/// have changed in the meantime.
const UNDER_WAY: Duration = Duration::from_secs(20);

/// Shared by all stores and elections in this process.
static LOOKUPS: LazyLock<Lookups> = LazyLock::new(Lookups::default);

pub(super) struct Names;

impl Names {
    pub(super) fn slow(&self, after: Duration) -> Option<String> {
        LOOKUPS.slow(after)
    }
}

impl Resolve for Names {
    fn resolve(&self, name: Name) -> Resolving {
        let system = |name: &str| (name, 0).to_socket_addrs().map(Vec::from_iter);
        let found = LOOKUPS.find(name.as_str(), system);
        Box::pin(async move {
            let addresses: Addrs = Box::new(found.await?.into_iter());
            Ok(addresses)
        })
    }
}

type Found = Result<Vec<SocketAddr>, Arc<io::Error>>;

#[derive(Default)]
struct Lookups {
    clock: Clock,
    known: Mutex<HashMap<String, Lookup>>,
}

struct Lookup {
    began: Time,
    found: Shared<BoxFuture<'static, Found>>,
    /// The time at which the lookup ended, and whether it succeeded.
    ended: Arc<OnceLock<(Time, bool)>>,
}

impl Lookups {
    /// Looks up this name with `system`. If a lookup of the name is already under way or has just succeeded, returns
    /// the result of that lookup instead. Needs a Tokio runtime: each lookup runs to its end on one of the runtime's
    /// blocking threads.
    fn find(
        &self,
        name: &str,
        system: impl FnOnce(&str) -> io::Result<Vec<SocketAddr>> + Send + 'static,
    ) -> Shared<BoxFuture<'static, Found>> {
        let now = self.clock.now();
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let counts = |lookup: &Lookup| match lookup.ended.get() {
            Some((at, is_found)) => *is_found && now.since(*at) < KEPT,
            // The lookup may have ended without a result, because it panicked or its runtime was shut down.
            None => now.since(lookup.began) < UNDER_WAY && lookup.found.peek().is_none(),
        };
        known.retain(|_, lookup| counts(lookup));
        if let Some(lookup) = known.get(name) {
            return lookup.found.clone();
        }
        let ended = Arc::new(OnceLock::new());
        let (of, ends, clock) = (name.to_owned(), Arc::clone(&ended), self.clock.clone());
        let task = tokio::task::spawn_blocking(move || {
            let found = system(&of).map_err(Arc::new);
            let _ = ends.set((clock.now(), found.is_ok()));
            found
        });
        let found = async { task.await.unwrap_or_else(|error| Err(Arc::new(io::Error::other(error)))) };
        let found = found.boxed().shared();
        known.insert(name.to_owned(), Lookup { began: now, found: found.clone(), ended });
        found
    }

    fn slow(&self, after: Duration) -> Option<String> {
        let now = self.clock.now();
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let is_slow = |lookup: &Lookup| lookup.ended.get().is_none() && now.since(lookup.began) >= after;
        known.iter().find(|(_, lookup)| is_slow(lookup)).map(|(name, _)| name.clone())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may panic")]
    use std::sync::mpsc;

    use super::*;

    fn address() -> SocketAddr {
        ([192, 0, 2, 1], 0).into()
    }

    #[tokio::test]
    async fn next_try_reuses_the_lookup_of_an_abandoned_try() {
        let lookups = Lookups::default();
        let (release, held) = mpsc::channel::<()>();
        let given_up = lookups.find("store.test", move |name| {
            assert_eq!(name, "store.test");
            let _ = held.recv();
            Ok(vec![address()])
        });
        assert_eq!(given_up.now_or_never().map(Result::unwrap), None);
        let again = lookups.find("store.test", |_| panic!("there is one under way"));
        assert_eq!(lookups.slow(Duration::ZERO).as_deref(), Some("store.test"));
        drop(release);
        assert_eq!(again.await.unwrap(), [address()]);
        assert_eq!(lookups.slow(Duration::ZERO), None);
        let later = lookups.find("store.test", |_| panic!("it was found just now"));
        assert_eq!(later.await.unwrap(), [address()]);
    }

    #[tokio::test]
    async fn lookup_is_repeated_after_a_failure() {
        let lookups = Lookups::default();
        let failed = lookups.find("store.test", |_| Err(io::ErrorKind::NotFound.into()));
        assert!(failed.await.is_err());
        let found = lookups.find("store.test", |_| Ok(vec![address()]));
        assert_eq!(found.await.unwrap(), [address()]);
    }
}
