//! The replicas of an inventory, all at once: local ones here, the others by
//! their nodes.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use runseal::bundle::evidence::replica_file;
use runseal::codes::Code;
use runseal::digest::Sha256Digest;
use runseal::durable::{self, WriteOptions};
use runseal::finding::Finding;
use runseal::keys::load_secret;
use runseal::leftovers;
use runseal::weights::remote::{
    Conversation, Failure, Node, Program, Question, Reach, ask, protocol,
};
use runseal::weights::{
    self, Algorithm, Expected, Listing, Looked, NodeKey, Pace, Replica, ReportContext, Role,
    SavedReport, Since, Survey, Target, Transport, report_bytes, sign_report,
};

use super::agent::own_digest;
use super::options::Options;
use super::outside;
use super::progress::{Board, Line};
use super::saved::{Earlier, apply_signature, earlier_reports, known_names};
use crate::cli::now;
use crate::cli::output::complain;

/// How long a connection may take unless --timeout says less, in seconds.
const CONNECT: u64 = 10;

/// What is looked at.
pub struct Replicas {
    /// The replicas.
    pub replicas: Vec<Replica>,
    /// The inventory's folder.
    pub folder: PathBuf,
    /// The folder of the only replica, when no inventory names it.
    pub only: Option<PathBuf>,
    /// What is expected of every checkpoint.
    pub manifests: BTreeMap<Role, Listing>,
    /// The revision of the target to look at, in hub caches.
    pub revision: Option<String>,
    /// The ssh program that the inventory names.
    pub ssh: Option<PathBuf>,
    /// The inventory was named on the command line.
    pub explicit: bool,
}

impl Replicas {
    /// What is expected, by role.
    pub fn expected(&self) -> Vec<(&'static str, &Listing)> {
        let each = self.manifests.iter();
        each.map(|(role, listing)| (role.name(), listing)).collect()
    }

    /// The revision asked for is one of the target; other checkpoints have their own.
    fn revision_of(&self, role: Role) -> Option<&str> {
        self.revision.as_deref().filter(|_| role == Role::Target)
    }
}

/// Rehashes everything and compares.
pub fn survey(
    given: &Replicas,
    options: &Options,
    algorithm: Algorithm,
    pace: Pace,
    asserted: Option<usize>,
) -> anyhow::Result<Survey> {
    let keys = options.trusted()?;
    known_names(&keys, given.replicas.iter().map(|r| r.name.as_str()))?;
    let since = earlier_reports(&options.changed_since)?;
    let programs: Vec<String> = programs(given, options);
    if !given.explicit
        && let Some(name) = starts_programs_of_its_own(given, options)
    {
        bail!(
            "./cluster.toml starts programs of its choice for {name} (hint: read it, then name it: --inventory cluster.toml)"
        );
    }
    if let Some(dir) = &options.save_reports {
        prepare(dir, given, &|replica, role| path_of(given, replica, role))?;
    }
    let push = push_program(options, given)?;
    let (private, _entry) =
        leftovers::private_folder().context("could not make a private folder for ssh's sockets")?;
    let reach = Reach {
        ssh: options
            .ssh
            .clone()
            .or(given.ssh.clone())
            .unwrap_or_else(|| "ssh".into()),
        own: std::env::current_exe().context("could not find this program's own file")?,
        private: private.path().to_owned(),
        folder: given.folder.clone(),
        connect_timeout: options.timeout.min(CONNECT),
    };
    for line in programs {
        complain(&line);
    }
    let boot_id = weights::boot_id().context("could not read this machine's boot id")?;
    let look = Look {
        given,
        reach: &reach,
        push: push.as_ref(),
        silence: Duration::from_secs(options.timeout),
        algorithm,
        pace,
        since: &since,
        keys: &keys,
        boot_id: &boot_id,
        save: options.save_reports.as_deref(),
    };
    let board = Board::new(given.replicas.iter().map(|r| r.name.clone()));
    let (agents, local): (Vec<_>, Vec<_>) = given
        .replicas
        .iter()
        .enumerate()
        .partition(|(_, r)| by_agent(r));
    // A thread for each node: one that is silent holds up nobody else. Local replicas
    // share this machine's cores and are hashed from one queue.
    let mut results: Vec<(usize, Vec<Looked>)> =
        std::thread::scope(|scope| -> anyhow::Result<_> {
            let threads: Vec<_> = agents
                .iter()
                .map(|&(i, replica)| {
                    let (look, line) = (&look, board.line(i));
                    scope.spawn(move || Ok((i, look.by_agent(replica, &line)?)))
                })
                .collect();
            let here = look.here(&local, &board);
            let join = |t: std::thread::ScopedJoinHandle<'_, anyhow::Result<_>>| {
                t.join()
                    .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
            };
            let there: Vec<_> = threads.into_iter().map(join).collect();
            let mut all = here?;
            for one in there {
                all.push(one?);
            }
            Ok(all)
        })?;
    results.sort_by_key(|(i, _)| *i);
    let mut looked: Vec<Looked> = results.into_iter().flat_map(|(_, looked)| looked).collect();
    drop(board);
    if !options.changed_since.is_empty() {
        looked.iter_mut().for_each(|l| no_earlier(&since, l));
    }
    let basis = weights::Basis::Rehash;
    Ok(weights::conclude(
        &given.expected(),
        looked,
        asserted,
        basis,
    ))
}

