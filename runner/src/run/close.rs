//! Closing a run that ended without sealing: killed outright, or unable to write.
//!
//! The evidence stays as it is, except for what the end tore apart: unfinished
//! last lines and temporary files go, and so do answers whose end never reached
//! the log, because nothing vouches for them. The record says `aborted` even when
//! the log looks complete: whoever closes a run later cannot know what the run
//! itself would still have found. (A refusal stays a refusal.)
//!
//! Every step can be repeated, so a closing that failed half-way can be tried
//! again.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::Path;

use anyhow::{Context, bail};
use runseal::durable::{self, WriteOptions};
use runseal::event::{Event, EventLine, Header, to_line};
use runseal::keys::SigningKey;
use runseal::plan::RunPlan;
use runseal::record::Tool;
use runseal::response::Response;
use runseal::suite::Suite;

use super::bundle_dir::BundleDir;
use super::finish::{self, Finished};

/// Name of the signal event that a closed log ends with. What really ended the
/// run is not known.
pub const CLOSED_LATER: &str = "closed-later";

/// Closes the bundle of a run that ended without sealing. The key must be the one
/// that the run declared. Nothing is changed before all that was checked.
pub fn close(path: &Path, key: &SigningKey, tool: Tool, exe: &Path) -> anyhow::Result<Finished> {
    let header = header(path)?;
    let dir = BundleDir {
        path: path.to_owned(),
        run_id: header.run_id,
        nonce_hash: header.nonce_hash,
    };
    if dir.sealed() {
        bail!("{} is sealed already and was left alone", path.display());
    }
    let _held = dir.hold()?;
    let lines = finish::read_events(&dir)?;
    check_key(&lines, key)?;
    let plan = RunPlan::parse(&file(path, "plan.json")?)?;
    let suite = Suite::parse(
        &file(path, "suite/suite.toml")?,
        &file(path, "suite/cases.jsonl")?,
    )?;
    let scorer = file(path, "suite/scorer.toml")?;

    remove_temporary(path)?;
    for name in ["events.jsonl", "responses.jsonl", "telemetry.jsonl"] {
        trim_torn_line(&path.join(name))?;
    }
    drop_unended(path, &lines)?;
    end_log(&path.join("events.jsonl"), &lines)?;
    let grading = finish::grade_with(&dir, &plan, &suite, &scorer, exe)?;
    finish::seal(&dir, &plan, grading.lines, key, tool, exe)
}

fn file(path: &Path, name: &str) -> anyhow::Result<Vec<u8>> {
    let p = path.join(name);
    std::fs::read(&p).with_context(|| format!("could not read {}", p.display()))
}

fn header(path: &Path) -> anyhow::Result<Header> {
    let bundle = path.display();
    if !path.join("plan.json").is_file() {
        bail!(
            "{bundle} is no bundle: it has no plan.json (hint: give the folder evidence/<run-id>)"
        );
    }
    let events = path.join("events.jsonl");
    let text = match std::fs::read(&events) {
        Ok(text) => text,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Vec::new(),
        Err(e) => return Err(e).with_context(|| format!("could not read {}", events.display())),
    };
    let undeclared = || {
        format!(
            "{bundle} has no declared run in it, so there is nothing to close (hint: the run ended \
             before it began; delete the folder)"
        )
    };
    let Some(end) = text.iter().position(|b| *b == b'\n') else {
        bail!(undeclared());
    };
    serde_json::from_slice(&text[..end]).with_context(undeclared)
}

fn check_key(lines: &[EventLine], key: &SigningKey) -> anyhow::Result<()> {
    let declared = lines.iter().find_map(|l| match &l.event {
        Event::Declare { keyid, .. } => Some(keyid.as_str()),
        _ => None,
    });
    match declared {
        None => bail!(
            "the log ends before the run was declared, so there is nothing to close (hint: delete the folder)"
        ),
        Some(id) if id != key.keyid() => bail!(
            "the run declared key SHA256:{id}, and this one is {}; nothing was changed (hint: --key)",
            key.public().fingerprint()
        ),
        Some(_) => Ok(()),
    }
}

