//! Operators' commands to an election's nodes (`ELECTION/steering`).
//!
//! Steering can only keep a node from leading, so no safety promise depends on steering. A **suspension** applies to
//! every node until it is revoked. A node follows a **request** (to step down, to transfer) only once. The request's
//! time is counted from the moment when the node first reads the request, on the node's own clock. A node ignores a
//! request that existed before the node started. The clocks of two machines are never compared: the times in this
//! object are only for people to read.

use std::time::Duration;

use baton_election::ElectionName;
#[cfg(doc)]
use baton_election::Progress;
use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::edit::{self, Edit, Unusable, WriteOutcome};
use crate::{ObjectStore, VersionedObject};
use baton_base::clock::{rfc3339, wall};

/// The format of an object without a triggered run. If a field is added, the format must change: otherwise, an older
/// host would report the object as damaged.
const FORMAT: u64 = 1;
/// The format of an object with a command about scheduled runs.
const FORMAT_WITH_SCHEDULE: u64 = 2;

/// Maximum size of an object to read, in bytes. Baton never writes a larger object.
const LARGEST: usize = 64 << 10;

/// Maximum length of a reason, in bytes.
pub const LONGEST_REASON: usize = 500;

/// The longest time for which a leader that steps down may be made ineligible.
pub const LONGEST_STEP_DOWN: Duration = Duration::from_secs(24 * 60 * 60);

/// The commands to an election's nodes.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Steering {
    /// The suspension, if any. No node leads while there is one.
    pub suspended: Option<CommandOrigin>,
    /// The latest request. It stays here after nodes have followed it.
    pub request: Option<Request>,
    /// The latest triggered run. It stays here after the run.
    pub trigger: Option<Trigger>,
    /// The latest command that set the progress of the scheduled runs.
    pub progress: Option<SetProgress>,
}

/// A command that sets the progress of an election's scheduled runs.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SetProgress {
    /// The origin of the command.
    pub order: CommandOrigin,
    /// The progress from which the leader continues, in the text form of [`Progress`]. Its epoch is higher than that of
    /// the recorded progress, so the leader takes it over once.
    pub progress: String,
}

/// A command to run a coordinator with a schedule once more.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Trigger {
    /// The origin of the command.
    pub order: CommandOrigin,
    /// The due time of the run, in seconds since the Unix epoch. Nodes record it like any other due time, so that the
    /// run happens once.
    pub due_s: u64,
}

/// The origin of a command: who gave it, when and why.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CommandOrigin {
    /// A random id of the command.
    pub id: String,
    /// The author: `USER@HOST`, the node whose endpoint was used, or a leader that [prefers another
    /// node](Self::by_preference).
    pub by: String,
    /// Time of the command, in RFC 3339.
    pub at: String,
    /// Human-readable reason.
    pub reason: Option<String>,
}

/// A command that nodes follow only once.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Request {
    /// The request's origin.
    pub order: CommandOrigin,
    /// The requested action.
    pub ask: Ask,
    /// The shard of the group to which the request applies. `None` in an election without shards.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shard: Option<u8>,
}

/// An action that can be requested.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Ask {
    /// The given run of a node stops leading, and is ineligible for a while.
    StepDown {
        /// The node's id.
        node: String,
        /// The incarnation: the id of this run of the node.
        incarnation: String,
        /// Duration in seconds.
        for_s: u64,
    },
    /// All other nodes are ineligible until the given run of a node has had its chance to lead.
    Transfer {
        /// The node's id.
        node: String,
        /// The incarnation: the id of this run of the node.
        incarnation: String,
    },
}

/// Suffix of the author's name if the author is a leader that hands over to a node with a higher priority.
const PREEMPTS: &str = " (--preempt)";

impl CommandOrigin {
    /// Returns the author's name for a command that the leader `node` gives because it prefers another node.
    #[must_use]
    pub fn by_preference(node: &str) -> String {
        format!("{node}{PREEMPTS}")
    }

