//! Closing a killed run: its evidence stays as it is, and the record says
//! `aborted`, never success.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::Path;

use anyhow::{Context, bail};
use runseal::event::{Event, EventLine, Header, to_line};
use runseal::keys::SigningKey;
use runseal::plan::RunPlan;
use runseal::record::Tool;
use runseal::suite::Suite;

use super::bundle_dir::BundleDir;
use super::finish::{self, Finished};

/// Closes the bundle of a run that was killed outright. The key must be the one
/// that the run declared.
pub fn close(path: &Path, key: &SigningKey, tool: Tool, exe: &Path) -> anyhow::Result<Finished> {
    let file = |name: &str| {
        let p = path.join(name);
        std::fs::read(&p).with_context(|| {
            format!(
                "could not read {} (hint: give a bundle's folder)",
                p.display()
            )
        })
    };
    let events = file("events.jsonl")?;
    let first = events.split(|b| *b == b'\n').next().unwrap_or_default();
    let header: Header = serde_json::from_slice(first)
        .with_context(|| format!("{}/events.jsonl has no header", path.display()))?;
    let dir = BundleDir {
        path: path.to_owned(),
        run_id: header.run_id,
        nonce_hash: header.nonce_hash,
    };
    if dir.sealed() {
        bail!("{} is sealed already and was left alone", path.display());
    }
    let plan = RunPlan::parse(&file("plan.json")?)?;
    let suite = Suite::parse(&file("suite/suite.toml")?, &file("suite/cases.jsonl")?)?;
    let scorer = file("suite/scorer.toml")?;
    trim_torn_line(&path.join("events.jsonl"))?;
    trim_torn_line(&path.join("responses.jsonl"))?;
    trim_torn_line(&path.join("telemetry.jsonl"))?;
    let lines = finish::read_events(&dir)?;
    check_key(&lines, key)?;
    if !matches!(lines.last().map(|l| &l.event), Some(Event::EndOfLog {})) {
        let at = lines.last().map_or((0, 0), |l| (l.seq, l.t));
        let killed = Event::Signal {
            name: "SIGKILL".into(),
        };
        append(&path.join("events.jsonl"), at, [killed, Event::EndOfLog {}])?;
    }
    let grading = finish::grade_with(&dir, &plan, &suite, &scorer, exe)?;
    finish::seal(&dir, &plan, grading.lines, key, tool, exe)
}

fn check_key(lines: &[EventLine], key: &SigningKey) -> anyhow::Result<()> {
    let declared = lines.iter().find_map(|l| match &l.event {
        Event::Declare { keyid, .. } => Some(keyid.as_str()),
        _ => None,
    });
    match declared {
        None => bail!("the log ends before the run was declared; there is nothing to close"),
        Some(id) if id != key.keyid() => {
            bail!(
                "the run declared key {id}, and this is {} (hint: --key)",
                key.keyid()
            )
        }
        Some(_) => Ok(()),
    }
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

fn append(path: &Path, at: (u64, u64), events: [Event; 2]) -> anyhow::Result<()> {
    let mut text = String::new();
    for (i, event) in events.into_iter().enumerate() {
        let line = EventLine {
            seq: at.0 + 1 + i as u64,
            t: at.1,
            event,
        };
        text.push_str(&to_line(&line));
        text.push('\n');
    }
    let work = || -> std::io::Result<()> {
        let mut file = File::options().write(true).open(path)?;
        file.seek(SeekFrom::End(0))?;
        file.write_all(text.as_bytes())?;
        file.sync_all()
    };
    work().with_context(|| format!("could not close {}", path.display()))
}