/// Removes what durable writes leave behind when the process is killed in them.
fn remove_temporary(dir: &Path) -> anyhow::Result<()> {
    let entries =
        std::fs::read_dir(dir).with_context(|| format!("could not list {}", dir.display()))?;
    for entry in entries {
        let entry = entry.with_context(|| format!("could not list {}", dir.display()))?;
        let kind = entry.file_type()?;
        if kind.is_dir() {
            remove_temporary(&entry.path())?;
        } else if kind.is_file() && entry.file_name().as_encoded_bytes().starts_with(b".tmp-") {
            std::fs::remove_file(entry.path())
                .with_context(|| format!("could not remove {}", entry.path().display()))?;
        }
    }
    Ok(())
}

/// Cuts a last line that was not ended when the process was killed.
fn trim_torn_line(path: &Path) -> anyhow::Result<()> {
    let work = || -> std::io::Result<()> {
        let mut file = File::options().read(true).write(true).open(path)?;
        let mut text = Vec::new();
        file.read_to_end(&mut text)?;
        let whole = text.iter().rposition(|b| *b == b'\n').map_or(0, |i| i + 1);
        if whole != text.len() {
            file.set_len(whole as u64)?;
            file.sync_all()?;
        }
        Ok(())
    };
    work().with_context(|| format!("could not trim {}", path.display()))
}

/// Leaves out answers of attempts whose end is not in the log: the log is written
/// a moment later than the answers, and holds no digests for what it lost.
fn drop_unended(path: &Path, lines: &[EventLine]) -> anyhow::Result<()> {
    let ended: BTreeSet<u32> = lines
        .iter()
        .filter_map(|l| match l.event {
            Event::End { req, .. } => Some(req),
            _ => None,
        })
        .collect();
    let text = file(path, "responses.jsonl")?;
    let mut kept = Vec::with_capacity(text.len());
    for (i, line) in text.split_inclusive(|b| *b == b'\n').enumerate() {
        let keep = i == 0 || {
            let answer: Response = serde_json::from_slice(line)
                .with_context(|| format!("{}/responses.jsonl line {}", path.display(), i + 1))?;
            ended.contains(&answer.req)
        };
        if keep {
            kept.extend_from_slice(line);
        }
    }
    if kept.len() == text.len() {
        return Ok(());
    }
    let options = WriteOptions {
        replace: true,
        private: false,
    };
    Ok(durable::write(
        &path.join("responses.jsonl"),
        &kept,
        options,
    )?)
}

/// Ends the log with a signal, taking back an end that it may have already.
fn end_log(path: &Path, lines: &[EventLine]) -> anyhow::Result<()> {
    let signalled = lines
        .iter()
        .any(|l| matches!(l.event, Event::Signal { .. }));
    let ended = lines.last().filter(|l| l.event == Event::EndOfLog {});
    if signalled && ended.is_some() {
        return Ok(());
    }
    let (mut seq, t) = lines.last().map_or((0, 0), |l| (l.seq, l.t));
    let mut cut = 0;
    if let Some(end) = ended {
        cut = to_line(end).len() as u64 + 1;
        seq -= 1;
    }
    let signal = Event::Signal {
        name: CLOSED_LATER.into(),
    };
    let mut text = String::new();
    for event in (!signalled)
        .then_some(signal)
        .into_iter()
        .chain([Event::EndOfLog {}])
    {
        seq += 1;
        text.push_str(&to_line(&EventLine { seq, t, event }));
        text.push('\n');
    }
    let work = || -> std::io::Result<()> {
        let mut file = File::options().write(true).open(path)?;
        file.set_len(file.metadata()?.len() - cut)?;
        file.seek(SeekFrom::End(0))?;
        file.write_all(text.as_bytes())?;
        file.sync_all()
    };
    work().with_context(|| format!("could not end {}", path.display()))
}
