//! Grading a file of answers against a suite, without a run.
//!
//! An answers file has one JSON object a line:
//!
//! ```json
//! {"case":"case-01","answer":{"content":"{\"a\":\"1\"}","finish_reason":"stop"}}
//! ```
//!
//! `rep` tells several answers to one case apart (0 when it is left out), and
//! `answer` may also have `reasoning` and `tool_calls`. Every case of the suite is
//! in the result: one without an answer is ungraded and a finding, never left out.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::codes::Code;
use crate::finding::Finding;
use crate::json;
use crate::scorer::{Answer, Grade, GradeItem, GradeResult};
use crate::suite::Suite;

/// Most answers in one file.
pub const MAX_ANSWERS: usize = 1_000_000;

/// Why a file of answers was refused.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("line {line}: {why} (hint: one {{\"case\":…,\"answer\":{{\"content\":…}}}} a line)")]
pub struct AnswersError {
    /// The line, from 1.
    pub line: usize,
    /// What is wrong with it.
    pub why: String,
}

/// An answer as it is written in a file.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AnswerText {
    /// Final content.
    pub content: String,
    /// Reasoning.
    #[serde(default)]
    pub reasoning: String,
    /// As the server gave it.
    #[serde(default)]
    pub finish_reason: Option<String>,
    /// `{name, arguments}` each.
    #[serde(default)]
    pub tool_calls: Vec<Value>,
}

impl From<AnswerText> for Answer {
    fn from(text: AnswerText) -> Self {
        Self {
            content: text.content,
            reasoning: text.reasoning,
            finish_reason: text.finish_reason,
            tool_calls: text.tool_calls,
        }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Line {
    case: String,
    #[serde(default)]
    rep: u32,
    answer: AnswerText,
}

/// Reads the JSON lines of a file, each ended by a line feed.
pub(crate) fn lines<T: serde::de::DeserializeOwned>(bytes: &[u8]) -> Result<Vec<T>, AnswersError> {
    let bad = |line: usize, why: String| AnswersError { line, why };
    let Some(body) = bytes.strip_suffix(b"\n") else {
        let line = bytes.split(|b| *b == b'\n').count();
        return Err(bad(line, "the file is empty or cut off here".into()));
    };
    let mut out = Vec::new();
    for (i, line) in body.split(|b| *b == b'\n').enumerate() {
        if i == MAX_ANSWERS {
            return Err(bad(i + 1, format!("more than {MAX_ANSWERS} answers")));
        }
        out.push(json::from_slice(line).map_err(|e| bad(i + 1, e.to_string()))?);
    }
    Ok(out)
}

/// Answers by case and repetition.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Answers(BTreeMap<(String, u32), Answer>);

impl Answers {
    /// Reads a file of answers.
    pub fn parse(bytes: &[u8]) -> Result<Self, AnswersError> {
        let mut map = BTreeMap::new();
        for (i, line) in lines::<Line>(bytes)?.into_iter().enumerate() {
            let key = (line.case, line.rep);
            if let Some(_old) = map.insert(key.clone(), line.answer.into()) {
                return Err(AnswersError {
                    line: i + 1,
                    why: format!("a second answer to case {:?}, rep {}", key.0, key.1),
                });
            }
        }
        Ok(Self(map))
    }

    /// What is to be graded, in the order of the suite's cases, and for each case
    /// and repetition its key in there, or none when there is no answer.
    fn against<'a>(&self, suite: &'a Suite) -> (Vec<GradeItem>, Vec<(&'a str, u32, bool)>) {
        let mut items = Vec::new();
        let mut slots = Vec::new();
        for case in &suite.cases {
            let from = (case.id.clone(), 0)..=(case.id.clone(), u32::MAX);
            let before = slots.len();
            for ((id, rep), answer) in self.0.range(from) {
                items.push(GradeItem {
                    key: key(id, *rep),
                    case: serde_json::to_value(case).unwrap_or_default(),
                    answer: answer.clone(),
                });
                slots.push((case.id.as_str(), *rep, true));
            }
            if slots.len() == before {
                slots.push((case.id.as_str(), 0, false));
            }
        }
        (items, slots)
    }
}

fn key(case: &str, rep: u32) -> String {
    format!("{case}#{rep}")
}

/// One line of the result.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct GradedCase {
    /// Case id.
    pub case: String,
    /// Repetition.
    pub rep: u32,
    /// The scorer's word.
    #[serde(flatten)]
    pub grade: Grade,
    /// False when the scorer did not survive this answer.
    pub performed: bool,
}

/// What the scorer says of a file of answers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Graded {
    /// Every case of the suite, in its order.
    pub cases: Vec<GradedCase>,
    /// Everything that does not hold.
    pub findings: Vec<Finding>,
    /// Cases and repetitions: the denominator.
    pub declared: usize,
    /// Grades `pass`.
    pub passed: usize,
    /// Grades `fail`.
    pub failed: usize,
    /// The rest.
    pub ungraded: usize,
}

