//! Derives the whole record from the evidence.
//!
//! One function for both sides: the operator's program calls it to seal, the
//! auditor's to compare. It reads no clock and no file.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::counts::{attribution_counts, grade_counts, integrity_counts, transport_counts};
use super::*;
use crate::bundle::Evidence;
use crate::bundle::index::Index;
use crate::digest::Enc;
use crate::event::Oddity;
use crate::event::{DeltaKind, Event};
use crate::grading::{Declared, THINK_TAGS, declared};
use crate::json;
use crate::length;
use crate::metrics::recall;
use crate::metrics::serving::{prompt_range, serving};
use crate::metrics::sweep;
use crate::suite::CellOf;
use crate::trace::Trace;
use crate::weights::derive_integrity;

/// Derives the record. `index` gives the withheld commitments.
pub fn record(evidence: &Evidence, index: &Index, stated: &Stated) -> RunRecord {
    let plan = &evidence.plan;
    let declared = declared(plan, &evidence.traces);
    let servers = servers::servers(evidence);
    let mut taints = status::taints(&evidence.events);
    taints.extend(servers::taints(servers.as_deref().unwrap_or_default()));
    let attributions = attribution::attributions(evidence, &declared, &taints);
    let grades = aligned_grades(evidence, &declared);
    let measured: Vec<&Trace> = evidence
        .traces
        .requests
        .iter()
        .filter(|t| !t.warmup)
        .collect();
    let cells = &evidence.suite_toml.cells;
    let cases = cases(plan, &declared, &grades, &attributions, cells);
    let mut record = RunRecord {
        run: run(evidence, &declared, taints),
        model: model(evidence),
        runtime: runtime(evidence),
        hardware: hardware(evidence),
        requests: requests(evidence, &declared),
        input: input(evidence, &declared),
        cache: cache(evidence, &declared, servers.as_deref()),
        transport: transport_counts(&cases),
        grades: grade_counts(&cases),
        attribution: attribution_counts(&cases),
        integrity: integrity_counts(evidence),
        servers,
        client_lag: lag::of_log(&evidence.events),
        metrics: metrics(evidence, &declared, &measured, &grades),
        cases,
        limitations: Vec::new(),
        conditions: conditions(evidence),
        provenance: provenance(evidence, stated),
        withheld: index.withholdable(),
    };
    record.limitations = limitations::derive(&record, facts(evidence, &declared, &grades));
    record
}

/// The serving figures, and those that the kind of suite adds.
fn metrics(
    evidence: &Evidence,
    declared: &[Declared],
    measured: &[&Trace],
    grades: &[crate::bundle::files::GradeLine],
) -> Vec<crate::metrics::Metric> {
    if !evidence.suite_toml.batches.is_empty() {
        return sweep::sweep(&evidence.suite_toml, &evidence.plan, declared, grades);
    }
    let mut metrics = serving(&evidence.plan.load, declared, measured, grades);
    if evidence.suite_toml.kind == recall::KIND {
        metrics.extend(recall::recall(grades));
    }
    metrics
}

/// Grades in the order of the declared attempts; a missing line is ungraded.
fn aligned_grades(
    evidence: &Evidence,
    declared: &[Declared],
) -> Vec<crate::bundle::files::GradeLine> {
    let by_key: BTreeMap<(&str, u32), _> = evidence
        .grades
        .iter()
        .map(|g| ((g.case.as_str(), g.rep), g))
        .collect();
    declared
        .iter()
        .map(|d| match by_key.get(&(d.case, d.rep)) {
            Some(line) => (*line).clone(),
            None => crate::bundle::files::GradeLine {
                case: d.case.to_owned(),
                rep: d.rep,
                grade: Grade::Ungraded {
                    reason: "no grade line".into(),
                },
                flags: Vec::new(),
            },
        })
        .collect()
}

fn run(evidence: &Evidence, declared: &[Declared], taints: Vec<Taint>) -> Run {
    let end = evidence.events.last().map_or(0, |l| l.t);
    Run {
        id: evidence.header.run_id.clone(),
        nonce_hash: evidence.header.nonce_hash,
        plan_digest: evidence.plan_digest,
        status: status::status(&evidence.events, declared),
        taints,
        started: evidence.header.epoch.clone(),
        finished: add_ns(&evidence.header.epoch, end),
        suite: evidence.suite_toml.name.clone(),
        kind: evidence.suite_toml.kind.clone(),
    }
}

