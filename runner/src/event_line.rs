//! The lines of the frequent events, formatted by hand.
//!
//! A stream of small events is mostly `read`, `delta` and, with continuous usage,
//! `usage` lines. They hold numbers, fixed words and hexadecimal digits only, so
//! nothing needs escaping, and the generic serialiser would be the dearest step
//! between the socket and the disk. The bytes are those of
//! [`runseal::event::to_line`], which `tests/client_lines.rs` checks.

use runseal::event::{DeltaKind, Event};

/// Everything of the line behind `{"seq":N`, newline included, when the event is
/// one of the frequent ones.
pub(crate) fn push_tail(out: &mut Vec<u8>, t: u64, event: &Event) -> bool {
    match event {
        Event::Read { req, read, bytes } => read_tail(out, t, *req, *read, *bytes),
        Event::Delta {
            req,
            read,
            ev,
            kind,
            len,
            digest,
        } if digest.bytes().all(|b| b.is_ascii_hexdigit()) => {
            delta_start(out, t, *req, *read);
            delta_numbers(out, *ev, *kind, *len);
            out.extend_from_slice(digest.as_bytes());
            out.extend_from_slice(b"\"}\n");
        }
        Event::Usage {
            req,
            read,
            prompt,
            completion,
            reasoning,
            cached,
        } => {
            start(out, t, b"usage", *req, *read);
            let fields: [(&[u8], Option<u64>); 4] = [
                (b",\"prompt\":", *prompt),
                (b",\"completion\":", *completion),
                (b",\"reasoning\":", *reasoning),
                (b",\"cached\":", *cached),
            ];
            for (name, value) in fields {
                out.extend_from_slice(name);
                match value {
                    Some(n) => number(out, n),
                    None => out.extend_from_slice(b"null"),
                }
            }
            out.extend_from_slice(b"}\n");
        }
        _ => return false,
    }
    true
}

/// What the tails of all [`Event::Delta`] lines of one read begin with.
pub(crate) fn delta_start(out: &mut Vec<u8>, t: u64, req: u32, read: u32) {
    start(out, t, b"delta", req, read);
}

/// Tail of a [`Event::Delta`] line that begins with `head` ([`delta_start`]) and has the
/// digest as bytes.
pub(crate) fn delta_rest(
    out: &mut Vec<u8>,
    head: &[u8],
    ev: u32,
    kind: DeltaKind,
    len: u64,
    digest: [u8; 16],
) {
    out.reserve(256);
    out.extend_from_slice(head);
    delta_numbers(out, ev, kind, len);
    // Closing quote, brace and line feed in the same piece.
    let mut hex = [0; 35];
    for (pair, byte) in hex.chunks_exact_mut(2).zip(digest) {
        pair.copy_from_slice(&HEX[usize::from(byte)]);
    }
    hex[32..].copy_from_slice(b"\"}\n");
    out.extend_from_slice(&hex);
}

/// The two hexadecimal digits of each byte.
const HEX: [[u8; 2]; 256] = {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let mut out = [[0; 2]; 256];
    let mut i = 0;
    while i < 256 {
        out[i] = [DIGITS[i >> 4], DIGITS[i & 15]];
        i += 1;
    }
    out
};

/// The two decimal digits of each number below 100.
const PAIRS: [[u8; 2]; 100] = {
    let mut out = [[0; 2]; 100];
    let mut i = 0;
    while i < 100 {
        out[i] = [b'0' + (i / 10) as u8, b'0' + (i % 10) as u8];
        i += 1;
    }
    out
};

/// Tail of a [`Event::Read`] line.
pub(crate) fn read_tail(out: &mut Vec<u8>, t: u64, req: u32, read: u32, bytes: u64) {
    start(out, t, b"read", req, read);
    out.extend_from_slice(b",\"bytes\":");
    number(out, bytes);
    out.extend_from_slice(b"}\n");
}

fn delta_numbers(out: &mut Vec<u8>, ev: u32, kind: DeltaKind, len: u64) {
    out.extend_from_slice(b",\"ev\":");
    number(out, ev.into());
    out.extend_from_slice(match kind {
        DeltaKind::Empty => b",\"kind\":\"empty\",\"len\":",
        DeltaKind::Reasoning => b",\"kind\":\"reasoning\",\"len\":",
        DeltaKind::Content => b",\"kind\":\"content\",\"len\":",
        DeltaKind::Tool => b",\"kind\":\"tool\",\"len\":",
    });
    number(out, len);
    out.extend_from_slice(b",\"digest\":\"");
}

fn start(out: &mut Vec<u8>, t: u64, name: &[u8], req: u32, read: u32) {
    // One growth check for the whole line.
    out.reserve(256);
    out.extend_from_slice(b",\"t\":");
    number(out, t);
    out.extend_from_slice(b",\"e\":\"");
    out.extend_from_slice(name);
    out.extend_from_slice(b"\",\"req\":");
    number(out, req.into());
    out.extend_from_slice(b",\"read\":");
    number(out, read.into());
}

/// Appends a number in decimal.
pub(crate) fn number(out: &mut Vec<u8>, mut n: u64) {
    let mut digits = [0; 20];
    let mut at = digits.len();
    while n >= 10 {
        at -= 2;
        digits[at..at + 2].copy_from_slice(&PAIRS[(n % 100) as usize]);
        n /= 100;
    }
    if n > 0 || at == digits.len() {
        at -= 1;
        digits[at] = b'0' + n as u8;
    }
    out.extend_from_slice(&digits[at..]);
}
