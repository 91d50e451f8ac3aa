//! Published figures from inputs that must give them: the throughput sweep and the recipe
//! card that this project follows, copied to tests/published/, through the definitions and
//! the exports that a run goes through.

mod support;

use runseal::bundle::files::GradeLine;
use runseal::digest::Sha256Digest;
use runseal::event::EndCause;
use runseal::export;
use runseal::grading::Declared;
use runseal::metrics::Metric;
use runseal::metrics::sweep::sweep;
use runseal::plan::{Pin, RunPlan};
use runseal::recipe_card::{CardError, Config, card};
use runseal::record::{CaseRecord, Limitation, RunRecord, ServerRecord, Taint};
use runseal::scorer::Grade;
use runseal::server_facts::traffic::Foreign;
use runseal::server_facts::{FactValue, ServerFact};
use runseal::suite::{BatchOf, Measure, SuiteToml};
use runseal::trace::{Trace, Usage};
use serde_json::Value;

const S: f64 = 1e9;

fn published(name: &str) -> Value {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/published");
    serde_json::from_slice(&std::fs::read(path.join(name)).unwrap()).unwrap()
}

fn number(v: &Value) -> f64 {
    v.as_f64().unwrap()
}

/// Nanoseconds in which so many tokens come at such a rate.
fn ns(tokens: f64, rate: f64) -> u64 {
    (tokens / rate * S).round() as u64
}

/// As a record writes a rate.
fn six(x: f64) -> String {
    format!("{x:.6}")
}

/// A completed attempt of a fixed length.
fn life(case: &str, rep: u32, end: u64, first: u64, tokens: u64) -> Trace {
    Trace {
        case: case.into(),
        rep,
        send: Some(0),
        status: Some(200),
        event_stream: true,
        first_generated: Some(first),
        last_generated: Some(end),
        chunks: vec![first, end],
        usage: Some(Usage {
            prompt: Some(1000),
            completion: Some(tokens),
            cached: Some(0),
            ..Usage::default()
        }),
        finish: Some("length".into()),
        end: Some(end),
        cause: Some(EndCause::Done),
        ..Trace::default()
    }
}

/// A suite of batches, its plan, and the attempts in their order.
struct Sent {
    suite: SuiteToml,
    plan: RunPlan,
    lives: Vec<Trace>,
    grade: Grade,
}

impl Sent {
    fn new(batches: Vec<BatchOf>, repetitions: u32, lives: Vec<Trace>) -> Self {
        let raw = support::load(support::COMPLETED);
        let bytes = |name: &str| raw.files[&support::path(name)].clone();
        let mut plan = RunPlan::parse(&bytes("plan.json")).unwrap();
        let mut suite = SuiteToml::parse(&bytes("suite/suite.toml")).unwrap();
        plan.load.repetitions = repetitions;
        plan.requests.max_tokens = 1 << 20;
        let first = lives.iter().filter(|t| t.rep == 0);
        plan.suite.case_ids = first.map(|t| t.case.clone()).collect();
        suite.batches = batches;
        let grade = Grade::Pass;
        Self {
            suite,
            plan,
            lives,
            grade,
        }
    }

    fn metrics(&self) -> Vec<Metric> {
        let declared: Vec<Declared> = (0..self.plan.load.repetitions)
            .flat_map(|rep| self.lives.iter().filter(move |t| t.rep == rep))
            .map(|t| Declared {
                case: &t.case,
                rep: t.rep,
                trace: Some(t),
            })
            .collect();
        let grades: Vec<GradeLine> = declared
            .iter()
            .map(|d| GradeLine {
                case: d.case.into(),
                rep: d.rep,
                grade: self.grade.clone(),
                flags: Vec::new(),
            })
            .collect();
        sweep(&self.suite, &self.plan, &declared, &grades)
    }

    /// A real record, of another run, with these batches, figures and cases in it.
    fn record(&self) -> RunRecord {
        let mut record = *support::check(&support::load(support::COMPLETED))
            .derived
            .unwrap();
        record.input.batches = self.suite.batches.clone();
        record.metrics = self.metrics();
        record.requests.repetitions = self.plan.load.repetitions;
        record.transport.declared = self.lives.len() as u64;
        let template = record.cases[0].clone();
        let case = |t: &Trace| CaseRecord {
            case: t.case.clone(),
            rep: t.rep,
            grade: self.grade.clone(),
            prompt_tokens: t.prompt_tokens(),
            completion_tokens: t.completion_tokens(),
            ..template.clone()
        };
        let reps = 0..self.plan.load.repetitions;
        record.cases = reps
            .flat_map(|rep| self.lives.iter().filter(move |t| t.rep == rep).map(case))
            .collect();
        record
    }
}

