//! The files that a record was made from, where they lie beside it.

use std::collections::{BTreeMap, BTreeSet};

use super::{Cell, ThroughputRecord};
use crate::codes::Code;
use crate::digest::Sha256Digest;
use crate::published::Beside;
use crate::published::number::{Interval, parse};
use crate::published::report::{Auditor, Derivation};
use crate::relpath::RelPath;

/// First line of a `throughput.csv` as `attest export` writes it.
const HEADER: &str =
    "context_tokens,concurrency,repetition,output_tokens_per_request,output_tokens_per_second";

/// Compares digests, and the rates of a `throughput.csv` in our own form.
pub fn sources(a: &mut Auditor, r: &ThroughputRecord, beside: &dyn Beside) {
    const CODES: &[Code] = &[Code::SourceMismatch, Code::SourceDisagrees];
    let mut absent = Vec::new();
    for s in &r.sources {
        // A name with a folder in it could lead anywhere; nothing is opened then.
        let plain = RelPath::parse(&s.name).is_ok_and(|p| !p.as_bytes().contains(&b'/'));
        if !plain {
            a.add(
                Code::SourceMismatch,
                &s.name,
                "it is not the name of a file beside the record",
            );
            continue;
        }
        match beside.read(&s.name) {
            Ok(Some(bytes)) => {
                let found = Sha256Digest::of(&bytes);
                if found == s.sha256 {
                    rates(a, r, &s.name, &bytes);
                } else {
                    a.differ(
                        Code::SourceMismatch,
                        &s.name,
                        "the file beside the record is not the one it was made from",
                        s.sha256,
                        found,
                    );
                }
            }
            Ok(None) => absent.push(s.name.clone()),
            Err(why) => a.add(Code::SourceMismatch, &s.name, why),
        }
    }
    if r.sources.is_empty() {
        a.skip("sources", false, "the record names none");
    } else if absent.len() == r.sources.len() {
        a.skip("sources", false, "none of them lies beside the record");
    } else {
        a.close("sources", CODES);
        if !absent.is_empty() {
            a.skip(
                "sources-complete",
                false,
                format!("{} not beside the record", absent.join(", ")),
            );
        }
    }
}

fn rates(a: &mut Auditor, r: &ThroughputRecord, name: &str, bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else {
        return;
    };
    let mut lines = text.lines();
    if lines.next() != Some(HEADER) {
        return;
    }
    let mut wrong = |line: usize, why: &str| {
        a.add(Code::SourceDisagrees, format!("{name}:{line}"), why);
    };
    let mut seen = BTreeSet::new();
    let mut agree = BTreeSet::new();
    let cells: BTreeMap<(u64, u64), &Cell> = r
        .cells
        .iter()
        .map(|c| ((c.context_tokens, c.concurrency), c))
        .collect();
    for (i, line) in lines.enumerate() {
        let n = i + 2;
        let fields: Vec<&str> = line.split(',').collect();
        let number = |i: usize| fields.get(i).and_then(|f| f.parse::<u64>().ok());
        let (Some(context), Some(concurrency), Some(rep), Some(output)) =
            (number(0), number(1), number(2), number(3))
        else {
            wrong(n, "it is not a row of the table");
            continue;
        };
        let rate = fields.get(4).and_then(|f| parse(f));
        let cell = cells.get(&(context, concurrency));
        let said = cell.and_then(|c| {
            let at = usize::try_from(rep.checked_sub(1)?).ok()?;
            c.run_tokens_per_second.get(at)
        });
        if !seen.insert((context, concurrency, rep)) {
            wrong(n, "it is there twice");
            continue;
        }
        let (Some(said), Some(rate)) = (said, rate) else {
            wrong(n, "the record has no such batch");
            continue;
        };
        let places = fields[4].split_once('.').map_or(0, |(_, d)| d.len());
        let listed = Interval::around(rate, u32::try_from(places).unwrap_or(0));
        if !listed.meets(&Interval::of(*said)) {
            wrong(n, "its rate is not the one in the record");
        } else if let Some(c) = cell {
            let at = super::checks::place(c);
            agree.insert(format!(
                "{at}.runTokensPerSecond[{}]",
                rep.saturating_sub(1)
            ));
        }
        if output != r.profile.output_tokens {
            wrong(n, "its output tokens are not the profile's");
        }
    }
    let want: usize = r.cells.iter().map(|c| c.run_tokens_per_second.len()).sum();
    if seen.len() != want {
        wrong(1, "it does not have as many rows as the record has batches");
    }
    for f in a.figures.iter_mut().filter(|f| agree.contains(&f.id)) {
        f.derivation = Derivation::Consistent;
        f.basis = format!("also in {name}, which lies beside the record");
    }
}
