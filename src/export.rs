//! A sweep's record in the forms that others read: `throughput.csv`,
//! `verified-summary.json`, and the published record of schema version 3.
//!
//! Everything comes from a record. Rates are its decimal strings; where a form has
//! binary64 numbers they are the nearest to those strings, written so that they read
//! back as the same, and a mean is computed exactly over the numbers that stand
//! beside it and rounded once.

use num_rational::BigRational;
use serde_json::{Value, json};

use crate::digest::Sha256Digest;
use crate::metrics::Metric;
use crate::metrics::exact::decimal;
use crate::record::limitations::{Lang, text};
use crate::record::{RunRecord, Status};
use crate::server_facts::FactValue;

/// Why a record has no such form.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum ExportError {
    /// It is of another kind.
    #[error("the record is of no sweep (hint: run context-sweep-v1, or give --format recipe-card)")]
    NotASweep,
    /// The run did not end well.
    #[error("the run is not completed and untainted, so its figures are not published")]
    NotCompleted,
    /// A figure has no value.
    #[error("{name} has no value: {why}")]
    NoValue {
        /// The figure.
        name: String,
        /// The record's note.
        why: String,
    },
}

/// One batch with its figures.
struct Cell<'a> {
    context: u64,
    concurrency: u32,
    output: u64,
    /// Rates of the repetitions, as the record has them.
    rates: Vec<&'a str>,
    mean: &'a str,
    request: &'a str,
    first_ms: &'a str,
    fixed: &'a str,
}

/// The three files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sweep {
    /// `throughput.csv`.
    pub csv: Vec<u8>,
    /// `verified-summary.json`.
    pub summary: Vec<u8>,
    /// The record of schema version 3.
    pub published: Vec<u8>,
}

/// Makes the three files of a sweep's record.
pub fn sweep(record: &RunRecord) -> Result<Sweep, ExportError> {
    let of_card = |b: &crate::suite::BatchOf| b.measures.is_some();
    if record.input.batches.is_empty() || record.input.batches.iter().any(of_card) {
        return Err(ExportError::NotASweep);
    }
    if record.run.status != Status::Completed || !record.run.taints.is_empty() {
        return Err(ExportError::NotCompleted);
    }
    let cells = cells(record)?;
    let csv = csv(&cells).into_bytes();
    let summary = lines(&summary(record, &cells));
    let sources = [
        ("throughput.csv", &csv),
        ("verified-summary.json", &summary),
    ];
    let sources: Vec<Value> = sources
        .iter()
        .map(|(name, bytes)| json!({"name": name, "sha256": Sha256Digest::of(bytes)}))
        .collect();
    let published = lines(&published(record, &cells, sources));
    Ok(Sweep {
        csv,
        summary,
        published,
    })
}

fn lines(value: &Value) -> Vec<u8> {
    let mut out = serde_json::to_vec_pretty(value).unwrap_or_default();
    out.push(b'\n');
    out
}

fn cells(record: &RunRecord) -> Result<Vec<Cell<'_>>, ExportError> {
    let value = |m: &'_ Metric| -> Result<String, ExportError> {
        m.value.clone().ok_or_else(|| ExportError::NoValue {
            name: m.name(),
            why: m.note.clone().unwrap_or_default(),
        })
    };
    let mut out = Vec::new();
    for (batch, i) in record.input.batches.iter().zip(1..) {
        let of = |id: &'static str| {
            record
                .metrics
                .iter()
                .filter(move |m| m.batch == Some(i) && m.id == id)
        };
        let one = |id: &'static str| -> Result<&str, ExportError> {
            let lacking = || ExportError::NoValue {
                name: format!("{id} @ batch {i}"),
                why: "the record does not have it".into(),
            };
            let m = of(id).next().ok_or_else(lacking)?;
            value(m)?;
            m.value.as_deref().ok_or_else(lacking)
        };
        for m in of("batch-throughput/v1") {
            value(m)?;
        }
        out.push(Cell {
            context: batch.context_tokens,
            concurrency: batch.concurrency,
            output: batch.output_tokens,
            rates: of("batch-throughput/v1")
                .filter_map(|m| m.value.as_deref())
                .collect(),
            mean: one("batch-throughput-mean/v1")?,
            request: one("request-rate-mean/v1")?,
            first_ms: one("first-generated-mean/v1")?,
            fixed: one("fixed-output/v1")?,
        });
    }
    Ok(out)
}

/// One line per batch and repetition, from 1. No field needs quotes.
fn csv(cells: &[Cell]) -> String {
    let mut out = String::from(
        "context_tokens,concurrency,repetition,output_tokens_per_request,output_tokens_per_second\n",
    );
    for c in cells {
        for (rate, rep) in c.rates.iter().zip(1..) {
            out.push_str(&format!(
                "{},{},{rep},{},{rate}\n",
                c.context, c.concurrency, c.output
            ));
        }
    }
    out
}

