//! One recipe card over several configurations of a served model, each from a record of
//! its own.
//!
//! Everything is read off the records: figures by their definitions, limits and pool from
//! what the servers say of themselves. What a record does not have is null in the card and
//! named under `absent` with the reason. A configuration that cannot be set beside the
//! default one is marked so, with every reason; `evidence` names for each figure the run
//! and the metric or fact that it is.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value, json};

use crate::digest::Sha256Digest;
use crate::export::number;
use crate::metrics::Metric;
use crate::plan::Pin;
use crate::record::{CaseRecord, NodeRecord, RunRecord, Status};
use crate::scorer::Grade;
use crate::server_facts::FactValue;
use crate::suite::{BatchOf, Measure};

/// Why there is no card.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum CardError {
    /// Nothing to show.
    #[error("a card needs a configuration (hint: NAME=BUNDLE)")]
    Nothing,
    /// Two of one name or of one run.
    #[error("{0} is there twice")]
    Twice(String),
    /// There is no such configuration.
    #[error("{0:?} is none of the configurations")]
    UnknownDefault(String),
    /// Its suite measures something else.
    #[error(
        "{0}: its suite is of no recipe card (hint: recipe-card-v1, or one that its generate.py makes)"
    )]
    NotACard(String),
    /// The run did not end well.
    #[error("{0}: the run is not completed and untainted, so its figures are not published")]
    NotCompleted(String),
    /// Two batches would be one figure.
    #[error("{config}: two batches of its suite measure {what}")]
    Ambiguous {
        /// The configuration.
        config: String,
        /// What both measure.
        what: String,
    },
}

/// A configuration: what it is called, which is the exporter's word, and its record, which
/// an audit gave.
#[derive(Debug, Clone, Copy)]
pub struct Config<'a> {
    /// For example `tp4`.
    pub name: &'a str,
    /// As it follows from the evidence.
    pub record: &'a RunRecord,
    /// SHA-256 of the bundle's index.json, the record's subject.
    pub index: Sha256Digest,
    /// The answers were graded again.
    pub regraded: bool,
}

/// Makes the card: pretty JSON. `default` names the configuration that the others are held
/// against; the first without it.
pub fn card(configs: &[Config], default: Option<&str>) -> Result<Vec<u8>, CardError> {
    let first = configs.first().ok_or(CardError::Nothing)?;
    let (mut names, mut runs) = (BTreeSet::new(), BTreeSet::new());
    for c in configs {
        if !names.insert(c.name) {
            return Err(CardError::Twice(c.name.to_owned()));
        }
        if !runs.insert(c.record.run.id.as_str()) {
            return Err(CardError::Twice(c.record.run.id.clone()));
        }
        let measures = |b: &BatchOf| b.measures.is_some();
        let batches = &c.record.input.batches;
        if batches.is_empty() || !batches.iter().all(measures) {
            return Err(CardError::NotACard(c.name.to_owned()));
        }
        if c.record.run.status != Status::Completed || !c.record.run.taints.is_empty() {
            return Err(CardError::NotCompleted(c.name.to_owned()));
        }
    }
    let base = match default {
        None => first,
        Some(name) => configs
            .iter()
            .find(|c| c.name == name)
            .ok_or_else(|| CardError::UnknownDefault(name.to_owned()))?,
    };
    let mut shown = Vec::new();
    let mut alone = 0;
    for c in configs {
        let reasons = not_comparable(c, base);
        alone += usize::from(!reasons.is_empty());
        shown.push(config(c, base, reasons)?);
    }
    let record = base.record;
    let model = target(record);
    let engine = engine(record);
    let hardware: BTreeSet<String> = configs
        .iter()
        .flat_map(|c| c.record.hardware.nodes.iter().map(machine))
        .collect();
    let hardware: Vec<String> = hardware.into_iter().collect();
    let marked = match alone {
        0 => "All may be compared with the default one".to_owned(),
        n => format!("{n} of them must not be compared with the default one, and say why"),
    };
    let card = json!({
        "version": 1,
        "title": model,
        // Nothing in a record says it.
        "variant": null,
        "summary": format!(
            "{model} served by {engine} in {} configuration(s), measured with {}. {marked}. Every figure names the run \
             and the metric that it is, so that it can be recomputed.",
            configs.len(),
            record.run.suite
        ),
        "model": model,
        "hardware": hardware.join("; "),
        "stack": [engine],
        "default_config": base.name,
        "configs": shown,
    });
    let mut out = serde_json::to_vec_pretty(&card).unwrap_or_default();
    out.push(b'\n');
    Ok(out)
}

