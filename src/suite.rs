//! Suites: frozen cases, their prefix slot, and the request each case becomes.
//!
//! A suite is a folder of `suite.toml`, `cases.jsonl` and `scorer.toml`. Its
//! prompts hold the slot [`SLOT`] once; at run time the slot is filled from the
//! run's nonce, so that no prompt was ever sent before while the dataset's
//! digest stays the same. Everything here is pure: the auditor builds the same
//! request bytes again and compares digests.

use hmac::{Hmac, KeyInit, Mac};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use sha2::Sha256;

use crate::digest::{Enc, Sha256Digest, tree_root};
use crate::filler::{self, Filling};
use crate::json;
use crate::plan::{Api, OWN_FIELDS, RequestSettings};
use crate::relpath::RelPath;

/// The place in a prompt that the per-run prefix fills.
pub const SLOT: &str = "{{prefix}}";
/// Case id of the declared warm-up.
pub const WARMUP: &str = "warmup";
/// [`AttemptKey::attempt`] of a calibration request; its repetition counts the tries.
pub const CALIBRATION: u32 = u32::MAX;
/// Largest number of cases in a suite.
pub const MAX_CASES: usize = 100_000;

/// Why a suite was refused.
#[derive(Debug, thiserror::Error)]
#[error("suite file {file}: {why} (hint: docs/formats.md describes suites)")]
pub struct SuiteError {
    /// Which of the three files.
    pub file: &'static str,
    /// What is wrong.
    pub why: String,
}

/// `suite.toml`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SuiteToml {
    /// Always `runseal.suite/v1`.
    pub format: String,
    /// Name, for example `serving-performance-v1`.
    pub name: String,
    /// One line for people.
    pub title: String,
    /// What kind of measurement it is, for example `serving`.
    pub kind: String,
    /// File with the cases; always `cases.jsonl`.
    pub dataset: String,
    /// File with the scorer; always `scorer.toml`.
    pub scorer: String,
    /// Input length the documents aim at, in tokens, where the suite has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub length_target_tokens: Option<u64>,
    /// Characters that the prefix slot is filled with.
    pub prefix_alphabet: String,
    /// Characters in the prefix.
    pub prefix_length: u32,
    /// Request sent once to each endpoint before measuring.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub warmup: Option<Warmup>,
    /// What each case is an instance of, where the suite varies lengths and depths:
    /// one entry per case.
    #[serde(default, rename = "cell", skip_serializing_if = "Vec::is_empty")]
    pub cells: Vec<CellOf>,
    /// The batches that a sweep or card sends, in the order of the cases: each batch has
    /// the next `requests` of them, or `concurrency` where it does not say.
    #[serde(default, rename = "batch", skip_serializing_if = "Vec::is_empty")]
    pub batches: Vec<BatchOf>,
}

/// A batch: so many requests at once, none of the next batch before all of this one have
/// ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct BatchOf {
    /// Length that its prompts aim at, in tokens.
    pub context_tokens: u64,
    /// Requests that are open at once.
    pub concurrency: u32,
    /// Tokens that each request is to generate; of a recall batch, the most.
    pub output_tokens: u64,
    /// Its requests, each new one sent when an earlier one has ended; absent where all
    /// are sent at once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requests: Option<u32>,
    /// What it measures, which decides its figures; absent in a sweep.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub measures: Option<Measure>,
    /// Kind of text that its prompts ask for, for example `code`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prompts: Option<String>,
}

/// What a batch of a card measures.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Measure {
    /// Output after the first chunk.
    Decode,
    /// Input, up to the first output.
    Prefill,
    /// Output of several requests at once.
    Aggregate,
    /// Whether needles come back.
    Recall,
}

impl BatchOf {
    /// How many requests it has.
    pub fn size(&self) -> u32 {
        self.requests.unwrap_or(self.concurrency)
    }

    fn check(&self) -> Result<(), String> {
        let fits = |n: u64| (1..=json::MAX_INTEGER).contains(&n);
        if self.concurrency == 0 || !fits(self.context_tokens) || !fits(self.output_tokens) {
            return Err("a batch has a 0 or a number out of range".into());
        }
        if self.size() < self.concurrency {
            let (size, at_once) = (self.size(), self.concurrency);
            return Err(format!(
                "a batch of {size} requests cannot have {at_once} at once"
            ));
        }
        let legal = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        let named = |p: &String| !p.is_empty() && p.chars().all(legal);
        if self.prompts.as_ref().is_some_and(|p| !named(p)) {
            return Err("prompts of a batch must be of a-z, 0-9 and '-'".into());
        }
        Ok(())
    }
}

