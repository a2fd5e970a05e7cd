//! What the lease store holds for an election, and the words for it.

use alloc::string::{String, ToString};
use core::fmt;
use core::time::Duration;

/// An election's name: 1 to 63 of `a-z`, `0-9` and `-`, starting with a letter.
///
/// The rule is the strictest of what the stores allow, so that a name valid for one is valid for all.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ElectionName(String);

/// Why a text is not an [`ElectionName`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not an election's name: use 1 to 63 of a-z, 0-9 and hyphens, starting with a letter")]
pub struct InvalidElectionName(pub String);

impl ElectionName {
    /// Checks `name`.
    ///
    /// # Errors
    /// [`InvalidElectionName`] where it breaks the rule above.
    pub fn new(name: &str) -> Result<Self, InvalidElectionName> {
        let legal = |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit() || c == b'-';
        let starts_with_letter = name.as_bytes().first().is_some_and(u8::is_ascii_lowercase);
        if starts_with_letter && name.len() <= 63 && name.bytes().all(legal) {
            Ok(Self(name.to_string()))
        } else {
            Err(InvalidElectionName(name.to_string()))
        }
    }

    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for ElectionName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A term's number: the fencing token. It only rises; 0 means that no term has begun yet.
pub type Term = u64;

/// No term gets here, even if a million begin each second. An object that names this term or a higher one was not written
/// by any holder: the next number would not be higher any more, or not fit into every store.
pub const HIGHEST_TERM: Term = 1 << 62;

/// The random id of one acquisition of the lease, a UUID (version 4) as Azure wants it.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct LeaseId(u128);

impl LeaseId {
    /// Makes an id of 122 of the 128 random bits given.
    pub fn from_random(bits: u128) -> Self {
        let version_4 = (bits & !(0xf << 76)) | (0x4 << 76);
        Self((version_4 & !(0x3 << 62)) | (0x2 << 62))
    }

    /// The number behind the id, for stores that keep it as bytes.
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

/// The store's mark of one state of the record (an ETag): it changes with each write of the record and
/// with nothing else, lease calls least of all.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Version(pub String);

/// What the holder of the lease writes beside it: the object's metadata.
#[derive(Clone, PartialEq, Eq, Debug, Hash)]
pub struct Record {
    /// The highest term begun.
    pub term: Term,
    /// The node that began it; none in a record that was created and never held, and while a new holder waits
    /// another's time out.
    pub node: Option<String>,
    /// The incarnation of that node, unique to one start of its host.
    pub incarnation: String,
    /// When the term began: wall-clock time since the Unix epoch. For people; no rule reads it.
    pub since: Duration,
    /// The length of the lease under which the term was begun (D).
    pub lease: Duration,
    /// The digest of the module that ran, `sha256:` and 64 hexadecimal digits. The outcome and the failures are its
    /// own.
    pub module: Option<String>,
    /// How the election ended, where it has: no node starts that module again.
    pub outcome: Option<Outcome>,
    /// Failures in a row, over all nodes.
    pub failures: u32,
    /// Whether nothing of that term, or of any before it, can still run: its holder marks it so after its instance is
    /// gone and before it releases the lease; so does the node that creates the record of an election that nobody has ever
    /// led. A lease that is free without the mark was not released: any write without a lease id frees a lease that is
    /// broken or expired.
    pub released: bool,
    /// The wall-clock time since the Unix epoch before which no node begins the next term of that module (`--restart-delay`), if the
    /// last one was done. A clock that differs can shorten the pause, and lengthens it to `--restart-delay` at most.
    pub rests_until: Option<Duration>,
}

impl Record {
    /// Names the term that another record names: its number, who began it, when, and under which lease. What is the
    /// module's stays.
    pub(crate) fn names_term_of(&mut self, other: &Self) {
        let Self { term, node, incarnation, since, lease, .. } = other.clone();
        (self.term, self.node, self.incarnation, self.since, self.lease) = (term, node, incarnation, since, lease);
    }
}

/// How an election ended for good (`--restart on-failure`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum Outcome {
    /// The coordinator returned ok.
    Done,
}

/// What the store says of the lease itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum LeaseState {
    /// Held, until it runs out. Under a marked record its release may be on its way.
    Held,
    /// Held without an end: nothing that Baton does.
    HeldForever,
    /// Free: never held, or released.
    Free,
    /// Its time ran out.
    Expired,
    /// Its time has not run out, but its holder is gone. The store itself has found that out, as it answered: by a witness
    /// that cannot err, of every process of the incarnation that the record names, which began its term under this very
    /// lease. A store without such a witness never says so.
    Abandoned {
        /// The id that it was held under.
        holder: LeaseId,
    },
    /// Its time has not run out, its holder is gone, as certainly as under [`Abandoned`](Self::Abandoned), and this node
    /// knows the id that it is held under, from a note of the holder's: so it can go on with the lease, and nobody else can.
    /// A store that keeps no such notes never says so.
    Reclaimable {
        /// The id that it is held under.
        holder: LeaseId,
    },
    /// Broken by an operator, with some of its time still to go.
    Breaking,
    /// Broken by an operator.
    Broken,
}

impl LeaseState {
    /// Whether nobody else can acquire it.
    pub fn is_held(self) -> bool {
        match self {
            Self::Held | Self::HeldForever | Self::Breaking => true,
            Self::Free | Self::Expired | Self::Abandoned { .. } | Self::Reclaimable { .. } | Self::Broken => false,
        }
    }
}

/// One reading of an election in the store.
#[derive(Clone, PartialEq, Eq, Debug, Hash)]
pub enum Snapshot {
    /// There is nothing under the election's name.
    Nothing,
    /// There is an object with a lease.
    Object {
        /// The state of its lease.
        lease: LeaseState,
        /// The mark that conditional writes carry.
        version: Version,
        /// Its record; none in an object that somebody else made.
        record: Option<Record>,
    },
}

impl Snapshot {
    /// Whether the record names this term or a higher one. While it does not, whatever else names the term is kept:
    /// nothing else may know of it.
    #[must_use]
    pub fn names(&self, term: Term) -> bool {
        self.term() >= term
    }

    /// The term that the record names; 0 where there is none.
    #[must_use]
    pub fn term(&self) -> Term {
        match self {
            Self::Object { record: Some(record), .. } => record.term,
            Self::Object { record: None, .. } | Self::Nothing => 0,
        }
    }
}
