//! The documents of the servers: what was asked for, and the bytes as they came.

use std::collections::BTreeMap;

use super::evidence::Parser;
use super::files::{SERVER_FORMAT, ServerDocument, ServerFile};
use super::names::{MOMENTS, document_file, server_file};
use crate::codes::Code;
use crate::digest::Sha256Digest;
use crate::event::Header;
use crate::plan::RunPlan;
use crate::server_facts::Documents;

/// All that a bundle holds of its servers' documents.
#[derive(Debug, Clone, Default)]
pub struct Servers {
    /// By endpoint.
    pub by_endpoint: BTreeMap<String, Server>,
    /// Files with documents that no server/<endpoint>.json says were obtained: a run
    /// that was killed may have kept one and not come to say so.
    pub unclaimed: Vec<String>,
}

/// An endpoint's server, before and after the measurement.
#[derive(Debug, Clone)]
pub struct Server {
    /// server/<endpoint>.json.
    pub file: ServerFile,
    /// Bodies by moment and path.
    bodies: BTreeMap<(&'static str, String), Vec<u8>>,
}

impl Server {
    /// The documents of one moment that facts are read from: those with status 200.
    pub fn documents(&self, when: &'static str) -> Documents {
        let asked = self.asked(when);
        let good = |path: &str| {
            matches!(
                asked.get(path),
                Some(ServerDocument::Obtained { status: 200, .. })
            )
        };
        let of_moment = self
            .bodies
            .iter()
            .filter(|((moment, path), _)| *moment == when && good(path));
        Documents::read(of_moment.map(|((_, path), body)| (path.as_str(), body.as_slice())))
    }

    /// What became of asking at one moment.
    pub fn asked(&self, when: &str) -> &BTreeMap<String, ServerDocument> {
        match when {
            "before" => &self.file.before,
            _ => &self.file.after,
        }
    }
}

impl Parser<'_> {
    /// Absent where the run did not get as far as to measure.
    pub(super) fn servers(&mut self, plan: &RunPlan, header: &Header) -> Servers {
        let mut out = Servers::default();
        if plan.engine.documents.is_empty() {
            return out;
        }
        for endpoint in plan.endpoints.iter().map(|e| e.name.as_str()) {
            let name = server_file(endpoint);
            let file = match self.optional(&name) {
                Some(bytes) => self.json::<ServerFile>(&name, bytes),
                None => None,
            };
            if let Some(file) = &file {
                self.format(&name, &file.format, SERVER_FORMAT);
                self.run(&name, header, &file.run_id, &file.nonce_hash);
                if file.endpoint != endpoint {
                    self.bad(Code::EvidenceMalformed, &name, "it names another endpoint");
                }
            }
            let bodies = self.bodies(plan, endpoint, file.as_ref(), &mut out.unclaimed);
            if let Some(file) = file {
                out.by_endpoint
                    .insert(endpoint.to_owned(), Server { file, bodies });
            }
        }
        out
    }

    /// Every document that was obtained is there, and is the one that was.
    fn bodies(
        &mut self,
        plan: &RunPlan,
        endpoint: &str,
        file: Option<&ServerFile>,
        unclaimed: &mut Vec<String>,
    ) -> BTreeMap<(&'static str, String), Vec<u8>> {
        let mut out = BTreeMap::new();
        for when in MOMENTS {
            let asked = file.map(|f| match when {
                "before" => &f.before,
                _ => &f.after,
            });
            if let Some(asked) = asked
                && !asked.keys().eq({
                    let mut all: Vec<&String> = plan.engine.documents.iter().collect();
                    all.sort_unstable();
                    all
                })
            {
                let why = format!("{when}: it is not about the documents of the plan");
                self.bad(Code::EvidenceMalformed, &server_file(endpoint), why);
            }
            for path in &plan.engine.documents {
                let name = document_file(endpoint, when, path);
                let want = match asked.and_then(|a| a.get(path)) {
                    Some(ServerDocument::Obtained { sha256, .. }) => Some(*sha256),
                    _ => None,
                };
                let bytes = self.optional(&name);
                match (want, bytes) {
                    (Some(want), Some(bytes)) if Sha256Digest::of(bytes) == want => {
                        out.insert((when, path.clone()), bytes.to_vec());
                    }
                    (Some(_), Some(_)) => self.bad(
                        Code::EvidenceMalformed,
                        &name,
                        "it is not the document that the run obtained",
                    ),
                    (Some(_), None) => {
                        self.bad(Code::EvidenceMissing, &name, "the run obtained it");
                    }
                    (None, Some(_)) => unclaimed.push(name),
                    (None, None) => {}
                }
            }
        }
        out
    }
}