/// A case's place in a grid of lengths and depths. It stands in `suite.toml`, so that
/// it can be read while the cases are withheld.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CellOf {
    /// The case.
    pub case: String,
    /// Length that the document aims at, in tokens. What the server counted stands
    /// beside it in a record.
    pub length_target_tokens: u64,
    /// Where the needle stands: percent of the other lines that come before it.
    pub depth_percent: u8,
    /// What the generator drew needle and haystack from.
    pub needle_seed: String,
    /// SHA-256 of the haystack, see [`haystack`].
    pub haystack_sha256: Sha256Digest,
}

/// The haystack of a case: the frozen text of the message that holds the slot, up to
/// its last line feed; the question comes after it.
pub fn haystack(messages: &[Message]) -> Option<&str> {
    let holds = |m: &&Message| m.content.contains(SLOT);
    let (haystack, _question) = messages.iter().find(holds)?.content.rsplit_once('\n')?;
    Some(haystack)
}

/// The declared warm-up request: an event like any other, in no figure.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Warmup {
    /// Completion cap in tokens.
    pub max_tokens: u64,
    /// How many are sent to each endpoint, one after the other.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub count: u32,
    /// Its messages, with the prefix slot.
    pub messages: Vec<Message>,
}

fn one() -> u32 {
    1
}

fn is_one(n: &u32) -> bool {
    *n == 1
}

/// Most warm-up requests per endpoint.
pub const MAX_WARMUPS: u32 = 1000;

/// A chat message.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Message {
    /// `system`, `user` or `assistant`.
    pub role: String,
    /// Text; the slot stands in exactly one message of a case.
    pub content: String,
}

/// A frozen case, a line of `cases.jsonl`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Case {
    /// Unique within the suite.
    pub id: String,
    /// What the scorer compares with; its shape is the scorer's business.
    pub expect: Value,
    /// Further fields of its request body, over those of the plan.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub extra: Map<String, Value>,
    /// Kind of case, for example `extract`.
    pub kind: String,
    /// Completion cap in tokens.
    pub max_tokens: u64,
    /// Its messages, with the prefix slot.
    pub messages: Vec<Message>,
}

/// A whole suite.
#[derive(Debug, Clone, PartialEq)]
pub struct Suite {
    /// The parsed `suite.toml`.
    pub toml: SuiteToml,
    /// The parsed cases, in file order.
    pub cases: Vec<Case>,
}

/// The digests that name a suite.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SuiteDigests {
    /// Tree root over the three files.
    pub suite: Sha256Digest,
    /// SHA-256 of `cases.jsonl`.
    pub dataset: Sha256Digest,
    /// SHA-256 of `scorer.toml`.
    pub scorer: Sha256Digest,
}

/// Digests of the three files, with the cases' digest known but perhaps not
/// their bytes.
pub fn suite_digest(
    toml: (u64, Sha256Digest),
    cases: (u64, Sha256Digest),
    scorer: (u64, Sha256Digest),
) -> Sha256Digest {
    let path = |name: &str| RelPath::from_bytes(name.as_bytes());
    match (path("suite.toml"), path("cases.jsonl"), path("scorer.toml")) {
        (Ok(t), Ok(c), Ok(s)) => tree_root([
            (&t, toml.0, toml.1),
            (&c, cases.0, cases.1),
            (&s, scorer.0, scorer.1),
        ]),
        _ => unreachable!("the three names are valid paths"),
    }
}

/// Digests of a suite from the bytes of its three files.
pub fn digests(toml: &[u8], cases: &[u8], scorer: &[u8]) -> SuiteDigests {
    let of = |b: &[u8]| (b.len() as u64, Sha256Digest::of(b));
    SuiteDigests {
        suite: suite_digest(of(toml), of(cases), of(scorer)),
        dataset: Sha256Digest::of(cases),
        scorer: Sha256Digest::of(scorer),
    }
}

