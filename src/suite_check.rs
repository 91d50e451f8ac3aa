//! A suite looked at before anything is run with it.
//!
//! Beyond what [`Suite::parse`] and [`Scorer::parse`] refuse: the name is not a
//! shipped suite's, the scorer's expressions hold up in the scorer's child, no case
//! passes when it is answered with nothing, and the suite's own test answers get
//! the grades that their author wants.
//!
//! The test answers are in `scorer-tests.jsonl`, beside the suite's three files and
//! no part of its digest:
//!
//! ```json
//! {"name":"wrong value","case":"case-01","answer":{"content":"{}"},"want":{"grade":"fail","check":"fields_exact"}}
//! ```

use serde::{Deserialize, Serialize};

use crate::answers::{AnswerText, AnswersError, lines};
use crate::codes::Code;
use crate::finding::{Check, Finding, Outcome, all_good};
use crate::scorer::{Answer, Grade, GradeItem, GradeResult, Scorer, ScorerError};
use crate::shipped;
use crate::suite::{Suite, SuiteDigests, SuiteError, digests};

/// Name of the file with the suite's own test answers.
pub const TESTS: &str = "scorer-tests.jsonl";

/// The bytes of a suite.
#[derive(Debug, Clone, Copy)]
pub struct SuiteBytes<'a> {
    /// `suite.toml`.
    pub toml: &'a [u8],
    /// `cases.jsonl`.
    pub cases: &'a [u8],
    /// `scorer.toml`.
    pub scorer: &'a [u8],
    /// [`TESTS`], where there is one.
    pub tests: Option<&'a [u8]>,
}

