//! The edits of tests/audit_forgery.rs. `want` is the exact set of error codes;
//! empty means that the edit cannot be found, or has no effect.

use runseal::bundle::read::RawBundle;
use runseal::codes::Code;
use runseal::digest::Sha256Digest;
use runseal::envelope;
use runseal::event::{EndCause, Event, EventLine, State};
use runseal::json;
use runseal::statement::PAYLOAD_TYPE;
use serde_json::{Value, json};

use crate::support::*;

/// How an edit leaves index and record.
pub enum Made {
    /// They are derived and signed again.
    Sealed,
    /// They stay as the edit left them.
    AsIs,
}

pub struct Edit {
    pub name: &'static str,
    pub base: &'static str,
    pub make: fn(&mut RawBundle) -> Made,
    pub want: &'static [Code],
    /// Without a finding, because the record derived again says it itself: where,
    /// and what.
    pub says: Option<(&'static str, &'static str)>,
}

/// `edit!(name, bundle, [codes], |raw| …)`: edited, then sealed again.
macro_rules! edit {
    ($name:literal, $base:expr, [$($code:ident),*], $make:expr) => {
        Edit {
            name: $name,
            base: $base,
            make: |raw| {
                let make: fn(&mut RawBundle) = $make;
                make(raw);
                Made::Sealed
            },
            want: &[$(Code::$code),*],
            says: None,
        }
    };
}

/// As [`edit!`], but nothing is sealed again.
macro_rules! as_is {
    ($name:literal, $base:expr, [$($code:ident),*], $make:expr) => {
        Edit {
            name: $name,
            base: $base,
            make: |raw| {
                let make: fn(&mut RawBundle) = $make;
                make(raw);
                Made::AsIs
            },
            want: &[$(Code::$code),*],
            says: None,
        }
    };
}

/// `says!(name, bundle, pointer, text, |raw| …)`: nothing is wrong with the
/// evidence, and the record derived from it tells the story.
macro_rules! says {
    ($name:literal, $base:expr, $pointer:literal, $text:literal, $make:expr) => {
        Edit {
            says: Some(($pointer, $text)),
            ..edit!($name, $base, [], $make)
        }
    };
}

mod answers;
mod declaration;
mod envelopes;
mod files;
mod load;
mod machines;
mod request_ends;
mod request_log;
mod run_log;
mod servers;

pub fn all() -> Vec<Edit> {
    [
        envelopes::edits(),
        files::edits(),
        declaration::edits(),
        run_log::edits(),
        request_log::edits(),
        request_ends::edits(),
        load::edits(),
        answers::edits(),
        machines::edits(),
        servers::edits(),
    ]
    .into_iter()
    .flatten()
    .collect()
}

fn measured(l: &EventLine) -> bool {
    matches!(&l.event, Event::Queued { warmup: false, .. })
}

/// Number of the first measured attempt of the golden bundles.
const FIRST: u32 = 2;

fn is(req: u32, l: &EventLine) -> bool {
    l.event.req() == Some(req)
}

fn state(want: State) -> impl Fn(&EventLine) -> bool {
    move |l| matches!(l.event, Event::State { state } if state == want)
}

/// Position of the n-th event of an attempt that `want` holds for.
fn nth(lines: &[EventLine], req: u32, n: usize, want: fn(&Event) -> bool) -> usize {
    let hits = lines
        .iter()
        .enumerate()
        .filter(|(_, l)| is(req, l) && want(&l.event));
    hits.map(|(i, _)| i).nth(n).expect("the golden log has it")
}

fn delta(e: &Event) -> bool {
    matches!(e, Event::Delta { len, .. } if *len > 0)
}

fn set(raw: &mut RawBundle, name: &str, pointer: &str, value: Value) {
    edit_json(raw, name, |v| *v.pointer_mut(pointer).unwrap() = value);
}

fn swap_in(raw: &mut RawBundle, name: &str, from: &str) {
    let bytes = load(from).files[&path(name)].clone();
    assert_ne!(*file(raw, name), bytes);
    *file(raw, name) = bytes;
}

/// Edits the n-th event of the first measured attempt that `want` holds for.
fn one(raw: &mut RawBundle, n: usize, want: fn(&Event) -> bool, edit: fn(&mut EventLine)) {
    edit_events(raw, |l| {
        let i = nth(l, FIRST, n, want);
        edit(&mut l[i]);
    });
}

/// Drops it.
fn without(raw: &mut RawBundle, n: usize, want: fn(&Event) -> bool) {
    edit_events(raw, |l| {
        let i = nth(l, FIRST, n, want);
        l.remove(i);
    });
}

fn usage(e: &Event) -> bool {
    matches!(e, Event::Usage { .. })
}

fn read(e: &Event) -> bool {
    matches!(e, Event::Read { .. })
}

/// Shifts every stamp of attempts from `req` on.
fn later(raw: &mut RawBundle, from: u32, ns: u64) {
    edit_events(raw, |lines| {
        for l in lines {
            if l.event.req().is_some_and(|r| r >= from)
                || matches!(l.event, Event::State { state } if state >= State::Collect)
                || matches!(
                    l.event,
                    Event::RankAlive { .. } | Event::RankExit { .. } | Event::EndOfLog {}
                )
            {
                l.t += ns;
            }
        }
    });
}