    /// True if a leader gave the command because it prefers another node.
    #[must_use]
    pub fn is_preference(&self) -> bool {
        self.by.ends_with(PREEMPTS)
    }

    /// Creates the origin of a command that is given now.
    ///
    /// # Errors
    /// Fails if the system cannot provide random numbers.
    pub fn now(by: &str, reason: Option<&str>) -> Result<Self, getrandom::Error> {
        let mut bytes = [0; 8];
        getrandom::fill(&mut bytes)?;
        let id = format!("{:016x}", u64::from_be_bytes(bytes));
        Ok(Self { id, by: by.to_owned(), at: rfc3339(wall()), reason: reason.map(str::to_owned) })
    }

    /// Returns the author and the reason, for display.
    #[must_use]
    pub fn told(&self) -> String {
        match &self.reason {
            Some(reason) => format!("{}: {reason}", self.by),
            None => self.by.clone(),
        }
    }
}

/// The error returned when a steering object cannot be used.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum SteeringError {
    /// The object is damaged, or another program wrote it.
    #[error("the election's steering object is damaged ({0}): `baton resume` replaces it with an empty one")]
    Damaged(String),
    /// A later version of Baton wrote the object.
    #[error(
        "the election's steering object has format {0}, but this version of Baton reads up to {FORMAT_WITH_SCHEDULE}: update Baton"
    )]
    Format(u64),
}

#[derive(Deserialize)]
struct Head {
    format: u64,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Stored {
    #[expect(dead_code, reason = "the head has it")]
    format: u64,
    suspended: Option<CommandOrigin>,
    request: Option<Request>,
    #[serde(default)]
    trigger: Option<Trigger>,
    #[serde(default)]
    progress: Option<SetProgress>,
}

impl Steering {
    /// Decodes a stored steering object.
    ///
    /// # Errors
    /// [`SteeringError`] if this version cannot use the object.
    pub fn decode(content: &[u8]) -> Result<Self, SteeringError> {
        if content.len() > LARGEST {
            return Err(SteeringError::Damaged(format!("{} bytes are more than Baton writes", content.len())));
        }
        let damaged = |error: serde_json::Error| SteeringError::Damaged(error.to_string());
        let Head { format } = serde_json::from_slice(content).map_err(damaged)?;
        if ![FORMAT, FORMAT_WITH_SCHEDULE].contains(&format) {
            return Err(SteeringError::Format(format));
        }
        let Stored { format: _, suspended, request, trigger, progress } =
            serde_json::from_slice(content).map_err(damaged)?;
        Ok(Self { suspended, request, trigger, progress })
    }

    /// Encodes the object for the store.
    #[must_use]
    pub fn encode(&self) -> Bytes {
        let Self { suspended, request, trigger, progress } = self;
        let mut object = serde_json::json!({ "format": FORMAT, "suspended": suspended, "request": request });
        if let Some(trigger) = trigger {
            object["format"] = FORMAT_WITH_SCHEDULE.into();
            object["trigger"] = serde_json::json!(trigger);
        }
        if let Some(progress) = progress {
            object["format"] = FORMAT_WITH_SCHEDULE.into();
            object["progress"] = serde_json::json!(progress);
        }
        object.to_string().into()
    }

    /// Returns a text that identifies the current suspension and request. A triggered run is not part of the text,
    /// because it needs no confirmation by nodes.
    #[must_use]
    pub fn mark(&self) -> String {
        let suspended = self.suspended.as_ref().map_or("", |order| &order.id);
        let request = self.request.as_ref().map_or("", |request| &request.order.id);
        format!("{suspended}/{request}")
    }
}

/// Reads an election's steering object. Returns an empty object if none has ever been written.
///
/// # Errors
/// [`EditError`] if the object cannot be read.
pub async fn read(store: &dyn ObjectStore, election: &ElectionName) -> Result<Steering, EditError> {
    let found = Edit::of(store, VersionedObject::Steering, election).read().await?;
    Ok(found.map(|content| Steering::decode(&content)).transpose()?.unwrap_or_default())
}

/// Updates an election's steering object in one conditional write. Writes nothing if `change` leaves the object as it
/// is.
///
/// If another client writes first, calls `change` again, so `change` must be deterministic. If an earlier write may
/// have succeeded, returns the result of the call to `change` that produced that write.
///
/// # Errors
/// Returns the errors of `change`, and [`EditError`]. After an error, nothing has been changed, unless the error says
/// that the outcome is unknown.
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
            WriteOutcome::Written => return Ok(doubt.unwrap_or(answer)),
            WriteOutcome::Refused => {}
            WriteOutcome::InDoubt => drop(doubt.get_or_insert(answer)),
        }
    }
}

