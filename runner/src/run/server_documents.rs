//! What the servers say of themselves, kept as raw bytes right before and right after
//! the measurement. Nothing is read from the documents here but whether a server is
//! idle, so that a request of ours that just ended does not count as foreign.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use runseal::bundle::evidence::{MOMENTS, document_file, server_file};
use runseal::bundle::files::{SERVER_FORMAT, ServerDocument, ServerFile};
use runseal::digest::Sha256Digest;
use runseal::durable::WriteError;
use runseal::server_facts::traffic::{self, Foreign};
use runseal::server_facts::{Documents, METRICS, facts, family, states_a_secret};
use tokio::task::JoinSet;

use super::{Run, Stop, http};
use crate::recorder::Recorder;

const DOCUMENT_LIMIT: Duration = Duration::from_secs(5);
/// How long a server may take to say that it is idle.
const IDLE_LIMIT: Duration = Duration::from_secs(5);
const IDLE_PAUSE: Duration = Duration::from_millis(20);

/// What one endpoint answered: by path, and the bytes of what is kept.
struct Asked {
    endpoint: String,
    documents: BTreeMap<String, ServerDocument>,
    bodies: BTreeMap<String, Vec<u8>>,
}

fn not_obtained(why: impl ToString) -> ServerDocument {
    ServerDocument::NotObtained {
        why: why.to_string(),
    }
}

impl Run {
    /// Once, after the warm-ups and before the first measured request.
    pub(super) async fn servers_before(&mut self) -> Result<(), Stop> {
        let asked = self.or_signal(self.ask_servers()).await?;
        for a in asked {
            let never = |path: &String| (path.clone(), not_obtained("the run ended before"));
            let file = ServerFile {
                format: SERVER_FORMAT.into(),
                run_id: self.dir.run_id.clone(),
                nonce_hash: self.dir.nonce_hash,
                endpoint: a.endpoint.clone(),
                before: BTreeMap::new(),
                after: a.documents.keys().map(never).collect(),
            };
            self.servers.insert(a.endpoint.clone(), file);
            self.keep(MOMENTS[0], a)
                .map_err(|e| Stop::failure("evidence-write", e))?;
        }
        Ok(())
    }

    /// Once, after the last request. A run that ended before it measured has nothing
    /// to set beside it, and one that stopped in between says so.
    pub(super) async fn servers_after(&mut self) -> Result<(), WriteError> {
        if self.measuring && self.servers.is_empty() {
            self.servers_never_asked()?;
        }
        if self.servers.is_empty() {
            return Ok(());
        }
        for a in self.ask_servers().await {
            if self.servers.contains_key(&a.endpoint) {
                self.keep(MOMENTS[1], a)?;
            }
        }
        Ok(())
    }

    /// A signal came between entering measure and the first look.
    fn servers_never_asked(&mut self) -> Result<(), WriteError> {
        let plan = self.inputs.resolved.plan.clone();
        if plan.engine.documents.is_empty() {
            return Ok(());
        }
        let documents: BTreeMap<String, ServerDocument> = plan
            .engine
            .documents
            .iter()
            .map(|path| (path.clone(), not_obtained("the run ended before")))
            .collect();
        for endpoint in &plan.endpoints {
            let file = ServerFile {
                format: SERVER_FORMAT.into(),
                run_id: self.dir.run_id.clone(),
                nonce_hash: self.dir.nonce_hash,
                endpoint: endpoint.name.clone(),
                before: documents.clone(),
                after: documents.clone(),
            };
            self.dir.write_json(&server_file(&endpoint.name), &file)?;
            self.servers.insert(endpoint.name.clone(), file);
        }
        Ok(())
    }

    /// Bytes first, so that what server/<endpoint>.json names is always there.
    fn keep(&mut self, when: &'static str, asked: Asked) -> Result<(), WriteError> {
        for (path, body) in &asked.bodies {
            let name = document_file(&asked.endpoint, when, path);
            self.dir.write(&name, body)?;
        }
        if let Some(file) = self.servers.get_mut(&asked.endpoint) {
            match when == MOMENTS[0] {
                true => file.before = asked.documents,
                false => file.after = asked.documents,
            }
            self.dir.write_json(&server_file(&asked.endpoint), file)?;
        }
        Ok(())
    }

    /// All endpoints at once; a server that hangs costs one time limit.
    async fn ask_servers(&self) -> Vec<Asked> {
        let plan = &self.inputs.resolved.plan;
        let mut asking = JoinSet::new();
        let planned = match plan.engine.documents.is_empty() {
            true => &[][..],
            false => plan.endpoints.as_slice(),
        };
        for endpoint in planned {
            let rank = endpoint.replicas.first();
            let addr = rank.and_then(|r| self.ranks.iter().find(|k| k.replica == *r));
            let addr = addr.filter(|k| k.alive()).map(|k| k.addr);
            let (name, recipe) = (endpoint.name.clone(), plan.engine.recipe.clone());
            let (paths, recorder) = (plan.engine.documents.clone(), self.recorder.clone());
            asking.spawn(async move {
                if let Some(addr) = addr {
                    idle(addr, &recipe).await;
                }
                ask(name, addr, paths, &recorder).await
            });
        }
        let mut out = Vec::new();
        while let Some(answer) = asking.join_next().await {
            out.extend(answer.ok());
        }
        out
    }
}

/// Waits until a server says that nothing runs or waits; for ever is too long, and
/// what it says then is on record.
async fn idle(addr: SocketAddr, recipe: &str) {
    let Some(family) = family(recipe) else { return };
    let deadline = Instant::now() + IDLE_LIMIT;
    while let Ok((200, body)) = http::get(addr, METRICS, DOCUMENT_LIMIT).await {
        let now = Documents::read([(METRICS, body.as_ref())]);
        let never = Documents::read([]);
        let busy = matches!(
            traffic::before(&facts(family, &now, &never)),
            Foreign::Found { .. }
        );
        if !busy || Instant::now() > deadline {
            return;
        }
        tokio::time::sleep(IDLE_PAUSE).await;
    }
}

async fn ask(
    endpoint: String,
    addr: Option<SocketAddr>,
    paths: Vec<String>,
    recorder: &Recorder,
) -> Asked {
    let mut out = Asked {
        endpoint,
        documents: BTreeMap::new(),
        bodies: BTreeMap::new(),
    };
    for path in paths {
        let Some(addr) = addr else {
            out.documents
                .insert(path, not_obtained("its process is not there"));
            continue;
        };
        let asked = recorder.now();
        let document = match http::get(addr, &path, DOCUMENT_LIMIT).await {
            Ok((_, body)) if states_a_secret(&body) => {
                not_obtained("it states a key or password of the server and is not kept")
            }
            Ok((status, body)) => {
                let sha256 = Sha256Digest::of(&body);
                out.bodies.insert(path.clone(), body.to_vec());
                ServerDocument::Obtained {
                    status,
                    sha256,
                    asked,
                    ended: recorder.now(),
                }
            }
            Err(e) => not_obtained(format!("{e:#}")),
        };
        out.documents.insert(path, document);
    }
    out
}