/// Why a suite cannot be looked at.
#[derive(Debug, thiserror::Error)]
pub enum SuiteCheckError {
    /// One of the files is not of its form.
    #[error(transparent)]
    Suite(#[from] SuiteError),
    /// The scorer is not of its form.
    #[error("scorer.toml: {0}")]
    Scorer(#[from] ScorerError),
    /// The test answers are not of their form.
    #[error("{TESTS}: {0}")]
    Tests(#[from] AnswersError),
    /// A test answers no case of the suite.
    #[error("{TESTS}: test {name:?} is about case {case:?}, which the suite does not have")]
    TestCase {
        /// The test.
        name: String,
        /// Its case.
        case: String,
    },
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Test {
    name: String,
    case: String,
    answer: AnswerText,
    want: Want,
}

/// A grade as it is wanted. Why an answer is ungraded is not asked for.
#[derive(Deserialize)]
#[serde(tag = "grade", rename_all = "lowercase", deny_unknown_fields)]
enum Want {
    Pass {},
    Fail { check: String },
    Ungraded {},
}

impl Want {
    fn is(&self, grade: &Grade) -> bool {
        match (self, grade) {
            (Self::Pass {}, Grade::Pass) | (Self::Ungraded {}, Grade::Ungraded { .. }) => true,
            (Self::Fail { check }, Grade::Fail { check: found }) => check == found,
            _ => false,
        }
    }

    fn in_words(&self) -> String {
        match self {
            Self::Pass {} => "pass".to_owned(),
            Self::Fail { check } => format!("fail at {check}"),
            Self::Ungraded {} => "ungraded".to_owned(),
        }
    }
}

/// A grade in a few words.
pub fn in_words(grade: &Grade) -> String {
    match grade {
        Grade::Pass => "pass".to_owned(),
        Grade::Fail { check } => format!("fail at {check}"),
        Grade::Ungraded { reason } => format!("ungraded: {reason}"),
    }
}

/// What was found.
#[derive(Debug, Clone, Serialize)]
pub struct SuiteReport {
    /// Its name.
    pub name: String,
    /// Tree root over the three files.
    pub suite: String,
    /// SHA-256 of the cases.
    pub dataset: String,
    /// SHA-256 of the scorer file.
    pub scorer: String,
    /// Cases.
    pub cases: usize,
    /// Test answers.
    pub tests: usize,
    /// What was asked, and the outcome.
    pub checks: Vec<Check>,
    /// Everything that does not hold.
    pub findings: Vec<Finding>,
}

impl SuiteReport {
    /// Every required check passed.
    pub fn good(&self) -> bool {
        all_good(&self.checks, &self.findings)
    }
}

/// Looks at a suite. `grader` runs the scorer over items, or says why it could not.
pub fn check(
    bytes: SuiteBytes,
    grader: impl FnOnce(&[GradeItem]) -> Result<Vec<GradeResult>, String>,
) -> Result<SuiteReport, SuiteCheckError> {
    let suite = Suite::parse(bytes.toml, bytes.cases)?;
    Scorer::parse(bytes.scorer)?;
    let tests: Vec<Test> = match bytes.tests {
        Some(tests) => lines(tests)?,
        None => Vec::new(),
    };
    let found = digests(bytes.toml, bytes.cases, bytes.scorer);
    let mut report = SuiteReport {
        name: suite.toml.name.clone(),
        suite: found.suite.hex(),
        dataset: found.dataset.hex(),
        scorer: found.scorer.hex(),
        cases: suite.cases.len(),
        tests: tests.len(),
        checks: Vec::new(),
        findings: Vec::new(),
    };
    name(&mut report, &found);
    let items = items(&suite, tests.as_slice())?;
    match grader(&items) {
        Ok(results) => graded(&mut report, &suite, &tests, &results),
        Err(why) => {
            for name in ["scorer-runs", "nothing-passes-for-nothing", "scorer-tests"] {
                report.not_performed(name, true, &why);
            }
        }
    }
    Ok(report)
}

impl SuiteReport {
    fn not_performed(&mut self, name: &str, required: bool, why: &str) {
        self.checks.push(Check {
            name: name.to_owned(),
            required,
            outcome: Outcome::NotPerformed {
                reason: why.to_owned(),
            },
        });
    }

    /// Ends a check whose findings have this code.
    fn close(&mut self, name: &str, code: Code) {
        let failed = self.findings.iter().any(|f| f.code == code);
        self.checks.push(Check {
            name: name.to_owned(),
            required: true,
            outcome: match failed {
                true => Outcome::Failed,
                false => Outcome::Passed,
            },
        });
    }
}

/// The name of a shipped suite stands for its bytes.
fn name(report: &mut SuiteReport, found: &SuiteDigests) {
    if let Some(want) = shipped::digest(&report.name)
        && want.suite != found.suite
    {
        let detail = "the name is a shipped suite's, and the bytes are not";
        report.findings.push(
            Finding::new(Code::SuiteNotAsShipped, report.name.clone(), detail)
                .values(want.suite, found.suite),
        );
    }
    report.close("own-name", Code::SuiteNotAsShipped);
}

/// Each case answered with nothing, then the tests.
fn items(suite: &Suite, tests: &[Test]) -> Result<Vec<GradeItem>, SuiteCheckError> {
    let item = |key: String, case, answer| GradeItem {
        key,
        case: serde_json::to_value(case).unwrap_or_default(),
        answer,
    };
    let mut out: Vec<GradeItem> = suite
        .cases
        .iter()
        .enumerate()
        .map(|(i, case)| item(format!("nothing {i}"), case, Answer::default()))
        .collect();
    for (i, test) in tests.iter().enumerate() {
        let case = suite
            .case(&test.case)
            .ok_or_else(|| SuiteCheckError::TestCase {
                name: test.name.clone(),
                case: test.case.clone(),
            })?;
        out.push(item(format!("test {i}"), case, test.answer.clone().into()));
    }
    Ok(out)
}

fn graded(report: &mut SuiteReport, suite: &Suite, tests: &[Test], results: &[GradeResult]) {
    let expected = suite.cases.len() + tests.len();
    let dead = results.iter().find(|r| !r.performed);
    if let Some(why) = match dead {
        Some(dead) => Some(format!("the scorer did not survive {}", dead.key)),
        None if results.len() != expected => Some("the scorer left answers out".to_owned()),
        None => None,
    } {
        return report.not_performed("scorer-runs", true, &why);
    }
    report.checks.push(Check {
        name: "scorer-runs".to_owned(),
        required: true,
        outcome: Outcome::Passed,
    });
    for (case, result) in suite.cases.iter().zip(results) {
        if result.grade == Grade::Pass {
            let detail = "it passes with an empty answer";
            let finding = Finding::new(Code::ScorerPassesNothing, case.id.clone(), detail);
            report.findings.push(finding);
        }
    }
    report.close("nothing-passes-for-nothing", Code::ScorerPassesNothing);
    if tests.is_empty() {
        let why = format!("there is no {TESTS}, or nothing in it");
        return report.not_performed("scorer-tests", false, &why);
    }
    for (test, result) in tests.iter().zip(&results[suite.cases.len()..]) {
        if !test.want.is(&result.grade) {
            let detail = format!("test {:?} got another grade", test.name);
            report.findings.push(
                Finding::new(Code::ScorerTestDiffers, test.case.clone(), detail)
                    .values(test.want.in_words(), in_words(&result.grade)),
            );
        }
    }
    report.close("scorer-tests", Code::ScorerTestDiffers);
}
