//! May two records be held against each other? If not, why not; if so, how far apart
//! they are, with intervals where repetitions allow them.
//!
//! Two kinds of things can differ. A *condition* is how the question was asked: suite,
//! data, hardware, cache, load, sampling, counting. Unequal conditions forbid a
//! comparison, unless the reader declares one as the factor that was varied on purpose.
//! The *setup* is what was asked: weights, image, arguments. It may differ, that is why
//! one compares; but a cause is named only when a single declared factor differs and
//! nothing else does.

pub mod bootstrap;
mod deltas;
pub mod human;

use std::collections::{BTreeMap, BTreeSet};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::audit::Verdict;
use crate::codes::Code;
use crate::finding::{Finding, Severity};
use crate::record::{CacheProof, RunRecord, Status};

pub use deltas::Delta;

/// One side: where it lies, its record as derived by the audit, and the verdict.
#[derive(Debug, Clone, Copy)]
pub struct Side<'a> {
    /// Where it lies.
    pub path: &'a str,
    /// As it follows from its evidence; `None` when nothing could be derived.
    pub record: Option<&'a RunRecord>,
    /// What the audit came to.
    pub verdict: Verdict,
}

/// What the reader asks.
#[derive(Debug, Clone, Default)]
pub struct Question {
    /// Things that were varied on purpose.
    pub factors: BTreeSet<String>,
    /// A cause is claimed: nothing but the factor may differ.
    pub causal: bool,
    /// Seed of the resampling.
    pub seed: u64,
}

/// Something that differs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Difference {
    /// Its name; `--factor` takes it.
    pub name: String,
    /// `condition` or `setup`.
    pub kind: String,
    /// As in A.
    pub a: String,
    /// As in B.
    pub b: String,
    /// True when it was declared as a factor.
    pub declared: bool,
}

/// What may be said about a cause.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Cause {
    /// True when two of the runs differ in the one declared factor and nothing else.
    pub supported: bool,
    /// The two runs, or why there are none.
    pub reason: String,
}

/// The answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Comparison {
    /// Path of A.
    pub a: String,
    /// Path of B.
    pub b: String,
    /// Path of the control run.
    pub control: Option<String>,
    /// True when A and B may be compared.
    pub comparable: bool,
    /// Declared factors.
    pub factors: Vec<String>,
    /// What differs between A and B.
    pub differences: Vec<Difference>,
    /// B less A, metric by metric; empty when they may not be compared.
    pub deltas: Vec<Delta>,
    /// The run that carries the cause less the control, where that is another pair.
    pub control_deltas: Vec<Delta>,
    /// What may be said about a cause.
    pub cause: Cause,
    /// Findings, errors first.
    pub findings: Vec<Finding>,
}

/// Names that `--factor` takes, with their kind, in the order of reports.
pub const NAMES: [(&str, &str); 24] = [
    ("suite", "condition"),
    ("dataset", "condition"),
    ("scorer", "condition"),
    ("hardware", "condition"),
    ("cache", "condition"),
    ("cache_proof", "condition"),
    ("concurrency", "condition"),
    ("endpoints", "condition"),
    ("load", "condition"),
    ("temperature", "condition"),
    ("seed", "condition"),
    ("max_tokens", "condition"),
    ("reasoning_effort", "condition"),
    ("extra", "condition"),
    ("token_counts", "condition"),
    ("rules_version", "condition"),
    ("weights", "setup"),
    ("engine", "setup"),
    ("version", "setup"),
    ("image_kind", "setup"),
    ("image", "setup"),
    ("argv", "setup"),
    ("env", "setup"),
    ("layout", "setup"),
];

/// Every named thing of a record.
fn named(record: &RunRecord) -> BTreeMap<String, String> {
    let mut out = record.conditions.values.clone();
    let proof = match &record.cache.proof {
        CacheProof::Proven { .. } => "proven",
        CacheProof::Refused { .. } => "refused",
        CacheProof::NotClaimed => "not claimed",
    };
    let weights: Vec<String> = record
        .model
        .checkpoints
        .iter()
        .map(|c| format!("{} {} {}", c.role, c.name, c.manifest_root))
        .collect();
    let image = serde_json::to_value(&record.runtime.image).unwrap_or_default();
    for (name, value) in [
        ("cache_proof", proof.to_owned()),
        ("rules_version", record.provenance.rules_version.clone()),
        ("weights", weights.join("; ")),
        ("engine", record.runtime.engine.clone()),
        (
            "version",
            record.runtime.version.clone().unwrap_or_default(),
        ),
        ("image_kind", record.runtime.image_kind.clone()),
        ("image", image.to_string()),
        ("argv", record.runtime.argv_digest.hex()),
        ("env", record.runtime.env_digest.hex()),
        ("layout", record.runtime.layout.clone()),
    ] {
        out.insert(name.to_owned(), value);
    }
    out
}

/// What differs between two records. A condition that this version does not know is
/// still a condition.
fn differences(a: &RunRecord, b: &RunRecord, factors: &BTreeSet<String>) -> Vec<Difference> {
    let (x, y) = (named(a), named(b));
    let known = NAMES.iter().map(|(name, kind)| ((*name).to_owned(), *kind));
    let other = x
        .keys()
        .chain(y.keys())
        .filter(|k| !NAMES.iter().any(|(name, _)| name == k))
        .collect::<BTreeSet<_>>()
        .into_iter()
        .map(|k| (k.clone(), "condition"));
    let absent = "(absent)".to_owned();
    known
        .chain(other)
        .filter_map(|(name, kind)| {
            let (a, b) = (x.get(&name), y.get(&name));
            (a != b).then(|| Difference {
                kind: kind.to_owned(),
                a: a.unwrap_or(&absent).clone(),
                b: b.unwrap_or(&absent).clone(),
                declared: factors.contains(&name),
                name,
            })
        })
        .collect()
}