fn target(record: &RunRecord) -> &str {
    let target = record.model.checkpoints.iter().find(|c| c.role == "target");
    target.map_or("", |c| c.name.as_str())
}

fn engine(record: &RunRecord) -> String {
    match &record.runtime.version {
        Some(version) => format!("{} {version}", record.runtime.engine),
        None => record.runtime.engine.clone(),
    }
}

/// A machine by kind, so that two of one kind are alike.
fn machine(node: &NodeRecord) -> String {
    format!(
        "{} {}, {} processors, GPUs: {}",
        node.arch,
        node.cpu_model.as_deref().unwrap_or("(unknown processor)"),
        node.cpus,
        match node.gpus.as_slice() {
            [] => "none seen".to_owned(),
            some => some.join(", "),
        }
    )
}

/// What must be the same for two configurations to stand side by side, and how it is with
/// this one. How many machines and ranks there are, and the arguments and environment that
/// follow from it, are what configurations are about; they are not in it.
fn conditions(record: &RunRecord) -> BTreeMap<String, String> {
    let joined = |set: BTreeSet<String>| set.into_iter().collect::<Vec<_>>().join("; ");
    let nodes = &record.hardware.nodes;
    let system = |n: &NodeRecord| {
        let known = |s: &Option<String>| s.clone().unwrap_or_else(|| "(unknown)".into());
        format!("{}, kernel {}", known(&n.os), known(&n.kernel))
    };
    let roots = record.model.checkpoints.iter();
    let roots = roots.map(|c| format!("{} {}", c.role, c.manifest_root.hex()));
    let executable = match &record.runtime.image {
        Pin::Sha256(digest) => digest.hex(),
        Pin::Unpinned { reason } => format!("unpinned: {reason}"),
    };
    let mut out: BTreeMap<String, String> = [
        ("hardware", joined(nodes.iter().map(machine).collect())),
        ("system", joined(nodes.iter().map(system).collect())),
        ("engine", engine(record)),
        ("executable", executable),
        ("checkpoint", joined(roots.collect())),
        ("rules", record.provenance.rules_version.clone()),
        ("client", record.provenance.tool.binary_sha256.hex()),
    ]
    .map(|(k, v)| (k.to_owned(), v))
    .into();
    // Suite, scorer, cache claim, temperature and so on; "hardware" there counts machines.
    let values = record.conditions.values.iter();
    let same = values.filter(|(k, _)| !matches!(k.as_str(), "hardware" | "endpoints"));
    out.extend(same.map(|(k, v)| (k.clone(), v.clone())));
    out
}

/// What keeps a record's figures from being those of the named model on the named program.
fn unsound(record: &RunRecord) -> Vec<String> {
    let mut out = Vec::new();
    let (a, pin) = (&record.attribution, &record.runtime.image);
    if a.unverified > 0 {
        out.push(format!(
            "{} of {} attempts are not attributed to the pinned weights and program",
            a.unverified, a.declared
        ));
    }
    if let Pin::Unpinned { reason } = pin {
        out.push(format!("its program is not pinned: {reason}"));
    }
    out
}

fn not_comparable(config: &Config, base: &Config) -> Vec<String> {
    let mut out = unsound(config.record);
    if config.name == base.name {
        return out;
    }
    if !unsound(base.record).is_empty() {
        out.push(format!("{} itself cannot be compared with", base.name));
    }
    let (ours, theirs) = (conditions(config.record), conditions(base.record));
    let names: BTreeSet<&String> = ours.keys().chain(theirs.keys()).collect();
    for name in names {
        let of = |m: &BTreeMap<String, String>| m.get(name).cloned().unwrap_or("(absent)".into());
        let (here, there) = (of(&ours), of(&theirs));
        if here != there {
            out.push(format!(
                "{name} differs: {here} here, {there} in {}",
                base.name
            ));
        }
    }
    out
}

/// What a configuration's figures are collected in.
#[derive(Default)]
struct Page {
    decode: Map<String, Value>,
    prefill: Vec<Value>,
    concurrency: Vec<Value>,
    quality: Vec<Value>,
    evidence: Vec<Value>,
    absent: Vec<Value>,
}