impl SuiteToml {
    /// Parses and checks `suite.toml`.
    pub fn parse(bytes: &[u8]) -> Result<Self, SuiteError> {
        let bad = |why: String| SuiteError {
            file: "suite.toml",
            why,
        };
        let text = std::str::from_utf8(bytes).map_err(|e| bad(e.to_string()))?;
        let toml: SuiteToml = toml::from_str(text).map_err(|e| bad(e.to_string()))?;
        if toml.format != "runseal.suite/v1" {
            return Err(bad(format!("unknown format {:?}", toml.format)));
        }
        if toml.dataset != "cases.jsonl" || toml.scorer != "scorer.toml" {
            return Err(bad(
                "dataset and scorer must be cases.jsonl and scorer.toml".into(),
            ));
        }
        let name_ok = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        if toml.name.is_empty() || !toml.name.chars().all(name_ok) {
            return Err(bad("the name must be of a-z, 0-9 and '-'".into()));
        }
        let alphabet: std::collections::BTreeSet<char> = toml.prefix_alphabet.chars().collect();
        if alphabet.len() != toml.prefix_alphabet.chars().count() || alphabet.len() < 2 {
            return Err(bad(
                "prefix_alphabet needs two or more different characters".into(),
            ));
        }
        if !(8..=256).contains(&toml.prefix_length) {
            return Err(bad("prefix_length must be 8 to 256".into()));
        }
        if let Some(w) = &toml.warmup {
            one_slot(&w.messages).map_err(bad)?;
        }
        for batch in &toml.batches {
            batch.check().map_err(bad)?;
        }
        if toml
            .warmup
            .as_ref()
            .is_some_and(|w| !(1..=MAX_WARMUPS).contains(&w.count))
        {
            return Err(bad(format!("warmup.count must be 1 to {MAX_WARMUPS}")));
        }
        let mut celled = std::collections::BTreeSet::new();
        for cell in &toml.cells {
            if cell.depth_percent > 100 || cell.length_target_tokens > json::MAX_INTEGER {
                return Err(bad(format!("cell {:?} is out of range", cell.case)));
            }
            if !celled.insert(&cell.case) {
                return Err(bad(format!("cell {:?} is there twice", cell.case)));
            }
        }
        Ok(toml)
    }
}

impl SuiteToml {
    /// How much of the text that a prompt is filled with comes ahead of the document's
    /// other lines, in percent: as much as of the document comes ahead of a needle,
    /// which so stays at its depth; else all.
    pub fn filled_before(&self, case: &str) -> u8 {
        let cell = self.cells.iter().find(|c| c.case == case);
        cell.map_or(100, |c| c.depth_percent)
    }

    /// The number of the batch of each case, from 0, in the order of the cases; nothing
    /// for a suite without batches.
    pub fn batch_numbers(&self) -> impl Iterator<Item = usize> + '_ {
        let batches = self.batches.iter().enumerate();
        batches.flat_map(|(i, b)| std::iter::repeat_n(i, b.size() as usize))
    }
}

/// Parses and checks `cases.jsonl`.
pub fn parse_cases(bytes: &[u8]) -> Result<Vec<Case>, SuiteError> {
    let bad = |why: String| SuiteError {
        file: "cases.jsonl",
        why,
    };
    let mut cases: Vec<Case> = Vec::new();
    let mut ids = std::collections::BTreeSet::new();
    let Some(body) = bytes.strip_suffix(b"\n") else {
        return Err(bad("it is empty or its last line is not ended".into()));
    };
    for (i, line) in body.split(|b| *b == b'\n').enumerate() {
        let line_no = i + 1;
        let case: Case = json::from_slice(line).map_err(|e| bad(format!("line {line_no}: {e}")))?;
        if case.id.is_empty() || case.id == WARMUP || !ids.insert(case.id.clone()) {
            return Err(bad(format!(
                "line {line_no}: case id {:?} is empty, reserved or used twice",
                case.id
            )));
        }
        one_slot(&case.messages).map_err(|e| bad(format!("line {line_no}: {e}")))?;
        if let Some(key) = case.extra.keys().find(|k| OWN_FIELDS.contains(&k.as_str())) {
            return Err(bad(format!(
                "line {line_no}: extra may not set {key:?}; it has a setting of its own"
            )));
        }
        cases.push(case);
        if cases.len() > MAX_CASES {
            return Err(bad(format!("more than {MAX_CASES} cases")));
        }
    }
    Ok(cases)
}

