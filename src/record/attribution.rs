//! Attribution: is it known which weights and which program gave an answer?
//!
//! `verified` needs all of: every rank of the endpoint loaded weights that were
//! verified before the run and unchanged after it, on a machine that did not
//! reboot; the running executable, arguments and environment equal the plan; the connection of the request led to
//! the endpoint that this run launched for it; the ranks lived throughout; no taint touches
//! the request. The first rule that does not hold is the reason. All inputs are
//! the operator's word unless a node signed its own report, so the witness is
//! the operator.

use std::collections::BTreeMap;

use super::{Attribution, Taint};
use crate::bundle::Evidence;
use crate::event::{Event, EventLine};
use crate::grading::Declared;
use crate::plan::{EndpointPlan, Pin, RunPlan};
use crate::trace::Transport;
use crate::weights::{Integrity, derive_integrity};

/// What became of the copy of one checkpoint after the run.
pub fn after_state(report: Option<&crate::weights::ReplicaReport>) -> &'static str {
    match report.and_then(|r| r.after.as_ref()) {
        Some(a) if a.changed.is_empty() && a.unchanged => "unchanged",
        Some(_) => "changed",
        None => "not_checked",
    }
}

/// Why each replica's rank cannot be attributed, if so.
fn rank_faults(evidence: &Evidence) -> BTreeMap<&str, &'static str> {
    evidence
        .plan
        .replicas
        .iter()
        .filter_map(|r| rank_fault(evidence, &r.name).map(|why| (r.name.as_str(), why)))
        .collect()
}

fn rank_fault(evidence: &Evidence, replica: &str) -> Option<&'static str> {
    for checkpoint in &evidence.plan.checkpoints {
        let key = (replica.to_owned(), checkpoint.role.clone());
        let report = evidence.replicas.get(&key);
        let verified = match (report, evidence.manifests.get(&checkpoint.role)) {
            (Some(report), Some(manifest)) => {
                derive_integrity(manifest, report) == Integrity::Verified
            }
            _ => false,
        };
        if !verified {
            return Some("weights-not-verified");
        }
        match after_state(report) {
            "unchanged" => {}
            "changed" => return Some("weights-changed"),
            _ => return Some("weights-not-rechecked"),
        }
    }
    if let Some(why) = reboot(evidence, replica) {
        return Some(why);
    }
    match (
        &evidence.plan.engine.executable,
        evidence.image.observed.get(replica),
    ) {
        (Pin::Unpinned { .. }, _) => return Some("executable-unpinned"),
        (_, None) => return Some("executable-not-observed"),
        (Pin::Sha256(want), Some(found)) if want != found => return Some("executable-differs"),
        _ => {}
    }
    if !process_as_planned(evidence, replica) {
        return Some("process-not-as-planned");
    }
    if !lived(evidence, replica) {
        return Some("rank-did-not-live");
    }
    None
}

/// The machine of a replica must run the same boot after the run as before it:
/// process ids and start times count from a boot.
fn reboot(evidence: &Evidence, replica: &str) -> Option<&'static str> {
    let node = evidence
        .plan
        .replicas
        .iter()
        .find(|r| r.name == replica)
        .and_then(|r| evidence.nodes.get(&r.node));
    let before = node.and_then(|n| n.before.boot_id.as_ref());
    let after = node.and_then(|n| n.after.as_ref()?.boot_id.as_ref());
    match (before, after) {
        (Some(b), Some(a)) if a == b => None,
        (Some(_), Some(_)) => Some("machine-rebooted"),
        _ => Some("machine-not-rechecked"),
    }
}

/// The observed arguments and environment equal the filled template.
pub fn process_as_planned(evidence: &Evidence, replica: &str) -> bool {
    let plan: &RunPlan = &evidence.plan;
    let (Some(engine), Some(planned)) = (
        evidence.engines.get(replica),
        plan.replicas.iter().find(|r| r.name == replica),
    ) else {
        return false;
    };
    // The template asks for any free port ("0") and the process reports which it
    // got; where it listens is tied to the process by the rank_up event.
    engine.argv == plan.argv(planned, "{executable}", "0") && engine.env == plan.engine.env
}

