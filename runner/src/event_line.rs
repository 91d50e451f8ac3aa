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
            delta_head(out, t, [*req, *read, *ev], *kind, *len);
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

/// Tail of a [`Event::Delta`] line with the digest as bytes.
pub(crate) fn delta_tail(
    out: &mut Vec<u8>,
    t: u64,
    req_read_ev: [u32; 3],
    kind: DeltaKind,
    len: u64,
    digest: [u8; 16],
) {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    delta_head(out, t, req_read_ev, kind, len);
    let mut hex = [0; 32];
    for (pair, byte) in hex.chunks_exact_mut(2).zip(digest) {
        pair[0] = DIGITS[usize::from(byte >> 4)];
        pair[1] = DIGITS[usize::from(byte & 15)];
    }
    out.extend_from_slice(&hex);
    out.extend_from_slice(b"\"}\n");
}

/// Tail of a [`Event::Read`] line.
pub(crate) fn read_tail(out: &mut Vec<u8>, t: u64, req: u32, read: u32, bytes: u64) {
    start(out, t, b"read", req, read);
    out.extend_from_slice(b",\"bytes\":");
    number(out, bytes);
    out.extend_from_slice(b"}\n");
}

fn delta_head(out: &mut Vec<u8>, t: u64, [req, read, ev]: [u32; 3], kind: DeltaKind, len: u64) {
    start(out, t, b"delta", req, read);
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
    loop {
        at -= 1;
        digits[at] = b'0' + (n % 10) as u8;
        n /= 10;
        if n == 0 {
            break;
        }
    }
    out.extend_from_slice(&digits[at..]);
}
