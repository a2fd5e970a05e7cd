//! A store that passes each call to an [`Interceptor`], which may delay, fail, count, change or repeat the call.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use baton_election::{ElectionName, Op, Record, Reply, StoreError, Version};
use bytes::Bytes;
use time::OffsetDateTime;

use crate::{LeaseStore, Listed, Listing, ObjectStore, OperatorStore, PlainObject, Reading, Store, VersionedObject};

/// One call to a store, with its arguments.
#[derive(Clone, PartialEq, Debug)]
#[expect(missing_docs, reason = "the variants are the methods of the traits, and the fields their arguments")]
pub enum StoreCall {
    Request(ElectionName, Op),
    BreakNow(ElectionName),
    Elections,
    Create,
    Read { object: VersionedObject, election: ElectionName, known: Option<Version> },
    Write { object: VersionedObject, election: ElectionName, version: Option<Version>, content: Bytes },
    Delete { object: VersionedObject, election: ElectionName, version: Version },
    ElectionsWith(VersionedObject),
    Put(PlainObject, Bytes),
    Get(PlainObject, u64),
    List(Listing),
    Remove(PlainObject, Option<OffsetDateTime>),
    Overwrite(ElectionName, Record),
    RemoveElection(ElectionName),
}

/// The result of a successful call. Each variant contains the value that the method returns.
#[derive(Clone, PartialEq, Debug)]
#[expect(missing_docs, reason = "the variants are named after the types that the methods return")]
pub enum StoreAnswer {
    Done,
    Reply(Reply),
    Elections(Vec<ElectionName>),
    Reading(Reading),
    Version(Version),
    Content(Option<Bytes>),
    Listed(Vec<Listed>),
    IsAbsent(bool),
}

impl StoreCall {
    /// Sends the call to `store`.
    ///
    /// # Errors
    /// The store's error.
    pub async fn send<S: Store + ?Sized>(self, store: &S) -> Result<StoreAnswer, StoreError> {
        use StoreAnswer::*;
        match self {
            Self::Request(election, op) => store.request(&election, op).await.map(Reply),
            Self::BreakNow(election) => store.break_now(&election).await.map(|()| Done),
            Self::Elections => store.elections().await.map(Elections),
            Self::Create => store.create().await.map(|()| Done),
            Self::Read { object, election, known } => store.read(object, &election, known.as_ref()).await.map(Reading),
            Self::Write { object, election, version, content } => {
                store.write(object, &election, version.as_ref(), content).await.map(Version)
            }
            Self::Delete { object, election, version } => {
                store.delete(object, &election, &version).await.map(|()| Done)
            }
            Self::ElectionsWith(object) => store.elections_with(object).await.map(Elections),
            Self::Put(object, content) => store.put(&object, content).await.map(|()| Done),
            Self::Get(object, limit) => store.get(&object, limit).await.map(Content),
            Self::List(listing) => store.list(&listing).await.map(Listed),
            Self::Remove(object, put_until) => store.remove(&object, put_until).await.map(IsAbsent),
            Self::Overwrite(election, record) => store.overwrite(&election, record).await.map(Version),
            Self::RemoveElection(election) => store.remove_election(&election).await.map(|()| Done),
        }
    }
}

/// Code that runs instead of each call to an [`Intercept`] store.
#[async_trait]
pub trait Interceptor<S: ?Sized>: Send + Sync {
    /// Answers `call`, usually by sending it to `store` with [`StoreCall::send`]. The answer must have the variant that
    /// [`StoreCall::send`] returns for this call.
    async fn intercept(&self, call: StoreCall, store: &S) -> Result<StoreAnswer, StoreError>;
}

/// A store whose calls pass through `interceptor`.
///
/// # Example
/// A store that is out of reach:
/// ```
/// use std::sync::Arc;
/// use std::time::Duration;
///
/// use async_trait::async_trait;
/// use baton_election::StoreError;
/// use baton_store::{Intercept, Interceptor, LeaseStore, MemoryStore, StoreAnswer, StoreCall};
///
/// struct Outage;
///
/// #[async_trait]
/// impl Interceptor<MemoryStore> for Outage {
///     async fn intercept(&self, _call: StoreCall, _store: &MemoryStore) -> Result<StoreAnswer, StoreError> {
///         Err(StoreError::Unknown("the store cannot be reached".to_owned()))
///     }
/// }
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// let store = Intercept { store: Arc::new(MemoryStore::new(Arc::new(|| Duration::ZERO))), interceptor: Outage };
/// assert!(matches!(store.elections().await, Err(StoreError::Unknown(_))));
/// # }
/// ```
#[derive(Debug)]
pub struct Intercept<S: ?Sized, F> {
    /// The store that the interceptor may call.
    pub store: Arc<S>,
    /// The interceptor.
    pub interceptor: F,
}