/// The process that was started was still there when the measurement was over,
/// and did not end before.
fn lived(evidence: &Evidence, replica: &str) -> bool {
    let Some(engine) = evidence.engines.get(replica) else {
        return false;
    };
    let ours = (engine.pid, engine.start_ticks);
    let up = |l: &EventLine| match &l.event {
        Event::RankUp {
            replica: r,
            pid,
            start_ticks,
            listen,
        } => r == replica && (*pid, *start_ticks) == ours && *listen == engine.listen,
        _ => false,
    };
    let alive = |l: &EventLine| match &l.event {
        Event::RankAlive {
            replica: r,
            pid,
            start_ticks,
        } => r == replica && (*pid, *start_ticks) == ours,
        _ => false,
    };
    let exit =
        |l: &EventLine| matches!(&l.event, Event::RankExit { replica: r, .. } if r == replica);
    let find = |f: &dyn Fn(&EventLine) -> bool| evidence.events.iter().find(|l| f(l));
    let ups = evidence.events.iter().filter(|l| up(l)).count();
    let last_end = evidence
        .events
        .iter()
        .rev()
        .find(|l| matches!(l.event, Event::End { .. }))
        .map_or(0, |l| l.seq);
    match (find(&up), find(&alive)) {
        (Some(u), Some(a)) => {
            ups == 1
                && u.seq < a.seq
                && last_end < a.seq
                && find(&exit).is_none_or(|x| a.seq < x.seq && a.t <= x.t)
        }
        _ => false,
    }
}

/// Where the processes that this run launched listen, by endpoint.
pub struct Listening<'a>(BTreeMap<&'a str, Vec<&'a str>>);

impl<'a> Listening<'a> {
    /// As the log tells it.
    pub fn of(evidence: &'a Evidence) -> Self {
        let mut by_endpoint: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        for line in &evidence.events {
            let Event::RankUp {
                replica, listen, ..
            } = &line.event
            else {
                continue;
            };
            let serves = |e: &&EndpointPlan| e.replicas.contains(replica);
            for endpoint in evidence.plan.endpoints.iter().filter(serves) {
                by_endpoint.entry(&endpoint.name).or_default().push(listen);
            }
        }
        Self(by_endpoint)
    }

    /// True when something launched for `endpoint` listens at `peer`.
    pub fn leads_to(&self, endpoint: &str, peer: &str) -> bool {
        self.0.get(endpoint).is_some_and(|at| at.contains(&peer))
    }

    /// Where it listens, for people.
    pub fn at(&self, endpoint: &str) -> String {
        self.0
            .get(endpoint)
            .map_or(String::new(), |at| at.join(" or "))
    }
}

/// Attribution of every declared attempt, in order.
pub fn attributions(
    evidence: &Evidence,
    declared: &[Declared],
    taints: &[Taint],
) -> Vec<Attribution> {
    let faults = rank_faults(evidence);
    let listening = Listening::of(evidence);
    declared
        .iter()
        .map(|d| match fault(evidence, d, &faults, &listening, taints) {
            None => Attribution::Verified,
            Some(because) => Attribution::Unverified {
                because: because.to_owned(),
            },
        })
        .collect()
}

fn fault<'a>(
    evidence: &'a Evidence,
    declared: &Declared,
    faults: &BTreeMap<&str, &'a str>,
    listening: &Listening,
    taints: &[Taint],
) -> Option<&'a str> {
    let trace = match declared.trace {
        Some(t) if t.transport() != Transport::NotAttempted => t,
        _ => return Some("not-attempted"),
    };
    if trace.send.is_none() {
        return Some("not-sent");
    }
    let endpoint: Option<&EndpointPlan> = evidence
        .plan
        .endpoints
        .iter()
        .find(|e| e.name == trace.endpoint);
    let Some(endpoint) = endpoint else {
        return Some("endpoint-not-in-plan");
    };
    if endpoint.remote.is_some() {
        return Some("endpoint-run-by-others");
    }
    if let Some(why) = endpoint
        .replicas
        .iter()
        .find_map(|r| faults.get(r.as_str()))
    {
        return Some(why);
    }
    // The name in the log is ours; where the connection led is the system's word.
    let leads_to = |peer: &String| listening.leads_to(&endpoint.name, peer);
    if !trace.peer.as_ref().is_some_and(leads_to) {
        return Some("peer-not-the-endpoint");
    }
    let touched = |t: &Taint| t.reqs.is_empty() || t.reqs.contains(&trace.req);
    if taints.iter().any(touched) {
        return Some("tainted");
    }
    None
}