/// The record's own decimals, and which record they are of.
fn summary(record: &RunRecord, cells: &[Cell]) -> Value {
    let cells: Vec<Value> = cells
        .iter()
        .map(|c| {
            json!({
                "contextTokens": c.context,
                "concurrency": c.concurrency,
                "outputTokens": c.output,
                "tokensPerSecond": c.rates,
                "meanTokensPerSecond": c.mean,
                "meanRequestTokensPerSecond": c.request,
                "meanFirstGeneratedMs": c.first_ms,
                "fixedOutputAttempts": c.fixed,
            })
        })
        .collect();
    json!({
        "runId": record.run.id,
        "planDigest": record.run.plan_digest,
        "suite": record.provenance.suite,
        "dataset": record.provenance.dataset,
        "rulesVersion": record.provenance.rules_version,
        "declared": record.transport.declared,
        "completed": record.transport.completed,
        "passed": record.grades.pass,
        "attributionVerified": record.attribution.verified,
        "cells": cells,
    })
}

/// The nearest binary64 of a decimal string of this project; JSON writes it in the
/// shortest form that reads back as the same.
pub(crate) fn number(text: &str) -> f64 {
    text.parse().unwrap_or(f64::NAN)
}

/// The exact mean of binary64 numbers, rounded once (from 60 decimals, far beyond what
/// can turn a rounding of numbers of this size).
fn mean(values: &[f64]) -> f64 {
    let exact: Option<Vec<BigRational>> =
        values.iter().map(|v| BigRational::from_float(*v)).collect();
    let sum: BigRational = exact.unwrap_or_default().iter().sum();
    let n = BigRational::from_integer(values.len().max(1).into());
    number(&decimal(&(sum / n), 60))
}

/// Milliseconds as seconds, digit by digit, so that nothing is rounded twice.
fn seconds(ms: &str) -> String {
    let (whole, part) = ms.split_once('.').unwrap_or((ms, ""));
    let whole = format!("{whole:0>4}");
    let (seconds, millis) = whole.split_at(whole.len() - 3);
    format!("{seconds}.{millis}{part}")
}

/// The method of speculative decoding, where every server states the same one.
fn speculation(record: &RunRecord) -> Value {
    let servers = record.servers.iter().flatten();
    let facts = servers.flat_map(|s| s.facts.iter().filter(|f| f.name == "speculation"));
    let stated: Vec<&Option<FactValue>> = facts.flat_map(|f| [&f.before, &f.after]).collect();
    match stated.as_slice() {
        [first, rest @ ..] if rest.iter().all(|s| s == first) => json!(first),
        _ => Value::Null,
    }
}

/// What a throughput record leaves open, beyond the rules of every record: which contexts
/// were measured beside the limit, when, and whether speculation was measured against a
/// control.
fn caveats(record: &RunRecord, cells: &[Cell]) -> Vec<Value> {
    let contexts: std::collections::BTreeSet<u64> = cells.iter().map(|c| c.context).collect();
    let contexts: Vec<String> = contexts.iter().map(u64::to_string).collect();
    let contexts = contexts.join(", ");
    let mut out = Vec::new();
    let mut say = |tr: String, en: String| out.push(json!({"tr": tr, "en": en}));
    match record.runtime.context_limit_tokens {
        Some(limit) => say(
            format!(
                "Sunucu bağlam sınırını {limit} token olarak bildirir; ölçülen hedefler yalnız {contexts} tokendır."
            ),
            format!(
                "The server states a context limit of {limit} tokens; only targets of {contexts} tokens were measured."
            ),
        ),
        None => say(
            format!(
                "Yalnız {contexts} tokenlık hedefler ölçüldü; sunucunun bağlam sınırı kayıtlı değil."
            ),
            format!(
                "Only targets of {contexts} tokens were measured; the server's context limit is not recorded."
            ),
        ),
    }
    let day = record.run.finished.get(..10).unwrap_or("?");
    say(
        format!("Bu ölçüm {day} tarihindedir (UTC); servisin bugün çalıştığını göstermez."),
        format!("This was measured on {day} (UTC); it does not show that the service runs today."),
    );
    say(
        "Çıktı hızı nitelik, doğruluk ya da bağlam kapasitesi ölçmez.".into(),
        "Output rates measure neither quality nor correctness nor the capacity of a context."
            .into(),
    );
    if speculation(record).is_string() {
        say(
            "Spekülatif kod çözme kapalıyken bir kontrol ölçümü yoktur; hızlanmanın ondan geldiği söylenemez.".into(),
            "There is no control without speculative decoding, so nothing is said to be faster because of it.".into(),
        );
    }
    out
}

