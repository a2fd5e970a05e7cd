//! Messages on a link. Each message is a line of JSON of at most [`LONGEST`] bytes.

use std::time::Duration;

use baton_base::clock::milliseconds;
use baton_base::untrusted::Reader;
use baton_election::eligibility::HIGHEST_PRIORITY;
use baton_election::{ElectionName, Term};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufRead, AsyncBufReadExt as _};

use super::peer_addr::PeerAddr;
use crate::node::NodeId;

/// Upper bound on the length of a line, in bytes.
pub(super) const LONGEST: usize = 1024;

/// Upper bound on a reported age. Greater ages are reduced to this value.
const LONGEST_AGO: Duration = Duration::from_secs(3600);

/// Parses messages from peers, for the fuzz tests.
pub const READER: Reader = Reader {
    name: "link",
    read: |bytes| {
        for line in bytes.split(|byte| *byte == b'\n') {
            if let Ok(Some(message)) = PeerMessage::read(line) {
                assert!(message.is_within_bounds(), "{message:?}");
                let reread = PeerMessage::read(encode(&message).trim_ascii_end()).ok().flatten();
                assert_eq!(reread, Some(message), "the value changes when it is encoded and read again");
            }
            // Also parse the line as the address in a peer's announcement, because announcements are untrusted, too.
            if let Some(place) = std::str::from_utf8(line).ok().and_then(|text| text.parse::<PeerAddr>().ok()) {
                assert_eq!(place.to_string().parse(), Ok(place), "the value changes when it is encoded and read again");
            }
        }
    },
};

/// A message from one node to another. A node ignores messages that only later versions of Baton know.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum PeerMessage {
    /// The first message from each side. A local command omits `node` and `incarnation`, and may then send `Look`.
    Hello {
        election: String,
        /// The receiver's incarnation.
        to: String,
        #[serde(default)]
        node: Option<String>,
        #[serde(default)]
        incarnation: Option<String>,
    },
    /// Sent by the leader. The leader last renewed its lease `age_ms` ago. `place` is the receiver's place in the order
    /// of succession, if it has one.
    Leads { term: Term, age_ms: u64, place: Option<u32> },
    /// Sent by a leader that has given up the lease, or may have done so. `place` is the receiver's place in the order
    /// of succession, if it has one.
    GivesUp { place: Option<u32> },
    /// Sent by either side: the store has a change that all nodes should read.
    Look,
    /// Sent by a listener after its hello, and again after each change of its candidacy.
    Is(Candidacy),
}

/// A node's state as a possible successor.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Candidacy {
    /// True if the node has a module to run, and nothing prevents it from leading.
    pub ready: bool,
    /// The node's `--priority`: a node with a higher priority acquires a free lease earlier.
    pub priority: u8,
    /// True if the node already leads `--max-leaderships` other elections.
    pub at_leadership_limit: bool,
}

/// The leader that the lease record names.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Leader {
    pub(super) incarnation: String,
    pub(super) node: String,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct PeerQuery {
    pub(super) election: String,
    pub(super) node: String,
    pub(super) incarnation: String,
}

/// A host's message to the listeners of one election.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum LeaderMessage {
    /// The node leads, and last renewed its lease `age_ms` ago.
    Leads { term: Term, age_ms: u64 },
    /// The node has given up the lease. If `to` is set, that node is the preferred successor.
    GivesUp { to: Option<String> },
    /// The store has changed. Unlike the other messages, this message also goes to the leader to which this host
    /// listens.
    Look,
}

impl LeaderMessage {
    /// Returns the message with its age increased by this delay.
    pub(super) fn later(&self, by: Duration) -> Self {
        match self {
            Self::Leads { term, age_ms } => Self::leads(*term, Duration::from_millis(*age_ms).saturating_add(by)),
            told => told.clone(),
        }
    }

    pub(super) fn to_peer(&self, place: Option<u32>) -> PeerMessage {
        match self {
            Self::Leads { term, age_ms } => PeerMessage::Leads { term: *term, age_ms: *age_ms, place },
            Self::GivesUp { .. } => PeerMessage::GivesUp { place },
            Self::Look => PeerMessage::Look,
        }
    }

    pub(super) fn leads(term: Term, ago: Duration) -> Self {
        Self::Leads { term, age_ms: milliseconds(ago.min(LONGEST_AGO)) }
    }
}

impl Leader {
    pub(super) fn is_within_bounds(&self) -> bool {
        is_incarnation(&self.incarnation) && NodeId::new(&self.node).is_ok()
    }
}

impl PeerMessage {
    /// Parses a line. Returns `None` for a message that only later versions of Baton know.
    ///
    /// # Errors
    /// [`MalformedLine`] if no version of Baton sends such a line.
    pub(super) fn read(line: &[u8]) -> Result<Option<Self>, MalformedLine> {
        let Some(message) = parse::<Self>(line)? else { return Ok(None) };
        message.checked().map(Some)
    }

    /// Reduces values that exceed their bounds, and rejects other invalid messages.
    fn checked(self) -> Result<Self, MalformedLine> {
        let message = match self {
            Self::Leads { term, age_ms, place } => {
                Self::Leads { term, age_ms: age_ms.min(LONGEST_AGO.as_millis() as u64), place }
            }
            Self::Is(candidacy) => {
                Self::Is(Candidacy { priority: candidacy.priority.min(HIGHEST_PRIORITY), ..candidacy })
            }
            message => message,
        };
        if message.is_within_bounds() { Ok(message) } else { Err(MalformedLine) }
    }