/// What every thread needs.
struct Look<'a> {
    given: &'a Replicas,
    reach: &'a Reach,
    push: Option<&'a Program>,
    silence: Duration,
    algorithm: Algorithm,
    pace: Pace,
    since: &'a Earlier,
    keys: &'a [NodeKey],
    boot_id: &'a str,
    save: Option<&'a Path>,
}

impl Look<'_> {
    fn context(&self, replica: &Replica, role: Role) -> ReportContext {
        let started = now();
        ReportContext {
            replica: replica.name.clone(),
            role: role.name().to_owned(),
            run_id: None,
            nonce_hash: None,
            plan_digest: None,
            boot_id: self.boot_id.to_owned(),
            finished: started.clone(),
            started,
        }
    }

    fn path(&self, replica: &Replica, role: Role) -> PathBuf {
        path_of(self.given, replica, role)
    }

    fn here(
        &self,
        replicas: &[(usize, &Replica)],
        board: &Board,
    ) -> anyhow::Result<Vec<(usize, Vec<Looked>)>> {
        let lines: Vec<_> = replicas.iter().map(|(i, _)| board.line(*i)).collect();
        let mut places = Vec::new();
        let mut keys = Vec::new();
        for (at, (_, replica)) in replicas.iter().enumerate() {
            let key = replica.node_key.as_ref();
            let key = key.map(|k| load_secret(&self.given.folder.join(k)));
            let key = key
                .transpose()
                .with_context(|| format!("node_key of replica {}", replica.name))?;
            for (role, manifest) in &self.given.manifests {
                places.push((at, *role, manifest, self.path(replica, *role)));
            }
            keys.push(key);
        }
        let targets = places.iter().map(|(at, role, manifest, path)| {
            let replica = replicas[*at].1;
            let key = (replica.name.clone(), role.name().to_owned());
            Expected {
                target: Target {
                    context: self.context(replica, *role),
                    path,
                    revision: self.given.revision_of(*role),
                    progress: &lines[*at],
                },
                manifest,
                since: self.since.get(&key).map(|report| Since {
                    report,
                    boot_id: self.boot_id,
                }),
            }
        });
        let unfinished: Vec<_> = replicas
            .iter()
            .map(|_| {
                (
                    AtomicUsize::new(self.given.manifests.len()),
                    AtomicBool::new(true),
                )
            })
            .collect();
        let done = |index: usize, mut looked: Looked| -> anyhow::Result<Looked> {
            let (at, ..) = &places[index];
            let (left, all_there) = &unfinished[*at];
            if looked.report.is_none() {
                all_there.store(false, Relaxed);
            }
            if left.fetch_sub(1, Relaxed) == 1 {
                lines[*at].end(all_there.load(Relaxed));
            }
            if let Some(report) = looked.report.clone() {
                let key = keys[*at].as_ref();
                let envelope = key.map(|key| sign_report(&report, key));
                self.keep(&SavedReport { report, envelope }, &mut looked)?;
            }
            Ok(looked)
        };
        let looked = weights::looked(targets.collect(), self.algorithm, self.pace, &now, done);
        let mut out: Vec<(usize, Vec<Looked>)> =
            replicas.iter().map(|(i, _)| (*i, Vec::new())).collect();
        for ((at, ..), looked) in places.iter().zip(looked) {
            out[*at].1.push(looked?);
        }
        Ok(out)
    }

    fn by_agent(&self, replica: &Replica, line: &Line) -> anyhow::Result<Vec<Looked>> {
        let questions: Vec<_> = self
            .given
            .manifests
            .iter()
            .map(|(role, manifest)| self.question(replica, *role, manifest))
            .collect::<anyhow::Result<_>>()?;
        let node = Node {
            replica,
            reach: self.reach,
            version: env!("CARGO_PKG_VERSION"),
            own_sha256: own_digest()?,
            push: self.push.filter(|_| replica.transport != Transport::Local),
            silence: self.silence,
        };
        let Conversation { answers, notes } = ask(&node, &questions, line);
        let mut out = Vec::new();
        for (question, answer) in questions.iter().zip(answers) {
            let role = &question.request.role;
            out.push(match answer {
                Ok(asked) => {
                    let report = asked.saved.report.clone();
                    let mut looked = Looked::from_elsewhere(question.manifest, report);
                    self.keep(&asked.saved, &mut looked)?;
                    looked
                }
                Err(failure) => no_report(replica, role, failure),
            });
        }
        if let Some(first) = out.first_mut() {
            first.findings.splice(0..0, notes);
        }
        line.end(out.iter().all(|l| l.report.is_some()));
        Ok(out)
    }

    fn question<'m>(
        &self,
        replica: &Replica,
        role: Role,
        manifest: &'m Listing,
    ) -> anyhow::Result<Question<'m>> {
        let path = self.path(replica, role);
        let path = match replica.transport {
            // The agent need not start in the same folder.
            Transport::Local => std::path::absolute(&path).unwrap_or(path),
            _ => path,
        };
        let key = (replica.name.clone(), role.name().to_owned());
        Ok(Question {
            request: protocol::Request {
                path: path
                    .to_str()
                    .with_context(|| format!("{} is not UTF-8", path.display()))?
                    .to_owned(),
                revision: self.given.revision_of(role).map(str::to_owned),
                expected: protocol::Expected::of(manifest),
                algorithm: self.algorithm,
                jobs: self.pace.jobs,
                bytes_per_second: self.pace.bytes_per_second,
                replica: replica.name.clone(),
                role: role.name().to_owned(),
                run_id: None,
                nonce_hash: Some(fresh()?),
                plan_digest: None,
                since: self.since.get(&key).cloned(),
            },
            manifest,
        })
    }

    /// Checks the signature and saves the report.
    fn keep(&self, saved: &SavedReport, looked: &mut Looked) -> anyhow::Result<()> {
        apply_signature(saved, self.keys, looked);
        let Some(dir) = self.save else { return Ok(()) };
        let path = saved_path(dir, &saved.report.replica, &saved.report.role);
        durable::write(&path, &report_bytes(&saved.report), WriteOptions::default())?;
        if let Some(envelope) = &saved.envelope {
            let path = path.with_extension("dsse.json");
            durable::write(&path, envelope, WriteOptions::default())?;
        }
        Ok(())
    }
}

