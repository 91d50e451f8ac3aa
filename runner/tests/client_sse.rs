//! The framer against a plain reading of the standard, and against every way to
//! cut a stream into pieces.

use std::ops::ControlFlow;
use std::path::Path;

use proptest::prelude::*;
use runseal_runner::client::sse::{Frame, Framer, MAX_EVENT, SseError, Tail};

#[derive(Debug, Clone, PartialEq, Eq)]
enum Got {
    Event(Vec<u8>, Vec<u8>),
    Comment,
    Tail(Tail),
}

fn framed<'a>(pieces: impl IntoIterator<Item = &'a [u8]>) -> Vec<Got> {
    let mut framer = Framer::new();
    let mut out = Vec::new();
    for piece in pieces {
        let used = framer.push(piece, |frame| {
            out.push(match frame {
                Frame::Comment => Got::Comment,
                Frame::Event { name, data } => Got::Event(name.to_vec(), data.to_vec()),
            });
            ControlFlow::Continue(())
        });
        assert_eq!(used, Ok(piece.len()));
    }
    out.push(Got::Tail(framer.finish()));
    out
}

/// The standard, word for word and slowly: decode lines first, then fields.
fn by_the_book(bytes: &[u8]) -> Vec<Got> {
    let bytes = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes);
    let mut lines = Vec::new();
    let mut line = Vec::new();
    let mut i = 0;
    while i < bytes.len() {
        match bytes[i] {
            b'\r' | b'\n' => {
                if bytes[i..].starts_with(b"\r\n") {
                    i += 1;
                }
                lines.push((std::mem::take(&mut line), true));
            }
            byte => line.push(byte),
        }
        i += 1;
    }
    lines.push((line, false));
    let (mut out, mut name, mut data) = (Vec::new(), Vec::new(), None::<Vec<u8>>);
    let mut open = false;
    for (line, ended) in lines {
        if line.is_empty() {
            if ended && (data.is_some() || !name.is_empty()) {
                let data = data.take().unwrap_or_default();
                out.push(Got::Event(std::mem::take(&mut name), data));
            }
            continue;
        }
        if line[0] == b':' {
            if ended {
                out.push(Got::Comment);
            }
            continue;
        }
        open |= !ended;
        let colon = line.iter().position(|b| *b == b':').unwrap_or(line.len());
        let value = line.get(colon + 1..).unwrap_or(b"");
        let value = value.strip_prefix(b" ").unwrap_or(value);
        match &line[..colon] {
            b"event" => name = value.to_vec(),
            b"data" => match &mut data {
                Some(data) => data.extend([b"\n", value].concat()),
                None => data = Some(value.to_vec()),
            },
            _ => {}
        }
    }
    let cut = open || data.is_some() || !name.is_empty();
    out.push(Got::Tail(match cut {
        true => Tail::Cut {
            data: data.unwrap_or_default(),
        },
        false => Tail::Clean,
    }));
    out
}

fn captures() -> Vec<(String, Vec<u8>)> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/captures");
    let mut out = Vec::new();
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        let bytes = std::fs::read(&path).unwrap();
        if name.ends_with(".sse") {
            out.push((name, bytes));
        } else if name.contains("midstream") {
            let at = bytes.windows(4).position(|w| w == b"\r\n\r\n").unwrap();
            out.push((name, bytes[at + 4..].to_vec()));
        }
    }
    assert_eq!(out.len(), 7);
    out
}

#[test]
fn every_cut_of_every_capture_gives_the_same_events() {
    for (name, bytes) in captures() {
        let whole = framed([&bytes[..]]);
        assert_eq!(whole, by_the_book(&bytes), "{name}");
        assert!(whole.len() > 8, "{name}");
        for at in 0..=bytes.len() {
            let (a, b) = bytes.split_at(at);
            assert_eq!(framed([a, b]), whole, "{name} cut at {at}");
        }
        for size in [1, 2, 3, 7, 64] {
            assert_eq!(
                framed(bytes.chunks(size)),
                whole,
                "{name} in pieces of {size}"
            );
        }
    }
}

#[test]
fn every_cut_of_an_awkward_stream_gives_the_same_events() {
    let text = "\u{feff}:c\r\ndata:a\rdata: b\n\ndata\n\r\n\nevent:x\r\revent: error\ndata:  é\r\n\r\nid:1\ndata: [DONE]";
    let whole = framed([text.as_bytes()]);
    let event = |n: &str, d: &str| Got::Event(n.into(), d.into());
    assert_eq!(
        whole,
        [
            Got::Comment,
            event("", "a\nb"),
            event("", ""),
            event("x", ""),
            event("error", " é"),
            Got::Tail(Tail::Cut {
                data: b"[DONE]".to_vec()
            }),
        ]
    );
    for at in 0..=text.len() {
        let (a, b) = text.as_bytes().split_at(at);
        for to in 0..=b.len() {
            let (b, c) = b.split_at(to);
            assert_eq!(framed([a, b, c]), whole, "cut at {at} and {to} further");
        }
    }
}

#[test]
fn a_sink_that_breaks_learns_where() {
    let mut framer = Framer::new();
    let bytes = b"data: 1\n\ndata: 2\r\n\r\nrest";
    let mut n = 0;
    let used = framer.push(bytes, |_| {
        n += 1;
        if n == 2 {
            ControlFlow::Break(())
        } else {
            ControlFlow::Continue(())
        }
    });
    assert_eq!(&bytes[used.unwrap()..], b"\nrest");
}

#[test]
fn an_event_is_bounded_however_it_grows() {
    let ignore = |_: Frame<'_>| ControlFlow::Continue(());
    let line = vec![b'x'; MAX_EVENT / 4];
    let mut framer = Framer::new();
    let result = (0..5).try_for_each(|_| framer.push(&line, ignore).map(drop));
    assert_eq!(result, Err(SseError::EventTooLong));
    let mut framer = Framer::new();
    let line = [b"data: ", &line[..], b"\n"].concat();
    let result = (0..5).try_for_each(|_| framer.push(&line, ignore).map(drop));
    assert_eq!(result, Err(SseError::EventTooLong));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn any_bytes_in_any_pieces_are_framed_by_the_book(
        tokens in prop::collection::vec(
            prop::sample::select(vec![
                "\n", "\r", "\r\n", ":", " ", "data", "data:", "data: x", "event: e", "event:",
                "id: 1", "\u{feff}", "é", ":c", "[DONE]", "\n\n",
            ]),
            0..24,
        ),
        cuts in prop::collection::vec(0usize..64, 0..6),
    ) {
        let bytes = tokens.concat().into_bytes();
        let mut cuts: Vec<_> = cuts.into_iter().filter(|c| *c <= bytes.len()).collect();
        cuts.extend([0, bytes.len()]);
        cuts.sort_unstable();
        let pieces = cuts.windows(2).map(|w| &bytes[w[0]..w[1]]);
        prop_assert_eq!(framed(pieces), by_the_book(&bytes));
    }
}