    fn is_within_bounds(&self) -> bool {
        match self {
            Self::Hello { election, to, node, incarnation } => {
                ElectionName::new(election).is_ok()
                    && is_incarnation(to)
                    && node.as_deref().is_none_or(|node| NodeId::new(node).is_ok())
                    && incarnation.as_deref().is_none_or(is_incarnation)
                    && node.is_some() == incarnation.is_some()
            }
            Self::Leads { age_ms, .. } => *age_ms <= LONGEST_AGO.as_millis() as u64,
            Self::GivesUp { .. } | Self::Look | Self::Is(_) => true,
        }
    }
}

#[derive(Debug, thiserror::Error)]
#[error("received a line that is not from a Baton host")]
pub(super) struct MalformedLine;

/// Parses a line of JSON. Returns `None` if the line is valid JSON, but this version does not know the message.
fn parse<T: DeserializeOwned>(line: &[u8]) -> Result<Option<T>, MalformedLine> {
    match serde_json::from_slice(line) {
        Ok(message) => Ok(Some(message)),
        Err(error) if error.is_data() => match serde_json::from_slice::<serde::de::IgnoredAny>(line) {
            Ok(_) => Ok(None),
            Err(_) => Err(MalformedLine),
        },
        Err(_) => Err(MalformedLine),
    }
}

pub(super) fn encode(message: &impl Serialize) -> Vec<u8> {
    // Messages consist of text and numbers, so serialization cannot fail.
    let mut line = serde_json::to_vec(message).unwrap_or_default();
    line.push(b'\n');
    line
}

/// Returns true if `text` has the form of an incarnation. Such a text is safe as a file name, because it contains only
/// lower-case letters and digits.
pub(super) fn is_incarnation(text: &str) -> bool {
    (1..=64).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_digit() || byte.is_ascii_lowercase())
}

/// Reads the next line, of at most [`LONGEST`] bytes, into `line`. Returns `None` at the end of the stream.
/// Cancel-safe: a partial line stays in `line`. The caller must clear `line` after each complete line.
pub(super) async fn next_line<'a>(
    from: &mut (impl AsyncBufRead + Unpin),
    line: &'a mut Vec<u8>,
) -> std::io::Result<Option<&'a [u8]>> {
    loop {
        let found = from.fill_buf().await?;
        if found.is_empty() {
            return Ok(None);
        }
        let end = found.iter().position(|byte| *byte == b'\n');
        let part = &found[..end.unwrap_or(found.len())];
        if line.len() + part.len() > LONGEST {
            return Err(std::io::ErrorKind::FileTooLarge.into());
        }
        line.extend_from_slice(part);
        let taken = part.len() + usize::from(end.is_some());
        from.consume(taken);
        if end.is_some() {
            return Ok(Some(line));
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may panic")]
    use super::*;

    #[test]
    fn unknown_messages_are_ignored_and_malformed_ones_are_garbage() {
        let hello = br#"{"hello":{"election":"job","to":"ab12","node":"web-1","incarnation":"cd34"}}"#;
        assert!(matches!(PeerMessage::read(hello), Ok(Some(PeerMessage::Hello { .. }))));
        assert_eq!(PeerMessage::read(br#""look""#).unwrap(), Some(PeerMessage::Look));
        for later in [&br#"{"rests":{"for":3}}"#[..], br#""sings""#, br#"{"leads":{"term":"seven"}}"#] {
            assert_eq!(PeerMessage::read(later).unwrap(), None);
        }
        for garbage in [
            &b""[..],
            b"GET / HTTP/1.1",
            b"\xff\x00",
            br#"{"hello":{"#,
            br#"{"hello":{"election":"Job","to":"ab12"}}"#,
            br#"{"hello":{"election":"job","to":"../ab12"}}"#,
            br#"{"hello":{"election":"job","to":"ab12","node":"web 1","incarnation":"cd34"}}"#,
            br#"{"hello":{"election":"job","to":"ab12","node":"web-1"}}"#,
        ] {
            assert!(PeerMessage::read(garbage).is_err(), "{:?}", String::from_utf8_lossy(garbage));
        }
        let old =
            PeerMessage::read(br#"{"leads":{"term":18446744073709551615,"age_ms":18446744073709551615,"place":null}}"#);
        assert_eq!(old.unwrap(), Some(PeerMessage::Leads { term: Term::MAX, age_ms: 3_600_000, place: None }));
    }

    #[tokio::test]
    async fn line_without_end_is_refused() {
        let mut short: &[u8] = b"one\ntwo\n\nthree";
        let mut line = Vec::new();
        for expected in ["one", "two", ""] {
            let found = next_line(&mut short, &mut line).await.unwrap().map(<[u8]>::to_vec);
            assert_eq!(found.as_deref(), Some(expected.as_bytes()));
            line.clear();
        }
        assert_eq!(next_line(&mut short, &mut line).await.unwrap(), None);
        let mut long = std::io::Cursor::new(vec![b'a'; LONGEST + 1]);
        assert!(next_line(&mut long, &mut Vec::new()).await.is_err());
    }
}
