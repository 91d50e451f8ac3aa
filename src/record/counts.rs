//! The four counts that stand side by side: transport, grades, attribution, integrity.

use super::derive::integrity;
use super::*;
use crate::bundle::Evidence;
use crate::weights::agree;

pub(super) fn transport_counts(cases: &[CaseRecord]) -> TransportCounts {
    let count = |want: Transport| cases.iter().filter(|c| c.transport == want).count() as u64;
    TransportCounts {
        declared: cases.len() as u64,
        completed: count(Transport::Completed),
        http_error: count(Transport::HttpError),
        stream_error: count(Transport::StreamError),
        truncated: count(Transport::Truncated),
        timeout: count(Transport::Timeout),
        cancelled: count(Transport::Cancelled),
        connect_error: count(Transport::ConnectError),
        not_attempted: count(Transport::NotAttempted),
    }
}

pub(super) fn grade_counts(cases: &[CaseRecord]) -> GradeCounts {
    let count = |f: fn(&Grade) -> bool| cases.iter().filter(|c| f(&c.grade)).count() as u64;
    GradeCounts {
        declared: cases.len() as u64,
        pass: count(|g| *g == Grade::Pass),
        fail: count(|g| matches!(g, Grade::Fail { .. })),
        ungraded: count(|g| matches!(g, Grade::Ungraded { .. })),
    }
}

pub(super) fn attribution_counts(cases: &[CaseRecord]) -> AttributionCounts {
    let verified = |c: &&CaseRecord| c.attribution == Attribution::Verified;
    let n = cases.iter().filter(verified).count() as u64;
    AttributionCounts {
        declared: cases.len() as u64,
        verified: n,
        unverified: cases.len() as u64 - n,
        verified_passes: cases
            .iter()
            .filter(verified)
            .filter(|c| c.grade == Grade::Pass)
            .count() as u64,
        witness: "operator".into(),
    }
}

pub(super) fn integrity_counts(evidence: &Evidence) -> IntegrityCounts {
    let plan = &evidence.plan;
    let roles = || plan.checkpoints.iter().map(|c| c.role.as_str());
    let verified = |replica: &str| {
        roles().all(|role| integrity(evidence, replica, role) == Integrity::Verified)
    };
    let unchanged = |replica: &str| {
        roles().all(|role| {
            let report = evidence
                .replicas
                .get(&(replica.to_owned(), role.to_owned()));
            attribution::after_state(report) == "unchanged"
        })
    };
    let count =
        |f: &dyn Fn(&str) -> bool| plan.replicas.iter().filter(|r| f(&r.name)).count() as u64;
    let distinct = roles()
        .map(|role| {
            let reports: Vec<_> = evidence
                .replicas
                .iter()
                .filter(|((_, r), _)| r == role)
                .map(|(_, report)| report)
                .collect();
            agree(&reports).replicas as u64
        })
        .min()
        .unwrap_or(0);
    IntegrityCounts {
        replicas: plan.replicas.len() as u64,
        distinct,
        verified: count(&verified),
        unchanged_after: count(&|r| verified(r) && unchanged(r)),
    }
}