fn batch(context: u64, concurrency: u32, output: u64) -> BatchOf {
    BatchOf {
        context_tokens: context,
        concurrency,
        output_tokens: output,
        requests: None,
        measures: None,
        prompts: None,
    }
}

fn of<'a>(metrics: &'a [Metric], id: &str, batch: u32, rep: Option<u32>) -> &'a Metric {
    let mine = |m: &&Metric| m.id == id && m.batch == Some(batch) && m.rep == rep;
    metrics.iter().find(mine).unwrap()
}

/// The sweep's attempts: each batch as long as its published rate says, every first output
/// at the published mean. `by_request` gives each the published mean request rate instead.
fn sweep_sent(by_request: bool) -> Sent {
    let record = published("sweep.json");
    let (mut batches, mut lives) = (Vec::new(), Vec::new());
    for cell in record["cells"].as_array().unwrap() {
        let context = cell["contextTokens"].as_u64().unwrap();
        let concurrency = cell["concurrency"].as_u64().unwrap() as u32;
        batches.push(batch(context, concurrency, 1024));
        let first = (number(&cell["meanTtftSeconds"]) * S).round() as u64;
        for (rep, rate) in (0..).zip(cell["runTokensPerSecond"].as_array().unwrap()) {
            let end = match by_request {
                true => ns(1024.0, number(&cell["meanRequestTokensPerSecond"])),
                false => ns(1024.0 * f64::from(concurrency), number(rate)),
            };
            for slot in 0..concurrency {
                let case = format!("{context}-{concurrency}-{slot}");
                lives.push(life(&case, rep, end, first, 1024));
            }
        }
    }
    Sent::new(batches, 2, lives)
}

#[test]
fn the_sweeps_thirty_rates_and_fifteen_means_come_out() {
    let record = published("sweep.json");
    let metrics = sweep_sent(false).metrics();
    let by_request = sweep_sent(true).metrics();
    let cells = record["cells"].as_array().unwrap();
    assert_eq!(cells.len(), 15);
    for (cell, i) in cells.iter().zip(1..) {
        for (rate, rep) in cell["runTokensPerSecond"]
            .as_array()
            .unwrap()
            .iter()
            .zip(0..)
        {
            let m = of(&metrics, "batch-throughput/v1", i, Some(rep));
            assert_eq!(m.value, Some(six(number(rate))), "cell {i} rep {rep}");
        }
        let mean = of(&metrics, "batch-throughput-mean/v1", i, None);
        let want = number(&cell["aggregateTokensPerSecond"]);
        assert_eq!(mean.value, Some(six(want)), "cell {i}");
        assert_eq!(mean.n, 2);
        let first = of(&metrics, "first-generated-mean/v1", i, None);
        let want = number(&cell["meanTtftSeconds"]) * 1000.0;
        assert_eq!(first.value, Some(six(want)), "cell {i}");
        let rate = of(&by_request, "request-rate-mean/v1", i, None);
        let want = number(&cell["meanRequestTokensPerSecond"]);
        assert_eq!(rate.value, Some(six(want)), "cell {i}");
        let fixed = of(&metrics, "fixed-output/v1", i, None);
        let both = 2 * cell["concurrency"].as_u64().unwrap();
        assert_eq!(fixed.value, Some(both.to_string()));
    }
    // The mean of the rates is not the rate of both repetitions together: 1K, two at once.
    let rate = |rep| number(&cells[1]["runTokensPerSecond"][rep]);
    let pooled = 2.0 / (1.0 / rate(0) + 1.0 / rate(1));
    let off = number(&cells[1]["aggregateTokensPerSecond"]) / pooled - 1.0;
    assert!((0.0054..0.0056).contains(&off), "{off}");
}

