//! An election's data in the lease store.

use alloc::boxed::Box;
use alloc::format;
use alloc::string::{String, ToString};
use core::cmp::Ordering;
use core::fmt;
use core::time::Duration;

use crate::request::Recalled;
use crate::schedule::{Progress, ScheduledRun};

/// An election's name: 1 to 63 characters of `a-z`, `0-9` and `-`, starting with a letter.
///
/// These are the rules of the strictest store, so a valid name works in every store.
///
/// A group's shards are elections, too. The name of a shard is the group's name, a slash and the shard's index:
///
/// ```
/// use baton_election::ElectionName;
///
/// let shard = ElectionName::new("crawl/3")?;
/// assert_eq!((shard.group(), shard.shard()), ("crawl", Some(3)));
/// let election = ElectionName::new("billing")?;
/// assert_eq!((election.group(), election.shard()), ("billing", None));
/// # Ok::<(), baton_election::InvalidElectionName>(())
/// ```
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct ElectionName(String);

/// Maximum number of shards in a group. Shard indexes start at 0.
pub const MAX_SHARDS: u16 = 256;

/// Error for a string that is not a valid [`ElectionName`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not an election's name: use 1 to 63 characters: a-z, 0-9 and hyphens, starting with a letter")]
pub struct InvalidElectionName(pub String);

impl ElectionName {
    /// Creates the name of an election or a shard, after a check that `name` is valid: see [`ElectionName`].
    ///
    /// # Errors
    /// [`InvalidElectionName`] if `name` is not valid.
    pub fn new(name: &str) -> Result<Self, InvalidElectionName> {
        let invalid = || InvalidElectionName(name.to_string());
        let (group, shard) = name.split_once('/').map_or((name, None), |(group, shard)| (group, Some(shard)));
        // Each shard has only one name, so an index has no leading zeros.
        let index = |text: &str| text.parse::<u8>().ok().filter(|index| index.to_string() == text);
        let is_shard = shard.is_none_or(|text| index(text).is_some());
        let legal = |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit() || c == b'-';
        let starts_with_letter = group.as_bytes().first().is_some_and(u8::is_ascii_lowercase);
        if is_shard && starts_with_letter && group.len() <= 63 && group.bytes().all(legal) {
            Ok(Self(name.to_string()))
        } else {
            Err(invalid())
        }
    }

    /// The name as a string.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The name of the group, if this is a shard; otherwise the whole name.
    pub fn group(&self) -> &str {
        Self::group_in(&self.0)
    }

    /// The name of the group in an election's name that may be invalid. See [`group`](Self::group).
    pub fn group_in(name: &str) -> &str {
        name.split_once('/').map_or(name, |(group, _)| group)
    }

    /// The index of the shard, if this is a shard.
    pub fn shard(&self) -> Option<u8> {
        self.0.split_once('/').and_then(|(_, index)| index.parse().ok())
    }

    /// The election of the group, without a shard.
    #[must_use]
    pub fn without_shard(&self) -> Self {
        Self(self.group().to_string())
    }

    /// The election of the shard with this index, in the same group.
    #[must_use]
    pub fn with_shard(&self, index: u8) -> Self {
        Self(format!("{}/{index}", self.group()))
    }
}

impl fmt::Display for ElectionName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Ord for ElectionName {
    /// Orders by group, then by the number of the shard.
    fn cmp(&self, other: &Self) -> Ordering {
        (self.group(), self.shard()).cmp(&(other.group(), other.shard()))
    }
}

impl PartialOrd for ElectionName {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// A term's number: the fencing token. It only rises; 0 means that no term has begun yet.
pub type Term = u64;

/// Exclusive upper limit for terms. No election reaches this limit, even with a million terms per second. If an object
/// contains this term or a higher one, no holder wrote the object. The limit keeps the next term from overflowing, and
/// makes each term fit into every store.
pub const HIGHEST_TERM: Term = 1 << 62;

/// The random id of one acquisition of the lease: a UUID (version 4), as Azure requires.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct LeaseId(u128);

impl LeaseId {
    /// Makes an id from random bits. A UUID fixes 6 of its 128 bits, so the id contains only 122 bits of `bits`.
    pub fn from_random(bits: u128) -> Self {
        let version_4 = (bits & !(0xf << 76)) | (0x4 << 76);
        Self((version_4 & !(0x3 << 62)) | (0x2 << 62))
    }

    /// The id as a number, for stores that save it as bytes.
    pub fn as_u128(self) -> u128 {
        self.0
    }
}

impl fmt::Display for LeaseId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let n = self.0;
        write!(
            f,
            "{:08x}-{:04x}-{:04x}-{:04x}-{:012x}",
            n >> 96,
            (n >> 80) & 0xffff,
            (n >> 64) & 0xffff,
            (n >> 48) & 0xffff,
            n & 0xffff_ffff_ffff
        )
    }
}

impl fmt::Debug for LeaseId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The version of the stored record (an ETag). Each write of the record changes the version; lease requests do not.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Version(pub String);