fn one_slot(messages: &[Message]) -> Result<(), String> {
    let count: usize = messages
        .iter()
        .map(|m| m.content.matches(SLOT).count())
        .sum();
    match count {
        1 => Ok(()),
        n => Err(format!(
            "the prefix slot {SLOT} must stand in it once, not {n} times"
        )),
    }
}

impl Suite {
    /// Parses `suite.toml` and `cases.jsonl`.
    pub fn parse(toml: &[u8], cases: &[u8]) -> Result<Self, SuiteError> {
        let suite = Self {
            toml: SuiteToml::parse(toml)?,
            cases: parse_cases(cases)?,
        };
        if let Some(w) = &suite.toml.warmup
            && suite.cases.iter().any(|c| c.messages == w.messages)
        {
            return Err(SuiteError {
                file: "suite.toml",
                why: "the warm-up prompt is also a measured case".into(),
            });
        }
        let batches = suite.check_batches();
        batches
            .and_then(|()| suite.check_cells())
            .map_err(|why| SuiteError {
                file: "suite.toml",
                why,
            })?;
        Ok(suite)
    }

    /// Batches share out the cases, whole.
    fn check_batches(&self) -> Result<(), String> {
        let batches = &self.toml.batches;
        let sent: u64 = batches.iter().map(|b| u64::from(b.size())).sum();
        if batches.is_empty() || sent == self.cases.len() as u64 {
            return Ok(());
        }
        let cases = self.cases.len();
        Err(format!(
            "the batches have {sent} requests for {cases} cases"
        ))
    }

    /// The cases that have a cell where there are cells: those of the recall batches
    /// where batches say what they measure, else all.
    fn celled(&self) -> std::collections::BTreeMap<&str, &Case> {
        let batches = &self.toml.batches;
        let measured = batches.iter().any(|b| b.measures.is_some());
        let recall = |i: usize| batches[i].measures == Some(Measure::Recall);
        let of_recall: Vec<bool> = self.toml.batch_numbers().map(recall).collect();
        let cases = self.cases.iter().enumerate();
        cases
            .filter(|(i, _)| !measured || of_recall.get(*i) == Some(&true))
            .map(|(_, c)| (c.id.as_str(), c))
            .collect()
    }

    /// Where there are cells, every such case has one, and each haystack is the one it
    /// names.
    fn check_cells(&self) -> Result<(), String> {
        let cells = &self.toml.cells;
        let by_id = self.celled();
        let needed = self
            .toml
            .batches
            .iter()
            .any(|b| b.measures == Some(Measure::Recall));
        if (needed || !cells.is_empty()) && cells.len() != by_id.len() {
            let (cells, cases) = (cells.len(), by_id.len());
            return Err(format!("there are {cells} cells for {cases} cases"));
        }
        for cell in cells {
            let case = by_id
                .get(cell.case.as_str())
                .ok_or_else(|| format!("cell {:?} has no case", cell.case))?;
            let found = haystack(&case.messages).map(|h| Sha256Digest::of(h.as_bytes()));
            if found != Some(cell.haystack_sha256) {
                return Err(format!(
                    "the haystack of case {:?} is not the one that its cell names",
                    cell.case
                ));
            }
        }
        Ok(())
    }

    /// The case with this id.
    pub fn case(&self, id: &str) -> Option<&Case> {
        self.cases.iter().find(|c| c.id == id)
    }

    /// Request body of one attempt: canonical JSON. `None` for an unknown case.
    pub fn body(
        &self,
        settings: &RequestSettings,
        nonce: &[u8; 32],
        key: &AttemptKey,
    ) -> Option<Vec<u8>> {
        self.filled_body(settings, nonce, key, None)
    }

