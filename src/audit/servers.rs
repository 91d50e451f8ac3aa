//! The documents of the servers: complete, taken around the measurement, and what
//! they say of traffic that was not ours.

use super::Audit;
use super::life::torn;
use crate::bundle::Evidence;
use crate::bundle::evidence::{MOMENTS, server_file};
use crate::bundle::files::ServerDocument;
use crate::codes::Code;
use crate::event::{Event, State};
use crate::finding::Outcome;
use crate::record::RunRecord;
use crate::record::servers::{BEFORE, DURING};
use crate::server_facts::traffic::Foreign;

/// Every document of the plan was asked for before the first measured request and
/// after the last; a bundle cannot leave them out.
pub fn servers(a: &mut Audit, e: &Evidence) {
    let entered = |want: State| {
        let hit = |l: &&crate::event::EventLine| matches!(l.event, Event::State { state } if state == want);
        e.events.iter().find(hit).map(|l| l.t)
    };
    if e.plan.engine.documents.is_empty() {
        return a.skip(
            "servers",
            false,
            "the plan keeps no documents of the servers",
        );
    }
    let known = a.findings.len();
    if !torn(e) {
        for name in &e.servers.unclaimed {
            a.add(
                Code::EvidenceExtra,
                name,
                "nothing says that the run obtained it",
            );
        }
        for endpoint in e.plan.endpoints.iter().map(|p| p.name.as_str()) {
            if entered(State::Measure).is_some() && !e.servers.by_endpoint.contains_key(endpoint) {
                a.add(
                    Code::EvidenceMissing,
                    &server_file(endpoint),
                    "the run got as far as to have it",
                );
            }
        }
    }
    for (endpoint, server) in &e.servers.by_endpoint {
        let ours = || e.traces.requests.iter().filter(|t| !t.warmup);
        // From entering measure to the first request, and from the last one's end to
        // teardown: what is between lies in neither.
        let windows = [
            (
                entered(State::Measure),
                ours().map(|t| t.queued).min().or(entered(State::Collect)),
            ),
            (
                ours()
                    .filter_map(|t| t.end)
                    .max()
                    .or(entered(State::Measure)),
                entered(State::Teardown),
            ),
        ];
        for (when, (from, to)) in MOMENTS.into_iter().zip(windows) {
            for (path, document) in server.asked(when) {
                let ServerDocument::Obtained { asked, ended, .. } = document else {
                    continue;
                };
                let inside = from.is_some_and(|f| f <= *asked)
                    && asked <= ended
                    && (to.is_some_and(|t| *ended <= t) || (to.is_none() && torn(e)));
                if !inside {
                    a.add(
                        Code::EventInconsistent,
                        &server_file(endpoint),
                        format!("{path} was not obtained {when} the measurement"),
                    );
                }
            }
        }
    }
    let outcome = match a.findings.len() == known {
        true => Outcome::Passed,
        false => Outcome::Failed,
    };
    a.push("servers", true, outcome);
}

/// Whether others used the servers: passed only where each of them counts.
pub fn foreign_traffic(a: &mut Audit, record: &RunRecord) {
    const NAME: &str = "foreign-traffic";
    let Some(servers) = &record.servers else {
        return a.skip(NAME, false, "the bundle holds no documents of the servers");
    };
    let (mut found, mut unknown) = (false, None);
    for s in servers {
        for (code, foreign) in [
            (Code::ForeignTrafficBefore, &s.foreign_before),
            (Code::ForeignTrafficDuring, &s.foreign_during),
        ] {
            match foreign {
                Foreign::None => {}
                Foreign::Found { detail } => {
                    found = true;
                    a.add(code, &format!("endpoint {}", s.endpoint), detail.as_str());
                }
                Foreign::NotJudged { reason } => {
                    unknown.get_or_insert(format!("{}: {reason}", s.endpoint));
                }
            }
        }
    }
    debug_assert_eq!(Code::ForeignTrafficBefore.name(), BEFORE);
    debug_assert_eq!(Code::ForeignTrafficDuring.name(), DURING);
    match (found, unknown) {
        (true, _) => a.push(NAME, false, Outcome::Failed),
        (false, Some(why)) => a.skip(NAME, false, &why),
        (false, None) => a.push(NAME, false, Outcome::Passed),
    }
}
