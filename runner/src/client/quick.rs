//! The common shape of a chunk, read in one pass without building a tree.
//!
//! [`read`] understands a strict subset of JSON and of the protocol: objects and
//! arrays to a small depth, integers of up to fifteen digits, strings without
//! `\u`; one choice with index 0; texts that are strings or null. For everything
//! else it says `None`, which means "ask the full parser" and never "this is not
//! a chunk". What it does return is what the full parser returns, and
//! `tests/client_chunk.rs` holds both against each other.

use std::borrow::Cow;

use runseal::trace::Usage;

use super::chunk::{Choice, Chunk, Payload};

/// Nesting of a value that is passed over.
const MAX_DEPTH: u32 = 16;

/// Reads trimmed data that should be a JSON object.
pub(super) fn read(data: &str) -> Option<Payload<'_>> {
    let mut at = Cursor {
        text: data,
        bytes: data.as_bytes(),
        at: 0,
    };
    let mut chunk = Chunk::default();
    let mut seen = Once(0);
    at.object(|at, key| {
        match key {
            "choices" => {
                seen.first(0)?;
                chunk.choice = choices(at)?;
            }
            "usage" => {
                seen.first(1)?;
                chunk.usage = usage(at)?;
            }
            "model" => {
                seen.first(2)?;
                chunk.model = at.text()?;
            }
            "object" => {
                seen.first(3)?;
                if at.text()? == Some(Cow::Borrowed("error")) {
                    return None;
                }
            }
            "error" => {
                seen.first(4)?;
                at.null()?;
            }
            _ => at.skip(MAX_DEPTH)?,
        }
        Some(())
    })?;
    at.space();
    if at.at != at.bytes.len() {
        return None;
    }
    if chunk.choice.is_none() && chunk.usage.is_none() {
        return Some(Payload::NoChoices);
    }
    Some(Payload::Chunk(chunk))
}

/// An empty list, or one choice.
fn choices<'a>(at: &mut Cursor<'a>) -> Option<Option<Choice<'a>>> {
    at.take(b'[')?;
    if at.take(b']').is_some() {
        return Some(None);
    }
    let choice = choice(at)?;
    at.take(b']')?;
    Some(Some(choice))
}

fn choice<'a>(at: &mut Cursor<'a>) -> Option<Choice<'a>> {
    let mut seen = Once(0);
    let (mut delta, mut text, mut finish) = (None, None, None);
    at.object(|at, key| {
        match key {
            "delta" => {
                seen.first(0)?;
                delta = Some(self::delta(at)?);
            }
            "finish_reason" => {
                seen.first(1)?;
                finish = at.text()?;
            }
            "index" => {
                seen.first(2)?;
                if at.number()? != 0 {
                    return None;
                }
            }
            "text" => {
                seen.first(3)?;
                text = at.text()?;
            }
            _ => at.skip(MAX_DEPTH)?,
        }
        Some(())
    })?;
    let choice = delta.unwrap_or_else(|| Choice {
        content: text,
        ..Choice::default()
    });
    Some(Choice { finish, ..choice })
}

fn delta<'a>(at: &mut Cursor<'a>) -> Option<Choice<'a>> {
    let mut seen = Once(0);
    let mut choice = Choice::default();
    let mut other = None;
    at.object(|at, key| {
        match key {
            "content" => {
                seen.first(0)?;
                choice.content = at.text()?;
            }
            "reasoning" => {
                seen.first(1)?;
                choice.reasoning = at.text()?;
            }
            "reasoning_content" => {
                seen.first(2)?;
                other = at.text()?;
            }
            "tool_calls" => {
                seen.first(3)?;
                if at.take(b'[').is_some() {
                    at.take(b']')?;
                } else {
                    at.null()?;
                }
            }
            _ => at.skip(MAX_DEPTH)?,
        }
        Some(())
    })?;
    if choice.reasoning.is_some() && other.is_some() {
        return None;
    }
    choice.reasoning = choice.reasoning.or(other);
    Some(choice)
}

fn usage(at: &mut Cursor<'_>) -> Option<Option<Usage>> {
    if at.peek() == Some(b'n') {
        at.null()?;
        return Some(None);
    }
    let mut seen = Once(0);
    let mut usage = Usage::default();
    let mut detailed = None;
    at.object(|at, key| {
        match key {
            "prompt_tokens" => {
                seen.first(0)?;
                usage.prompt = Some(at.number()?);
            }
            "completion_tokens" => {
                seen.first(1)?;
                usage.completion = Some(at.number()?);
            }
            "reasoning_tokens" => {
                seen.first(2)?;
                usage.reasoning = Some(at.number()?);
            }
            "completion_tokens_details" => {
                seen.first(3)?;
                detailed = inner(at, "reasoning_tokens")?;
            }
            "prompt_tokens_details" => {
                seen.first(4)?;
                usage.cached = inner(at, "cached_tokens")?;
            }
            _ => at.skip(MAX_DEPTH)?,
        }
        Some(())
    })?;
    usage.reasoning = usage.reasoning.or(detailed);
    Some((usage != Usage::default()).then_some(usage))
}