/// The error returned when the object could not be read or changed.
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

    fn order(id: &str, reason: Option<&str>) -> CommandOrigin {
        let [id, by, at] = [id, "ann@desk", "2026-11-21T12:00:00Z"].map(str::to_owned);
        CommandOrigin { id, by, at, reason: reason.map(str::to_owned) }
    }

    fn whole() -> Steering {
        let [node, incarnation] = ["web-1", "ab"].map(str::to_owned);
        let ask = Ask::StepDown { node, incarnation, for_s: 60 };
        Steering {
            suspended: Some(order("1", Some("maintenance"))),
            request: Some(Request { order: order("2", None), ask, shard: None }),
            ..Steering::default()
        }
    }

    #[test]
    fn steering_round_trips_through_its_encoding() {
        let [node, incarnation] = ["web-1", "ab"].map(str::to_owned);
        let request = Request { order: order("3", None), ask: Ask::Transfer { node, incarnation }, shard: None };
        let trigger = Some(Trigger { order: order("4", None), due_s: 1_700_000_000 });
        let progress = SetProgress { order: order("5", None), progress: "1 2 3 4 5 -".to_owned() };
        let with_trigger = Steering { trigger, progress: Some(progress), ..whole() };
        assert!(with_trigger.encode().starts_with(b"{\"format\":2,"));
        let with_request = Steering { request: Some(request), ..Steering::default() };
        for steering in [Steering::default(), whole(), with_request, with_trigger] {
            assert_eq!(Steering::decode(&steering.encode()), Ok(steering));
        }
        assert_eq!(
            whole().encode(),
            r#"{"format":1,"request":{"ask":{"step-down":{"for_s":60,"incarnation":"ab","node":"web-1"}},"order":{"at":"2026-11-21T12:00:00Z","by":"ann@desk","id":"2","reason":null}},"suspended":{"at":"2026-11-21T12:00:00Z","by":"ann@desk","id":"1","reason":"maintenance"}}"#
        );
        let mut two = [CommandOrigin::now("a@b", None).unwrap(), CommandOrigin::now("a@b", None).unwrap()];
        two.iter_mut().for_each(|order| order.at.clear());
        assert_ne!(two[0], two[1]);
        let own = CommandOrigin::now(&CommandOrigin::by_preference("web-1"), Some("web-2 is preferred")).unwrap();
        assert_eq!(own.told(), "web-1 (--preempt): web-2 is preferred");
        assert!(own.is_preference() && !two[0].is_preference());
    }

    #[test]
    fn unusable_object_names_the_remedy() {
        for spoilt in ["", "{}", "null", "{\"format\":1}x", "{\"format\":1,\"suspended\":null,\"request\":7}"] {
            let error = Steering::decode(spoilt.as_bytes()).unwrap_err();
            assert!(error.to_string().contains("baton resume"), "{spoilt}: {error}");
        }
        let later = br#"{"format":3,"more":1}"#;
        assert!(Steering::decode(later).unwrap_err().to_string().contains("update Baton"));
        assert!(matches!(Steering::decode(&[b' '; LARGEST + 1]), Err(SteeringError::Damaged(_))));
    }

    #[tokio::test]
    async fn edit_is_made_once_despite_unknown_outcomes() {
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
            // If the answer is lost, the edit finds that its first attempt was written. Even then, the result describes
            // the object before that attempt.
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