/// Wall-clock text of an instant `ns` after the epoch; the epoch's own text when
/// it is not a timestamp.
pub fn add_ns(epoch: &str, ns: u64) -> String {
    let add = || {
        let start: jiff::Timestamp = epoch.parse().ok()?;
        let span = jiff::SignedDuration::from_nanos(i64::try_from(ns).ok()?);
        Some(start.checked_add(span).ok()?.to_string())
    };
    add().unwrap_or_else(|| epoch.to_owned())
}

fn model(evidence: &Evidence) -> Model {
    let checkpoints = evidence
        .plan
        .checkpoints
        .iter()
        .map(|pin| {
            let manifest = evidence.manifests.get(&pin.role);
            CheckpointRecord {
                role: pin.role.clone(),
                name: pin.name.clone(),
                manifest_root: pin.manifest_root,
                files: manifest.map_or(0, |m| m.file_count() as u64),
                bytes: manifest.map_or(0, |m| m.total_size()),
                revision: pin.revision.clone(),
                replicas: evidence
                    .plan
                    .replicas
                    .iter()
                    .map(|r| replica_record(evidence, &r.name, &r.node, &pin.role))
                    .collect(),
            }
        })
        .collect();
    Model { checkpoints }
}

fn replica_record(evidence: &Evidence, replica: &str, node: &str, role: &str) -> ReplicaRecord {
    let report = evidence
        .replicas
        .get(&(replica.to_owned(), role.to_owned()));
    ReplicaRecord {
        replica: replica.to_owned(),
        node: node.to_owned(),
        integrity: integrity(evidence, replica, role),
        after: attribution::after_state(report).to_owned(),
        observed_root: report.and_then(|r| r.observed_root),
    }
}

pub(super) fn integrity(evidence: &Evidence, replica: &str, role: &str) -> Integrity {
    let report = evidence
        .replicas
        .get(&(replica.to_owned(), role.to_owned()));
    match (report, evidence.manifests.get(role)) {
        (Some(report), Some(manifest)) => derive_integrity(manifest, report),
        _ => Integrity::NotChecked {
            reason: "there is no report of this replica".into(),
        },
    }
}

fn runtime(evidence: &Evidence) -> Runtime {
    let plan = &evidence.plan;
    let equal = match plan.engine.executable {
        Pin::Sha256(want) => evidence
            .image
            .observed
            .values()
            .filter(|d| **d == want)
            .count(),
        Pin::Unpinned { .. } => 0,
    };
    let argv = plan
        .engine
        .argv
        .iter()
        .fold(Enc::new("argv/v1"), |enc, a| enc.bytes(a.as_bytes()));
    let env = plan
        .engine
        .env
        .iter()
        .fold(Enc::new("env/v1"), |enc, (k, v)| {
            enc.bytes(k.as_bytes()).bytes(v.as_bytes())
        });
    let ranks: Vec<String> = plan
        .endpoints
        .iter()
        .map(|e| format!("{}={}", e.name, e.replicas.join("+")))
        .collect();
    Runtime {
        engine: plan.engine.recipe.clone(),
        version: common(evidence, |doc| {
            doc.get("/version")?
                .get("version")?
                .as_str()
                .map(str::to_owned)
        }),
        image_kind: evidence.image.kind.clone(),
        image: plan.engine.executable.clone(),
        image_observed_equal: equal as u64,
        ranks: evidence.engines.len() as u64,
        argv_digest: argv.finish(),
        env_digest: env.finish(),
        layout: ranks.join(" "),
        context_limit_tokens: common(evidence, |doc| {
            doc.get("/v1/models")?
                .pointer("/data/0/max_model_len")?
                .as_u64()
        }),
    }
}

/// A fact that every serving process reports alike before the measurement.
fn common<T: PartialEq>(
    evidence: &Evidence,
    read: impl Fn(&BTreeMap<String, Value>) -> Option<T>,
) -> Option<T> {
    let mut values = evidence.engines.values().map(|e| read(&e.before));
    let first = values.next()??;
    values.all(|v| v.as_ref() == Some(&first)).then_some(first)
}