#[test]
fn the_sweeps_record_is_exported_with_its_cells_and_totals() {
    let want = published("sweep.json");
    let mut record = sweep_sent(false).record();
    let warm = Limitation {
        code: "warm-engine".into(),
        params: [("n".to_owned(), "3".to_owned())].into(),
    };
    record.limitations = vec![warm];
    record.requests.concurrency = 16;
    record.runtime.context_limit_tokens = Some(131_072);
    record.servers = Some(vec![server(&[("speculation", "EAGLE")])]);
    let files = export::sweep(&record).unwrap();
    let got: Value = serde_json::from_slice(&files.published).unwrap();
    for field in ["schemaVersion", "itemCount", "responseCount", "totals"] {
        assert_eq!(got[field], want[field], "{field}");
    }
    let cells = want["cells"].as_array().unwrap();
    for (got, want) in got["cells"].as_array().unwrap().iter().zip(cells) {
        let keys = |v: &Value| -> Vec<String> { v.as_object().unwrap().keys().cloned().collect() };
        assert_eq!(keys(got), keys(want));
        for field in ["contextTokens", "concurrency", "repetitions"] {
            assert_eq!(got[field], want[field]);
        }
        for field in ["aggregateTokensPerSecond", "meanTtftSeconds"] {
            let off = (number(&got[field]) - number(&want[field])).abs();
            assert!(off < 1e-6, "{field}: {got} {want}");
        }
    }
    // Every field of the published profile is there; what a record does not have is null.
    let profile = got["profile"].as_object().unwrap();
    for field in want["profile"].as_object().unwrap().keys() {
        assert!(profile.contains_key(field), "{field}");
    }
    assert_eq!(profile["speculativeMethod"], "EAGLE");
    assert_eq!(profile["contextLimitTokens"], 131_072);
    for field in ["tensorParallel", "weightDtype", "kvDtype"] {
        assert_eq!(profile[field], Value::Null);
    }
    let caveats = got["caveats"].as_array().unwrap();
    let says = |words: &str| {
        caveats
            .iter()
            .any(|c| c["en"].as_str().unwrap().contains(words))
    };
    assert!(says("131072 tokens; only targets of 1024, 4096, 16384"));
    assert!(says("no control without speculative decoding"));
    for c in caveats {
        assert!(c["tr"].is_string() && c["tr"] != c["en"], "{c}");
    }
    let csv = String::from_utf8(files.csv).unwrap();
    assert_eq!(csv.lines().count(), 31);
    assert!(csv.contains("\n1024,2,1,1024,61.130181\n"), "{csv}");
    // Speculation that the servers do not state alike is not said.
    record.servers = Some(vec![
        server(&[("speculation", "EAGLE")]),
        server(&[("speculation", "none")]),
    ]);
    let files = export::sweep(&record).unwrap();
    let got: Value = serde_json::from_slice(&files.published).unwrap();
    assert_eq!(got["profile"]["speculativeMethod"], Value::Null);
}

fn server(facts: &[(&str, &str)]) -> ServerRecord {
    let facts = facts.iter().map(|(name, value)| {
        let value = match value.parse() {
            Ok(n) => FactValue::Count(n),
            Err(_) => FactValue::Text((*value).to_owned()),
        };
        ServerFact {
            name: (*name).to_owned(),
            source: format!("/server_info#/{name}"),
            before: Some(value.clone()),
            after: Some(value),
        }
    });
    ServerRecord {
        endpoint: "r0".into(),
        facts: facts.collect(),
        foreign_before: Foreign::None,
        foreign_during: Foreign::None,
    }
}

