//! Limitations: derived by rule from the record, never typed by the operator.
//!
//! The record signs codes and parameters; the texts are rendered here, in
//! English and Turkish. Rules are versioned by [`super::RULES_VERSION`]: once
//! released, a version's rules and texts stay.

use std::collections::BTreeMap;

use super::lag::lagging;
use super::{CacheProof, FixedOutput, Limitation, RunRecord};
use crate::length::missed;
use crate::plan::Pin;

/// A language that limitations are rendered in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lang {
    /// English.
    En,
    /// Turkish.
    Tr,
}

/// Code, English text, Turkish text. `{name}` is replaced by the parameter.
pub const TEXTS: &[(&str, &str, &str)] = &[
    (
        "transport-is-not-correctness",
        "A completed transport says that bytes arrived. Whether they are right is the grade, counted apart.",
        "Tamamlanan aktarım yalnızca baytların ulaştığını söyler. Doğruluk ayrı sayılan nottur.",
    ),
    (
        "arrival-is-not-usefulness",
        "The arrival of first output or first final content says nothing about its worth.",
        "İlk çıktının ya da ilk nihai içeriğin gelmesi değerini göstermez.",
    ),
    (
        "chunks-are-not-tokens",
        "Chunk intervals are gaps between stream events; a chunk may hold several tokens.",
        "Parça aralıkları akış olayları arasındaki boşluklardır; bir parça birden çok token taşıyabilir.",
    ),
    (
        "small-sample",
        "{n} attempts are a pilot: neither a ceiling nor a stable tail.",
        "{n} deneme bir ön çalışmadır: ne üst sınır ne de kararlı bir kuyruk değeridir.",
    ),
    (
        "one-repetition",
        "Every case was sent once; run-to-run spread is unknown.",
        "Her durum bir kez gönderildi; koşular arası yayılım bilinmiyor.",
    ),
    (
        "no-comparison",
        "No ranking and no difference to another record is established here.",
        "Burada başka bir kayıtla sıralama ya da fark ortaya konmuş değildir.",
    ),
    (
        "overlap-is-client-side",
        "Overlap counts open client requests, not sequences on an accelerator.",
        "Örtüşme açık istemci isteklerini sayar, hızlandırıcıdaki dizileri değil.",
    ),
    (
        "length-is-a-target",
        "The input length of {target} tokens is a target; the server counted {min} to {max}.",
        "{target} tokenlik girdi uzunluğu bir hedeftir; sunucu {min} ile {max} arasında saydı.",
    ),
    (
        "length-target-missed",
        "{n} of {declared} declared attempts missed their length target by more than 2 %, or were not counted. Target and tokens that the server counted: {ranges}.",
        "Bildirilen {declared} denemenin {n} tanesi uzunluk hedefini %2'den fazla kaçırdı ya da sayılmadı. Hedef ve sunucunun saydığı token: {ranges}.",
    ),
    (
        "fixed-output-refused",
        "The claim of a fixed number of output tokens is refused: {reason}.",
        "Sabit sayıda çıktı tokenı iddiası reddedildi: {reason}.",
    ),
    (
        "endpoint-run-by-others",
        "Somebody else runs the {n} endpoint(s): which weights and which program answered, and who else was served, is not known.",
        "{n} uç noktayı başkası işletiyor: hangi ağırlıkların ve hangi programın yanıt verdiği, başka kime hizmet edildiği bilinmiyor.",
    ),
    (
        "reasoning-not-counted-apart",
        "Reasoning was seen, and the server did not count its tokens apart in {n} answers.",
        "Akıl yürütme görüldü ve sunucu {n} yanıtta tokenlarını ayrı saymadı.",
    ),
    (
        "token-counts-missing",
        "{n} completed attempts came without a token count.",
        "{n} tamamlanmış deneme token sayısı olmadan geldi.",
    ),
    (
        "no-continuous-usage",
        "Time per output token is not measurable without continuous usage reports.",
        "Sürekli kullanım bildirimi olmadan token başına süre ölçülemez.",
    ),
    (
        "think-tags-left-out",
        "{n} answers had reasoning tags in their final content; their final-content timing is left out.",
        "{n} yanıtın nihai içeriğinde akıl yürütme etiketleri vardı; içerik zamanları dışarıda bırakıldı.",
    ),
    (
        "attempts-repeated",
        "{n} further attempts were sent after failures, as the plan declares; a case counts as its last attempt.",
        "Planın bildirdiği gibi başarısızlıklardan sonra {n} deneme daha gönderildi; her durum son denemesiyle sayılır.",
    ),
    (
        "client-lag",
        "The measuring client itself was late by {p99} ms at the 99th percentile, over 1 % of {metrics}.",
        "Ölçen istemcinin kendisi 99. yüzdelikte {p99} ms gecikti; bu {metrics} değerinin %1'inden fazladır.",
    ),
    (
        "cold-cache-not-shown",
        "The cold-cache claim is refused: {reason}.",
        "Soğuk önbellek iddiası reddedildi: {reason}.",
    ),
    (
        "foreign-traffic-not-judged",
        "Whether others used the servers during the measurement is not known for {endpoints}.",
        "Ölçüm sırasında sunucuları başkalarının kullanıp kullanmadığı şunlar için bilinmiyor: {endpoints}.",
    ),
    (
        "cache-not-claimed",
        "Nothing is claimed about the prefix cache.",
        "Önek önbelleği hakkında bir iddia yoktur.",
    ),
    (
        "warm-engine",
        "{n} declared warm-up requests came before the measurement.",
        "Ölçümden önce bildirilmiş {n} ısınma isteği gönderildi.",
    ),
    (
        "machines-fewer-than-replicas",
        "{replicas} replicas stood on {machines} machine(s): copies are checked, not a cluster.",
        "{replicas} kopya {machines} makinedeydi: kopyalar denetlendi, bir küme değil.",
    ),
    (
        "reference-engine",
        "The reference engine served: a small model made for checking this tool. Its figures say nothing about a large model or an accelerator.",
        "Referans motor hizmet verdi: bu aracı denetlemek için yapılmış küçük bir model. Değerleri büyük bir model ya da hızlandırıcı hakkında bir şey söylemez.",
    ),
    (
        "no-accelerator",
        "No accelerator was seen on any node.",
        "Hiçbir düğümde hızlandırıcı görülmedi.",
    ),
    (
        "executable-unpinned",
        "The serving program is not pinned: {reason}.",
        "Hizmet veren program sabitlenmedi: {reason}.",
    ),
    (
        "revision-asserted",
        "That the manifest of {role} belongs to revision {revision} is asserted, not shown.",
        "{role} bildiriminin {revision} sürümüne ait olduğu ileri sürülmüştür, gösterilmemiştir.",
    ),
    (
        "operator-is-the-witness",
        "All evidence was collected and signed by the operator. Recomputing it proves the arithmetic, not the events.",
        "Tüm kanıtı işleten topladı ve imzaladı. Yeniden hesaplamak olayları değil, aritmetiği kanıtlar.",
    ),
    (
        "commitment-not-anchored",
        "Nothing in this bundle shows that the plan was handed to anyone before the run; unpublished runs are not excluded.",
        "Bu pakette planın koşudan önce birine verildiğini gösteren bir şey yok; yayımlanmamış koşular dışlanamaz.",
    ),
    (
        "key-made-by-run",
        "The signing key was made by this run; who signed is not established.",
        "İmza anahtarını bu koşu oluşturdu; kimin imzaladığı belli değildir.",
    ),
    (
        "attribution-incomplete",
        "{n} of {declared} attempts are not attributed to the pinned weights and program.",
        "{declared} denemenin {n} tanesi sabitlenen ağırlıklara ve programa bağlanamadı.",
    ),
    (
        "attempts-lost",
        "{n} of {declared} declared attempts did not complete; they stay in every denominator.",
        "Bildirilen {declared} denemenin {n} tanesi tamamlanmadı; her paydada kalırlar.",
    ),
    (
        "grades-missing",
        "{n} of {declared} declared attempts have no grade; they stay in the denominator.",
        "Bildirilen {declared} denemenin {n} tanesi notsuz; paydada kalırlar.",
    ),
    (
        "run-tainted",
        "The run is tainted: {causes}.",
        "Koşu lekeli: {causes}.",
    ),
    (
        "run-not-completed",
        "The run is {status}; figures cover what happened until then.",
        "Koşu durumu {status}; değerler o ana kadar olanı kapsar.",
    ),
];