fn hardware(evidence: &Evidence) -> Hardware {
    let machines: BTreeSet<String> = evidence
        .nodes
        .iter()
        .map(|(alias, n)| n.before.boot_id.clone().unwrap_or_else(|| alias.clone()))
        .collect();
    Hardware {
        machines: machines.len() as u64,
        nodes: evidence
            .nodes
            .iter()
            .map(|(alias, n)| NodeRecord {
                node: alias.clone(),
                arch: n.before.arch.clone(),
                cpu_model: n.before.cpu_model.clone(),
                cpus: n.before.cpus,
                mem_total: n.before.mem_total,
                gpus: n.before.gpus.clone(),
                os: n.before.os.clone(),
                kernel: n.before.kernel.clone(),
            })
            .collect(),
    }
}

fn requests(evidence: &Evidence, declared: &[Declared]) -> Requests {
    let plan = &evidence.plan;
    let reasoning = declared
        .iter()
        .filter(|d| {
            d.trace
                .is_some_and(|t| t.text_len(DeltaKind::Reasoning) > 0)
        })
        .count();
    Requests {
        temperature: plan.requests.temperature.clone(),
        seed: plan.requests.seed,
        max_tokens: plan.requests.max_tokens,
        reasoning_effort: plan.requests.reasoning_effort.clone(),
        reasoning_observed: reasoning as u64,
        streaming: true,
        concurrency: plan.load.concurrency,
        repetitions: plan.load.repetitions,
        endpoints: plan.endpoints.len() as u64,
        fixed_output: fixed_output(plan, declared),
    }
}

/// Flag of an answer that lacks the fixed number of tokens.
const NOT_FIXED: &str = "fixed-output-missed";

/// The cap of each declared attempt whose answer must reach it; nothing where the plan
/// does not ask for that.
fn caps(plan: &crate::plan::RunPlan) -> impl Iterator<Item = u64> + '_ {
    plan.suite.fixed_output.iter().copied().cycle()
}

/// The server generated something, went on to the cap and no further: `length` says that
/// the cap ended it, no count of its own was ever another at the end or past it, and
/// nothing followed.
fn is_fixed(d: &Declared, cap: u64) -> bool {
    d.trace.is_some_and(|t| {
        t.transport() == Transport::Completed
            && t.finish.as_deref() == Some("length")
            && t.completion_tokens() == Some(cap)
            && t.most_completion == Some(cap)
            && t.first_generated.is_some()
            && !t.odd.contains_key(&Oddity::AfterFinish)
    })
}

fn fixed_output(plan: &crate::plan::RunPlan, declared: &[Declared]) -> Option<FixedOutput> {
    if plan.suite.fixed_output.is_empty() {
        return None;
    }
    let pairs = declared.iter().zip(caps(plan));
    let good = pairs.filter(|(d, cap)| is_fixed(d, *cap)).count();
    Some(if good == declared.len() {
        FixedOutput::Proven { n: good as u64 }
    } else {
        let missing = declared.len() - good;
        FixedOutput::Refused {
            reason: format!(
                "{missing} of {} declared attempts did not generate exactly their cap of tokens, end with the \
                 finish reason length and say nothing after it",
                declared.len()
            ),
        }
    })
}

fn input(evidence: &Evidence, declared: &[Declared]) -> Input {
    let (min, max, n) = prompt_range(declared);
    let plan = &evidence.plan;
    let filled = plan.input.as_ref();
    let preparation = "frozen documents; a unique prefix per case, repetition and run".to_owned();
    Input {
        dataset: evidence.plan.suite.dataset,
        cases: evidence.plan.suite.case_ids.len() as u64,
        length_target_tokens: filled
            .and_then(|i| i.length_target_tokens)
            .or(evidence.suite_toml.length_target_tokens),
        prompt_tokens_min: min,
        prompt_tokens_max: max,
        prompt_tokens_n: n,
        preparation: match filled {
            None => preparation,
            Some(i) => format!(
                "{preparation}; filled with generated text ({}) to the length target by the server's count",
                i.language.name()
            ),
        },
        lengths: length::ranges(&evidence.suite_toml, plan, declared),
        batches: evidence.suite_toml.batches.clone(),
    }
}

fn cache(evidence: &Evidence, declared: &[Declared], servers: Option<&[ServerRecord]>) -> Cache {
    let claim = evidence.plan.cache.claim.clone();
    let proof = if claim == "cold" {
        let counted = servers.and_then(servers::cached);
        let sent = evidence.traces.requests.iter().filter(|t| !t.warmup);
        let most = sent.filter_map(|t| t.most_cached).max();
        cold_proof(
            evidence.plan.cache.max_cached_tokens,
            declared,
            most,
            counted,
        )
    } else {
        CacheProof::NotClaimed
    };
    Cache { claim, proof }
}