/// Where a checkpoint of a replica lies.
fn path_of(given: &Replicas, replica: &Replica, role: Role) -> PathBuf {
    let path = replica.paths.get(&role).map_or("", String::as_str);
    match (&given.only, &replica.transport) {
        (Some(only), _) => only.clone(),
        (None, Transport::Local) => given.folder.join(path),
        (None, _) => PathBuf::from(path),
    }
}

/// A number that no report made before can hold, so that an old one is not taken for
/// the answer, whoever signed it.
fn fresh() -> anyhow::Result<Sha256Digest> {
    let mut bytes = [0; 32];
    getrandom::fill(&mut bytes).map_err(|e| anyhow!("could not get random bytes: {e}"))?;
    Ok(Sha256Digest::of(&bytes))
}

/// Says that everything was read because no earlier report is about this replica,
/// which is often only called otherwise there.
fn no_earlier(since: &Earlier, looked: &mut Looked) {
    let key = (looked.replica.clone(), looked.role.clone());
    if since.contains_key(&key) {
        return;
    }
    let held: Vec<_> = since
        .keys()
        .map(|(replica, role)| subject(replica, role))
        .collect();
    let detail = format!(
        "--changed-since gives no report on it, so every file was read; there are reports on {}",
        held.join(", ")
    );
    let subject = subject(&looked.replica, &looked.role);
    let note = Finding::new(Code::NoEarlierReport, subject, detail);
    looked.findings.insert(0, note);
}

