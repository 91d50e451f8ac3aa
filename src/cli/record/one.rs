//! The audit of one record, whatever kind it is of.

use std::fs::File;
use std::io::Read;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use runseal::audit::report::{Style, human};
use runseal::audit::{AuditReport, Reader, Verdict, audit};
use runseal::bundle::read::read;
use runseal::codes::Code;
use runseal::digest::Sha256Digest;
use runseal::finding::Finding;
use runseal::json;
use runseal::policy::{self, Role, Trust};
use runseal::published::kind::{self, Kind};
use runseal::published::report::{Auditor, PublishedReport, human as published_text};
use runseal::published::{self, Beside, MAX_BYTES, envelope};
use runseal::record::RunRecord;
use runseal::scorer::child::{ChildLimits, SUBCOMMAND, grade_in_child};
use runseal::scorer::{GradeItem, GradeResult};
use serde::Serialize;

use super::find::Item;
use crate::cli::read_input;

/// Largest source file that is read beside a record.
const MAX_SOURCE: u64 = 1 << 30;

/// What the reader brings, for every record.
pub struct Desk {
    /// Keys and policy.
    pub trust: Trust,
    /// Handed over before the run.
    pub commitment: Option<Sha256Digest>,
    /// This program, which runs scorers.
    pub exe: PathBuf,
}

/// A report of either kind.
#[derive(Serialize)]
#[serde(untagged)]
pub enum Report {
    /// Of a bundle.
    Bundle(Box<AuditReport>),
    /// Of anything else.
    Published(Box<PublishedReport>),
}

/// What became of an item.
pub enum Looked {
    /// It was audited; with the digest of the very bytes that were: of the record file.
    Audited(Report, Option<Sha256Digest>),
    /// A file of a tree that is no record.
    NoRecord,
}

impl Report {
    /// Its verdict.
    pub fn verdict(&self) -> Verdict {
        match self {
            Self::Bundle(r) => r.verdict,
            Self::Published(r) => r.verdict,
        }
    }

    /// What was audited.
    pub fn path(&self) -> &str {
        match self {
            Self::Bundle(r) => &r.path,
            Self::Published(r) => &r.path,
        }
    }

    /// The record as it follows from its evidence.
    pub fn record(&self) -> Option<&RunRecord> {
        match self {
            Self::Bundle(r) => r.derived.as_deref(),
            Self::Published(_) => None,
        }
    }

    /// What kind it is of.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Bundle(_) => "bundle",
            Self::Published(r) => r.kind.name(),
        }
    }

    /// Findings, errors first.
    pub fn findings(&self) -> &[Finding] {
        match self {
            Self::Bundle(r) => &r.findings,
            Self::Published(r) => &r.findings,
        }
    }

    /// Status of the run, where there is one.
    pub fn status(&self) -> Option<&'static str> {
        match self {
            Self::Bundle(r) => r.derived.as_ref().map(|d| d.run.status.name()),
            Self::Published(_) => None,
        }
    }

    /// True when nobody signed it at all.
    pub fn unsigned(&self) -> bool {
        match self {
            Self::Bundle(_) => false,
            Self::Published(r) => r.kind != Kind::Envelope,
        }
    }

    /// As text.
    pub fn human(&self, style: Style) -> String {
        match self {
            Self::Bundle(r) => human(r, style),
            Self::Published(r) => published_text(r, style.full),
        }
    }
}

/// Audits an item.
pub fn look(item: &Item, desk: &Desk) -> anyhow::Result<Looked> {
    match item {
        Item::Bundle(path) => {
            let (report, record) = bundle(path, desk)?;
            Ok(Looked::Audited(Report::Bundle(Box::new(report)), record))
        }
        Item::File { path, named } => file(path, *named, desk),
    }
}

fn bundle(path: &Path, desk: &Desk) -> anyhow::Result<(AuditReport, Option<Sha256Digest>)> {
    let raw = read(path)?;
    let grader = |scorer: &[u8], items: &[GradeItem]| -> Result<Vec<GradeResult>, String> {
        let limits = ChildLimits::default();
        grade_in_child(&desk.exe, &[SUBCOMMAND], scorer, items, &limits).map_err(|e| e.to_string())
    };
    let trusted = desk.trust.ed25519(Role::Operator);
    let reader = Reader {
        trusted: &trusted,
        grader: &grader,
        commitment: desk.commitment,
    };
    let mut report = audit(&path.display().to_string(), &raw, &reader);
    if desk.trust.policy.is_some() {
        policy::to_audit(&mut report, &desk.trust);
    }
    Ok((report, raw.record.as_deref().map(Sha256Digest::of)))
}

fn file(path: &Path, named: bool, desk: &Desk) -> anyhow::Result<Looked> {
    let shown = path.display().to_string();
    let bytes = match named {
        true => read_input(path, "record", MAX_BYTES)?,
        // It was a plain file when it was listed, and must still be one.
        false => plain_file(path, MAX_BYTES)
            .with_context(|| shown.clone())?
            .with_context(|| format!("{shown} is gone"))?,
    };
    let beside = Folder(path.parent().unwrap_or(Path::new(".")).to_owned());
    let lines = shown.ends_with(".jsonl");
    let mut report = match json::parse(&bytes) {
        Ok(value) => match kind::of(&value) {
            Ok(Kind::Envelope) => envelope::audit(&shown, &bytes, &desk.trust, &beside),
            Ok(kind) => published::audit(&shown, &bytes, &value, kind, &beside),
            Err(why) if named => bail!("{shown}: {why}"),
            Err(_) => return Ok(Looked::NoRecord),
        },
        Err(_) if lines => envelope::audit(&shown, &bytes, &desk.trust, &beside),
        Err(e) if shown.ends_with(".json") => {
            let mut a = Auditor::default();
            a.add(Code::RecordMalformed, &shown, e.to_string());
            a.close("json", &[Code::RecordMalformed]);
            a.finish(&shown, Kind::Unreadable, &bytes)
        }
        Err(e) => bail!(
            "{shown} is no record: {e} (hint: give a bundle's folder, or a file that holds JSON)"
        ),
    };
    if desk.trust.policy.is_some() {
        policy::to_published(&mut report, &desk.trust);
    }
    let digest = report.sha256;
    let report = Report::Published(Box::new(report));
    Ok(Looked::Audited(report, Some(digest)))
}

/// The folder that a record lies in.
struct Folder(PathBuf);

impl Beside for Folder {
    fn read(&self, name: &str) -> Result<Option<Vec<u8>>, String> {
        plain_file(&self.0.join(name), MAX_SOURCE).map_err(|e| runseal::chain::chain(e.as_ref()))
    }
}

/// A regular file, never through a link and never a pipe; `None` when there is nothing.
fn plain_file(path: &Path, most: u64) -> anyhow::Result<Option<Vec<u8>>> {
    match path.symlink_metadata() {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(e.into()),
        Ok(meta) if !meta.is_file() => bail!("it is not a regular file and was not opened"),
        Ok(_) => {}
    }
    let flags = rustix::fs::OFlags::NOFOLLOW | rustix::fs::OFlags::NONBLOCK;
    let file = File::options()
        .read(true)
        .custom_flags(flags.bits() as i32)
        .open(path)
        .context("it could not be opened")?;
    let meta = file.metadata()?;
    if !meta.is_file() || meta.len() > most {
        bail!("it is no regular file of at most {most} bytes and was not read");
    }
    let mut bytes = Vec::new();
    file.take(most).read_to_end(&mut bytes)?;
    Ok(Some(bytes))
}