/// Cold means: every declared attempt that generated anything reported its cached
/// tokens; no report of any measured attempt, whatever became of it, was over the limit
/// (`most` is the largest); and where the servers count such tokens
/// themselves, the counters did not move by more than that for all of them.
fn cold_proof(
    limit: u64,
    declared: &[Declared],
    most: Option<u64>,
    counted: Option<i128>,
) -> CacheProof {
    let answered: Vec<&Trace> = declared
        .iter()
        .filter_map(|d| d.trace)
        .filter(|t| t.first_generated.is_some())
        .collect();
    let refused = |reason: String| CacheProof::Refused { reason };
    if answered.is_empty() {
        return refused("no attempt was answered".into());
    }
    let reports = answered.iter().filter(|t| t.most_cached.is_some()).count();
    let silent = answered.len() - reports;
    if silent > 0 {
        return refused(format!(
            "{silent} answers came without a cached-token report"
        ));
    }
    let most = most.unwrap_or(0);
    if most > limit {
        return refused(format!(
            "{most} cached tokens were reported, over the limit of {limit}"
        ));
    }
    let most_of_all = i128::from(limit) * reports as i128;
    if let Some(counted) = counted.filter(|c| *c > most_of_all) {
        return refused(format!(
            "the servers' own counters moved by {counted} cached tokens, over the limit of {limit} for each of {} answers",
            reports
        ));
    }
    CacheProof::Proven {
        n: reports as u64,
        max_cached_tokens: most,
    }
}

fn cases(
    plan: &crate::plan::RunPlan,
    declared: &[Declared],
    grades: &[crate::bundle::files::GradeLine],
    attributions: &[Attribution],
    cells: &[CellOf],
) -> Vec<CaseRecord> {
    let cells: BTreeMap<&str, &CellOf> = cells.iter().map(|c| (c.case.as_str(), c)).collect();
    let caps = caps(plan).map(Some).chain(std::iter::repeat(None));
    declared
        .iter()
        .zip(grades)
        .zip(attributions)
        .zip(caps)
        .map(|(((d, g), a), cap)| {
            let trace = d.trace;
            let since = |f: fn(&Trace) -> Option<u64>| {
                let t = trace?;
                Some(f(t)? - t.send?)
            };
            let mut flags = g.flags.clone();
            if let Some(t) = trace {
                // What did not complete says so itself.
                let completed = d.transport() == Transport::Completed;
                if cap.is_some_and(|cap| completed && !is_fixed(d, cap)) {
                    flags.push(NOT_FIXED.into());
                }
                if t.finish.is_some() && t.done.is_none() && d.transport() == Transport::Completed {
                    flags.push("no-done".into());
                }
                if t.attempt > 0 {
                    flags.push("retried".into());
                }
                flags.extend(t.odd.keys().map(|o| format!("odd-{}", name_of(o))));
            }
            CaseRecord {
                case: d.case.to_owned(),
                rep: d.rep,
                endpoint: trace.map(|t| t.endpoint.clone()),
                transport: d.transport(),
                grade: g.grade.clone(),
                attribution: a.clone(),
                duration_ns: since(|t| t.end),
                first_generated_ns: since(|t| t.first_generated),
                first_content_ns: since(|t| t.first_content),
                prompt_tokens: trace.and_then(Trace::prompt_tokens),
                completion_tokens: trace.and_then(Trace::completion_tokens),
                finish_reason: trace.and_then(|t| t.finish.clone()),
                flags,
                cell: cells.get(d.case).map(|c| CellRecord {
                    length_target_tokens: c.length_target_tokens,
                    depth_percent: c.depth_percent,
                    needle_seed: c.needle_seed.clone(),
                    haystack_sha256: c.haystack_sha256,
                }),
            }
        })
        .collect()
}

fn name_of<T: Serialize>(value: &T) -> String {
    match serde_json::to_value(value) {
        Ok(Value::String(s)) => s.replace('_', "-"),
        _ => String::new(),
    }
}