impl Page {
    /// A metric's value as a number, and where it is from; null with the reason.
    fn figure(&mut self, shown: &str, record: &RunRecord, id: &str, batch: u32) -> Value {
        let found = record
            .metrics
            .iter()
            .find(|m| m.id == id && m.batch == Some(batch) && m.rep.is_none());
        let Some(metric) = found else {
            return self.nothing(shown, &format!("the record has no {id} @ batch {batch}"));
        };
        let Some(value) = &metric.value else {
            let why = metric.note.clone().unwrap_or_default();
            return self.nothing(shown, &format!("{}: {why}", metric.name()));
        };
        self.evidence.push(traced(shown, metric, "recomputed"));
        json!(number(value))
    }

    fn nothing(&mut self, shown: &str, why: &str) -> Value {
        self.absent.push(json!({"figure": shown, "why": why}));
        Value::Null
    }

    /// A count that the servers state, all of them alike and the same before and after.
    fn fact(&mut self, shown: &str, record: &RunRecord, name: &str) -> Value {
        let mut values = BTreeSet::new();
        let mut sources = Vec::new();
        for server in record.servers.iter().flatten() {
            for fact in server.facts.iter().filter(|f| f.name == name) {
                let stated = [&fact.before, &fact.after].into_iter().flatten();
                let stated: Vec<String> = stated.map(said).collect();
                if !stated.is_empty() {
                    sources.push(json!({
                        "endpoint": server.endpoint,
                        "source": fact.source,
                        "before": fact.before,
                        "after": fact.after,
                    }));
                }
                values.extend(stated);
            }
        }
        let values: Vec<String> = values.into_iter().collect();
        match values.as_slice() {
            [] => self.nothing(shown, &format!("no server states {name}")),
            [one] => match one.parse::<u64>() {
                Ok(n) => {
                    self.evidence
                        .push(json!({"figure": shown, "fact": name, "stated": sources}));
                    json!(n)
                }
                Err(_) => self.nothing(shown, &format!("{name} is stated as {one:?}")),
            },
            several => {
                let all = several.join(", ");
                self.nothing(shown, &format!("{name} is stated as {all}"))
            }
        }
    }
}

fn said(value: &FactValue) -> String {
    match value {
        FactValue::Count(n) => n.to_string(),
        FactValue::Flag(b) => b.to_string(),
        FactValue::Text(text) => text.clone(),
    }
}

/// Where a figure is from, with the record's own decimals.
fn traced(shown: &str, metric: &Metric, derivation: &str) -> Value {
    json!({
        "figure": shown,
        "metric": metric.name(),
        "value": metric.value,
        "unit": metric.unit,
        "n": metric.n,
        "estimator": metric.estimator,
        "denominator": metric.denominator,
        "derivation": derivation,
        "witness": metric.witness,
        "note": metric.note,
    })
}

/// The declared attempts of each batch, in the order of the batches.
fn by_batch(record: &RunRecord) -> Vec<Vec<&CaseRecord>> {
    let batches = &record.input.batches;
    let numbers = batches.iter().enumerate();
    let numbers: Vec<usize> = numbers
        .flat_map(|(i, b)| std::iter::repeat_n(i, b.size() as usize))
        .collect();
    let mut out = vec![Vec::new(); batches.len()];
    for (case, i) in record.cases.iter().zip(numbers.iter().cycle()) {
        out[*i].push(case);
    }
    out
}

fn config(c: &Config, base: &Config, reasons: Vec<String>) -> Result<Value, CardError> {
    let record = c.record;
    let mut page = Page::default();
    let mut seen = BTreeSet::new();
    for ((batch, cases), i) in record.input.batches.iter().zip(by_batch(record)).zip(1..) {
        let what = of(batch, i);
        if !seen.insert(what.clone()) {
            let config = c.name.to_owned();
            return Err(CardError::Ambiguous { config, what });
        }
        measured(&mut page, c, batch, &cases, i, &what);
    }
    let max_context = page.fact("max_context", record, "context-limit-tokens");
    let pool = page.fact("kv_pool_tokens", record, "kv-pool-tokens");
    let slots = page.fact("max_concurrent", record, "request-slots");
    let notes = match reasons.as_slice() {
        [] => Value::Null,
        some if c.name == base.name => json!(format!("Cannot be compared: {}.", some.join("; "))),
        some => json!(format!(
            "Not comparable with {}: {}.",
            base.name,
            some.join("; ")
        )),
    };
    let limitations = record.limitations.iter().map(|l| &l.code);
    Ok(json!({
        "id": c.name,
        "label": c.name,
        "nodes": record.hardware.machines,
        "decode": page.decode,
        "prefill": page.prefill,
        "concurrency": page.concurrency,
        "max_context": max_context,
        "kv_pool_tokens": pool,
        "max_concurrent": slots,
        "quality": page.quality,
        "comparable": reasons.is_empty(),
        "not_comparable": reasons,
        "notes": notes,
        "limitations": limitations.collect::<BTreeSet<_>>(),
        "absent": page.absent,
        "evidence": {
            "run": record.run.id,
            "index_sha256": c.index,
            "plan_digest": record.run.plan_digest,
            "suite": record.provenance.suite,
            "finished": record.run.finished,
            "layout": record.runtime.layout,
            "argv_digest": record.runtime.argv_digest,
            "env_digest": record.runtime.env_digest,
            "figures": page.evidence,
        },
    }))
}

