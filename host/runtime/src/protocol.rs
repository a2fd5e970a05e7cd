//! What a host and the runner of one instance say to each other, and before that a host and a template: messages over two
//! pipes, one each way.
//!
//! A message is its length in bytes, as four of them in little endian, and as many bytes of Postcard
//! (<https://postcard.jamesmunns.com/wire-format>). Both sides are one program, so there are no versions. The runner
//! believes its host. The host believes nothing that it reads: each message is no longer than it may be and is one of
//! those below, and who sends anything else is ended.

use std::collections::BTreeMap;
use std::io::{self, Read};
use std::net::SocketAddr;

use baton_election::{StopReason, Term};
use baton_store::Digest;
use baton_store::address::AddressKind;
use bytes::Bytes;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::engine::Purpose;
use super::http::{RefusedRequest, Requested};
use super::limits::NearLimit;
use super::logging::LogLevel;
use super::module::Outline;
use super::output::Stream;
use super::policy::Policy;
use super::postmortem::Left;

/// The length of a message's length, in bytes.
const LENGTH: usize = 4;

/// A host says no more in one message, in bytes: a state, and certificates.
pub(super) const LONGEST_TO_RUNNER: usize = 1 << 30;

/// What a runner exits with that ends itself since its time is over.
pub(super) const TIME_IS_OVER: i32 = 3;

/// What a template links: the module that has this outline, whose code it was handed over, after the two pipes.
#[derive(Serialize, Deserialize)]
pub(super) struct ToLink {
    pub outline: Outline,
    pub purpose: Purpose,
}

/// What a template says, once.
#[derive(Serialize, Deserialize)]
pub(super) enum FromTemplate {
    /// It forks runners.
    Linked,
    /// The module cannot run here, for these reasons.
    Unsuitable(String),
    /// It could not make itself ready.
    Failed(String),
}

/// An address that a name has, and what it is as seen from this machine.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) struct Resolved {
    pub address: SocketAddr,
    pub kind: AddressKind,
}

/// What a host says to a runner.
#[derive(Serialize, Deserialize)]
pub(super) enum ToRunner {
    /// Get ready for this. It is the first message.
    Prepare(Box<Setup>),
    /// Run an instance of it. It is the second.
    Start(Box<Beginning>),
    /// The instance is asked to stop.
    Stop(Notice),
    /// The commit is saved, or this is why it is not.
    Committed(Result<(), NotCommitted>),
    /// The addresses of the name that was asked for under this number, or why there are none.
    Resolved(u64, Result<Vec<Resolved>, String>),
}

/// What a runner must know of its module beside what its template knows, and what that may do.
#[derive(Clone, Serialize, Deserialize)]
pub(super) struct Setup {
    /// Of the module, for messages.
    pub digest: Digest,
    pub policy: Policy,
    /// Whether it rehearses the start of an instance.
    pub rehearses: bool,
    /// Whether it was handed over a lock, by which others know that it is there.
    pub is_witnessed: bool,
}

/// An instance of a module.
#[derive(Serialize, Deserialize)]
pub(super) struct Beginning {
    pub term: Term,
    pub election: String,
    pub node: String,
    pub arguments: Vec<String>,
    pub environment: Vec<(String, String)>,
    pub config: Vec<(String, String)>,
    /// What was saved, if it keeps a state.
    pub entries: Option<BTreeMap<String, Bytes>>,
}

/// A request to stop, as a message.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Notice {
    pub reason: Reason,
    pub message: String,
    /// The time until the grace ends, in milliseconds.
    pub grace_ms: u64,
}

/// [`StopReason`] as a message.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) enum Reason {
    LeaseAtRisk,
    LeaseLost,
    StepDown,
    Replaced,
    Shutdown,
}

impl From<StopReason> for Reason {
    fn from(reason: StopReason) -> Self {
        match reason {
            StopReason::LeaseAtRisk => Self::LeaseAtRisk,
            StopReason::LeaseLost => Self::LeaseLost,
            StopReason::StepDown => Self::StepDown,
            StopReason::Replaced => Self::Replaced,
            StopReason::Shutdown => Self::Shutdown,
        }
    }
}

/// Why a commit was not saved, as far as a guest can do something about it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) enum NotCommitted {
    InvalidKey(String),
    TooLarge(String),
    Refused(String),
    Unavailable(String),
    Unknown(String),
}