/// The text of a limitation, or its bare code when this version has no text.
pub fn text(limitation: &Limitation, lang: Lang) -> String {
    let Some((_, en, tr)) = TEXTS.iter().find(|t| t.0 == limitation.code) else {
        return limitation.code.clone();
    };
    let template = match lang {
        Lang::En => en,
        Lang::Tr => tr,
    };
    limitation
        .params
        .iter()
        .fold((*template).to_owned(), |text, (k, v)| {
            text.replace(&format!("{{{k}}}"), v)
        })
}

/// Counts that the rules need beyond the record itself.
#[derive(Debug, Clone, Copy, Default)]
pub struct Facts {
    /// Declared warm-up requests that were sent.
    pub warmups: u64,
    /// Answers with reasoning text and no separate count.
    pub reasoning_uncounted: u64,
    /// Completed attempts without a completion-token count.
    pub tokens_missing: u64,
    /// Answers flagged for think tags.
    pub think_tags: u64,
    /// Further attempts that were sent.
    pub retries: u64,
    /// Endpoints that somebody else runs.
    pub remote: u64,
}

/// Applies the rules (version 1) to a record whose other groups are derived.
pub fn derive(record: &RunRecord, facts: Facts) -> Vec<Limitation> {
    let mut out = Rules(Vec::new());
    let declared = record.transport.declared;
    out.always("transport-is-not-correctness");
    out.always("arrival-is-not-usefulness");
    out.always("chunks-are-not-tokens");
    if declared < 20 {
        out.add("small-sample", &[("n", declared.to_string())]);
    }
    if record.requests.repetitions == 1 {
        out.always("one-repetition");
    }
    out.always("no-comparison");
    out.always("overlap-is-client-side");
    length(record, &mut out);
    if let Some(FixedOutput::Refused { reason }) = &record.requests.fixed_output {
        out.add("fixed-output-refused", &[("reason", reason.clone())]);
    }
    out.count("endpoint-run-by-others", facts.remote);
    out.count("reasoning-not-counted-apart", facts.reasoning_uncounted);
    out.count("token-counts-missing", facts.tokens_missing);
    if record
        .metrics
        .iter()
        .any(|m| m.id == "time-per-output-token/v1" && m.value.is_none())
    {
        out.always("no-continuous-usage");
    }
    out.count("think-tags-left-out", facts.think_tags);
    out.count("attempts-repeated", facts.retries);
    if let Some((lag, ids)) = lagging(record) {
        out.add(
            "client-lag",
            &[("p99", ns_as_ms(lag.p99_ns)), ("metrics", ids.join(", "))],
        );
    }
    match &record.cache.proof {
        CacheProof::Proven { .. } => {}
        CacheProof::Refused { reason } => {
            out.add("cold-cache-not-shown", &[("reason", reason.clone())]);
        }
        CacheProof::NotClaimed => out.always("cache-not-claimed"),
    }
    if let Some(unknown) = super::servers::not_judged(record) {
        out.add("foreign-traffic-not-judged", &[("endpoints", unknown)]);
    }
    out.count("warm-engine", facts.warmups);
    if record.hardware.machines < record.integrity.replicas {
        out.add(
            "machines-fewer-than-replicas",
            &[
                ("replicas", record.integrity.replicas.to_string()),
                ("machines", record.hardware.machines.to_string()),
            ],
        );
    }
    if record.runtime.engine == "reference" {
        out.always("reference-engine");
    }
    let nodes = &record.hardware.nodes;
    if !nodes.is_empty() && nodes.iter().all(|n| n.gpus.is_empty()) {
        out.always("no-accelerator");
    }
    if let Pin::Unpinned { reason } = &record.runtime.image {
        out.add("executable-unpinned", &[("reason", reason.clone())]);
    }
    for c in &record.model.checkpoints {
        if let Some(revision) = &c.revision {
            out.add(
                "revision-asserted",
                &[("role", c.role.clone()), ("revision", revision.clone())],
            );
        }
    }
    out.always("operator-is-the-witness");
    out.always("commitment-not-anchored");
    if record.provenance.key_origin == "this_run" {
        out.always("key-made-by-run");
    }
    outcome(record, declared, &mut out);
    out.0
}

