//! Server-sent event framing: bytes in, events out, no input or output of its own.
//!
//! [`Framer::push`] cuts each piece into lines (LF, CR or CRLF, also when the
//! pair is split between two pieces) with one vectorised scan and hands out the
//! events that the piece completes. A data line that lies wholly inside the
//! piece is handed out as a slice of it; only what straddles two pieces, or has
//! several data lines, is copied. The order of events and their bytes do not
//! depend on how the stream was cut.
//!
//! Where the standard lets an event vanish without a trace, this framer reports
//! it, because a vanished error would look like success: an event type without
//! any data line is handed out with empty data, and what the end of the stream
//! cuts off is returned by [`Framer::finish`]. Bytes are not decoded here: text
//! that is not UTF-8 spoils one event and must not spoil the next.

use std::ops::ControlFlow;

/// Longest event, in bytes of buffered lines.
pub const MAX_EVENT: usize = 8 << 20;

const BOM: &[u8] = b"\xef\xbb\xbf";

/// The stream is not something that can be framed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SseError {
    /// A line or an event grew past [`MAX_EVENT`].
    #[error("a server-sent event is longer than {MAX_EVENT} bytes")]
    EventTooLong,
}

/// What a stream is made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Frame<'a> {
    /// An event: its type (empty when none was named) and its data.
    Event {
        /// `event:` field.
        name: &'a [u8],
        /// `data:` fields joined by LF.
        data: &'a [u8],
    },
    /// A comment line.
    Comment,
}

/// What was left when the stream ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Tail {
    /// Nothing: the last event was complete.
    Clean,
    /// An event without its closing blank line; by the standard it is discarded.
    Cut {
        /// Its data, the unfinished last line included.
        data: Vec<u8>,
    },
}

/// Incremental framer of one stream.
#[derive(Debug, Default)]
pub struct Framer {
    /// Bytes of a byte order mark matched so far, until the stream has started.
    bom: usize,
    started: bool,
    /// Unfinished line.
    line: Vec<u8>,
    /// Data lines of the unfinished event, joined.
    data: Vec<u8>,
    has_data: bool,
    name: Vec<u8>,
    /// The previous piece ended in CR: a LF at the start of the next belongs to it.
    after_cr: bool,
}

impl Framer {
    /// A framer at the start of a stream.
    pub fn new() -> Self {
        Self::default()
    }

    /// Frames a piece of the stream. Stops when the sink breaks and returns how
    /// many bytes were consumed until then.
    pub fn push(
        &mut self,
        piece: &[u8],
        mut sink: impl FnMut(Frame<'_>) -> ControlFlow<()>,
    ) -> Result<usize, SseError> {
        let mut at = self.skip_bom(piece);
        // A data line of this piece that has not been copied anywhere yet.
        let mut fresh: Option<&[u8]> = None;
        while at < piece.len() {
            if std::mem::take(&mut self.after_cr) && piece[at] == b'\n' {
                at += 1;
                continue;
            }
            let rest = &piece[at..];
            let Some(len) = memchr::memchr2(b'\n', b'\r', rest) else {
                self.line.extend_from_slice(rest);
                at = piece.len();
                break;
            };
            self.after_cr = rest[len] == b'\r';
            at += len + 1;
            let flow = if self.line.is_empty() {
                self.take_line(&rest[..len], &mut fresh, &mut sink)
            } else {
                // The line began in an earlier piece, so it cannot be borrowed
                // from this one; its value is copied into `data` at once.
                let mut line = std::mem::take(&mut self.line);
                line.extend_from_slice(&rest[..len]);
                self.keep(&mut fresh);
                let mut whole = None;
                let flow = self.take_line(&line, &mut whole, &mut sink);
                self.keep(&mut whole);
                line.clear();
                self.line = line;
                flow
            };
            if flow.is_break() {
                return Ok(at);
            }
            self.bounded(fresh)?;
        }
        self.keep(&mut fresh);
        self.bounded(None)?;
        Ok(at)
    }

    /// Ends the stream.
    pub fn finish(&mut self) -> Tail {
        let line = std::mem::take(&mut self.line);
        if !line.is_empty() && line[0] != b':' {
            let mut fresh = None;
            // The line is not empty, so it cannot dispatch anything.
            let _ = self.take_line(&line, &mut fresh, &mut |_| ControlFlow::Continue(()));
            self.keep(&mut fresh);
        }
        let cut = self.has_data || !self.name.is_empty() || (!line.is_empty() && line[0] != b':');
        let data = std::mem::take(&mut self.data);
        *self = Self::default();
        if cut { Tail::Cut { data } } else { Tail::Clean }
    }

    /// Consumes a byte order mark at the very start, which may come in parts.
    fn skip_bom(&mut self, piece: &[u8]) -> usize {
        if self.started {
            return 0;
        }
        let mut matched = self.bom;
        for (i, &byte) in piece.iter().enumerate() {
            if byte != BOM[matched] {
                // Not a mark after all: the part that looked like one is text.
                self.line.extend_from_slice(&BOM[..matched]);
                self.started = true;
                return i;
            }
            matched += 1;
            if matched == BOM.len() {
                self.started = true;
                return i + 1;
            }
        }
        self.bom = matched;
        piece.len()
    }

    fn take_line<'a>(
        &mut self,
        line: &'a [u8],
        fresh: &mut Option<&'a [u8]>,
        sink: &mut impl FnMut(Frame<'_>) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        if line.is_empty() {
            return self.dispatch(fresh, sink);
        }
        let (field, value) = match memchr::memchr(b':', line) {
            Some(0) => return sink(Frame::Comment),
            Some(colon) => {
                let value = &line[colon + 1..];
                (&line[..colon], value.strip_prefix(b" ").unwrap_or(value))
            }
            None => (line, &b""[..]),
        };
        match field {
            b"data" => {
                if self.has_data || fresh.is_some() {
                    self.keep(fresh);
                    self.data.push(b'\n');
                    self.data.extend_from_slice(value);
                } else {
                    *fresh = Some(value);
                }
            }
            b"event" => {
                self.name.clear();
                self.name.extend_from_slice(value);
            }
            // id and retry are about reconnecting, which never happens here;
            // other fields are ignored by the standard.
            _ => {}
        }
        ControlFlow::Continue(())
    }

    fn dispatch(
        &mut self,
        fresh: &mut Option<&[u8]>,
        sink: &mut impl FnMut(Frame<'_>) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        let data = match fresh.take() {
            Some(data) => data,
            None if self.has_data || !self.name.is_empty() => &self.data,
            None => return ControlFlow::Continue(()),
        };
        let name = &self.name;
        let flow = sink(Frame::Event { name, data });
        self.name.clear();
        self.data.clear();
        self.has_data = false;
        flow
    }

    /// Copies a borrowed data line before its piece goes away.
    fn keep(&mut self, fresh: &mut Option<&[u8]>) {
        if let Some(value) = fresh.take() {
            self.data.extend_from_slice(value);
            self.has_data = true;
        }
    }

    fn bounded(&self, fresh: Option<&[u8]>) -> Result<(), SseError> {
        let held = self.line.len() + self.data.len() + self.name.len();
        if held + fresh.map_or(0, <[u8]>::len) > MAX_EVENT {
            return Err(SseError::EventTooLong);
        }
        Ok(())
    }
}
