//! What is said over a link, and between the host and the process that carries the links: each a line of JSON, of which no
//! more than [`LONGEST`] bytes are ever read.

use std::net::SocketAddr;
use std::time::Duration;

use baton_election::{ElectionName, Term};
use baton_store::Digest;
use baton_store::foreign::Reader;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufRead, AsyncBufReadExt as _};

use super::place::Place;
use super::tls::Identity;
use crate::node::NodeId;
use crate::supervisor::HIGHEST_PRIORITY;

/// No line is longer, in bytes.
pub(super) const LONGEST: usize = 1024;

/// What is longer ago counts as that.
const LONGEST_AGO: Duration = Duration::from_secs(3600);

/// What is read of others' bytes, for [`crate::foreign`]: what a peer says, and what the process does that carries it.
pub(crate) const READER: Reader = Reader {
    name: "link",
    read: |bytes| {
        for line in bytes.split(|byte| *byte == b'\n') {
            if let Ok(Some(said)) = Said::read(line) {
                assert!(said.is_within_bounds(), "{said:?}");
                let again = Said::read(encode(&said).trim_ascii_end()).ok().flatten();
                assert_eq!(again, Some(said), "it is read as it is written");
            }
            match read::<News>(line) {
                Ok(Some(News::Heard { said, .. })) => drop(said.checked()),
                Ok(Some(News::Asks { question, .. })) => drop(question.is_within_bounds()),
                _ => {}
            }
            // Where a node says that others find it.
            if let Some(place) = std::str::from_utf8(line).ok().and_then(|text| text.parse::<Place>().ok()) {
                assert_eq!(place.to_string().parse(), Ok(place), "it is read as it is written");
            }
        }
    },
};

/// What one node says to another. A later host may say more: what is not known is left alone.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Said {
    /// Who it is, first of all, by both. Without an incarnation it is a command of this user, which may say `look`.
    Hello {
        election: String,
        /// The incarnation that is meant.
        to: String,
        #[serde(default)]
        node: Option<String>,
        #[serde(default)]
        incarnation: Option<String>,
    },
    /// By who is listened to: it leads, renewed so long ago, and gives the other this place in the order of succession.
    Leads { term: Term, age_ms: u64, place: Option<u32> },
    /// By who is listened to: it has given the lease up, or may have.
    GivesUp { place: Option<u32> },
    /// By both: the store has something new that all are to read.
    Look,
    /// By who listens: whether it could take the lease.
    Is(Candidate),
}

/// What a node says of itself as a successor.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Candidate {
    /// Whether it has something to serve, and nothing keeps it from that.
    pub ready: bool,
    /// How early it takes a lease that is free.
    pub priority: u8,
    /// Whether it leads as many elections as it should.
    pub leads_enough: bool,
}

/// What a host has its links' process do.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Order {
    /// Who this host is, first of all, and by what those of other machines know it, if it is to have links with these.
    Begin { node: String, incarnation: String, identity: Option<Identity> },
    /// What the links of an election are to be.
    Want { election: ElectionText, leader: Option<Leader>, candidate: Candidate },
    /// Those that listen are told.
    Tell { election: ElectionText, told: Told },
    /// What is known of whom it has asked for; none where that is nothing.
    Answer { number: u64, peer: Option<Peer> },
}

/// Who leads, as the record says.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) struct Leader {
    pub(super) incarnation: String,
    pub(super) node: String,
}

/// An incarnation of a node that may be of another machine.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) struct Question {
    pub(super) election: ElectionText,
    pub(super) node: String,
    pub(super) incarnation: String,
    /// Whether it is to be connected to.
    pub(super) wants_addresses: bool,
}

/// What its node has announced.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) struct Peer {
    pub(super) certificate: Digest,
    pub(super) addresses: Vec<SocketAddr>,
}

/// An election's name, unchecked.
pub(super) type ElectionText = String;

/// What a host tells.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Told {
    /// It leads, and renewed so long ago.
    Leads { term: Term, age_ms: u64 },
    /// It has given the lease up; that node is to be first.
    GivesUp { to: Option<String> },
    /// The store has something new. Whom it listens to is told, too.
    Look,
}

/// What the process tells its host.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum News {
    /// It listens at the socket.
    Ready,
    /// It is linked with the one that is listened to.
    Linked { election: ElectionText, incarnation: String, node: String },
    /// It is not any more.
    Ended { election: ElectionText, incarnation: String },
    /// So many listen to this node.
    Listeners { election: ElectionText, count: u32 },
    /// It is to know what a node has announced: one that it would connect to, or that has connected to it.
    Asks { number: u64, question: Question },
    /// The one that is listened to is not where it says that it is.
    Unreached { election: ElectionText, incarnation: String, why: String },
    /// The one that is listened to has said so, or anyone has said `look`.
    Heard { election: ElectionText, from: String, said: Said },
}

impl Told {
    /// The same, told so much later.
    pub(super) fn later(&self, by: Duration) -> Self {
        match self {
            Self::Leads { term, age_ms } => Self::leads(*term, Duration::from_millis(*age_ms).saturating_add(by)),
            told => told.clone(),
        }
    }