    /// Likewise, with a prompt that is filled with generated text; warm-ups of the
    /// suite never are. A calibration request asks for one token.
    pub fn filled_body(
        &self,
        settings: &RequestSettings,
        nonce: &[u8; 32],
        key: &AttemptKey,
        filling: Option<Filling>,
    ) -> Option<Vec<u8>> {
        let mut body = settings.extra.clone();
        let (messages, max_tokens) = if key.case == WARMUP {
            let w = self.toml.warmup.as_ref()?;
            (std::borrow::Cow::Borrowed(&w.messages), w.max_tokens)
        } else {
            let case = self.case(&key.case)?;
            body.extend(case.extra.clone());
            let max_tokens = match key.attempt {
                CALIBRATION => 1,
                _ => case.max_tokens,
            };
            let messages = match filling {
                Some(filling) => {
                    let seed = format!("{}/{}", self.toml.name, case.id);
                    let before = self.toml.filled_before(&case.id);
                    std::borrow::Cow::Owned(filler::fill(&case.messages, filling, &seed, before))
                }
                None => std::borrow::Cow::Borrowed(&case.messages),
            };
            (messages, max_tokens)
        };
        let prefix = prefix(&self.toml, nonce, key);
        let texts = messages.iter().map(|m| m.content.replace(SLOT, &prefix));
        let mut set = |k: &str, v: Value| body.insert(k.to_owned(), v);
        match settings.api {
            Api::Chat => {
                let of_roles = messages.iter().zip(texts);
                let list: Vec<Value> = of_roles
                    .map(|(m, text)| json!({"role": m.role, "content": text}))
                    .collect();
                set("messages", list.into());
            }
            Api::Completions => {
                let prompt: Vec<String> = texts.collect();
                set("prompt", prompt.join("\n").into());
            }
        }
        set("model", settings.model.clone().into());
        set("max_tokens", max_tokens.min(settings.max_tokens).into());
        set("temperature", settings.temperature_number());
        set("seed", settings.seed.into());
        set("stream", true.into());
        let options = match settings.continuous_usage {
            true => json!({"include_usage": true, "continuous_usage_stats": true}),
            false => json!({"include_usage": true}),
        };
        set("stream_options", options);
        if let Some(effort) = &settings.reasoning_effort {
            set("reasoning_effort", effort.clone().into());
        }
        Some(json::canonical(&body))
    }
}

/// Which attempt a request is for.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct AttemptKey {
    /// Case id, or [`WARMUP`].
    pub case: String,
    /// Repetition (for warm-ups: number of the endpoint).
    pub rep: u32,
    /// Attempt.
    pub attempt: u32,
}

/// The prefix of an attempt: HMAC-SHA256 keyed with the run nonce over
/// (case, repetition, attempt, block), byte i choosing character
/// `byte mod alphabet length`; block 0, 1, … of 32 bytes each.
pub fn prefix(suite: &SuiteToml, nonce: &[u8; 32], key: &AttemptKey) -> String {
    let alphabet: Vec<char> = suite.prefix_alphabet.chars().collect();
    let mut out = String::new();
    for i in 0..suite.prefix_length as usize {
        let block = prefix_block(nonce, key, (i / 32) as u64);
        out.push(alphabet[usize::from(block[i % 32]) % alphabet.len()]);
    }
    out
}

