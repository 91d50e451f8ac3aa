//! What the servers say of themselves, and whether others used them.

use super::{RunRecord, ServerRecord, Taint};
use crate::bundle::Evidence;
use crate::server_facts::traffic::{self, Foreign};
use crate::server_facts::{facts, family};
use crate::trace::Trace;

/// Cause of the taint by requests that were there before ours.
pub const BEFORE: &str = "foreign-traffic-before";
/// Cause of the taint by tokens that our answers do not account for.
pub const DURING: &str = "foreign-traffic-during";

/// One entry per endpoint whose documents are there; `None` when the bundle holds none.
pub fn servers(evidence: &Evidence) -> Option<Vec<ServerRecord>> {
    let family = family(&evidence.plan.engine.recipe)?;
    let record = |(endpoint, server): (&String, &crate::bundle::servers::Server)| {
        let measured: Vec<&Trace> = evidence
            .traces
            .requests
            .iter()
            .filter(|t| !t.warmup && t.endpoint == *endpoint)
            .collect();
        let facts = facts(
            family,
            &server.documents("before"),
            &server.documents("after"),
        );
        ServerRecord {
            endpoint: endpoint.clone(),
            foreign_before: traffic::before(&facts),
            foreign_during: traffic::during(family, &facts, &measured),
            facts,
        }
    };
    let servers = &evidence.servers.by_endpoint;
    (!servers.is_empty()).then(|| servers.iter().map(record).collect())
}

/// What was found, as taints of every attempt.
pub fn taints(servers: &[ServerRecord]) -> Vec<Taint> {
    let of = |s: &ServerRecord| {
        [(BEFORE, &s.foreign_before), (DURING, &s.foreign_during)]
            .into_iter()
            .filter_map(|(cause, foreign)| match foreign {
                Foreign::Found { detail } => Some(Taint {
                    cause: cause.into(),
                    detail: format!("{}: {detail}", s.endpoint),
                    reqs: Vec::new(),
                }),
                _ => None,
            })
            .collect::<Vec<_>>()
    };
    servers.iter().flat_map(of).collect()
}

/// Tokens that the servers counted as served from a cache while measured, where each
/// of them counts such tokens.
pub fn cached(servers: &[ServerRecord]) -> Option<i128> {
    servers.iter().map(|s| traffic::cached(&s.facts)).sum()
}

/// The endpoints for which nothing could be judged, joined; `None` when there are none.
pub fn not_judged(record: &RunRecord) -> Option<String> {
    let unknown = |f: &Foreign| matches!(f, Foreign::NotJudged { .. });
    let names: Vec<&str> = record
        .servers
        .iter()
        .flatten()
        .filter(|s| unknown(&s.foreign_before) || unknown(&s.foreign_during))
        .map(|s| s.endpoint.as_str())
        .collect();
    (!names.is_empty()).then(|| names.join(", "))
}