/// A record whose figures have to be those of a published configuration.
fn config_record(config: &Value) -> RunRecord {
    let (mut batches, mut lives) = (Vec::new(), Vec::new());
    let mut put = |b: BatchOf, measures, mine: Vec<Trace>| {
        batches.push(BatchOf {
            measures: Some(measures),
            requests: Some(mine.len() as u32),
            ..b
        });
        lives.extend(mine);
    };
    for kind in ["code", "prose", "structured"] {
        let Some(rate) = config["decode"][kind].as_f64() else {
            continue;
        };
        // So many tokens after the first chunk of 4, in ten seconds from one second on.
        let tokens = (rate * 10.0).round() as u64;
        let mut one = life(kind, 0, 11_000_000_000, 1_000_000_000, tokens + 4);
        one.first_chunk_tokens = Some(4);
        let prompts = Some(kind.to_owned());
        let b = BatchOf {
            prompts,
            ..batch(64, 1, tokens + 4)
        };
        put(b, Measure::Decode, vec![one]);
    }
    for p in config["prefill"].as_array().unwrap() {
        let context = p["context"].as_u64().unwrap();
        let first = ns(context as f64, number(&p["tps"]));
        let mut one = life(&format!("p{context}"), 0, first + 1, first, 8);
        one.usage.as_mut().unwrap().prompt = Some(context);
        put(batch(context, 1, 8), Measure::Prefill, vec![one]);
    }
    for c in config["concurrency"].as_array().into_iter().flatten() {
        let streams = c["streams"].as_u64().unwrap() as u32;
        let end = ns(512.0 * f64::from(streams), number(&c["aggregate_tps"]));
        let mine = (0..streams).map(|i| life(&format!("s{streams}-{i}"), 0, end, 1, 512));
        put(batch(64, streams, 512), Measure::Aggregate, mine.collect());
    }
    let needles: u32 = quality(config)
        .0
        .split('/')
        .next()
        .unwrap()
        .parse()
        .unwrap();
    let mine = (0..needles).map(|i| {
        let mut one = life(&format!("n{i}"), 0, 9, 1, 5);
        one.usage.as_mut().unwrap().prompt = Some(100_000 + u64::from(i));
        one
    });
    put(batch(131_072, 1, 64), Measure::Recall, mine.collect());
    let mut record = Sent::new(batches, 1, lives).record();
    record.run.id = format!("run-{}", config["id"].as_str().unwrap());
    record.hardware.machines = config["nodes"].as_u64().unwrap();
    let facts = [
        ("context-limit-tokens", "max_context"),
        ("kv-pool-tokens", "kv_pool_tokens"),
        ("request-slots", "max_concurrent"),
    ];
    let facts = facts.map(|(fact, field)| (fact, config[field].to_string()));
    let facts: Vec<(&str, &str)> = facts.iter().map(|(f, v)| (*f, v.as_str())).collect();
    record.servers = Some(vec![server(&facts)]);
    record
}

/// Needles of a published configuration, and the bound that they have.
fn quality(config: &Value) -> (&str, &'static str) {
    let value = config["quality"][0]["value"].as_str().unwrap();
    let share = value.split(' ').next().unwrap();
    let bound = match share {
        "6/6" => "0.606962",
        "12/12" => "0.779077",
        other => panic!("{other}"),
    };
    (share, bound)
}

fn made(configs: &[(&str, &RunRecord)], default: Option<&str>) -> Result<Value, CardError> {
    let configs: Vec<Config> = configs
        .iter()
        .map(|(name, record)| Config {
            name,
            record,
            index: Sha256Digest([7; 32]),
            regraded: true,
        })
        .collect();
    card(&configs, default).map(|bytes| serde_json::from_slice(&bytes).unwrap())
}

