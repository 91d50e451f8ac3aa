//! A bundle's files, parsed: the input of every derivation.
//!
//! Parsing is strict and total: what cannot be parsed becomes a finding, and the
//! derivation does not start. Withheld parts are `None`.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::files::{
    ADDRESSES_FORMAT, AddressFile, ENGINE_FORMAT, EngineFile, GRADES_FORMAT, GradeLine,
    IMAGE_FORMAT, ImageFile, NODE_FORMAT, NodeFile, TELEMETRY_FORMAT, TelemetryLine,
};
use super::index::Files;
pub use super::names::{MOMENTS, document_file, file_names, node_names, replica_file, server_file};
use super::servers::Servers;
use crate::codes::Code;
use crate::digest::Sha256Digest;
use crate::event::{self, Event, EventLine, Header};
use crate::finding::Finding;
use crate::json;
use crate::plan::{ADDRESSES, RunPlan};
use crate::relpath::RelPath;
use crate::response::{self, Response, RunHeader};
use crate::schema;
use crate::suite::{Suite, SuiteToml};
use crate::trace::Traces;
use crate::weights::{Manifest, ReplicaReport};

/// Everything that a bundle says, parsed.
#[derive(Debug, Clone)]
pub struct Evidence {
    /// Run id of the event log.
    pub header: Header,
    /// plan.json.
    pub plan: RunPlan,
    /// SHA-256 of plan.json.
    pub plan_digest: Sha256Digest,
    /// suite/suite.toml.
    pub suite_toml: SuiteToml,
    /// Bytes of suite/suite.toml.
    pub suite_toml_bytes: Vec<u8>,
    /// The suite with its cases, unless they are withheld.
    pub suite: Option<Suite>,
    /// Size and digest of suite/cases.jsonl, unless withheld.
    pub cases: Option<(u64, Sha256Digest)>,
    /// Bytes of suite/scorer.toml.
    pub scorer: Vec<u8>,
    /// Pinned manifests by checkpoint role.
    pub manifests: BTreeMap<String, Manifest>,
    /// Rehash reports by (replica, checkpoint role).
    pub replicas: BTreeMap<(String, String), ReplicaReport>,
    /// Machines by alias.
    pub nodes: BTreeMap<String, NodeFile>,
    /// What served.
    pub image: ImageFile,
    /// Serving processes by replica.
    pub engines: BTreeMap<String, EngineFile>,
    /// What the servers said of themselves.
    pub servers: Servers,
    /// The event log.
    pub events: Vec<EventLine>,
    /// The requests in it.
    pub traces: Traces,
    /// Answers by attempt, unless withheld.
    pub responses: Option<BTreeMap<u32, Response>>,
    /// Grades in file order.
    pub grades: Vec<GradeLine>,
    /// Telemetry samples.
    pub telemetry: Vec<TelemetryLine>,
    /// Where the endpoints are that somebody else runs, unless withheld.
    pub addresses: Option<AddressFile>,
    /// Engine logs that are there, by path.
    pub logs: BTreeSet<String>,
    /// Files that no bundle of this plan has.
    pub strangers: Vec<String>,
}

/// RFC 3339 in UTC, written in the one way that our clock writes it.
fn is_utc(text: &str) -> bool {
    text.parse::<jiff::Timestamp>()
        .is_ok_and(|t| t.to_string() == text)
}

/// Canonical JSON and a newline: the byte form of our JSON evidence files.
pub fn json_bytes<T: Serialize>(value: &T) -> Vec<u8> {
    let mut bytes = json::canonical(value);
    bytes.push(b'\n');
    bytes
}

/// One canonical JSON value a line.
pub fn jsonl_bytes<H: Serialize, T: Serialize>(header: &H, lines: &[T]) -> Vec<u8> {
    let mut out = json_bytes(header);
    for line in lines {
        out.extend(json_bytes(line));
    }
    out
}

/// Line of an engine log that says which run it is of.
pub fn log_header(run_id: &str, nonce_hash: &Sha256Digest) -> String {
    format!("# run {run_id} {nonce_hash}\n")
}

impl Evidence {
    /// Parses the files of a bundle. `withheld` are files that may be absent.
    pub fn parse(files: &Files) -> Result<Self, Vec<Finding>> {
        let mut p = Parser {
            files,
            findings: Vec::new(),
        };
        let parsed = p.evidence();
        if p.findings.is_empty() {
            p.findings = schema::check_files(files);
        }
        match parsed {
            Some(evidence) if p.findings.is_empty() => Ok(evidence),
            _ => Err(p.findings),
        }
    }
}