fn conditions(evidence: &Evidence) -> Conditions {
    let plan = &evidence.plan;
    let hardware: Vec<String> = evidence
        .nodes
        .values()
        .map(|n| {
            let b = &n.before;
            format!(
                "{} {} x{} gpus=[{}]",
                b.arch,
                b.cpu_model.as_deref().unwrap_or("?"),
                b.cpus,
                b.gpus.join(",")
            )
        })
        .collect();
    let extra = Value::Object(plan.requests.extra.clone());
    let mut values: BTreeMap<String, String> = [
        ("suite", plan.suite.digest.hex()),
        ("dataset", plan.suite.dataset.hex()),
        ("scorer", plan.suite.scorer.hex()),
        ("hardware", hardware.join("; ")),
        ("cache", plan.cache.claim.clone()),
        ("concurrency", plan.load.concurrency.to_string()),
        ("endpoints", plan.endpoints.len().to_string()),
        ("temperature", plan.requests.temperature.clone()),
        ("seed", plan.requests.seed.to_string()),
        ("max_tokens", plan.requests.max_tokens.to_string()),
        (
            "extra",
            String::from_utf8_lossy(&json::canonical(&extra)).into_owned(),
        ),
        (
            "reasoning_effort",
            plan.requests.reasoning_effort.clone().unwrap_or_default(),
        ),
        ("token_counts", "server".to_owned()),
        ("load", load(plan)),
    ]
    .into_iter()
    .map(|(k, v)| (k.to_owned(), v))
    .collect();
    // Said only where it is not as usual, so that earlier records keep their digest.
    if !plan.requests.api.is_chat() {
        values.insert("api".to_owned(), plan.requests.api.path().to_owned());
    }
    if let Some(input) = &plan.input {
        let target = input
            .length_target_tokens
            .map_or("suite".to_owned(), |t| t.to_string());
        let text = format!("filled {} to {target}", input.language.name());
        values.insert("input".to_owned(), text);
    }
    let digest = values
        .iter()
        .fold(Enc::new("conditions/v1"), |enc, (k, v)| {
            enc.bytes(k.as_bytes()).bytes(v.as_bytes())
        })
        .finish();
    Conditions { values, digest }
}

/// How requests are sent: `closed`, or the stages of an open loop; and what is
/// tried again.
fn load(plan: &crate::plan::RunPlan) -> String {
    let stages = plan.load.stages.iter().map(|s| {
        let seed = s.seed.map_or(String::new(), |n| format!(" seed {n}"));
        format!(" {}{seed} {}/1000s", s.arrivals, s.millihertz)
    });
    let retry = plan.load.retry.as_ref().map_or(String::new(), |r| {
        let on: Vec<&str> = r.on.iter().map(|t| t.name()).collect();
        format!("; {} attempts on {}", r.attempts, on.join(","))
    });
    let stages: Vec<String> = stages.collect();
    format!("{}{}{retry}", plan.load.mode, stages.join(","))
}

fn provenance(evidence: &Evidence, stated: &Stated) -> Provenance {
    let made_by_run = evidence.events.iter().any(|l| {
        matches!(
            l.event,
            Event::Declare {
                key_made_by_run: true,
                ..
            }
        )
    });
    Provenance {
        suite: evidence.plan.suite.digest,
        evaluator: evidence.plan.suite.scorer,
        dialect: crate::scorer::DIALECT.into(),
        dataset: evidence.plan.suite.dataset,
        rules_version: RULES_VERSION.into(),
        key_origin: if made_by_run { "this_run" } else { "existing" }.into(),
        tool: stated.tool.clone(),
        signers: stated.signers.clone(),
    }
}

fn facts(
    evidence: &Evidence,
    declared: &[Declared],
    grades: &[crate::bundle::files::GradeLine],
) -> limitations::Facts {
    let traces = || declared.iter().filter_map(|d| d.trace);
    limitations::Facts {
        warmups: evidence
            .traces
            .requests
            .iter()
            .filter(|t| t.warmup && t.send.is_some())
            .count() as u64,
        reasoning_uncounted: traces()
            .filter(|t| t.text_len(DeltaKind::Reasoning) > 0 && t.reasoning_tokens().is_none())
            .count() as u64,
        tokens_missing: traces()
            .filter(|t| t.transport() == Transport::Completed && t.completion_tokens().is_none())
            .count() as u64,
        retries: evidence
            .traces
            .requests
            .iter()
            .filter(|t| t.attempt > 0 && t.send.is_some())
            .count() as u64,
        remote: match evidence.plan.is_remote() {
            true => evidence.plan.endpoints.len() as u64,
            false => 0,
        },
        think_tags: grades
            .iter()
            .filter(|g| g.flags.iter().any(|f| f == THINK_TAGS))
            .count() as u64,
    }
}