#[test]
fn the_cards_four_configurations_come_out_and_the_odd_one_is_marked() {
    let want = published("card.json");
    let configs = want["configs"].as_array().unwrap();
    let mut records: Vec<RunRecord> = configs.iter().map(config_record).collect();
    // The fourth ran on other boxes and builds, and measured less.
    let odd = records.last_mut().unwrap();
    odd.hardware.nodes[0].cpu_model = Some("another".into());
    odd.runtime.image = Pin::Sha256(Sha256Digest([1; 32]));
    let suite = &mut odd.conditions.values;
    suite.insert("suite".into(), "0".repeat(64));
    let named: Vec<(&str, &RunRecord)> = configs
        .iter()
        .zip(&records)
        .map(|(c, r)| (c["id"].as_str().unwrap(), r))
        .collect();
    let got = made(&named, want["default_config"].as_str()).unwrap();
    assert_eq!(got["version"], want["version"]);
    assert_eq!(got["default_config"], want["default_config"]);
    for key in want["keys"].as_array().unwrap() {
        assert!(got.get(key.as_str().unwrap()).is_some(), "{key}");
    }
    for (got, want) in got["configs"].as_array().unwrap().iter().zip(configs) {
        let id = want["id"].as_str().unwrap();
        for field in [
            "id",
            "nodes",
            "max_context",
            "kv_pool_tokens",
            "max_concurrent",
        ] {
            assert_eq!(got[field], want[field], "{id} {field}");
        }
        let decode = want["decode"].as_object().cloned().unwrap_or_default();
        assert_eq!(got["decode"].as_object().unwrap().len(), decode.len());
        for (kind, rate) in &decode {
            assert_eq!(number(&got["decode"][kind]), number(rate), "{id} {kind}");
        }
        for (field, of, rate) in [
            ("prefill", "context", "tps"),
            ("concurrency", "streams", "aggregate_tps"),
        ] {
            let want = want[field].as_array().cloned().unwrap_or_default();
            let got = got[field].as_array().unwrap();
            assert_eq!(got.len(), want.len(), "{id} {field}");
            for (got, want) in got.iter().zip(&want) {
                assert_eq!(got[of], want[of]);
                assert_eq!(number(&got[rate]), number(&want[rate]), "{id} {field}");
            }
        }
        let (share, bound) = quality(want);
        let shown = got["quality"][0]["value"].as_str().unwrap();
        assert!(shown.starts_with(&format!("{share} up to 1000")), "{shown}");
        assert_eq!(got["quality"][0]["lower_bound"], bound);
        let marked = id == "tp6";
        assert_eq!(got["comparable"], !marked, "{got}");
        assert_eq!(got["notes"].is_string(), marked);
        traced(got);
    }
    let reasons = got["configs"][3]["not_comparable"].to_string();
    for what in ["hardware", "executable", "suite"] {
        assert!(reasons.contains(&format!("{what} differs: ")), "{reasons}");
    }
    assert_eq!(
        got["configs"][3]["not_comparable"]
            .as_array()
            .unwrap()
            .len(),
        3
    );
}

/// Every figure of a configuration names the metric or fact that it is, with the value.
fn traced(config: &Value) {
    let figures = config["evidence"]["figures"].as_array().unwrap();
    assert!(
        config["evidence"]["run"]
            .as_str()
            .unwrap()
            .starts_with("run-")
    );
    assert_eq!(config["evidence"]["index_sha256"], "07".repeat(32));
    let value = |name: String| -> f64 {
        let of = |f: &&Value| f["figure"] == name.as_str();
        let f = figures.iter().find(of).unwrap_or_else(|| panic!("{name}"));
        assert!(
            f["metric"].as_str().unwrap().contains("/v1 @ batch "),
            "{f}"
        );
        f["value"].as_str().unwrap().parse().unwrap()
    };
    for (kind, shown) in config["decode"].as_object().unwrap() {
        assert_eq!(value(format!("decode.{kind}")), number(shown));
    }
    for p in config["prefill"].as_array().unwrap() {
        assert_eq!(
            value(format!("prefill.{}", p["context"])),
            number(&p["tps"])
        );
    }
    for c in config["concurrency"].as_array().unwrap() {
        let name = format!("concurrency.{}", c["streams"]);
        assert_eq!(value(name), number(&c["aggregate_tps"]));
    }
    for field in ["max_context", "kv_pool_tokens", "max_concurrent"] {
        let f = figures.iter().find(|f| f["figure"] == field).unwrap();
        assert_eq!(f["stated"][0]["before"], config[field]);
        assert!(
            f["stated"][0]["source"]
                .as_str()
                .unwrap()
                .starts_with("/server_info#")
        );
    }
}

fn two() -> (RunRecord, RunRecord) {
    let want = published("card.json");
    (
        config_record(&want["configs"][1]),
        config_record(&want["configs"][2]),
    )
}