/// The name of a batch's figure in the card.
fn of(batch: &BatchOf, i: u32) -> String {
    match batch.measures {
        Some(Measure::Decode) => match &batch.prompts {
            Some(kind) => format!("decode.{kind}"),
            None => format!("decode.batch-{i}"),
        },
        Some(Measure::Prefill) => format!("prefill.{}", batch.context_tokens),
        Some(Measure::Aggregate) => format!("concurrency.{}", batch.concurrency),
        Some(Measure::Recall) => format!("quality.needle-recall-{}", batch.context_tokens),
        None => format!("batch-{i}"),
    }
}

fn measured(
    page: &mut Page,
    c: &Config,
    batch: &BatchOf,
    cases: &[&CaseRecord],
    i: u32,
    what: &str,
) {
    let record = c.record;
    match batch.measures {
        Some(Measure::Decode) => {
            let rate = page.figure(what, record, "decode-rate-mean/v1", i);
            let kind = what.trim_start_matches("decode.").to_owned();
            page.decode.insert(kind, rate);
        }
        Some(Measure::Prefill) => {
            let rate = page.figure(what, record, "prefill-rate-mean/v1", i);
            let counted = || cases.iter().filter_map(|c| c.prompt_tokens);
            page.prefill.push(json!({
                "context": batch.context_tokens,
                // The context is a target; these the server counted.
                "prompt_tokens_min": counted().min(),
                "prompt_tokens_max": counted().max(),
                "tps": rate,
            }));
        }
        Some(Measure::Aggregate) => {
            let rate = page.figure(what, record, "batch-throughput-mean/v1", i);
            page.concurrency
                .push(json!({"streams": batch.concurrency, "aggregate_tps": rate}));
        }
        Some(Measure::Recall) => recall(page, c, cases, i, what),
        None => {}
    }
    short_output(page, record, cases, i, what);
}

/// Passes over declared attempts, the longest prompt that the server counted, and what
/// that shows at least.
fn recall(page: &mut Page, c: &Config, cases: &[&CaseRecord], i: u32, what: &str) {
    let passes = cases.iter().filter(|c| c.grade == Grade::Pass).count();
    let counted: Option<Vec<u64>> = cases.iter().map(|c| c.prompt_tokens).collect();
    let longest = match counted.and_then(|all| all.into_iter().max()) {
        Some(n) => format!("up to {n} prompt tokens"),
        None => "at lengths that the server did not count".to_owned(),
    };
    let derivation = match c.regraded {
        true => "recomputed",
        false => "stated",
    };
    let mut bound = Value::Null;
    for id in ["recall/v1", "recall-lower-bound/v1"] {
        let of = |m: &&Metric| m.id == id && m.batch == Some(i);
        if let Some(m) = c.record.metrics.iter().find(of) {
            page.evidence.push(traced(what, m, derivation));
            bound = json!(m.value);
        }
    }
    page.quality.push(json!({
        "name": "Needle recall",
        "value": format!("{passes}/{} {longest}", cases.len()),
        // One-sided, 95 %, exact.
        "lower_bound": bound,
    }));
}

/// Says so where attempts did not generate the tokens that they were to.
fn short_output(page: &mut Page, record: &RunRecord, cases: &[&CaseRecord], i: u32, what: &str) {
    let fixed = |m: &&Metric| m.id == "fixed-output/v1" && m.batch == Some(i);
    let Some(m) = record.metrics.iter().find(fixed) else {
        return;
    };
    let whole: Option<usize> = m.value.as_ref().and_then(|v| v.parse().ok());
    if whole != Some(cases.len()) {
        page.evidence.push(traced(what, m, "recomputed"));
    }
}