/// Milliseconds with every nanosecond, so nothing is rounded.
fn ns_as_ms(ns: u64) -> String {
    format!("{}.{:06}", ns / 1_000_000, ns % 1_000_000)
}

fn length(record: &RunRecord, out: &mut Rules) {
    let input = &record.input;
    if let Some(target) = input.length_target_tokens {
        let show = |n: Option<u64>| n.map_or("?".to_owned(), |n| n.to_string());
        out.add(
            "length-is-a-target",
            &[
                ("target", target.to_string()),
                ("min", show(input.prompt_tokens_min)),
                ("max", show(input.prompt_tokens_max)),
            ],
        );
    }
    if let Some((declared, n, ranges)) = missed(&input.lengths) {
        out.add(
            "length-target-missed",
            &[
                ("n", n.to_string()),
                ("declared", declared.to_string()),
                ("ranges", ranges),
            ],
        );
    }
}

fn outcome(record: &RunRecord, declared: u64, out: &mut Rules) {
    let of = |n: u64| [("n", n.to_string()), ("declared", declared.to_string())];
    for (code, n) in [
        ("attribution-incomplete", record.attribution.unverified),
        (
            "attempts-lost",
            declared - record.transport.completed.min(declared),
        ),
        ("grades-missing", record.grades.ungraded),
    ] {
        if n > 0 {
            out.add(code, &of(n));
        }
    }
    if !record.run.taints.is_empty() {
        let causes: Vec<&str> = record.run.taints.iter().map(|t| t.cause.as_str()).collect();
        out.add("run-tainted", &[("causes", causes.join(", "))]);
    }
    let status = record.run.status.name();
    if status != "completed" {
        out.add("run-not-completed", &[("status", status.to_owned())]);
    }
}