/// What a runner says.
#[derive(Serialize, Deserialize)]
pub(super) enum FromRunner {
    /// It waits for an instance to run. It is the first message, or the next one is.
    Ready {
        /// Whether each granted folder was there. It reaches those alone that were, whatever comes later.
        has_folders: bool,
    },
    /// The runner could not make itself ready.
    Failed(String),
    /// The guest's first instruction comes next.
    Started,
    /// A line that the guest printed.
    Line(Stream, String),
    /// What the guest logged.
    Log { level: LogLevel, context: String, message: String },
    /// So many lines were dropped.
    Dropped(u64),
    /// The guest asked for something that it was not granted.
    Denied { what: String, remedy: String },
    /// The guest uses much of what it may.
    NearLimit(NearLimit),
    /// A request was refused.
    RefusedRequest(RefusedRequest),
    /// The guest gives leadership up.
    StepDown(String),
    /// The guest commits. It waits for the answer.
    Commit(Changes),
    /// The guest has a request for a server of this name.
    Resolve { number: u64, host: String, port: u16 },
    /// The host functions of this program failed.
    Panicked(String),
    /// The instance has ended. It is the last message.
    Ended(Box<Ended>),
    /// A request was answered, or failed.
    Requested(Box<Requested>),
}

/// The changes of a commit: their number and they themselves, as the host takes them apart. A change may be a few bytes
/// in a message, and take far more of memory.
#[derive(Serialize, Deserialize)]
pub(super) struct Changes(Bytes);

impl Changes {
    /// These.
    ///
    /// # Errors
    /// Where they cannot be put into bytes.
    pub(super) fn of(changes: &[Change]) -> io::Result<Self> {
        postcard::to_stdvec(changes).map(|bytes| Self(bytes.into())).map_err(io::Error::other)
    }

    /// Each of them, if together they take no more than `longest` bytes of memory beside their texts. The runtime holds
    /// guests to as much: a list is counted by what it takes, before it is handed over.
    ///
    /// # Errors
    /// What is wrong with them.
    pub(super) fn read(&self, longest: usize) -> io::Result<Vec<Change>> {
        let wrong = |error: postcard::Error| broken(&error.to_string());
        let (number, mut rest) = postcard::take_from_bytes::<u64>(&self.0).map_err(wrong)?;
        let most = longest / size_of::<(String, Vec<u8>)>();
        if usize::try_from(number).ok().is_none_or(|number| number > most) {
            let why = format!("a commit of {number} changes, which is too many");
            return Err(io::Error::new(io::ErrorKind::InvalidData, why));
        }
        let mut changes = Vec::new();
        for _ in 0..number {
            let (change, others) = postcard::take_from_bytes(rest).map_err(wrong)?;
            changes.push(change);
            rest = others;
        }
        if rest.is_empty() { Ok(changes) } else { Err(broken("extra bytes after the changes")) }
    }
}

/// [`Change`](baton_store::state::Change) as a message.
#[derive(Serialize, Deserialize)]
pub(super) enum Change {
    Put(String, Bytes),
    Delete(String),
}

/// How an instance ended by itself.
#[derive(Serialize, Deserialize)]
pub(super) struct Ended {
    pub how: How,
    pub backtrace: Option<String>,
    pub left: Left,
}

/// [`End`](baton_election::End) as a message.
#[derive(Serialize, Deserialize)]
pub(super) enum How {
    Done,
    Failed(String),
    Crashed(String),
    Fatal(String),
    /// It ended since its time was over.
    Killed,
    /// A granted folder cannot be opened on this node.
    Unable(String),
}

/// A message as it is sent.
///
/// # Errors
/// Where it cannot be put into bytes.
pub(super) fn frame(message: &impl Serialize) -> io::Result<Vec<u8>> {
    let mut framed = postcard::to_extend(message, vec![0; LENGTH]).map_err(io::Error::other)?;
    let length = u32::try_from(framed.len() - LENGTH).map_err(io::Error::other)?;
    framed[..LENGTH].copy_from_slice(&length.to_le_bytes());
    Ok(framed)
}

/// The next message of no more than `longest` bytes; none where the other side has closed.
///
/// # Errors
/// Those of reading, and what is wrong with the message.
pub(super) fn read<M: DeserializeOwned>(from: &mut impl Read, longest: usize) -> io::Result<Option<M>> {
    let mut length = [0; LENGTH];
    if from.read(&mut length[..1])? == 0 {
        return Ok(None);
    }
    from.read_exact(&mut length[1..])?;
    let mut message = vec![0; checked(length, longest)?];
    from.read_exact(&mut message)?;
    parsed(&message).map(Some)
}

/// A pipe's messages, read piece by piece.
pub(super) struct Messages<R> {
    from: R,
    longest: usize,
    /// What was read and not taken.
    read: bytes::BytesMut,
}

/// So much of a message is made room for before it has arrived, in bytes.
const ROOM: usize = 64 << 10;

impl<R: tokio::io::AsyncRead + Unpin> Messages<R> {
    pub(super) fn new(from: R, longest: usize) -> Self {
        Self { from, longest, read: bytes::BytesMut::new() }
    }

