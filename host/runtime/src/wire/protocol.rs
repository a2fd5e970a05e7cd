//! Messages between a host and a runner or a template, over two pipes, one for each direction.
//!
//! A message consists of the length of its content (4 bytes, little endian) and the content, encoded with Postcard
//! (<https://postcard.jamesmunns.com/wire-format>). Both sides are the same program, so the protocol has no versions.
//! The runner trusts its host. The host does not trust its runners. The host bounds the length of each message, and
//! kills a runner that sends anything but the messages below.

use std::collections::BTreeMap;
use std::io::{self, Read};
use std::net::SocketAddr;

use baton_base::address::AddressKind;
use baton_election::{ScheduledRun, StopReason, Term};
use baton_store::Digest;
use bytes::Bytes;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::host::policy::Policy;
use crate::module::Outline;
use crate::runner::http::RefusedRequest;
use crate::runner::logging::LogLevel;
use crate::wire::limits::NearLimit;
use crate::wire::output::Stream;

/// Size of the length prefix (bytes).
const LENGTH: usize = 4;

/// Maximum length of a message from a host (bytes). A message may contain a coordinator's state or certificates.
pub(crate) const LONGEST_TO_RUNNER: usize = 1 << 30;

/// Exit status of a runner that ends itself at its deadline.
pub(crate) const TIME_IS_OVER: i32 = 3;

/// Asks a template to link a module. The template receives the module's code as a descriptor, after the descriptors of
/// the two pipes.
#[derive(Serialize, Deserialize)]
pub(crate) struct ToLink {
    pub outline: Outline,
}

/// The only message that a template sends through its pipe. The template answers requests for runners through its
/// socket.
#[derive(Serialize, Deserialize)]
pub(crate) enum FromTemplate {
    Linked,
    Unsuitable(String),
    Failed(String),
}

/// An address of a host name, and its kind as seen from this machine.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Resolved {
    pub address: SocketAddr,
    pub kind: AddressKind,
}

#[derive(Serialize, Deserialize)]
pub(crate) enum ToRunner {
    /// The first message to a runner.
    Prepare(Box<Setup>),
    /// The second message to a runner.
    Start(Box<StartParams>),
    Stop(Notice),
    Committed(Result<(), NotCommitted>),
    /// The result of the lookup that has this number.
    Resolved(u64, Result<Vec<Resolved>, String>),
}

/// Policy and parameters for a new runner. The runner inherits everything else from its template.
#[derive(Clone, Serialize, Deserialize)]
pub(crate) struct Setup {
    pub digest: Digest,
    pub policy: Policy,
    pub rehearses: bool,
}

#[derive(Serialize, Deserialize)]
pub(crate) struct StartParams {
    pub term: Term,
    pub election: String,
    pub node: String,
    pub run: Option<RunTimes>,
    /// The index of the shard, and the number of shards in the group.
    pub shard: (u32, u32),
    pub arguments: Vec<String>,
    pub environment: Vec<(String, String)>,
    pub config: Vec<(String, String)>,
    pub entries: Option<BTreeMap<String, Bytes>>,
}

/// The due times of [`ScheduledRun`], in seconds since the Unix epoch.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct RunTimes {
    pub due: u64,
    pub last_completed: Option<u64>,
}

impl From<ScheduledRun> for RunTimes {
    fn from(run: ScheduledRun) -> Self {
        Self { due: run.due.as_secs(), last_completed: run.last_completed.map(|last| last.as_secs()) }
    }
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Notice {
    pub reason: Reason,
    pub message: String,
    /// The time until the grace ends, in milliseconds.
    pub grace_ms: u64,
}

/// The wire form of [`StopReason`].
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) enum Reason {
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

/// The reason why a commit failed, in the categories that a guest can distinguish.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum NotCommitted {
    InvalidKey(String),
    TooLarge(String),
    Refused(String),
    Unavailable(String),
    Unknown(String),
}

/// Maximum number of DNS lookups in flight for a runner, and for all runners of a coordinator together. Each lookup
/// occupies a thread of the host until the system's resolver answers.
pub(crate) const LOOKUPS: usize = 4;

