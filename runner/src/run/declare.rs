//! Declare: run id, nonce and commitment are fixed, and the bundle's folder gets
//! everything that is known beforehand.
//!
//! The event log comes last. A bundle with a log that says `declare` therefore
//! has all files that sealing needs, and a run that is killed at any later moment
//! can be closed.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context;
use runseal::bundle::evidence::{json_bytes, node_names};
use runseal::bundle::files::{
    GRADES_FORMAT, IMAGE_FORMAT, ImageFile, NODE_FORMAT, NodeFile, TELEMETRY_FORMAT,
};
use runseal::digest::Sha256Digest;
use runseal::durable::WriteError;
use runseal::event::{self, Event, Header, State, nonce_hash};
use runseal::response;

use super::bundle_dir::BundleDir;
use super::signals::Asked;
use super::{Inputs, Run, facts, remote};
use crate::client::{Cancel, Client};
use crate::recorder::Recorder;

/// A bundle's folder whose name holds the declaration time to the second.
struct Named {
    dir: BundleDir,
    epoch: Instant,
    wall: jiff::Timestamp,
}

fn named(
    out: &Path,
    suite: &str,
    plan: &Sha256Digest,
    hash: Sha256Digest,
) -> Result<Named, WriteError> {
    let mut tries = 0;
    loop {
        let (epoch, wall) = (Instant::now(), jiff::Timestamp::now());
        let stamp = wall.strftime("%Y%m%dT%H%M%SZ");
        let run_id = format!("{stamp}-{suite}-{}", &plan.hex()[..6]);
        match BundleDir::create(out, &run_id, hash) {
            Ok(dir) => return Ok(Named { dir, epoch, wall }),
            // Another run of this plan was declared in this very second.
            Err(WriteError::Exists(_)) if tries < 3 => {
                tries += 1;
                std::thread::sleep(Duration::from_secs(1));
            }
            Err(e) => return Err(e),
        }
    }
}

impl Run {
    /// Fixes run id and nonce and makes the bundle's folder.
    pub(super) fn declare(inputs: Inputs, signal: Asked) -> anyhow::Result<Self> {
        let plan_digest = inputs.resolved.plan.digest();
        let mut nonce = [0u8; 32];
        getrandom::fill(&mut nonce).map_err(|e| anyhow::anyhow!("no random bytes: {e}"))?;
        let nonce_hash = nonce_hash(&nonce);
        let suite = &inputs.resolved.plan.suite.name;
        let Named { dir, epoch, wall } = named(&inputs.out, suite, &plan_digest, nonce_hash)
            .context("could not make the bundle's folder")?;
        let path = dir.path.clone();
        Self::fill(inputs, signal, dir, (epoch, wall), nonce).map_err(|e| {
            let why = runseal::chain::chain(e.as_ref());
            anyhow::anyhow!(
                "{why}\nthe run was not declared; {} holds only the beginning of a bundle\n\
                 hint: when the cause is gone, delete that folder and run again",
                path.display()
            )
        })
    }

    fn fill(
        inputs: Inputs,
        signal: Asked,
        dir: BundleDir,
        (epoch, wall): (Instant, jiff::Timestamp),
        nonce: [u8; 32],
    ) -> anyhow::Result<Self> {
        let (run_id, nonce_hash) = (dir.run_id.clone(), dir.nonce_hash);
        let plan = &inputs.resolved.plan;
        let plan_digest = plan.digest();
        let header = Header {
            format: event::FORMAT.into(),
            run_id: run_id.clone(),
            nonce_hash,
            epoch: wall.to_string(),
        };
        dir.write("plan.json", &plan.to_bytes())?;
        let suite = &inputs.resolved.suite_files;
        dir.write("suite/suite.toml", &suite.toml)?;
        dir.write("suite/cases.jsonl", &suite.cases)?;
        dir.write("suite/scorer.toml", &suite.scorer)?;
        for (role, manifest) in &inputs.resolved.manifests {
            dir.write(
                &format!("checkpoints/{role}.manifest.json"),
                &manifest.to_bytes(),
            )?;
        }
        for (name, format) in [
            ("responses.jsonl", response::FORMAT),
            ("telemetry.jsonl", TELEMETRY_FORMAT),
            ("grades.jsonl", GRADES_FORMAT),
        ] {
            dir.write(name, &json_bytes(&dir.header(format)))?;
        }
        let image = ImageFile {
            format: IMAGE_FORMAT.into(),
            run_id: run_id.clone(),
            nonce_hash,
            kind: plan.engine.launch.clone(),
            pinned: plan.engine.executable.clone(),
            observed: BTreeMap::new(),
        };
        dir.write_json("image.json", &image)?;
        let mut nodes = BTreeMap::new();
        for node in node_names(plan) {
            let file = NodeFile {
                format: NODE_FORMAT.into(),
                run_id: run_id.clone(),
                nonce_hash,
                node: node.clone(),
                before: facts::local(),
                after: None,
            };
            dir.write_json(&format!("nodes/{node}.json"), &file)?;
            nodes.insert(node, file);
        }
        let addresses = remote::addresses(&dir, &inputs.resolved)?;
        let log = dir.path.join("events.jsonl");
        let recorder = Recorder::create(&log, &header, epoch)?;
        let held = dir.hold()?;

        let keyid = inputs.key.keyid();
        let commitment = event::run_commitment(plan_digest, nonce_hash, plan.suite.dataset, &keyid);
        let declare = Event::Declare {
            plan_digest,
            nonce: hex::encode(nonce),
            case_set_digest: plan.suite.dataset,
            keyid,
            key_made_by_run: inputs.key_made_by_run,
        };
        let (canceller, cancel) = Cancel::pair();
        let mut run = Run {
            client: Client::new(recorder.clone()),
            dir,
            _held: held,
            nonce,
            recorder,
            state: State::Declare,
            signal,
            signal_noted: false,
            stopped: false,
            canceller: Arc::new(canceller),
            cancel,
            ranks: Vec::new(),
            watchers: Vec::new(),
            reports: BTreeMap::new(),
            nodes,
            image,
            engines: BTreeMap::new(),
            measuring: false,
            addresses,
            remotes: BTreeMap::new(),
            filled: BTreeMap::new(),
            servers: BTreeMap::new(),
            next_req: 0,
            inputs,
        };
        run.enter(State::Declare);
        run.emit(&declare);
        // What was not written down was not declared.
        run.recorder.flush()?;
        (run.inputs.say)(&format!("run {run_id}"));
        (run.inputs.say)(&format!(
            "commitment {commitment} (plan, nonce hash, cases, key: hand it to someone now if you want an anchor)"
        ));
        Ok(run)
    }
}