    /// As it is said to one that has this place.
    pub(super) fn as_said(&self, place: Option<u32>) -> Said {
        match self {
            Self::Leads { term, age_ms } => Said::Leads { term: *term, age_ms: *age_ms, place },
            Self::GivesUp { .. } => Said::GivesUp { place },
            Self::Look => Said::Look,
        }
    }

    pub(super) fn leads(term: Term, ago: Duration) -> Self {
        Self::Leads { term, age_ms: u64::try_from(ago.min(LONGEST_AGO).as_millis()).unwrap_or(u64::MAX) }
    }
}

impl Leader {
    /// Whether there could be such a node.
    pub(super) fn is_within_bounds(&self) -> bool {
        is_incarnation(&self.incarnation) && NodeId::new(&self.node).is_ok()
    }
}

impl Question {
    /// Whether there could be such a node.
    pub(super) fn is_within_bounds(&self) -> bool {
        ElectionName::new(&self.election).is_ok()
            && NodeId::new(&self.node).is_ok()
            && is_incarnation(&self.incarnation)
    }
}

impl Said {
    /// Reads a line; none of what a later host may say.
    ///
    /// # Errors
    /// [`Garbage`] where no host says that.
    pub(super) fn read(line: &[u8]) -> Result<Option<Self>, Garbage> {
        let Some(said) = read::<Self>(line)? else { return Ok(None) };
        said.checked().map(Some)
    }

    /// # Errors
    /// [`Garbage`] where no host says that.
    pub(super) fn checked(self) -> Result<Self, Garbage> {
        let said = match self {
            Self::Leads { term, age_ms, place } => {
                Self::Leads { term, age_ms: age_ms.min(LONGEST_AGO.as_millis() as u64), place }
            }
            Self::Is(candidate) => {
                Self::Is(Candidate { priority: candidate.priority.min(HIGHEST_PRIORITY), ..candidate })
            }
            said => said,
        };
        if said.is_within_bounds() { Ok(said) } else { Err(Garbage) }
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

/// A line that no host says.
#[derive(Debug, thiserror::Error)]
#[error("received a line that is not from a host of Baton")]
pub(super) struct Garbage;

/// Reads a line of JSON; none of what is JSON, and not known here.
pub(super) fn read<T: DeserializeOwned>(line: &[u8]) -> Result<Option<T>, Garbage> {
    match serde_json::from_slice(line) {
        Ok(said) => Ok(Some(said)),
        Err(error) if error.is_data() => match serde_json::from_slice::<serde::de::IgnoredAny>(line) {
            Ok(_) => Ok(None),
            Err(_) => Err(Garbage),
        },
        Err(_) => Err(Garbage),
    }
}

/// As a line.
pub(super) fn encode(said: &impl Serialize) -> Vec<u8> {
    // What is made of texts and numbers can be written.
    let mut line = serde_json::to_vec(said).unwrap_or_default();
    line.push(b'\n');
    line
}

/// Whether a text can be an incarnation, and so the name of a socket and of nothing outside its folder.
pub(super) fn is_incarnation(text: &str) -> bool {
    (1..=64).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_digit() || byte.is_ascii_lowercase())
}

/// Reads the next line into `line`, of [`LONGEST`] bytes at the most; none at the end. Cancel safe: what came so far stays
/// in `line`, which is to be emptied after each line.
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
    fn what_no_host_says_is_garbage_and_what_a_later_one_may_say_is_left_alone() {
        let hello = br#"{"hello":{"election":"job","to":"ab12","node":"web-1","incarnation":"cd34"}}"#;
        assert!(matches!(Said::read(hello), Ok(Some(Said::Hello { .. }))));
        assert_eq!(Said::read(br#""look""#).unwrap(), Some(Said::Look));
        for later in [&br#"{"rests":{"for":3}}"#[..], br#""sings""#, br#"{"leads":{"term":"seven"}}"#] {
            assert_eq!(Said::read(later).unwrap(), None);
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
            assert!(Said::read(garbage).is_err(), "{:?}", String::from_utf8_lossy(garbage));
        }
        let old = Said::read(br#"{"leads":{"term":18446744073709551615,"age_ms":18446744073709551615,"place":null}}"#);
        assert_eq!(old.unwrap(), Some(Said::Leads { term: Term::MAX, age_ms: 3_600_000, place: None }));
    }

    /// Who reads it takes no longer line.
    #[test]
    fn the_longest_line_of_a_host_is_short_enough() {
        let (node, incarnation, election) = ("n".repeat(63), "f".repeat(64), "e".repeat(63));
        let begin =
            Order::Begin { node: node.clone(), incarnation: incarnation.clone(), identity: Identity::make().ok() };
        let question = Question { election, node, incarnation, wants_addresses: false };
        let address = "[ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff%4294967295]:65535".parse().unwrap();
        let peer = Peer { certificate: Digest::of(b""), addresses: vec![address; 4] };
        let answer = Order::Answer { number: u64::MAX, peer: Some(peer) };
        let lines = [encode(&begin), encode(&answer), encode(&News::Asks { number: u64::MAX, question })];
        for line in lines {
            assert!(line.len() <= LONGEST, "{} bytes: {}", line.len(), String::from_utf8_lossy(&line));
        }
    }

    #[tokio::test]
    async fn a_line_that_does_not_end_is_not_read_for_ever() {
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