fn prefix_block(nonce: &[u8; 32], key: &AttemptKey, block: u64) -> [u8; 32] {
    let message = Enc::new("prefix/v1")
        .bytes(key.case.as_bytes())
        .u64(key.rep.into())
        .u64(key.attempt.into())
        .u64(block)
        .finish();
    let mut mac = match Hmac::<Sha256>::new_from_slice(nonce) {
        Ok(mac) => mac,
        Err(_) => unreachable!("HMAC takes keys of any length"),
    };
    mac.update(&message.0);
    mac.finalize().into_bytes().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOML: &str = r#"
format = "runseal.suite/v1"
name = "tiny-v1"
title = "Tiny"
kind = "serving"
dataset = "cases.jsonl"
scorer = "scorer.toml"
prefix_alphabet = "abcdefgh"
prefix_length = 40
"#;
    const CASE: &str = r##"{"expect":{"a":"1"},"id":"c1","kind":"extract","max_tokens":9,"messages":[{"content":"# {{prefix}}\na: 1\nQ: a","role":"user"}]}"##;

    fn key(rep: u32) -> AttemptKey {
        AttemptKey {
            case: "c1".into(),
            rep,
            attempt: 0,
        }
    }

    #[test]
    fn prefixes_differ_by_run_and_repetition_and_repeat_for_the_auditor() {
        let toml = SuiteToml::parse(TOML.as_bytes()).unwrap();
        let a = prefix(&toml, &[1; 32], &key(0));
        assert_eq!(a.len(), 40);
        assert_eq!(a, prefix(&toml, &[1; 32], &key(0)));
        assert_ne!(a, prefix(&toml, &[2; 32], &key(0)));
        assert_ne!(a, prefix(&toml, &[1; 32], &key(1)));
        assert_ne!(a[..8], a[32..], "the second block is another one");
    }

    #[test]
    fn the_body_is_the_plan_the_case_and_the_prefix() {
        let suite = Suite::parse(TOML.as_bytes(), format!("{CASE}\n").as_bytes()).unwrap();
        let settings = RequestSettings {
            model: "m".into(),
            temperature: "0".into(),
            seed: 7,
            max_tokens: 5,
            continuous_usage: false,
            reasoning_effort: None,
            api: Api::Chat,
            extra: Default::default(),
        };
        let body = suite.body(&settings, &[1; 32], &key(0)).unwrap();
        let p = prefix(&suite.toml, &[1; 32], &key(0));
        let want = format!(
            "{{\"max_tokens\":5,\"messages\":[{{\"content\":\"# {p}\\na: 1\\nQ: a\",\"role\":\"user\"}}],\
             \"model\":\"m\",\"seed\":7,\"stream\":true,\"stream_options\":{{\"include_usage\":true}},\"temperature\":0}}"
        );
        assert_eq!(String::from_utf8(body).unwrap(), want);
    }

    #[test]
    fn completions_have_one_prompt_and_fillings_the_text_that_they_name() {
        let suite = Suite::parse(TOML.as_bytes(), format!("{CASE}\n").as_bytes()).unwrap();
        let settings = RequestSettings {
            model: "m".into(),
            temperature: "0".into(),
            seed: 7,
            max_tokens: 5,
            continuous_usage: false,
            reasoning_effort: None,
            api: Api::Completions,
            extra: Default::default(),
        };
        let filling = Some(Filling {
            language: crate::plan::Language::Tr,
            chars: 9,
        });
        let body = |key: &AttemptKey, filling| -> Value {
            let bytes = suite.filled_body(&settings, &[1; 32], key, filling);
            json::parse(&bytes.unwrap()).unwrap()
        };
        let p = prefix(&suite.toml, &[1; 32], &key(0));
        let plain = body(&key(0), None);
        assert_eq!(plain["prompt"], format!("# {p}\na: 1\nQ: a"));
        assert!(plain.get("messages").is_none());
        let text = filler::stream(crate::plan::Language::Tr, "tiny-v1/c1", 9);
        let filled = body(&key(0), filling);
        assert_eq!(filled["prompt"], format!("# {p}\n{text}\na: 1\nQ: a"));
        assert_eq!(filled["max_tokens"], 5);
        let calibration = AttemptKey {
            attempt: CALIBRATION,
            ..key(0)
        };
        let calibration = body(&calibration, filling);
        assert_eq!(calibration["max_tokens"], 1);
        assert_ne!(calibration["prompt"], filled["prompt"], "another prefix");
    }

    #[test]
    fn malformed_suites_are_refused() {
        for (from, to) in [
            ("suite/v1", "suite/v9"),
            ("abcdefgh", "aa"),
            ("= 40", "= 4"),
            ("tiny-v1", "../x"),
            ("title", "titel"),
        ] {
            assert!(
                SuiteToml::parse(TOML.replace(from, to).as_bytes()).is_err(),
                "{to}"
            );
        }
        for bad in [
            String::new(),
            CASE.to_owned(),
            format!("{CASE}\n{CASE}\n"),
            format!("{}\n", CASE.replace("{{prefix}}", "x")),
            format!("{}\n", CASE.replace("\"c1\"", "\"warmup\"")),
            format!("{}\n", CASE.replace("\"kind\"", "\"kind\":\"x\",\"kind\"")),
            format!(
                "{}\n",
                CASE.replace("\"id\"", "\"extra\":{\"seed\":1},\"id\"")
            ),
        ] {
            assert!(parse_cases(bad.as_bytes()).is_err(), "{bad}");
        }
    }
}