/// Whether a side can take part at all.
fn fit(side: &Side, findings: &mut Vec<Finding>) -> bool {
    let mut bad = |why: String| {
        findings.push(Finding::new(Code::RecordNotComparable, side.path, why));
        false
    };
    let Some(record) = side.record else {
        return bad("it records no conditions, so nothing can be held against it".into());
    };
    if side.verdict == Verdict::NotVerified {
        return bad("its audit does not hold (`verify record` says why)".into());
    }
    if record.run.status != Status::Completed {
        return bad(format!("its run is {}", record.run.status.name()));
    }
    if !record.run.taints.is_empty() {
        return bad(format!("its run has {} taint(s)", record.run.taints.len()));
    }
    true
}

/// Compares two records, with a third as control where there is one.
pub fn compare(a: &Side, b: &Side, control: Option<&Side>, question: &Question) -> Comparison {
    let mut findings = Vec::new();
    let fits: Vec<bool> = [Some(a), Some(b), control]
        .into_iter()
        .flatten()
        .map(|s| fit(s, &mut findings))
        .collect();
    let mut out = Comparison {
        a: a.path.to_owned(),
        b: b.path.to_owned(),
        control: control.map(|c| c.path.to_owned()),
        comparable: false,
        factors: question.factors.iter().cloned().collect(),
        differences: Vec::new(),
        deltas: Vec::new(),
        control_deltas: Vec::new(),
        cause: Cause {
            supported: false,
            reason: "the records cannot be compared".into(),
        },
        findings,
    };
    if let (Some(x), Some(y)) = (a.record, b.record) {
        out.differences = differences(x, y, &question.factors);
        for d in out
            .differences
            .iter()
            .filter(|d| d.kind == "condition" && !d.declared)
        {
            out.findings.push(
                Finding::new(
                    Code::ConditionsDiffer,
                    &d.name,
                    "the records were not measured under this one condition",
                )
                .values(&d.a, &d.b),
            );
        }
        for factor in &question.factors {
            if !out.differences.iter().any(|d| d.name == *factor) {
                out.findings.push(Finding::new(
                    Code::FactorNotVaried,
                    factor,
                    "it was declared as what was varied, and is the same in both",
                ));
            }
        }
        if x.run.id == y.run.id {
            let why = "both are one run";
            out.findings
                .push(Finding::new(Code::RecordNotComparable, b.path, why));
        }
        let errors = out.findings.iter().any(|f| f.severity == Severity::Error);
        out.comparable = !errors && fits.iter().all(|f| *f);
        if out.comparable {
            let (deltas, few) = deltas::deltas(x, y, question.seed);
            out.deltas = deltas;
            if let Some(few) = few {
                let f = Finding::new(Code::RepetitionsTooFew, "repetitions", few);
                out.findings.push(f);
            }
            cause(&mut out, [Some(a), Some(b), control], question);
        }
    }
    if question.causal && !out.cause.supported {
        let f = Finding::new(Code::CausalNotSupported, "cause", out.cause.reason.clone());
        out.findings.push(f);
    }
    out.findings.sort_by_key(|f| std::cmp::Reverse(f.severity));
    out
}

/// Looks for two runs that differ in the one declared factor alone.
fn cause(out: &mut Comparison, sides: [Option<&Side>; 3], question: &Question) {
    let mut factors = question.factors.iter();
    let (Some(factor), None) = (factors.next(), factors.next()) else {
        out.cause.reason = match question.factors.is_empty() {
            true => "no factor was declared (--factor NAME), so no cause can be named".into(),
            false => {
                "several factors were varied at once, so none can be named as the cause".into()
            }
        };
        return;
    };
    let [a, b, control] = sides;
    let mut why = Vec::new();
    for (p, q) in [(a, b), (control, a), (control, b)] {
        let (Some(p), Some(q)) = (p, q) else {
            continue;
        };
        let (Some(x), Some(y)) = (p.record, q.record) else {
            continue;
        };
        let differ: Vec<String> = differences(x, y, &question.factors)
            .into_iter()
            .map(|d| d.name)
            .collect();
        if differ == [factor.clone()] {
            out.cause = Cause {
                supported: true,
                reason: format!(
                    "{} and {} differ in {factor} and in nothing else recorded",
                    p.path, q.path
                ),
            };
            if control.is_some_and(|c| c.path == p.path) {
                out.control_deltas = deltas::deltas(x, y, question.seed).0;
            }
            return;
        }
        why.push(match differ.is_empty() {
            true => format!("{} and {} do not differ", p.path, q.path),
            false => format!("{} and {} differ in {}", p.path, q.path, differ.join(", ")),
        });
    }
    out.cause.reason = format!(
        "a cause needs a control run that differs in {factor} only; {}",
        why.join("; ")
    );
}

impl Comparison {
    /// True when they may be compared and nothing that was asked for is missing.
    pub fn holds(&self) -> bool {
        self.comparable && self.findings.iter().all(|f| f.severity < Severity::Error)
    }
}