/// Each difference is named, and nothing but that.
#[test]
fn each_condition_that_differs_is_a_reason_of_its_own() {
    type Edit = fn(&mut RunRecord);
    let edits: [(&str, Edit); 12] = [
        ("hardware", |r| r.hardware.nodes[0].gpus = vec!["x".into()]),
        ("system", |r| r.hardware.nodes[0].kernel = None),
        ("engine", |r| r.runtime.version = Some("9".into())),
        ("executable", |r| {
            r.runtime.image = Pin::Sha256(Sha256Digest([1; 32]));
        }),
        ("checkpoint", |r| {
            r.model.checkpoints[0].manifest_root = Sha256Digest([1; 32]);
        }),
        ("client", |r| {
            r.provenance.tool.binary_sha256 = Sha256Digest([1; 32]);
        }),
        ("rules", |r| r.provenance.rules_version = "2".into()),
        ("suite", |r| put(r, "suite")),
        ("temperature", |r| put(r, "temperature")),
        ("max_tokens", |r| put(r, "max_tokens")),
        ("load", |r| put(r, "load")),
        ("cache", |r| put(r, "cache")),
    ];
    fn put(r: &mut RunRecord, condition: &str) {
        let values = &mut r.conditions.values;
        assert!(values.insert(condition.into(), "another".into()).is_some());
    }
    let (base, same) = two();
    let reasons = |other: &RunRecord| -> Vec<String> {
        let card = made(&[("a", &base), ("b", other)], None).unwrap();
        assert_eq!(card["configs"][0]["comparable"], true);
        let all = card["configs"][1]["not_comparable"].as_array().unwrap();
        all.iter().map(|r| r.as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(reasons(&same), [""; 0]);
    for (what, edit) in edits {
        let mut other = same.clone();
        edit(&mut other);
        let all = reasons(&other);
        assert_eq!(all.len(), 1, "{what}: {all:?}");
        assert!(all[0].starts_with(&format!("{what} differs: ")), "{all:?}");
    }
    // More machines, other arguments and endpoints are what a configuration is.
    let mut other = same.clone();
    other.hardware.machines = 9;
    other.runtime.argv_digest = Sha256Digest([1; 32]);
    let second = other.hardware.nodes[0].clone();
    other.hardware.nodes.push(second);
    put(&mut other, "endpoints");
    assert_eq!(reasons(&other), [""; 0]);
}

#[test]
fn what_is_not_attributed_or_pinned_is_compared_with_nothing() {
    let (base, mut other) = two();
    other.attribution.unverified = 2;
    let card = made(&[("a", &base), ("b", &other)], None).unwrap();
    let says = |card: &Value, i: usize, words: &str| {
        let reasons = card["configs"][i]["not_comparable"].to_string();
        assert!(reasons.contains(words), "{reasons}");
    };
    says(&card, 1, "attempts are not attributed");
    assert_eq!(card["configs"][0]["comparable"], true);
    // And where it is the default one, nothing stands beside it.
    let card = made(&[("a", &base), ("b", &other)], Some("b")).unwrap();
    says(&card, 0, "b itself cannot be compared with");
    says(&card, 1, "attempts are not attributed");
    // Two unpinned programs may be two programs.
    let (mut base, mut other) = two();
    let reason = "somebody else runs it".to_owned();
    base.runtime.image = Pin::Unpinned { reason };
    other.runtime.image = base.runtime.image.clone();
    let card = made(&[("a", &base), ("b", &other)], None).unwrap();
    says(&card, 0, "its program is not pinned: somebody else runs it");
    says(&card, 1, "its program is not pinned: somebody else runs it");
}

#[test]
fn what_is_absent_is_null_and_says_why() {
    let (mut record, _) = two();
    let metric = record
        .metrics
        .iter_mut()
        .find(|m| m.id == "decode-rate-mean/v1")
        .unwrap();
    (metric.value, metric.note) = (None, Some("incomplete: 1 declared attempts".into()));
    let facts = &mut record.servers.as_mut().unwrap()[0].facts;
    facts.retain(|f| f.name != "kv-pool-tokens");
    facts[0].after = Some(FactValue::Count(7));
    record.metrics.retain(|m| m.id != "prefill-rate-mean/v1");
    let card = made(&[("a", &record)], None).unwrap();
    let config = &card["configs"][0];
    assert_eq!(config["decode"]["code"], Value::Null);
    assert!(config["decode"]["prose"].is_number());
    for field in ["max_context", "kv_pool_tokens"] {
        assert_eq!(config[field], Value::Null);
    }
    assert_eq!(config["prefill"][0]["tps"], Value::Null);
    let why = |figure: &str| -> &str {
        let absent = config["absent"].as_array().unwrap();
        let of = absent.iter().find(|a| a["figure"] == figure).unwrap();
        of["why"].as_str().unwrap()
    };
    assert_eq!(
        why("decode.code"),
        "decode-rate-mean/v1 @ batch 1: incomplete: 1 declared attempts"
    );
    assert_eq!(why("kv_pool_tokens"), "no server states kv-pool-tokens");
    assert_eq!(
        why("max_context"),
        "context-limit-tokens is stated as 524288, 7"
    );
    assert!(why("prefill.32768").contains("has no prefill-rate-mean/v1"));
}

#[test]
fn what_cannot_be_a_card_is_refused() {
    let (a, b) = two();
    assert_eq!(made(&[], None), Err(CardError::Nothing));
    let refused = |configs: &[(&str, &RunRecord)], why: CardError| {
        assert_eq!(made(configs, None), Err(why));
    };
    refused(&[("a", &a), ("a", &b)], CardError::Twice("a".into()));
    refused(&[("a", &a), ("b", &a)], CardError::Twice(a.run.id.clone()));
    let unknown = CardError::UnknownDefault("c".into());
    assert_eq!(made(&[("a", &a), ("b", &b)], Some("c")), Err(unknown));
    let sweep = sweep_sent(false).record();
    refused(&[("a", &sweep)], CardError::NotACard("a".into()));
    let mut tainted = a.clone();
    tainted.run.taints.push(Taint {
        cause: "x".into(),
        detail: String::new(),
        reqs: Vec::new(),
    });
    refused(&[("a", &tainted)], CardError::NotCompleted("a".into()));
    let mut twice = a.clone();
    twice.input.batches[1].prompts = Some("code".into());
    let config = "a".to_owned();
    let what = "decode.code".to_owned();
    refused(&[("a", &twice)], CardError::Ambiguous { config, what });
    // A card is no sweep either.
    assert!(matches!(
        export::sweep(&a),
        Err(export::ExportError::NotASweep)
    ));
}

/// Decode and prefill are complete or absent.
#[test]
fn a_rate_over_the_survivors_is_none() {
    let decode = |edit: fn(&mut Trace)| {
        let mut lives = [life("a", 0, 11, 1, 14), life("b", 0, 11, 1, 24)];
        for t in &mut lives {
            t.first_chunk_tokens = Some(4);
        }
        edit(&mut lives[1]);
        let b = BatchOf {
            measures: Some(Measure::Decode),
            requests: Some(2),
            ..batch(8, 1, 14)
        };
        let metrics = Sent::new(vec![b], 1, lives.to_vec()).metrics();
        let ids: Vec<&str> = metrics.iter().map(|m| m.id.as_str()).collect();
        let want = [
            "decode-rate-mean/v1",
            "request-rate-mean/v1",
            "first-generated-mean/v1",
            "fixed-output/v1",
        ];
        assert_eq!(ids, want);
        let m = metrics[0].clone();
        (m.value, m.n, m.note.unwrap_or_default())
    };
    // 10 tokens in 10 ns and 20 in 10: a mean of 1.5 a nanosecond.
    let mean = Some("1500000000.000000".to_owned());
    assert_eq!(decode(|_| ()), (mean, 2, String::new()));
    let one = "incomplete: 1 declared attempts have no such value".to_owned();
    for edit in [
        (|t| t.first_chunk_tokens = None) as fn(&mut Trace),
        |t| t.first_chunk_tokens = Some(24),
        |t| t.last_generated = t.first_generated,
        |t| t.finish = None,
        |t| t.usage = None,
    ] {
        assert_eq!(decode(edit), (None, 1, one.clone()));
    }

    let prefill = |edit: fn(&mut Trace)| {
        let mut lives = [life("a", 0, 11, 10, 8), life("b", 0, 11, 5, 8)];
        edit(&mut lives[1]);
        let b = BatchOf {
            measures: Some(Measure::Prefill),
            requests: Some(2),
            ..batch(1000, 1, 8)
        };
        let m = Sent::new(vec![b], 1, lives.to_vec()).metrics()[0].clone();
        assert_eq!(m.id, "prefill-rate-mean/v1");
        (m.value, m.n, m.note.unwrap_or_default())
    };
    // 1,000 tokens in 10 and in 5 ns.
    let mean = Some("150000000000.000000".to_owned());
    assert_eq!(prefill(|_| ()), (mean.clone(), 2, String::new()));
    let cached = "1 attempts report cached prompt tokens".to_owned();
    let warm = prefill(|t| t.most_cached = Some(16));
    assert_eq!(warm, (mean, 2, cached));
    for edit in [
        (|t| t.first_generated = None) as fn(&mut Trace),
        |t| t.usage.as_mut().unwrap().prompt = Some(0),
        |t| t.finish = None,
        |t| t.send = None,
    ] {
        assert_eq!(prefill(edit), (None, 1, one.clone()));
    }
}