struct Rules(Vec<Limitation>);

impl Rules {
    fn add(&mut self, code: &str, params: &[(&str, String)]) {
        let params: BTreeMap<String, String> = params
            .iter()
            .map(|(k, v)| ((*k).to_owned(), v.clone()))
            .collect();
        self.0.push(Limitation {
            code: code.into(),
            params,
        });
    }

    fn always(&mut self, code: &str) {
        self.add(code, &[]);
    }

    fn count(&mut self, code: &str, n: u64) {
        if n > 0 {
            self.add(code, &[("n", n.to_string())]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_has_two_texts_with_the_same_parameters() {
        let params = |t: &str| -> std::collections::BTreeSet<String> {
            t.split('{')
                .skip(1)
                .filter_map(|p| p.split_once('}').map(|(name, _)| name.to_owned()))
                .collect()
        };
        for (code, en, tr) in TEXTS {
            assert_eq!(params(en), params(tr), "{code}");
            assert_eq!(TEXTS.iter().filter(|t| t.0 == *code).count(), 1, "{code}");
        }
    }

    #[test]
    fn parameters_are_filled_in() {
        let l = Limitation {
            code: "small-sample".into(),
            params: [("n".to_owned(), "8".to_owned())].into(),
        };
        assert!(text(&l, Lang::En).starts_with("8 attempts"));
        assert!(text(&l, Lang::Tr).starts_with("8 deneme"));
    }
}
