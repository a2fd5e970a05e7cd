//! What operators ask of an election's nodes: `ELECTION/steering`.
//!
//! It can only ever keep a node from leading, so that no promise depends on it. A **suspension** holds for every node until
//! it is taken back. A **request** (to step down, to transfer) is made once: a node follows it from the moment at which it
//! sees it first, by its own clock, and never where it was there already when the node started. No clocks of two machines
//! are compared: the times in here are for people.

use std::time::Duration;

use baton_election::ElectionName;
use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::clock::{rfc3339, wall};
use crate::edit::{self, Edit, Tried, Unusable};
use crate::{ObjectStore, VersionedObject};

/// The format that this version reads and writes. A change that adds a field raises it, since an older host would
/// write the object without it.
const FORMAT: u64 = 1;

/// What is larger nobody of Baton has written, in bytes.
const LARGEST: usize = 64 << 10;

/// The longest reason, in bytes.
pub const LONGEST_REASON: usize = 500;

/// The longest time for which a leader can be asked to stay out.
pub const LONGEST_STEP_DOWN: Duration = Duration::from_secs(24 * 60 * 60);

/// All that is asked of an election's nodes.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Steering {
    /// Nobody leads while there is one.
    pub suspended: Option<Order>,
    /// The last request that was made, followed or not.
    pub request: Option<Request>,
}

/// Who has asked for something, and why.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Order {
    /// Tells one from the other.
    pub id: String,
    /// Who: `USER@HOST`, the node whose endpoint was asked, or the one that [prefers](Self::by_preference) another.
    pub by: String,
    /// When, in RFC 3339.
    pub at: String,
    /// Why, for people.
    pub reason: Option<String>,
}

/// Something that is asked once.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Request {
    /// Who asks for it.
    pub order: Order,
    /// What.
    pub ask: Ask,
}

/// What can be asked.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Ask {
    /// That this start of a node leads no more, and stays out for a while.
    StepDown {
        /// The node's id.
        node: String,
        /// The start of it.
        incarnation: String,
        /// For how long, in seconds.
        for_s: u64,
    },
    /// That all others stay out until this start of a node has had its chance.
    Transfer {
        /// The node's id.
        node: String,
        /// The start of it.
        incarnation: String,
    },
}

/// What the name of who asks ends with where it is a leader that prefers another node.
const PREEMPTS: &str = " (--preempt)";

impl Order {
    /// Who gives it where that is a node which prefers another to lead.
    #[must_use]
    pub fn by_preference(node: &str) -> String {
        format!("{node}{PREEMPTS}")
    }

    /// Whether such a node has given it.
    #[must_use]
    pub fn is_preference(&self) -> bool {
        self.by.ends_with(PREEMPTS)
    }

    /// One that is given now.
    ///
    /// # Errors
    /// Where the system has no random numbers.
    pub fn now(by: &str, reason: Option<&str>) -> Result<Self, getrandom::Error> {
        let mut bytes = [0; 8];
        getrandom::fill(&mut bytes)?;
        let id = format!("{:016x}", u64::from_be_bytes(bytes));
        Ok(Self { id, by: by.to_owned(), at: rfc3339(wall()), reason: reason.map(str::to_owned) })
    }

    /// Who gave it and why, for people.
    #[must_use]
    pub fn told(&self) -> String {
        match &self.reason {
            Some(reason) => format!("{}: {reason}", self.by),
            None => self.by.clone(),
        }
    }
}

/// Why a steering object cannot be used.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum SteeringError {
    /// It is damaged, or somebody else's.
    #[error("the election's steering object is damaged ({0}): `baton resume` replaces it with an empty one")]
    Damaged(String),
    /// It is of a later version of Baton.
    #[error("the election's steering object has format {0}, and this version of Baton reads {FORMAT}: update Baton")]
    Format(u64),
}

/// What tells one format from another.
#[derive(Deserialize)]
struct Head {
    format: u64,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Stored {
    #[expect(dead_code, reason = "the head has it")]
    format: u64,
    suspended: Option<Order>,
    request: Option<Request>,
}

impl Steering {
    /// From what is stored.
    ///
    /// # Errors
    /// [`SteeringError`] where this version cannot use it.
    pub fn decode(content: &[u8]) -> Result<Self, SteeringError> {
        if content.len() > LARGEST {
            return Err(SteeringError::Damaged(format!("{} bytes are more than Baton writes", content.len())));
        }
        let damaged = |error: serde_json::Error| SteeringError::Damaged(error.to_string());
        let Head { format } = serde_json::from_slice(content).map_err(damaged)?;
        if format != FORMAT {
            return Err(SteeringError::Format(format));
        }
        let Stored { format: _, suspended, request } = serde_json::from_slice(content).map_err(damaged)?;
        Ok(Self { suspended, request })
    }

    /// As it is stored.
    #[must_use]
    pub fn encode(&self) -> Bytes {
        let Self { suspended, request } = self;
        serde_json::json!({ "format": FORMAT, "suspended": suspended, "request": request }).to_string().into()
    }

