//! Chunks that differ from an earlier one in a single text.
//!
//! Most chunks of a stream are equal but for the new text. Once the one-pass
//! reader has read such a chunk, [`Template`] keeps the bytes before and behind
//! the text. A later chunk with the same bytes around a text of plain characters
//! is made of the same JSON tokens with another string in the same place, so it
//! says the same with another text, and two comparisons replace the parse. Only
//! texts that stand alone in their chunk qualify: no usage, finish reason, tool
//! call or second text, because those would have to be looked at again.

use std::borrow::Cow;

use runseal::event::DeltaKind;

use super::chunk::{Choice, Chunk};

/// Longest chunk worth keeping.
const MAX: usize = 4 << 10;

/// What surrounds the text of a chunk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Template {
    kind: DeltaKind,
    /// Up to and with the opening quote.
    before: Vec<u8>,
    /// From the closing quote on.
    behind: Vec<u8>,
}

impl Template {
    /// Learns from the data of an event and what [`super::chunk::interpret`] made
    /// of it. `None` when the chunk says more than one text.
    pub fn learn(data: &str, chunk: &Chunk<'_>) -> Option<Self> {
        let (kind, text) = match chunk {
            Chunk {
                choice:
                    Some(Choice {
                        reasoning,
                        content,
                        tool: None,
                        finish: None,
                    }),
                many: false,
                usage: None,
                ..
            } => match (reasoning, content) {
                // Only the one-pass reader lends texts, and only plain ones.
                (None, Some(Cow::Borrowed(text))) => (DeltaKind::Content, *text),
                (Some(Cow::Borrowed(text)), None) => (DeltaKind::Reasoning, *text),
                _ => return None,
            },
            _ => return None,
        };
        let start = (text.as_ptr() as usize).checked_sub(data.as_ptr() as usize)?;
        let (before, rest) = data.as_bytes().split_at_checked(start)?;
        let behind = rest.get(text.len()..)?;
        let quoted = before.ends_with(b"\"") && behind.starts_with(b"\"");
        (quoted && data.len() <= MAX).then(|| Self {
            kind,
            before: before.to_vec(),
            behind: behind.to_vec(),
        })
    }

    /// The kind and text of a chunk that differs from the learned one in its text
    /// only. `None` says nothing about the chunk.
    pub fn text<'a>(&self, data: &'a [u8]) -> Option<(DeltaKind, &'a str)> {
        let text = data
            .strip_prefix(self.before.as_slice())?
            .strip_suffix(self.behind.as_slice())?;
        let plain = |b: &u8| *b >= 0x20 && *b != b'"' && *b != b'\\';
        if text.is_empty() || !text.iter().all(plain) {
            return None;
        }
        Some((self.kind, std::str::from_utf8(text).ok()?))
    }
}
