//! From the collected evidence to the sealed record: grade, seal, audit.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use runseal::audit::{AuditReport, Reader, audit};
use runseal::bundle::evidence::jsonl_bytes;
use runseal::bundle::files::{GRADES_FORMAT, GradeLine};
use runseal::bundle::index::{INDEX_FILE, RECORD_FILE};
use runseal::bundle::read::read;
use runseal::event::EventLine;
use runseal::grading::{declared, items, lines};
use runseal::keys::SigningKey;
use runseal::plan::RunPlan;
use runseal::record::{RunRecord, Tool};
use runseal::response::Response;
use runseal::scorer::child::{ChildLimits, SUBCOMMAND, grade_in_child};
use runseal::scorer::{GradeItem, GradeResult};
use runseal::seal;
use runseal::suite::Suite;
use runseal::trace::Traces;

use super::bundle_dir::BundleDir;
use crate::plan_file::Resolved;

/// A sealed run.
#[derive(Debug)]
pub struct Finished {
    /// The bundle's folder.
    pub bundle: PathBuf,
    /// The record in it.
    pub record: RunRecord,
    /// What the run's own audit says. Its key is nobody's yet, so the best it
    /// can say is "self-consistent".
    pub audit: AuditReport,
}

/// Grades and whether the scorer failed.
#[derive(Debug)]
pub struct Grading {
    /// One line per declared attempt.
    pub lines: Vec<GradeLine>,
    /// Why the scorer did not do its work, if so.
    pub failure: Option<String>,
}

/// The event log so far, leaving out a torn last line.
pub fn read_events(dir: &BundleDir) -> anyhow::Result<Vec<EventLine>> {
    let path = dir.path.join("events.jsonl");
    let text =
        std::fs::read(&path).with_context(|| format!("could not read {}", path.display()))?;
    let whole = text.iter().rposition(|b| *b == b'\n').map_or(0, |i| i + 1);
    text[..whole]
        .split(|b| *b == b'\n')
        .skip(1)
        .filter(|l| !l.is_empty())
        .map(|l| {
            serde_json::from_slice(l).with_context(|| format!("{}: a bad line", path.display()))
        })
        .collect()
}

fn read_responses(dir: &BundleDir) -> anyhow::Result<BTreeMap<u32, Response>> {
    let path = dir.path.join("responses.jsonl");
    let text =
        std::fs::read(&path).with_context(|| format!("could not read {}", path.display()))?;
    text.split(|b| *b == b'\n')
        .skip(1)
        .filter(|l| !l.is_empty())
        .map(|l| {
            let r: Response = serde_json::from_slice(l)
                .with_context(|| format!("{}: a bad line", path.display()))?;
            Ok((r.req, r))
        })
        .collect()
}

/// Runs the frozen scorer over every answer, in a limited child of `exe`.
pub fn grade(dir: &BundleDir, resolved: &Resolved, exe: &Path) -> anyhow::Result<Grading> {
    grade_with(
        dir,
        &resolved.plan,
        &resolved.suite,
        &resolved.suite_files.scorer,
        exe,
    )
}

/// [`grade`] for a bundle whose plan was read back from it.
pub fn grade_with(
    dir: &BundleDir,
    plan: &RunPlan,
    suite: &Suite,
    scorer: &[u8],
    exe: &Path,
) -> anyhow::Result<Grading> {
    let traces = Traces::build(&read_events(dir)?);
    let responses = read_responses(dir)?;
    let attempts = declared(plan, &traces);
    let (items, slots) = items(suite, &attempts, &responses);
    let (results, failure) = match run_scorer(exe, scorer, &items) {
        Ok(results) => {
            let dead = results.iter().find(|r| !r.performed);
            let why = dead.map(|r| format!("the scorer did not survive case {}", r.key));
            (results, why)
        }
        Err(why) => (Vec::new(), Some(why)),
    };
    Ok(Grading {
        lines: lines(&attempts, &slots, &results, &responses),
        failure,
    })
}

fn run_scorer(exe: &Path, scorer: &[u8], items: &[GradeItem]) -> Result<Vec<GradeResult>, String> {
    grade_in_child(exe, &[SUBCOMMAND], scorer, items, &ChildLimits::default())
        .map_err(|e| e.to_string())
}

/// Reads a scorer in the child that will run it, without grading anything.
pub fn check_scorer(exe: &Path, scorer: &[u8]) -> anyhow::Result<()> {
    match run_scorer(exe, scorer, &[]) {
        Ok(_) => Ok(()),
        Err(why) => bail!("the suite's scorer.toml cannot be run: {why}"),
    }
}

/// Writes grades, index and record, and audits the bundle as a stranger would.
pub fn seal(
    dir: &BundleDir,
    plan: &RunPlan,
    grades: Vec<GradeLine>,
    key: &SigningKey,
    tool: Tool,
    exe: &Path,
) -> anyhow::Result<Finished> {
    if dir.sealed() {
        bail!(
            "{} is sealed already and was left alone",
            dir.path.display()
        );
    }
    dir.write(
        "grades.jsonl",
        &jsonl_bytes(&dir.header(GRADES_FORMAT), &grades),
    )?;
    let mut salts = BTreeMap::new();
    for name in &plan.withholdable {
        let mut salt = [0u8; 32];
        getrandom::fill(&mut salt).map_err(|e| anyhow::anyhow!("no random bytes: {e}"))?;
        salts.insert(name.clone(), salt);
    }
    if !salts.is_empty() {
        dir.write_salts(&salts)?;
    }
    let raw = read(&dir.path)?;
    if let Some(f) = raw.findings.first() {
        bail!("the bundle holds {}, {}", f.subject, f.detail);
    }
    let sealed = seal::seal(&raw.files, &salts, tool, key)?;
    dir.write(INDEX_FILE, &sealed.index)?;
    // The record comes last: before it there is nothing that reads as whole.
    dir.write(RECORD_FILE, &sealed.envelope)?;
    let audit = self_audit(&dir.path, exe).context("the own audit was not performed")?;
    Ok(Finished {
        bundle: dir.path.clone(),
        record: sealed.record,
        audit,
    })
}

/// Audits a bundle without trusting anyone.
pub fn self_audit(path: &Path, exe: &Path) -> anyhow::Result<AuditReport> {
    let raw = read(path)?;
    let grader = |scorer: &[u8], items: &[GradeItem]| run_scorer(exe, scorer, items);
    let reader = Reader {
        trusted: &[],
        grader: &grader,
        commitment: None,
    };
    Ok(audit(&path.display().to_string(), &raw, &reader))
}