impl<S: Store + ?Sized, F: Interceptor<S>> Intercept<S, F> {
    async fn call(&self, call: StoreCall) -> Result<StoreAnswer, StoreError> {
        self.interceptor.intercept(call, &self.store).await
    }
}

macro_rules! answer {
    ($answer:expr, $variant:pat => $value:expr) => {
        match $answer? {
            $variant => Ok($value),
            other => Err(StoreError::Misconfigured(format!("the answer does not fit the request: {other:?}"))),
        }
    };
}

#[async_trait]
impl<S: Store + ?Sized, F: Interceptor<S>> LeaseStore for Intercept<S, F> {
    async fn request(&self, election: &ElectionName, op: Op) -> Result<Reply, StoreError> {
        answer!(self.call(StoreCall::Request(election.clone(), op)).await, StoreAnswer::Reply(reply) => reply)
    }

    async fn break_now(&self, election: &ElectionName) -> Result<(), StoreError> {
        answer!(self.call(StoreCall::BreakNow(election.clone())).await, StoreAnswer::Done => ())
    }

    async fn elections(&self) -> Result<Vec<ElectionName>, StoreError> {
        answer!(self.call(StoreCall::Elections).await, StoreAnswer::Elections(elections) => elections)
    }

    async fn create(&self) -> Result<(), StoreError> {
        answer!(self.call(StoreCall::Create).await, StoreAnswer::Done => ())
    }

    fn lease_range(&self) -> (Duration, Duration) {
        self.store.lease_range()
    }

    fn slow_step(&self) -> Option<String> {
        self.store.slow_step()
    }

    async fn hint(&self, election: &ElectionName) {
        self.store.hint(election).await;
    }
}

#[async_trait]
impl<S: Store + ?Sized, F: Interceptor<S>> ObjectStore for Intercept<S, F> {
    async fn read(
        &self,
        object: VersionedObject,
        election: &ElectionName,
        known: Option<&Version>,
    ) -> Result<Reading, StoreError> {
        let call = StoreCall::Read { object, election: election.clone(), known: known.cloned() };
        answer!(self.call(call).await, StoreAnswer::Reading(reading) => reading)
    }

    async fn write(
        &self,
        object: VersionedObject,
        election: &ElectionName,
        version: Option<&Version>,
        content: Bytes,
    ) -> Result<Version, StoreError> {
        let call = StoreCall::Write { object, election: election.clone(), version: version.cloned(), content };
        answer!(self.call(call).await, StoreAnswer::Version(version) => version)
    }

    async fn delete(
        &self,
        object: VersionedObject,
        election: &ElectionName,
        version: &Version,
    ) -> Result<(), StoreError> {
        let call = StoreCall::Delete { object, election: election.clone(), version: version.clone() };
        answer!(self.call(call).await, StoreAnswer::Done => ())
    }

    async fn elections_with(&self, object: VersionedObject) -> Result<Vec<ElectionName>, StoreError> {
        answer!(self.call(StoreCall::ElectionsWith(object)).await, StoreAnswer::Elections(elections) => elections)
    }

    async fn put(&self, object: &PlainObject, content: Bytes) -> Result<(), StoreError> {
        answer!(self.call(StoreCall::Put(object.clone(), content)).await, StoreAnswer::Done => ())
    }

    async fn get(&self, object: &PlainObject, limit: u64) -> Result<Option<Bytes>, StoreError> {
        answer!(self.call(StoreCall::Get(object.clone(), limit)).await, StoreAnswer::Content(content) => content)
    }

    async fn list(&self, listing: &Listing) -> Result<Vec<Listed>, StoreError> {
        answer!(self.call(StoreCall::List(listing.clone())).await, StoreAnswer::Listed(listed) => listed)
    }

    async fn remove(&self, object: &PlainObject, put_until: Option<OffsetDateTime>) -> Result<bool, StoreError> {
        let call = StoreCall::Remove(object.clone(), put_until);
        answer!(self.call(call).await, StoreAnswer::IsAbsent(is_absent) => is_absent)
    }
}

#[async_trait]
impl<S: Store + ?Sized, F: Interceptor<S>> OperatorStore for Intercept<S, F> {
    async fn overwrite(&self, election: &ElectionName, record: Record) -> Result<Version, StoreError> {
        let call = StoreCall::Overwrite(election.clone(), record);
        answer!(self.call(call).await, StoreAnswer::Version(version) => version)
    }

    async fn remove_election(&self, election: &ElectionName) -> Result<(), StoreError> {
        answer!(self.call(StoreCall::RemoveElection(election.clone())).await, StoreAnswer::Done => ())
    }
}