/// As findings name a checkpoint of a replica.
fn subject(replica: &str, role: &str) -> String {
    match role {
        "target" => replica.to_owned(),
        other => format!("{replica}:{other}"),
    }
}

/// Local replicas are read by this process, unless only another user may.
fn by_agent(replica: &Replica) -> bool {
    replica.sudo || replica.transport != Transport::Local
}

fn no_report(replica: &Replica, role: &str, failure: Failure) -> Looked {
    let subject = subject(&replica.name, role);
    let finding = Finding::new(failure.code, subject, failure.detail);
    Looked::unreachable(&replica.name, role, finding)
}

/// Who starts what: said before it happens.
fn programs(given: &Replicas, options: &Options) -> Vec<String> {
    let named = |which: &dyn Fn(&Replica) -> bool| -> Vec<&str> {
        let those = given.replicas.iter().filter(|r| which(r));
        those.map(|r| r.name.as_str()).collect()
    };
    let ssh = options.ssh.as_ref().or(given.ssh.as_ref());
    let ssh = ssh.map_or("ssh".to_owned(), |p| p.display().to_string());
    let mut out = Vec::new();
    let mut say = |program: &str, names: Vec<&str>| {
        if !names.is_empty() {
            out.push(format!("starting {program} for {}", names.join(", ")));
        }
    };
    say(&ssh, named(&|r| matches!(r.transport, Transport::Ssh(_))));
    say(
        "sudo",
        named(&|r| r.sudo && r.transport == Transport::Local),
    );
    for replica in &given.replicas {
        if let Transport::Command(template) = &replica.transport {
            let program = template.command.first().map_or("", String::as_str);
            say(program, vec![&replica.name]);
        }
    }
    out
}

/// A replica for which the inventory, and not the user, chose what to run here.
fn starts_programs_of_its_own<'a>(given: &'a Replicas, options: &Options) -> Option<&'a str> {
    let chosen = |r: &&Replica| match r.transport {
        Transport::Command(_) => true,
        Transport::Ssh(_) => given.ssh.is_some() && options.ssh.is_none(),
        Transport::Local => r.sudo,
    };
    given.replicas.iter().find(chosen).map(|r| r.name.as_str())
}

fn push_program(options: &Options, given: &Replicas) -> anyhow::Result<Option<Program>> {
    let Some(wanted) = &options.push_agent else {
        return Ok(None);
    };
    if given
        .replicas
        .iter()
        .all(|r| r.transport == Transport::Local)
    {
        bail!(
            "--push-agent without a replica on another machine (hint: name an --inventory with ssh or command replicas)"
        );
    }
    let path = match wanted {
        Some(path) => path.clone(),
        None => std::env::current_exe().context("could not find this program's own file")?,
    };
    let program = Program::read(&path)?;
    if program.elf.dynamic {
        complain(&format!(
            "note: {} is not static: it runs only on nodes that have its libraries",
            path.display()
        ));
    }
    Ok(Some(program))
}

/// Where a report is saved.
fn saved_path(dir: &Path, replica: &str, role: &str) -> PathBuf {
    let name = replica_file(replica, role);
    // The folder that stands for `replicas/` is the caller's.
    dir.join(name.strip_prefix("replicas/").unwrap_or(&name))
}

/// The folder is made, and nothing in it is in the way: said before hours of
/// hashing and not after.
fn prepare(
    dir: &Path,
    given: &Replicas,
    look: &dyn Fn(&Replica, Role) -> PathBuf,
) -> anyhow::Result<()> {
    let here = given.replicas.iter();
    let here = here.filter(|r| given.only.is_some() || r.transport == Transport::Local);
    let roots: Vec<PathBuf> = here
        .flat_map(|r| given.manifests.keys().map(|role| look(r, *role)))
        .collect();
    // Before it is made, and again when nothing in its path is missing any more.
    outside::refuse_inside(dir, &roots)?;
    durable::create_dir_all(dir)?;
    outside::refuse_inside(dir, &roots)?;
    for replica in &given.replicas {
        for role in given.manifests.keys() {
            let path = saved_path(dir, &replica.name, role.name());
            for path in [path.with_extension("dsse.json"), path] {
                if path.symlink_metadata().is_ok() {
                    return Err(durable::WriteError::Exists(path).into());
                }
            }
        }
    }
    Ok(())
}