impl Graded {
    /// Everything was graded, and passed.
    pub fn all_passed(&self) -> bool {
        self.findings.is_empty() && self.declared > 0 && self.passed == self.declared
    }
}

/// Grades answers. `grader` runs the frozen scorer; its error is passed on: nothing
/// was graded then.
pub fn grade<E>(
    suite: &Suite,
    answers: &Answers,
    grader: impl FnOnce(&[GradeItem]) -> Result<Vec<GradeResult>, E>,
) -> Result<Graded, E> {
    let (items, slots) = answers.against(suite);
    let results: BTreeMap<String, GradeResult> = grader(&items)?
        .into_iter()
        .map(|r| (r.key.clone(), r))
        .collect();
    let mut findings = Vec::new();
    let mut cases = Vec::new();
    for (case, rep, answered) in slots {
        let result = results.get(&key(case, rep)).filter(|_| answered);
        let reason = match answered {
            true => "the scorer gave no result",
            false => "there is no answer",
        };
        if !answered {
            let detail = "the file has no answer to this case";
            findings.push(Finding::new(Code::AnswerMissing, case, detail));
        }
        cases.push(GradedCase {
            case: case.to_owned(),
            rep,
            grade: result.map_or_else(
                || Grade::Ungraded {
                    reason: reason.to_owned(),
                },
                |r| r.grade.clone(),
            ),
            performed: result.is_some_and(|r| r.performed),
        });
    }
    for (case, _) in answers.0.keys() {
        if suite.case(case).is_none() {
            let detail = "the suite has no such case";
            findings.push(Finding::new(Code::AnswerUnknownCase, case.clone(), detail));
        }
    }
    let count = |f: fn(&Grade) -> bool| cases.iter().filter(|c| f(&c.grade)).count();
    Ok(Graded {
        declared: cases.len(),
        passed: count(|g| *g == Grade::Pass),
        failed: count(|g| matches!(g, Grade::Fail { .. })),
        ungraded: count(|g| matches!(g, Grade::Ungraded { .. })),
        cases,
        findings,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn why(text: &str) -> AnswersError {
        Answers::parse(text.as_bytes()).unwrap_err()
    }

    #[test]
    fn malformed_files_are_refused_with_the_line() {
        let good = r#"{"case":"a","answer":{"content":"x"}}"#;
        assert!(Answers::parse(format!("{good}\n").as_bytes()).is_ok());
        assert_eq!(why("").line, 1);
        assert_eq!(why(good).line, 1);
        assert_eq!(why(&format!("{good}\n{good}\n")).line, 2);
        let rep = good.replace("\"answer\"", "\"rep\":1,\"answer\"");
        assert!(Answers::parse(format!("{good}\n{rep}\n").as_bytes()).is_ok());
        for bad in [
            good.replace("content", "contents"),
            good.replace("\"case\"", "\"kase\""),
            good.replace("\"a\",", "\"a\",\"want\":1,"),
        ] {
            assert_eq!(why(&format!("{good}\n{bad}\n")).line, 2, "{bad}");
        }
    }
}
