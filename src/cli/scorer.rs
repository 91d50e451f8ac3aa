//! `verify scorer`: the frozen scorer over a file of answers, offline.

use std::path::{Path, PathBuf};

use anyhow::Context;
use runseal::answers::{Answers, Graded, grade};
use runseal::scorer::child::{ChildLimits, NotGraded, SUBCOMMAND, grade_in_child};
use runseal::scorer::{Grade, Scorer, ScorerError};
use runseal::suite::{Suite, digests};
use runseal::suite_check::in_words;
use serde_json::{Value, json};

use super::output::{Paint, count, plain, print, print_json};
use super::{Answer, Format, read_input};

/// Largest file of answers or cases.
const MAX_BYTES: u64 = 1 << 30;

/// Grade a file of answers with a suite's frozen scorer
///
/// ANSWERS has one object a line: {"case":"case-01","answer":{"content":"…",
/// "finish_reason":"stop"}}, with "rep" where a case has several answers. Exit code 0:
/// every case of the suite was answered and passed. 1: one failed, was not graded or
/// not answered, or the scorer could not be run here. 2: a file is not of its form.
#[derive(clap::Args)]
pub struct Args {
    /// Folder with suite.toml, cases.jsonl and scorer.toml, such as a bundle's suite/
    suite: PathBuf,
    /// The answers
    answers: PathBuf,
    /// How to print
    #[arg(long, value_enum, default_value = "human")]
    format: Format,
}

pub fn run(args: Args) -> anyhow::Result<Answer> {
    let read = |name: &str| read_input(&args.suite.join(name), "the suite's", MAX_BYTES);
    let (toml, cases, scorer) = (
        read("suite.toml")?,
        read("cases.jsonl")?,
        read("scorer.toml")?,
    );
    let suite = Suite::parse(&toml, &cases)?;
    let digests = digests(&toml, &cases, &scorer);
    let bytes = read_input(&args.answers, "answers", MAX_BYTES)?;
    let shown = || plain(&args.answers.display().to_string());
    let answers = Answers::parse(&bytes).with_context(shown)?;
    let head = json!({
        "suite": suite.toml.name,
        "suite_digest": digests.suite,
        "dataset": digests.dataset,
        "scorer": digests.scorer,
    });
    let identity = match Scorer::parse(&scorer) {
        Ok(scorer) => Some(scorer.identity()),
        // A scorer of a later version is not wrong; it cannot be run here.
        Err(ScorerError::UnknownDialect(_)) => None,
        Err(e) => return Err(e).with_context(|| plain(&args.suite.display().to_string())),
    };
    let exe = std::env::current_exe().context("could not find this program's own file")?;
    let graded = grade(&suite, &answers, |items| run_scorer(&exe, &scorer, items));
    match graded {
        Ok(graded) => {
            let dead = graded.cases.iter().any(|c| {
                // Without an answer there was nothing to survive.
                !c.performed && !matches!(&c.grade, Grade::Ungraded { reason } if reason == "there is no answer")
            });
            match args.format {
                Format::Json => print_json(&whole(head, identity.map(|i| i.hex()), &graded))?,
                Format::Human => print(&text(&suite, &digests.scorer.hex(), &graded, dead))?,
            }
            Ok(match graded.all_passed() {
                true => Answer::Passed,
                false => Answer::Findings,
            })
        }
        Err(NotGraded::Refused(why)) => anyhow::bail!("the scorer is refused: {}", plain(&why)),
        Err(why) => {
            let why = why.to_string();
            match args.format {
                Format::Json => {
                    let mut head = head;
                    head["not_performed"] = why.into();
                    print_json(&head)?;
                }
                Format::Human => print(&format!("not graded: {}\n", plain(&why)))?,
            }
            Ok(Answer::Findings)
        }
    }
}

fn run_scorer(
    exe: &Path,
    scorer: &[u8],
    items: &[runseal::scorer::GradeItem],
) -> Result<Vec<runseal::scorer::GradeResult>, NotGraded> {
    grade_in_child(exe, &[SUBCOMMAND], scorer, items, &ChildLimits::default())
}

fn whole(mut head: Value, identity: Option<String>, graded: &Graded) -> Value {
    head["scorer_identity"] = identity.into();
    if let (Some(head), Ok(Value::Object(body))) =
        (head.as_object_mut(), serde_json::to_value(graded))
    {
        head.extend(body);
    }
    head
}

fn text(suite: &Suite, scorer: &str, graded: &Graded, dead: bool) -> String {
    let paint = Paint::for_stdout();
    let mut out = format!(
        "suite     {}\nscorer    sha256:{scorer}\n\n",
        plain(&suite.toml.name)
    );
    let several = graded.cases.iter().any(|c| c.rep > 0);
    for c in &graded.cases {
        let rep = match several {
            true => format!(" rep {}", c.rep),
            false => String::new(),
        };
        let words = plain(&in_words(&c.grade)).replace('\n', " ");
        let words = match c.grade {
            Grade::Pass => paint.good(&words),
            _ => paint.bad(&words),
        };
        out.push_str(&format!("{}{rep}  {words}\n", plain(&c.case)));
    }
    for f in graded.findings.iter() {
        out.push_str(&format!(
            "\n{} {}\n    {}\n",
            f.code,
            plain(&f.subject),
            f.detail
        ));
    }
    if dead {
        out.push_str("\nThe scorer did not survive some answers; those were not graded.\n");
    }
    out.push_str(&format!(
        "\n{} of {} passed, {} failed, {} ungraded\n",
        graded.passed,
        count(graded.declared, "answer"),
        graded.failed,
        graded.ungraded
    ));
    out
}
