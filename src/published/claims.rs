//! Claims in prose, told by their words, sentence by sentence.
//!
//! A sentence that denies ("no speedup is claimed") is no claim. What is looked for
//! are the claims that a benchmark record most often cannot carry: that something made
//! it faster, that answers are good, that a context length works, that a service is up.
//! A list of words is blunt; it errs towards silence, and each finding quotes its
//! sentence.

use super::report::Auditor;
use crate::codes::Code;

/// What a claim is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Topic {
    /// Something made it faster.
    Speedup,
    /// Answers are right or good.
    Quality,
    /// A context length or a load works.
    Capacity,
    /// The service is up now.
    Live,
}

impl Topic {
    const ALL: [Self; 4] = [Self::Speedup, Self::Quality, Self::Capacity, Self::Live];

    /// Beginnings of words, lower case, English and Turkish.
    fn words(self) -> &'static [&'static str] {
        match self {
            Self::Speedup => &[
                "speedup",
                "speed-up",
                "faster",
                "accelerat",
                "outperform",
                "quicker",
                "hızlan",
                "hızlı",
                "nedensel",
                "causal",
            ],
            Self::Quality => &[
                "quality",
                "accura",
                "correct",
                "lossless",
                "kalite",
                "doğruluk",
                "kayıpsız",
            ],
            Self::Capacity => &[
                "context", "capacity", "limit", "input", "bağlam", "kapasite", "sınır", "giriş",
            ],
            Self::Live => &["live", "currently", "available now", "canlı", "şu anda"],
        }
    }

    fn describe(self) -> &'static str {
        match self {
            Self::Speedup => "that something made it faster",
            Self::Quality => "that answers are right or good",
            Self::Capacity => "a context length that was not measured",
            Self::Live => "that a service is up",
        }
    }
}

/// What the record itself can carry.
#[derive(Debug, Clone, Copy)]
pub struct Contradictions {
    /// A control run stands beside the figures.
    pub control: bool,
    /// Answers were graded.
    pub graded: bool,
    /// Largest input that was measured, tokens.
    pub largest_context: Option<u64>,
}

const DENIALS: &[&str] = &[
    "no",
    "not",
    "without",
    "never",
    "cannot",
    "nothing",
    "neither",
    "nor",
    "unsupported",
    "isn't",
    "doesn't",
    "only",
    "değil",
    "değildir",
    "yok",
    "yoktur",
    "bulunmadığından",
    "desteklenmez",
    "göstermez",
    "ölçmez",
    "yalnız",
    "olmayan",
];

fn words(sentence: &str) -> Vec<String> {
    sentence
        .split(|c: char| !(c.is_alphanumeric() || c == '-' || c == '\''))
        .filter(|w| !w.is_empty())
        .map(str::to_lowercase)
        .collect()
}

fn sentences(text: &str) -> impl Iterator<Item = &str> {
    text.split_inclusive(['.', ';', '!', '?', '\n'])
        .map(str::trim)
        .filter(|s| !s.is_empty())
}

/// Whether a text speaks of a topic at all.
pub fn speaks_of(text: &str, topic: Topic) -> bool {
    let found = words(text);
    topic
        .words()
        .iter()
        .any(|w| found.iter().any(|f| f.starts_with(w)))
}

fn denies(sentence: &str) -> bool {
    words(sentence)
        .iter()
        .any(|w| DENIALS.contains(&w.as_str()))
}

/// Sizes such as `128K` that stand beside the word for a context.
fn contexts(sentence: &str) -> Vec<u64> {
    let words = words(sentence);
    let near = ["context", "input", "bağlam", "giriş"];
    if !words.iter().any(|w| near.iter().any(|n| w.starts_with(n))) {
        return Vec::new();
    }
    words
        .iter()
        .filter_map(|w| w.strip_suffix('k')?.parse::<u64>().ok())
        .filter_map(|k| k.checked_mul(1000))
        .collect()
}

/// Claims of speed with a factor: `2x`, `1.8×`.
fn has_factor(sentence: &str) -> bool {
    sentence.split_whitespace().any(|w| {
        let w = w.trim_end_matches(['.', ',', ';', ')']);
        w.strip_suffix(['x', '×'])
            .is_some_and(|n| n.parse::<f64>().is_ok_and(|n| n > 1.0))
    })
}

/// Findings per field; more of the same help nobody.
const MOST: usize = 20;

/// Reports claims in `prose` (field, text) that the record cannot carry or that one of
/// its own caveats denies.
pub fn check(a: &mut Auditor, prose: &[(&str, &str)], caveats: &[&str], rules: Contradictions) {
    for (field, text) in prose {
        let before = a.findings.len();
        for sentence in sentences(text).filter(|s| !denies(s)) {
            if a.findings.len() - before >= MOST {
                break;
            }
            for topic in Topic::ALL {
                let claims = match topic {
                    Topic::Capacity => contexts(sentence)
                        .iter()
                        .any(|c| rules.largest_context.is_some_and(|m| *c > m)),
                    Topic::Speedup => speaks_of(sentence, topic) || has_factor(sentence),
                    _ => speaks_of(sentence, topic),
                };
                let carried = match topic {
                    Topic::Speedup => rules.control,
                    Topic::Quality => rules.graded,
                    Topic::Capacity | Topic::Live => false,
                };
                if !claims || carried {
                    continue;
                }
                let denied = caveats
                    .iter()
                    .find(|c| sentences(c).any(|s| speaks_of(s, topic) && denies(s)));
                let why = match denied {
                    Some(c) => format!("its own caveat says otherwise: {c:?}"),
                    None => "nothing in the record carries it".to_owned(),
                };
                a.add(
                    Code::ClaimContradicted,
                    *field,
                    format!("{sentence:?} claims {}; {why}", topic.describe()),
                );
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(text: &str, rules: Contradictions) -> usize {
        let mut a = Auditor::default();
        check(&mut a, &[("description", text)], &[], rules);
        a.findings.len()
    }

    const NOTHING: Contradictions = Contradictions {
        control: false,
        graded: false,
        largest_context: Some(16384),
    };

    #[test]
    fn claims_are_found_and_denials_are_not() {
        for claim in [
            "NextN makes it faster.",
            "A 2.3x gain at one request.",
            "Answers keep their accuracy.",
            "Runs a 128K context.",
            "The service is live.",
            "NextN ile daha hızlı.",
        ] {
            assert_eq!(found(claim, NOTHING), 1, "{claim}");
        }
        for plain in [
            "No speedup is claimed.",
            "It was not graded for accuracy.",
            "A 16K context was sent.",
            "128K is the limit of the server.",
            "Rates of concurrent requests at three input lengths.",
            "Hızlanma iddiası desteklenmez.",
        ] {
            assert_eq!(found(plain, NOTHING), 0, "{plain}");
        }
        let all = Contradictions {
            control: true,
            graded: true,
            largest_context: Some(200_000),
        };
        assert_eq!(
            found("Faster, with 128K context and good accuracy.", all),
            0
        );
    }
}