    /// What tells it from all that was asked before.
    #[must_use]
    pub fn mark(&self) -> String {
        let suspended = self.suspended.as_ref().map_or("", |order| &order.id);
        let request = self.request.as_ref().map_or("", |request| &request.order.id);
        format!("{suspended}/{request}")
    }
}

/// Reads what is asked of an election's nodes; nothing where nothing ever was.
///
/// # Errors
/// [`EditError`] where it cannot be read.
pub async fn read(store: &dyn ObjectStore, election: &ElectionName) -> Result<Steering, EditError> {
    let found = Edit::of(store, VersionedObject::Steering, election).read().await?;
    Ok(found.map(|content| Steering::decode(&content)).transpose()?.unwrap_or_default())
}

/// Changes it in one conditional write, or in none where `change` changes nothing. `change` is called anew whenever
/// somebody else was faster, and makes the same of the same; what it first returned for what may have been written is
/// returned.
///
/// # Errors
/// Those of `change`, and [`EditError`]: nothing was changed, or it says that this is unknown.
pub async fn edit<T, E: From<EditError>>(
    store: &dyn ObjectStore,
    election: &ElectionName,
    change: impl Fn(Result<Steering, SteeringError>) -> Result<(Steering, T), E>,
) -> Result<T, E> {
    let mut edit = Edit::of(store, VersionedObject::Steering, election);
    let mut doubt: Option<T> = None;
    loop {
        let found = edit.read().await.map_err(EditError::from)?;
        let found = found.map_or_else(|| Ok(Steering::default()), |content| Steering::decode(&content));
        let (next, answer) = change(found.clone()).map_err(|why| edit.forbidden(why))?;
        if found.as_ref() == Ok(&next) {
            return Ok(doubt.unwrap_or(answer));
        }
        match edit.write(next.encode()).await.map_err(EditError::from)? {
            Tried::Written => return Ok(doubt.unwrap_or(answer)),
            Tried::Refused => {}
            Tried::InDoubt => drop(doubt.get_or_insert(answer)),
        }
    }
}

/// Why it was not read or changed.
pub type EditError = edit::EditError<SteeringError>;

impl Unusable for SteeringError {
    const IN_DOUBT: &'static str = "the command may or may not be in the store: repeat it";
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may panic")]
    use std::sync::Arc;

    use super::*;
    use crate::MemoryStore;
    use crate::memory::Fault;

    fn order(id: &str, reason: Option<&str>) -> Order {
        let [id, by, at] = [id, "ann@desk", "2026-11-21T12:00:00Z"].map(str::to_owned);
        Order { id, by, at, reason: reason.map(str::to_owned) }
    }

    fn whole() -> Steering {
        let [node, incarnation] = ["web-1", "ab"].map(str::to_owned);
        let ask = Ask::StepDown { node, incarnation, for_s: 60 };
        Steering {
            suspended: Some(order("1", Some("maintenance"))),
            request: Some(Request { order: order("2", None), ask }),
        }
    }

    #[test]
    fn it_is_read_as_it_is_written() {
        let [node, incarnation] = ["web-1", "ab"].map(str::to_owned);
        let request = Request { order: order("3", None), ask: Ask::Transfer { node, incarnation } };
        for steering in [Steering::default(), whole(), Steering { suspended: None, request: Some(request) }] {
            assert_eq!(Steering::decode(&steering.encode()), Ok(steering));
        }
        assert_eq!(
            whole().encode(),
            r#"{"format":1,"request":{"ask":{"step-down":{"for_s":60,"incarnation":"ab","node":"web-1"}},"order":{"at":"2026-11-21T12:00:00Z","by":"ann@desk","id":"2","reason":null}},"suspended":{"at":"2026-11-21T12:00:00Z","by":"ann@desk","id":"1","reason":"maintenance"}}"#
        );
        let mut two = [Order::now("a@b", None).unwrap(), Order::now("a@b", None).unwrap()];
        two.iter_mut().for_each(|order| order.at.clear());
        assert_ne!(two[0], two[1]);
        let own = Order::now(&Order::by_preference("web-1"), Some("web-2 is preferred")).unwrap();
        assert_eq!(own.told(), "web-1 (--preempt): web-2 is preferred");
        assert!(own.is_preference() && !two[0].is_preference());
    }

    #[test]
    fn what_cannot_be_used_says_what_to_do() {
        for spoilt in ["", "{}", "null", "{\"format\":1}x", "{\"format\":1,\"suspended\":null,\"request\":7}"] {
            let error = Steering::decode(spoilt.as_bytes()).unwrap_err();
            assert!(error.to_string().contains("baton resume"), "{spoilt}: {error}");
        }
        let later = br#"{"format":2,"more":1}"#;
        assert!(Steering::decode(later).unwrap_err().to_string().contains("update Baton"));
        assert!(matches!(Steering::decode(&[b' '; LARGEST + 1]), Err(SteeringError::Damaged(_))));
    }

    #[tokio::test]
    async fn a_change_is_made_once_through_conflict_and_doubt() {
        let store = MemoryStore::new(Arc::new(|| Duration::ZERO));
        let job = ElectionName::new("job").unwrap();
        let suspend = |id: &'static str| {
            move |found: Result<Steering, SteeringError>| {
                let found = found.map_err(EditError::from)?;
                let was = found.suspended.is_some();
                Ok::<_, EditError>((Steering { suspended: Some(order(id, None)), ..found }, was))
            }
        };
        assert_eq!(edit(&store, &job, suspend("1")).await, Ok(false));
        for (id, fault) in [("2", Fault::LoseAnswer), ("3", Fault::LoseRequest)] {
            store.fail_next(fault);
            // What it found before it was written itself.
            assert_eq!(edit(&store, &job, suspend(id)).await, Ok(true));
            assert_eq!(read(&store, &job).await.unwrap().mark(), format!("{id}/"));
        }
        let (version, _) = match store.read(VersionedObject::Steering, &job, None).await.unwrap() {
            crate::Reading::Found(version, content) => (version, content),
            other => panic!("{other:?}"),
        };
        store.write(VersionedObject::Steering, &job, Some(&version), "spoilt".into()).await.unwrap();
        assert!(matches!(edit(&store, &job, suspend("4")).await, Err(EditError::Unusable(_))));
        let mend = |_| Ok::<_, EditError>((Steering::default(), ()));
        edit(&store, &job, mend).await.unwrap();
        assert_eq!(read(&store, &job).await, Ok(Steering::default()));
    }
}