pub(super) struct Parser<'a> {
    files: &'a Files,
    findings: Vec<Finding>,
}

impl<'a> Parser<'a> {
    pub(super) fn bad(&mut self, code: Code, name: &str, why: impl ToString) {
        self.findings
            .push(Finding::new(code, name, why.to_string()));
    }

    pub(super) fn optional(&self, name: &str) -> Option<&'a [u8]> {
        let path = RelPath::parse(name).ok()?;
        self.files.get(&path).map(Vec::as_slice)
    }

    fn bytes(&mut self, name: &str) -> Option<&'a [u8]> {
        let bytes = self.optional(name);
        if bytes.is_none() {
            self.bad(Code::EvidenceMissing, name, "every bundle has this file");
        }
        bytes
    }

    /// A JSON document in its one byte form.
    pub(super) fn json<T: DeserializeOwned + Serialize>(
        &mut self,
        name: &str,
        bytes: &[u8],
    ) -> Option<T> {
        match json::from_slice::<T>(bytes) {
            Ok(value) if json_bytes(&value) == bytes => Some(value),
            Ok(_) => {
                self.bad(Code::EvidenceMalformed, name, "it is not in canonical form");
                None
            }
            Err(e) => {
                self.bad(Code::EvidenceMalformed, name, e);
                None
            }
        }
    }

    pub(super) fn run(
        &mut self,
        name: &str,
        header: &Header,
        run_id: &str,
        nonce_hash: &Sha256Digest,
    ) {
        if run_id != header.run_id || *nonce_hash != header.nonce_hash {
            let finding = Finding::new(Code::WrongRun, name, "it belongs to another run")
                .values(&header.run_id, run_id);
            self.findings.push(finding);
        }
    }

    pub(super) fn format(&mut self, name: &str, found: &str, want: &str) {
        if found != want {
            self.bad(
                Code::EvidenceMalformed,
                name,
                format!("its format is {found:?}, not {want:?}"),
            );
        }
    }

    /// A JSON Lines file: its header and its canonical lines.
    fn lines<T: DeserializeOwned + Serialize>(
        &mut self,
        name: &str,
        format: &str,
        header: &Header,
        bytes: &[u8],
    ) -> Option<Vec<T>> {
        let Some(body) = bytes.strip_suffix(b"\n") else {
            self.bad(Code::EvidenceMalformed, name, "its last line is not ended");
            return None;
        };
        let mut lines = body.split(|b| *b == b'\n');
        let mut first = lines.next().unwrap_or_default().to_vec();
        first.push(b'\n');
        let head: RunHeader = self.json(name, &first)?;
        self.format(name, &head.format, format);
        self.run(name, header, &head.run_id, &head.nonce_hash);
        let mut out = Vec::new();
        for (i, line) in lines.enumerate() {
            match json::from_slice::<T>(line) {
                Ok(v) if json::canonical(&v) == line => out.push(v),
                Ok(_) => self.bad(
                    Code::EvidenceMalformed,
                    name,
                    format!("line {} is not in canonical form", i + 2),
                ),
                Err(e) => self.bad(
                    Code::EvidenceMalformed,
                    name,
                    format!("line {}: {e}", i + 2),
                ),
            }
        }
        Some(out)
    }

    fn evidence(&mut self) -> Option<Evidence> {
        let (header, events) = self.events()?;
        let plan_bytes = self.bytes("plan.json")?;
        let plan = match RunPlan::parse(plan_bytes) {
            Ok(plan) if plan.to_bytes() == plan_bytes => plan,
            Ok(_) => {
                self.bad(
                    Code::EvidenceMalformed,
                    "plan.json",
                    "it is not in canonical form",
                );
                return None;
            }
            Err(e) => {
                self.bad(Code::EvidenceMalformed, "plan.json", e);
                return None;
            }
        };
        let suite_toml_bytes = self.bytes("suite/suite.toml")?.to_vec();
        let scorer = self.bytes("suite/scorer.toml")?.to_vec();
        let cases_bytes = self.optional("suite/cases.jsonl");
        let suite_toml = SuiteToml::parse(&suite_toml_bytes)
            .map_err(|e| self.bad(Code::EvidenceMalformed, "suite/suite.toml", e))
            .ok()?;
        let suite = match cases_bytes.map(|c| Suite::parse(&suite_toml_bytes, c)) {
            Some(Err(e)) => {
                self.bad(Code::EvidenceMalformed, "suite/cases.jsonl", e);
                return None;
            }
            Some(Ok(suite)) => Some(suite),
            None => None,
        };
        let manifests = self.manifests(&plan);
        let replicas = self.replicas(&plan, &header);
        let nodes = self.nodes(&plan, &header);
        let engines = self.engines(&plan, &header);
        let servers = self.servers(&plan, &header);
        let image_bytes = self.bytes("image.json")?;
        let image: ImageFile = self.json("image.json", image_bytes)?;
        self.format("image.json", &image.format, IMAGE_FORMAT);
        self.run("image.json", &header, &image.run_id, &image.nonce_hash);
        let grades_bytes = self.bytes("grades.jsonl")?;
        let grades = self.lines("grades.jsonl", GRADES_FORMAT, &header, grades_bytes)?;
        let telemetry_bytes = self.bytes("telemetry.jsonl")?;
        let telemetry = self.lines(
            "telemetry.jsonl",
            TELEMETRY_FORMAT,
            &header,
            telemetry_bytes,
        )?;
        let responses = match self.optional("responses.jsonl") {
            None => None,
            Some(bytes) => Some(self.responses(bytes, &header)?),
        };
        let addresses = self.addresses(&plan, &header);
        let traces = Traces::build(&events);
        self.findings.extend(traces.findings.iter().cloned());
        Some(Evidence {
            plan_digest: Sha256Digest::of(plan_bytes),
            header,
            suite_toml,
            suite_toml_bytes,
            suite,
            cases: cases_bytes.map(|c| (c.len() as u64, Sha256Digest::of(c))),
            scorer,
            manifests,
            replicas,
            nodes,
            image,
            engines,
            servers,
            events,
            traces,
            responses,
            grades,
            telemetry,
            addresses,
            logs: self.logs(&plan),
            strangers: self.strangers(&plan),
            plan,
        })
    }

    fn events(&mut self) -> Option<(Header, Vec<EventLine>)> {
        const NAME: &str = "events.jsonl";
        let bytes = self.bytes(NAME)?;
        let Some(body) = bytes.strip_suffix(b"\n") else {
            self.bad(Code::EventMalformed, NAME, "its last line is not ended");
            return None;
        };
        let mut lines = body.split(|b| *b == b'\n');
        let mut first = lines.next().unwrap_or_default().to_vec();
        first.push(b'\n');
        let header: Header = match json::from_slice::<Header>(&first) {
            Ok(h) if json_bytes(&h) == first && h.format == event::FORMAT && is_utc(&h.epoch) => h,
            _ => {
                self.bad(
                    Code::EventMalformed,
                    NAME,
                    "its first line is not a header in canonical form with an epoch in UTC",
                );
                return None;
            }
        };
        let lines: Vec<&[u8]> = lines.collect();
        let mut events = Vec::with_capacity(lines.len());
        for (i, event) in event::from_lines(&lines).into_iter().enumerate() {
            match event {
                Some(e) => events.push(e),
                None => self.bad(
                    Code::EventMalformed,
                    NAME,
                    format!("line {} is not an event in its one byte form", i + 2),
                ),
            }
        }
        if let Some((i, e)) = events
            .iter()
            .enumerate()
            .find(|(i, e)| e.seq != *i as u64 + 1)
        {
            self.bad(
                Code::EventSequence,
                NAME,
                format!("event {} stands where event {} should", e.seq, i + 1),
            );
        }
        let ends = events
            .iter()
            .filter(|e| e.event == Event::EndOfLog {})
            .count();
        if ends != 1 || events.last().is_none_or(|e| e.event != Event::EndOfLog {}) {
            self.bad(
                Code::EventSequence,
                NAME,
                "it does not end with the one end_of_log event",
            );
        }
        Some((header, events))
    }

    fn manifests(&mut self, plan: &RunPlan) -> BTreeMap<String, Manifest> {
        let mut out = BTreeMap::new();
        for checkpoint in &plan.checkpoints {
            let name = format!("checkpoints/{}.manifest.json", checkpoint.role);
            let Some(bytes) = self.bytes(&name) else {
                continue;
            };
            match Manifest::parse(bytes) {
                Ok(m) if json_bytes(&m) == bytes => {
                    out.insert(checkpoint.role.clone(), m);
                }
                Ok(_) => self.bad(
                    Code::EvidenceMalformed,
                    &name,
                    "it is not in canonical form",
                ),
                Err(e) => self.bad(Code::EvidenceMalformed, &name, e),
            }
        }
        out
    }

    fn replicas(
        &mut self,
        plan: &RunPlan,
        header: &Header,
    ) -> BTreeMap<(String, String), ReplicaReport> {
        let mut out = BTreeMap::new();
        for replica in &plan.replicas {
            for checkpoint in &plan.checkpoints {
                let name = replica_file(&replica.name, &checkpoint.role);
                // Absent when the folder could not be opened at all; the
                // derivation then says "not checked".
                let Some(bytes) = self.optional(&name) else {
                    continue;
                };
                let Some(report) = self.json::<ReplicaReport>(&name, bytes) else {
                    continue;
                };
                self.format(&name, &report.format, crate::weights::REPLICA_FORMAT);
                let zero = Sha256Digest([0; 32]);
                self.run(
                    &name,
                    header,
                    report.run_id.as_deref().unwrap_or_default(),
                    report.nonce_hash.as_ref().unwrap_or(&zero),
                );
                if report.replica != replica.name || report.role != checkpoint.role {
                    self.bad(
                        Code::EvidenceMalformed,
                        &name,
                        "it names another replica or role",
                    );
                }
                out.insert((replica.name.clone(), checkpoint.role.clone()), report);
            }
        }
        out
    }

    fn nodes(&mut self, plan: &RunPlan, header: &Header) -> BTreeMap<String, NodeFile> {
        let mut out = BTreeMap::new();
        for node in node_names(plan) {
            let name = format!("nodes/{node}.json");
            let Some(bytes) = self.bytes(&name) else {
                continue;
            };
            let Some(file) = self.json::<NodeFile>(&name, bytes) else {
                continue;
            };
            self.format(&name, &file.format, NODE_FORMAT);
            self.run(&name, header, &file.run_id, &file.nonce_hash);
            if file.node != node {
                self.bad(Code::EvidenceMalformed, &name, "it names another node");
            }
            out.insert(node, file);
        }
        out
    }

    fn engines(&mut self, plan: &RunPlan, header: &Header) -> BTreeMap<String, EngineFile> {
        let mut out = BTreeMap::new();
        for replica in &plan.replicas {
            let name = format!("engine/{}.json", replica.name);
            // Absent for a rank that was never up.
            if let Some(bytes) = self.optional(&name)
                && let Some(file) = self.json::<EngineFile>(&name, bytes)
            {
                self.format(&name, &file.format, ENGINE_FORMAT);
                self.run(&name, header, &file.run_id, &file.nonce_hash);
                if file.replica != replica.name {
                    self.bad(Code::EvidenceMalformed, &name, "it names another replica");
                }
                out.insert(replica.name.clone(), file);
            }
            let log = format!("engine/{}.log", replica.name);
            if let Some(bytes) = self.optional(&log)
                && !bytes.starts_with(log_header(&header.run_id, &header.nonce_hash).as_bytes())
            {
                self.bad(Code::WrongRun, &log, "its first line names another run");
            }
        }
        out
    }

    fn addresses(&mut self, plan: &RunPlan, header: &Header) -> Option<AddressFile> {
        if !plan.is_remote() {
            return None;
        }
        let file: AddressFile = self.json(ADDRESSES, self.optional(ADDRESSES)?)?;
        self.format(ADDRESSES, &file.format, ADDRESSES_FORMAT);
        self.run(ADDRESSES, header, &file.run_id, &file.nonce_hash);
        let mut salt = [0u8; 32];
        let planned: BTreeSet<&String> = plan.endpoints.iter().map(|e| &e.name).collect();
        if hex::decode_to_slice(&file.salt, &mut salt).is_err()
            || !file.endpoints.keys().eq(planned)
        {
            let why = "its salt is malformed, or it is about other endpoints than the plan";
            self.bad(Code::EvidenceMalformed, ADDRESSES, why);
        }
        Some(file)
    }

    fn logs(&self, plan: &RunPlan) -> BTreeSet<String> {
        plan.replicas
            .iter()
            .map(|r| format!("engine/{}.log", r.name))
            .filter(|name| self.optional(name).is_some())
            .collect()
    }

    fn strangers(&self, plan: &RunPlan) -> Vec<String> {
        let known = file_names(plan);
        self.files
            .keys()
            .map(RelPath::to_string)
            .filter(|name| !known.contains(name))
            .collect()
    }

    fn responses(&mut self, bytes: &[u8], header: &Header) -> Option<BTreeMap<u32, Response>> {
        const NAME: &str = "responses.jsonl";
        let lines: Vec<Response> = self.lines(NAME, response::FORMAT, header, bytes)?;
        let mut out = BTreeMap::new();
        for line in lines {
            let req = line.req;
            if out.insert(req, line).is_some() {
                self.bad(
                    Code::ResponseMissing,
                    NAME,
                    format!("attempt {req} has two answers"),
                );
            }
        }
        Some(out)
    }
}