fn published(record: &RunRecord, cells: &[Cell], sources: Vec<Value>) -> Value {
    let model = record.model.checkpoints.iter().find(|c| c.role == "target");
    let name = model.map_or("", |c| c.name.as_str());
    let repetitions = record.requests.repetitions;
    let warmups = record.limitations.iter().find(|l| l.code == "warm-engine");
    let warmups = warmups
        .and_then(|l| l.params.get("n")?.parse::<u64>().ok())
        .unwrap_or(0);
    let extra = record.conditions.values.get("extra");
    let extra: Value = extra
        .and_then(|e| serde_json::from_str(e).ok())
        .unwrap_or_default();
    let outputs = cells.iter().map(|c| c.output);
    let output = outputs.max().unwrap_or(0).min(record.requests.max_tokens);
    let tokens: u64 = record
        .cases
        .iter()
        .filter_map(|c| c.completion_tokens)
        .sum();
    let both = |tr: String, en: String| json!({"tr": tr, "en": en});
    let mut caveats = caveats(record, cells);
    let limitations = record.limitations.iter();
    caveats.extend(limitations.map(|l| both(text(l, Lang::Tr), text(l, Lang::En))));
    let shown: Vec<Value> = cells
        .iter()
        .map(|c| {
            let rates: Vec<f64> = c.rates.iter().map(|r| number(r)).collect();
            json!({
                "contextTokens": c.context,
                "concurrency": c.concurrency,
                "repetitions": repetitions,
                "aggregateTokensPerSecond": mean(&rates),
                "meanRequestTokensPerSecond": number(c.request),
                "meanTtftSeconds": number(&seconds(c.first_ms)),
                "runTokensPerSecond": rates,
            })
        })
        .collect();
    json!({
        "schemaVersion": 3,
        "kind": "inference",
        "id": record.run.id,
        "title": both(format!("{name}: bağlama göre çıktı hızı"), format!("{name}: output rate by context")),
        "subtitle": both(record.run.suite.clone(), record.run.suite.clone()),
        "category": both("Sunucu ölçümü".into(), "Server measurement".into()),
        "description": both(
            "Farklı bağlam uzunluklarında, aynı anda gönderilen isteklerin ürettiği çıktı.".into(),
            "Output of requests that were sent at once, at several context lengths.".into(),
        ),
        "status": "published",
        "itemCount": cells.len(),
        "responseCount": record.transport.declared,
        "runId": record.run.id,
        "runCompletedAt": record.run.finished,
        // No clock is read here: the same record gives the same bytes.
        "generatedAt": record.run.finished,
        "sources": sources,
        "method": both(
            format!(
                "Bir grubun hızı, sunucunun saydığı çıktı tokenlarının ilk gönderimden son bitişe kadar geçen \
                 süreye bölümüdür; girdinin işlenmesi ve başarısız istekler bu süreye dahildir. Her hücre \
                 {repetitions} tekrarın hızlarının aritmetik ortalamasıdır. Her istekten {output} token istenir. \
                 {warmups} ısınma isteği hiçbir değere girmez."
            ),
            format!(
                "The rate of a batch is the output tokens that the server counted over the time from the first send \
                 to the last end, with input processing and failed requests inside. Each cell is the arithmetic mean \
                 of the rates of {repetitions} repetitions. {output} tokens are asked of every request. {warmups} \
                 warm-up requests are in no figure."
            ),
        ),
        "caveats": caveats,
        "profile": {
            "modelId": name,
            "modelName": name,
            "modelRevision": model.and_then(|c| c.revision.clone()),
            // Nothing in a record says how a model is cut up over ranks, or in which types.
            "tensorParallel": null,
            "maxConcurrency": record.requests.concurrency,
            "contextLimitTokens": record.runtime.context_limit_tokens,
            "weightDtype": null,
            "kvDtype": null,
            "speculativeMethod": speculation(record),
            "reasoningEffort": record.requests.reasoning_effort,
            "temperature": number(&record.requests.temperature),
            "outputTokens": output,
            "ignoreEos": extra.get("ignore_eos").and_then(Value::as_bool).unwrap_or(false),
        },
        "cells": shown,
        "totals": {
            "batches": cells.len() as u64 * u64::from(repetitions),
            "requests": record.transport.declared,
            "completionTokens": tokens,
            "excludedWarmupRequests": warmups,
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All cells of a published sweep: its mean is that of its two rates, to the bit.
    #[test]
    fn means_are_those_of_the_published_sweep() {
        let published = include_str!("../tests/published/sweep.json");
        let published: Value = serde_json::from_str(published).unwrap();
        let cells = published["cells"].as_array().unwrap();
        assert_eq!(cells.len(), 15);
        for cell in cells {
            let runs = cell["runTokensPerSecond"].as_array().unwrap();
            let runs: Vec<f64> = runs.iter().filter_map(Value::as_f64).collect();
            let want = cell["aggregateTokensPerSecond"].as_f64().unwrap();
            assert_eq!(mean(&runs).to_bits(), want.to_bits(), "{cell}");
        }
    }

    #[test]
    fn seconds_are_milliseconds_with_the_point_moved() {
        for (ms, want) in [
            ("571.868110", "0.571868110"),
            ("56445.995988", "56.445995988"),
            ("0.000001", "0.000000001"),
            ("7", "0.007"),
        ] {
            assert_eq!(seconds(ms), want);
        }
    }
}