/// The number called `name` in an object that may be null.
fn inner(at: &mut Cursor<'_>, name: &str) -> Option<Option<u64>> {
    if at.peek() == Some(b'n') {
        at.null()?;
        return Some(None);
    }
    let mut seen = Once(0);
    let mut found = None;
    at.object(|at, key| {
        if key == name {
            seen.first(0)?;
            found = Some(at.number()?);
            Some(())
        } else {
            at.skip(MAX_DEPTH)
        }
    })?;
    Some(found)
}

/// Keys seen so far. The full parser lets the last of several equal keys win;
/// that is not worth imitating.
struct Once(u8);

impl Once {
    fn first(&mut self, bit: u8) -> Option<()> {
        let mask = 1 << bit;
        let new = self.0 & mask == 0;
        self.0 |= mask;
        new.then_some(())
    }
}

struct Cursor<'a> {
    text: &'a str,
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Cursor<'a> {
    fn space(&mut self) {
        while let Some(b' ' | b'\n' | b'\r' | b'\t') = self.bytes.get(self.at) {
            self.at += 1;
        }
    }

    /// The next byte that is not white space.
    fn peek(&mut self) -> Option<u8> {
        self.space();
        self.bytes.get(self.at).copied()
    }

    fn take(&mut self, byte: u8) -> Option<()> {
        (self.peek()? == byte).then(|| self.at += 1)
    }

    fn word(&mut self, word: &[u8]) -> Option<()> {
        self.space();
        let found = self.bytes.get(self.at..)?.starts_with(word);
        found.then(|| self.at += word.len())
    }

    fn null(&mut self) -> Option<()> {
        self.word(b"null")
    }

    /// Calls `member` for each key of an object; it must consume the value.
    fn object(&mut self, mut member: impl FnMut(&mut Self, &'a str) -> Option<()>) -> Option<()> {
        self.take(b'{')?;
        if self.take(b'}').is_some() {
            return Some(());
        }
        loop {
            // A key with an escape could be any key.
            let Cow::Borrowed(key) = self.string()? else {
                return None;
            };
            self.take(b':')?;
            member(self, key)?;
            if self.take(b',').is_none() {
                return self.take(b'}');
            }
        }
    }

    /// A string, `None` inside when it is empty or null.
    fn text(&mut self) -> Option<Option<Cow<'a, str>>> {
        if self.peek()? == b'n' {
            self.null()?;
            return Some(None);
        }
        let text = self.string()?;
        Some((!text.is_empty()).then_some(text))
    }

    fn string(&mut self) -> Option<Cow<'a, str>> {
        self.take(b'"')?;
        let start = self.at;
        let end = self.plain()?;
        if self.bytes[end] == b'"' {
            return Some(Cow::Borrowed(&self.text[start..end]));
        }
        let mut out = String::with_capacity(2 * (end - start) + 16);
        out.push_str(&self.text[start..end]);
        loop {
            out.push(match self.bytes.get(self.at)? {
                b'"' => '"',
                b'\\' => '\\',
                b'/' => '/',
                b'b' => '\u{8}',
                b'f' => '\u{c}',
                b'n' => '\n',
                b'r' => '\r',
                b't' => '\t',
                _ => return None,
            });
            self.at += 1;
            let start = self.at;
            let end = self.plain()?;
            out.push_str(&self.text[start..end]);
            if self.bytes[end] == b'"' {
                return Some(Cow::Owned(out));
            }
        }
    }

    /// Passes over plain characters of a string and the quote or backslash behind
    /// them, and returns where that one is.
    fn plain(&mut self) -> Option<usize> {
        let rest = self.bytes.get(self.at..)?;
        let len = rest
            .iter()
            .position(|b| matches!(b, b'"' | b'\\' | 0..=0x1f))?;
        if rest[len] < 0x20 {
            return None;
        }
        let end = self.at + len;
        self.at = end + 1;
        Some(end)
    }

    fn number(&mut self) -> Option<u64> {
        self.space();
        let rest = self.bytes.get(self.at..)?;
        let len = rest.iter().take_while(|b| b.is_ascii_digit()).count();
        if !(1..=15).contains(&len) || (len > 1 && rest[0] == b'0') {
            return None;
        }
        if let Some(b'.' | b'e' | b'E') = rest.get(len) {
            return None;
        }
        self.at += len;
        let digits = rest[..len].iter();
        Some(digits.fold(0, |n, d| n * 10 + u64::from(d - b'0')))
    }

    fn skip(&mut self, depth: u32) -> Option<()> {
        let depth = depth.checked_sub(1)?;
        match self.peek()? {
            b'"' => self.string().map(|_| ()),
            b'n' => self.null(),
            b't' => self.word(b"true"),
            b'f' => self.word(b"false"),
            b'{' => self.object(|at, _| at.skip(depth)),
            b'[' => {
                self.take(b'[')?;
                if self.take(b']').is_some() {
                    return Some(());
                }
                loop {
                    self.skip(depth)?;
                    if self.take(b',').is_none() {
                        return self.take(b']');
                    }
                }
            }
            _ => self.number().map(|_| ()),
        }
    }
}