    /// The next message; none where the other side has closed. Cancel safe.
    ///
    /// # Errors
    /// Those of reading, and what is wrong with the message.
    pub(super) async fn next<M: DeserializeOwned>(&mut self) -> io::Result<Option<M>> {
        use tokio::io::AsyncReadExt as _;

        loop {
            if let Some((length, rest)) = self.read.split_first_chunk::<LENGTH>() {
                let length = checked(*length, self.longest)?;
                if let Some(message) = rest.get(..length) {
                    let message = parsed(message);
                    bytes::Buf::advance(&mut self.read, LENGTH + length);
                    return message.map(Some);
                }
            }
            self.read.reserve(ROOM);
            if self.from.read_buf(&mut self.read).await? == 0 {
                return match self.read.is_empty() {
                    true => Ok(None),
                    false => Err(io::ErrorKind::UnexpectedEof.into()),
                };
            }
        }
    }
}

fn checked(length: [u8; LENGTH], longest: usize) -> io::Result<usize> {
    let length = u32::from_le_bytes(length) as usize;
    if length > longest {
        let why = format!("a message of {length} bytes, which is too long");
        return Err(io::Error::new(io::ErrorKind::InvalidData, why));
    }
    Ok(length)
}

fn broken(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("a message that is invalid: {why}"))
}

fn parsed<M: DeserializeOwned>(message: &[u8]) -> io::Result<M> {
    match postcard::take_from_bytes(message) {
        Ok((message, [])) => Ok(message),
        Ok(_) => Err(broken("extra bytes after it")),
        Err(error) => Err(broken(&error.to_string())),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may panic")]
    use super::*;

    fn put() -> Changes {
        Changes::of(&[Change::Put("key".to_owned(), Bytes::from_static(b"value"))]).unwrap()
    }

    #[test]
    fn changes_are_read_as_they_were_and_are_not_more_than_memory_may_be_taken_for() {
        let changes = put().read(ROOM).unwrap();
        assert!(matches!(&changes[..], [Change::Put(key, value)] if key == "key" && value == "value"));
        let many: Vec<_> = (0..ROOM).map(|_| Change::Delete(String::new())).collect();
        let many = Changes::of(&many).unwrap();
        assert!(many.0.len() < 3 * ROOM && many.read(3 * ROOM).is_err(), "they are small in the message alone");
        assert_eq!(many.read(ROOM * size_of::<(String, Vec<u8>)>()).unwrap().len(), ROOM);
        for strange in [&[][..], &[1], &[0, 0], &[0xff; 9], b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"] {
            assert!(Changes(Bytes::from_static(strange)).read(usize::MAX).is_err(), "{strange:?}");
        }
    }

    #[tokio::test]
    async fn what_is_sent_arrives_in_any_pieces_and_nothing_else_does() {
        let sent: Vec<FromRunner> = vec![
            FromRunner::Ready { has_folders: true },
            FromRunner::Line(Stream::Stdout, "x".repeat(3 * ROOM)),
            FromRunner::Commit(put()),
        ];
        let all: Vec<u8> = sent.iter().flat_map(|message| frame(message).unwrap()).collect();
        let mut messages = Messages::new(&all[..], 4 * ROOM);
        assert!(matches!(messages.next().await.unwrap(), Some(FromRunner::Ready { has_folders: true })));
        assert!(
            matches!(messages.next().await.unwrap(), Some(FromRunner::Line(Stream::Stdout, line)) if line.len() == 3 * ROOM)
        );
        assert!(
            matches!(messages.next().await.unwrap(), Some(FromRunner::Commit(changes)) if changes.read(ROOM).unwrap().len() == 1)
        );
        assert!(messages.next::<FromRunner>().await.unwrap().is_none());
        let mut cut = Messages::new(&all[..all.len() - 1], 4 * ROOM);
        cut.next::<FromRunner>().await.unwrap();
        cut.next::<FromRunner>().await.unwrap();
        assert!(cut.next::<FromRunner>().await.is_err(), "the last one has not arrived whole");
        let mut short = Messages::new(&all[..], ROOM);
        short.next::<FromRunner>().await.unwrap();
        assert!(short.next::<FromRunner>().await.is_err(), "it is too long");
        for strange in [&[1, 0, 0, 0, 99][..], &[3, 0, 0, 0, 0, 0, 0], &[0, 0, 0, 0]] {
            assert!(Messages::new(strange, ROOM).next::<FromRunner>().await.is_err(), "{strange:?}");
            assert!(read::<FromRunner>(&mut &strange[..], ROOM).is_err(), "{strange:?}");
        }
    }
}
