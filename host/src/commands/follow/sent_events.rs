//! A parser for the part of server-sent events (`text/event-stream`, HTML standard) that nodes use.

use baton_base::untrusted::Reader;

/// Longest line to accept, in bytes. An entry takes a few hundred kilobytes at most.
const LONGEST_LINE: usize = 1 << 20;

/// Longest id to accept, in bytes. The ids that nodes send are a few dozen bytes long.
const LONGEST_ID: usize = 128;

/// The fuzzing target for this parser, listed in [`crate::untrusted`].
pub(crate) const READER: Reader = Reader {
    name: "sent-events",
    read: |bytes| {
        let mut whole = SentEvents::default();
        let mut read = whole.read(bytes);
        // The result must not depend on how the bytes are split.
        let mut pieces = SentEvents::default();
        let in_pieces: Result<Vec<_>, _> = bytes.chunks(3).map(|piece| pieces.read(piece)).collect();
        assert_eq!(read.is_ok(), in_pieces.is_ok());
        if let (Ok(read), Ok(in_pieces)) = (&mut read, in_pieces) {
            assert_eq!(*read, in_pieces.concat());
            assert_eq!(whole.last_id, pieces.last_id);
        }
        assert!(
            whole.last_id.is_none_or(|id| id.len() <= LONGEST_ID && id.bytes().all(|byte| byte.is_ascii_graphic()))
        );
    },
};

#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct SentEvent {
    /// The event's type; empty if it has none.
    pub(super) kind: String,
    pub(super) data: String,
}

#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the response has a line of more than {LONGEST_LINE} bytes, so it is not from a node")]
pub(super) struct TooLong;

#[derive(Default, Debug)]
pub(super) struct SentEvents {
    line: Vec<u8>,
    kind: String,
    data: String,
    /// The last id received. A reader that reconnects continues after this id.
    pub(super) last_id: Option<String>,
}

impl SentEvents {
    /// Parses more bytes. Returns the events that are now complete.
    pub(super) fn read(&mut self, bytes: &[u8]) -> Result<Vec<SentEvent>, TooLong> {
        let mut sent = Vec::new();
        let mut rest = bytes;
        while let Some(end) = rest.iter().position(|byte| *byte == b'\n') {
            self.line.extend_from_slice(&rest[..end]);
            rest = &rest[end + 1..];
            if self.line.len() > LONGEST_LINE {
                return Err(TooLong);
            }
            let line = std::mem::take(&mut self.line);
            sent.extend(self.take_line(String::from_utf8_lossy(&line).trim_end_matches('\r'))?);
        }
        self.line.extend_from_slice(rest);
        if self.line.len() > LONGEST_LINE { Err(TooLong) } else { Ok(sent) }
    }

    fn take_line(&mut self, line: &str) -> Result<Option<SentEvent>, TooLong> {
        if line.is_empty() {
            let (kind, data) = (std::mem::take(&mut self.kind), std::mem::take(&mut self.data));
            return Ok((!data.is_empty()).then_some(SentEvent { kind, data }));
        }
        let (field, value) = line.split_once(':').unwrap_or((line, ""));
        let value = value.strip_prefix(' ').unwrap_or(value);
        match field {
            "event" => value.clone_into(&mut self.kind),
            "data" => {
                if !self.data.is_empty() {
                    self.data.push('\n');
                }
                self.data.push_str(value);
                if self.data.len() > LONGEST_LINE {
                    return Err(TooLong);
                }
            }
            // The client sends the id back in a header, so only certain characters are accepted.
            "id" if value.len() <= LONGEST_ID && value.bytes().all(|byte| byte.is_ascii_graphic()) => {
                self.last_id = Some(value.to_owned()).filter(|id| !id.is_empty());
            }
            // Ignore `retry`, and comments, which are lines that begin with a colon.
            _ => {}
        }
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may panic")]
    use super::*;

    #[test]
    fn events_are_parsed_across_pieces() {
        let mut events = SentEvents::default();
        let bytes = b"retry: 1000\nid: aa-7\n\n: alive\n\nid: aa-8\ndata: {\"a\":1}\n\nevent: missed\ndata:{}\r\n\r\ndata: one\ndata: two\n\nid: aa-9\n\ndata: cut";
        (READER.read)(bytes);
        let sent = |kind: &str, data: &str| SentEvent { kind: kind.to_owned(), data: data.to_owned() };
        assert_eq!(events.read(bytes).unwrap(), [sent("", "{\"a\":1}"), sent("missed", "{}"), sent("", "one\ntwo")]);
        assert_eq!(events.last_id.as_deref(), Some("aa-9"), "also where there is nothing else");
        assert_eq!(events.read(b" off\n\n").unwrap(), [sent("", "cut off")]);
    }

    #[test]
    fn oversized_lines_and_odd_ids_are_refused() {
        let long = vec![b'x'; LONGEST_LINE + 1];
        assert_eq!(SentEvents::default().read(&long), Err(TooLong));
        let line = [b"data: ", &long[..1000], b"\n"].concat();
        let mut events = SentEvents::default();
        assert!((0..2000).any(|_| events.read(&line).is_err()), "many lines of one event");
        let mut events = SentEvents::default();
        for id in ["id: a b\n", "id: \u{e4}\n", "id: a\u{0}\n", &format!("id: {}\n", "x".repeat(LONGEST_ID + 1))] {
            events.read(id.as_bytes()).unwrap();
            assert_eq!(events.last_id, None, "{id:?}");
        }
    }
}