#[derive(Serialize, Deserialize)]
pub(crate) enum FromRunner {
    /// The runner is ready for an instance. This is the first message, unless the runner sends `Failed` or `Panicked`
    /// instead.
    Ready {
        /// True if all granted folders existed. The runner cannot reach folders that are created later.
        has_folders: bool,
    },
    Failed(String),
    /// The guest was instantiated, and its main function is about to be called.
    Started,
    Line(Stream, String),
    Log {
        level: LogLevel,
        context: String,
        message: String,
    },
    /// Number of lines dropped since the last report.
    Dropped(u64),
    Denied {
        what: String,
        remedy: String,
    },
    NearLimit(NearLimit),
    RefusedRequest(RefusedRequest),
    StepDown(String),
    /// The guest commits changes, and waits for the answer.
    Commit(Changes),
    /// Asks the host for the addresses of a server that the guest wants to reach.
    Resolve {
        number: u64,
        host: String,
        port: u16,
    },
    Panicked(String),
    /// The instance has ended. This is the last message.
    Ended(Box<Ended>),
}

/// The encoded changes of a commit: the number of changes, followed by each change. The host decodes them one by one,
/// since a change of a few bytes can take far more memory once it is decoded.
#[derive(Serialize, Deserialize)]
pub(crate) struct Changes(Bytes);

impl Changes {
    pub(crate) fn of(changes: &[Change]) -> io::Result<Self> {
        postcard::to_stdvec(changes).map(|bytes| Self(bytes.into())).map_err(io::Error::other)
    }

    /// Decodes the changes. Returns an error if they would take more than `longest` bytes of memory, not counting their
    /// keys and values. In a correct runner, wasmtime has already enforced this limit on the list that the guest
    /// passed.
    pub(crate) fn read(&self, longest: usize) -> io::Result<Vec<Change>> {
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
pub(crate) enum Change {
    Put(String, Bytes),
    Delete(String),
}

/// A runner's report on the end of its instance. An instance that is killed from outside has no report.
#[derive(Serialize, Deserialize)]
pub(crate) struct Ended {
    pub how: How,
    pub backtrace: Option<String>,
}

/// [`End`](baton_election::End) as a message.
#[derive(Serialize, Deserialize)]
pub(crate) enum How {
    Done,
    Failed(String),
    Crashed(String),
    Fatal(String),
    /// A granted folder cannot be opened on this node.
    Unable(String),
}

/// Encodes a message with its length prefix.
pub(crate) fn frame(message: &impl Serialize) -> io::Result<Vec<u8>> {
    let mut framed = postcard::to_extend(message, vec![0; LENGTH]).map_err(io::Error::other)?;
    let length = u32::try_from(framed.len() - LENGTH).map_err(io::Error::other)?;
    framed[..LENGTH].copy_from_slice(&length.to_le_bytes());
    Ok(framed)
}

/// Reads the next message of at most `longest` bytes. Returns `None` if the other side has closed the pipe.
pub(crate) fn read<M: DeserializeOwned>(from: &mut impl Read, longest: usize) -> io::Result<Option<M>> {
    let mut length = [0; LENGTH];
    if from.read(&mut length[..1])? == 0 {
        return Ok(None);
    }
    from.read_exact(&mut length[1..])?;
    let mut message = vec![0; checked(length, longest)?];
    from.read_exact(&mut message)?;
    parsed(&message).map(Some)
}

pub(crate) struct Messages<R> {
    from: R,
    longest: usize,
    /// Bytes that have been read but not decoded yet.
    read: bytes::BytesMut,
}

/// Minimum free space in the buffer before each read (bytes).
const ROOM: usize = 64 << 10;

impl<R: tokio::io::AsyncRead + Unpin> Messages<R> {
    pub(crate) fn new(from: R, longest: usize) -> Self {
        Self { from, longest, read: bytes::BytesMut::new() }
    }

    /// Reads the next message. Returns `None` if the other side has closed the pipe. Cancel safe.
    ///
    /// # Errors
    /// [`io::ErrorKind::InvalidData`] if the message is too long or invalid, or another error if reading fails.
    pub(crate) async fn next<M: DeserializeOwned>(&mut self) -> io::Result<Option<M>> {
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
    fn changes_are_decoded_unless_they_take_too_much_memory() {
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
    async fn messages_arrive_whole_and_invalid_ones_are_errors() {
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
