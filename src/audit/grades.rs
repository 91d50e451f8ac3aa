//! Grade lines are complete, and the frozen scorer gives the same grades again.

use std::collections::BTreeMap;

use super::{Audit, Grader};
use crate::bundle::Evidence;
use crate::bundle::files::GradeLine;
use crate::codes::Code;
use crate::event::{DeltaKind, Event};
use crate::finding::Finding;
use crate::grading::{Declared, REASONING_ONLY, THINK_TAGS, declared, items, lines};
use crate::scorer::Grade;
use crate::trace::Transport;

const CODES: &[Code] = &[Code::GradeMissing, Code::GradeNotReproduced];

/// Checks grades.jsonl.
pub fn grades(a: &mut Audit, e: &Evidence, grader: Grader) {
    let attempts = declared(&e.plan, &e.traces);
    lines_complete(a, e, &attempts);
    if e.suite.is_none() || e.responses.is_none() {
        from_the_log(a, e, &attempts);
    }
    let missing = a
        .absent("suite/cases.jsonl")
        .or_else(|| a.absent("responses.jsonl"));
    if let Some((required, why)) = missing {
        a.grades = format!("not recomputed ({why})");
        if a.findings.iter().any(|f| CODES.contains(&f.code)) {
            return a.close("grades", CODES);
        }
        return a.skip("grades", required, &why);
    }
    let (Some(suite), Some(responses)) = (&e.suite, &e.responses) else {
        a.grades = "not recomputed (cases or answers are not here)".into();
        return a.skip("grades", true, "cases or answers are not here");
    };
    let (items, slots) = items(suite, &attempts, responses);
    let results = match grader(&e.scorer, &items) {
        Ok(results) => results,
        Err(why) => return not_performed(a, e, &attempts, &why),
    };
    if let Some(dead) = results.iter().find(|r| !r.performed) {
        // Limits of time depend on the machine, so a grade that a dead child
        // left behind proves nothing either way.
        let why = format!("the scorer did not survive case {}", dead.key);
        return not_performed(a, e, &attempts, &why);
    }
    let by_key = by_key(e);
    let failed = scorer_failed(e);
    for line in lines(&attempts, &slots, &results, responses) {
        let Some(&stated) = by_key.get(&(line.case.as_str(), line.rep)) else {
            continue;
        };
        // A scorer that failed there may well work here; "ungraded" was then
        // the truth.
        let excused = failed && stated.flags == line.flags && ungraded(stated);
        if *stated != line && !excused {
            a.findings.push(
                Finding::new(
                    Code::GradeNotReproduced,
                    format!("{} repetition {}", line.case, line.rep),
                    "the frozen scorer gives another grade",
                )
                .values(show(&line), show(stated)),
            );
        }
    }
    a.grades = "recomputed".into();
    a.close("grades", CODES);
}

fn by_key(e: &Evidence) -> BTreeMap<(&str, u32), &GradeLine> {
    e.grades
        .iter()
        .map(|g| ((g.case.as_str(), g.rep), g))
        .collect()
}

fn ungraded(line: &GradeLine) -> bool {
    matches!(line.grade, Grade::Ungraded { .. })
}

/// The log says that the scorer did not do its work.
fn scorer_failed(e: &Evidence) -> bool {
    e.events
        .iter()
        .any(|l| matches!(&l.event, Event::Failure { cause, .. } if cause == "scorer-failed"))
}

/// The scorer does not run here: nobody can say that the grades are its grades,
/// only whether the log rules them out.
fn not_performed(a: &mut Audit, e: &Evidence, attempts: &[Declared], why: &str) {
    a.grades = format!("not recomputed ({why})");
    let before = a.findings.len();
    from_the_log(a, e, attempts);
    if a.findings.len() > before {
        return a.close("grades", CODES);
    }
    a.skip("grades", true, why);
}

fn show(g: &GradeLine) -> String {
    serde_json::to_string(&(&g.grade, &g.flags)).unwrap_or_default()
}

/// One line per declared attempt, in the order of the declaration.
fn lines_complete(a: &mut Audit, e: &Evidence, attempts: &[Declared]) {
    let mut have: BTreeMap<(&str, u32), usize> = BTreeMap::new();
    for g in &e.grades {
        *have.entry((g.case.as_str(), g.rep)).or_default() += 1;
    }
    let before = a.findings.len();
    for d in attempts {
        if have.remove(&(d.case, d.rep)) != Some(1) {
            a.add(
                Code::GradeMissing,
                &format!("{} repetition {}", d.case, d.rep),
                "it needs exactly one line in grades.jsonl",
            );
        }
    }
    if !have.is_empty() {
        a.add(
            Code::GradeMissing,
            "grades.jsonl",
            "it grades a case that was not declared",
        );
    }
    let order = |(g, d): (&GradeLine, &Declared)| (g.case.as_str(), g.rep) == (d.case, d.rep);
    if a.findings.len() == before && !e.grades.iter().zip(attempts).all(order) {
        a.add(
            Code::GradeMissing,
            "grades.jsonl",
            "its lines are not in the order of the declared attempts",
        );
    }
}

/// What follows from the log alone, when nothing can be graded again: an
/// attempt that did not complete is ungraded for that reason, and one without
/// final content is flagged.
fn from_the_log(a: &mut Audit, e: &Evidence, attempts: &[Declared]) {
    let by_key: BTreeMap<(&str, u32), &Declared> =
        attempts.iter().map(|d| ((d.case, d.rep), d)).collect();
    for g in &e.grades {
        let Some(d) = by_key.get(&(g.case.as_str(), g.rep)) else {
            continue;
        };
        let transport = d.transport();
        let reason = format!("transport {}", transport.name());
        let ungraded = matches!(&g.grade, Grade::Ungraded { reason: r } if *r == reason);
        let len = |kind| d.trace.map_or(0, |t| t.text_len(kind));
        let only = len(DeltaKind::Content) == 0 && len(DeltaKind::Reasoning) > 0;
        let flag = |name: &str| g.flags.iter().any(|f| f == name);
        let right = (transport == Transport::Completed || ungraded)
            && flag(REASONING_ONLY) == only
            && (len(DeltaKind::Content) > 0 || !flag(THINK_TAGS));
        if !right {
            a.findings.push(
                Finding::new(
                    Code::GradeNotReproduced,
                    format!("{} repetition {}", g.case, g.rep),
                    "the log alone rules this grade out",
                )
                .values(transport.name(), show(g)),
            );
        }
    }
}