/// The record that the holder writes under the lease: the object's metadata.
#[derive(Clone, PartialEq, Eq, Debug, Hash)]
pub struct Record {
    /// The highest term that has begun.
    pub term: Term,
    /// The node that began the term. `None` if no term has begun, or while a new holder waits until another instance
    /// has ended.
    pub node: Option<String>,
    /// The incarnation of `node`, or of the record's writer if `node` is `None`: an id that is unique to one run of a
    /// host.
    pub incarnation: String,
    /// The time at which the term began, as wall-clock time since the Unix epoch. It is only for people to read; no
    /// rule depends on it.
    pub since: Duration,
    /// The length of the lease under which the term began (D). If `node` is `None`, the longest lease under which
    /// another instance may still be running.
    pub lease: Duration,
    /// The digest of the term's module (`sha256:` and 64 hexadecimal digits). `outcome` and `failures` refer to this
    /// module.
    pub module: Option<String>,
    /// The final outcome of the election, if the election has ended. No node then starts the module again.
    pub outcome: Option<Outcome>,
    /// Number of consecutive failures, across all nodes.
    pub failures: u32,
    /// True if no instance of this term or of an earlier term can still be running. A holder sets this mark after its
    /// instance is gone and before it releases the lease. A node also sets the mark when it creates the record of an
    /// election that no node has ever led. If the lease is free without the mark, no holder released it. Instead, the
    /// object was deleted and created again, or a client made the lease free: it wrote to the object without a lease id
    /// after the lease had expired or was broken.
    pub released: bool,
    /// The end of the pause after an instance has returned ok, as wall-clock time since the Unix epoch. No node starts
    /// the module's next instance before then. If the nodes' clocks differ, a node may pause for less than
    /// `--restart-delay`. A node never pauses for more, because it limits the pause to `--restart-delay`.
    pub paused_until: Option<Duration>,
    /// The progress of the election's scheduled runs, if it has ever had a schedule.
    pub progress: Option<Box<Progress>>,
}

impl Record {
    /// The scheduled run that the record's term carries out, if any.
    #[must_use]
    pub fn run(&self) -> Option<ScheduledRun> {
        self.progress.as_ref().filter(|progress| progress.has_schedule())?.unfinished()
    }

    /// Copies the term from `other`: its number, node, incarnation, start and lease. Keeps the module's fields.
    pub(crate) fn names_term_of(&mut self, other: &Self) {
        let Self { term, node, incarnation, since, lease, .. } = other.clone();
        (self.term, self.node, self.incarnation, self.since, self.lease) = (term, node, incarnation, since, lease);
    }
}

/// The final outcome of an election (`--restart on-failure`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum Outcome {
    /// The coordinator returned ok.
    Done,
}

/// The state of the lease in the store.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum LeaseState {
    /// Held, and not expired. If the record is marked as released, the release may be under way.
    Held,
    /// Held without expiry. Baton never requests such a lease.
    HeldForever,
    /// Free: never held, or released.
    Free,
    /// The lease expired: its holder neither renewed nor released it.
    Expired,
    /// The lease has not expired, but its holder is dead. While the store answered the request, it checked a witness
    /// that cannot be wrong, such as the kernel's file locks. The witness shows that every process of the incarnation
    /// in the record has exited. The record shows that this incarnation began its term under this lease. A
    /// store without a witness never reports this state.
    Abandoned {
        /// The id under which the dead holder held the lease.
        holder: LeaseId,
    },
    /// The lease has not expired, but its holder is dead, with the same certainty as in [`Abandoned`](Self::Abandoned).
    /// In addition, this host has found the lease's id in a note: a file in which the dead host saved the id on this
    /// machine. With this id, this node can resume the lease. A store without notes never reports this state.
    Reclaimable {
        /// The id under which the dead holder holds the lease.
        holder: LeaseId,
    },
    /// Broken by an operator, but not expired yet.
    Breaking,
    /// Broken by an operator.
    Broken,
}

impl LeaseState {
    /// True if only the current holder can use the lease.
    pub fn is_held(self) -> bool {
        match self {
            Self::Held | Self::HeldForever | Self::Breaking => true,
            Self::Free | Self::Expired | Self::Abandoned { .. } | Self::Reclaimable { .. } | Self::Broken => false,
        }
    }
}

/// The result of reading an election in the store.
#[derive(Clone, PartialEq, Eq, Debug, Hash)]
pub enum Snapshot {
    /// No object has the election's name.
    Nothing,
    /// An object with a lease.
    Object {
        /// The state of its lease.
        lease: LeaseState,
        /// The object's version, which conditional writes must carry.
        version: Version,
        /// The object's record, if it has one. An object that was made by a client other than Baton has none.
        record: Option<Record>,
    },
}

impl Snapshot {
    /// True if the record contains at least the term and the progress in `known`. Otherwise, a node's announcement may
    /// be the only object that contains them, so the announcement must be kept.
    #[must_use]
    pub fn covers(&self, known: &Recalled) -> bool {
        let recorded = Recalled::from_record(self.record());
        let mut all = recorded.clone();
        all.merge(known);
        all == recorded
    }

    /// The object's record, if there is one.
    #[must_use]
    pub fn record(&self) -> Option<&Record> {
        match self {
            Self::Object { record, .. } => record.as_ref(),
            Self::Nothing => None,
        }
    }

    /// The record's term; 0 if there is no record.
    #[must_use]
    pub fn term(&self) -> Term {
        self.record().map_or(0, |record| record.term)
    }
}
