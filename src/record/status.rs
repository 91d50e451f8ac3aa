//! Run status and taints, from the event log alone.

use super::{Status, Taint};
use crate::event::{Event, EventLine, State};
use crate::grading::Declared;
use crate::trace::Transport;

/// The order of states that a completed run goes through.
pub const PATH: [State; 10] = [
    State::Declare,
    State::Preflight,
    State::Verify,
    State::Launch,
    State::Ready,
    State::Warm,
    State::Measure,
    State::Collect,
    State::Teardown,
    State::Grade,
];

/// Derives the status. A refusal outweighs a signal, a signal a failure, and
/// `completed` needs all of: every state entered once and in order, every
/// declared case attempted and every attempt ended, every rank ended, and by
/// teardown only.
pub fn status(events: &[EventLine], declared: &[Declared]) -> Status {
    let find = |f: fn(&Event) -> Option<Status>| events.iter().find_map(|l| f(&l.event));
    let refusal = find(|e| match e {
        Event::Refusal { cause, detail } => Some(Status::Refused {
            cause: cause.clone(),
            detail: detail.clone(),
        }),
        _ => None,
    });
    let signal = find(|e| match e {
        Event::Signal { name } => Some(Status::Aborted {
            cause: name.clone(),
        }),
        _ => None,
    });
    let failure = find(|e| match e {
        Event::Failure {
            state,
            cause,
            detail,
        } => Some(Status::Failed {
            state: state.name().into(),
            cause: cause.clone(),
            detail: detail.clone(),
        }),
        _ => None,
    });
    if let Some(status) = refusal.or(signal).or(failure) {
        return status;
    }
    let states: Vec<State> = states(events);
    let last = states.last().copied().unwrap_or(State::Declare);
    let failed = |cause: &str, detail: String| Status::Failed {
        state: last.name().into(),
        cause: cause.into(),
        detail,
    };
    if states != PATH {
        return failed(
            "states-incomplete",
            "the run did not go through every state in order".into(),
        );
    }
    let missing = declared
        .iter()
        .filter(|d| d.transport() == Transport::NotAttempted)
        .count();
    if missing > 0 {
        return failed(
            "cases-not-attempted",
            format!(
                "{missing} of {} declared attempts were never sent",
                declared.len()
            ),
        );
    }
    let open = declared
        .iter()
        .filter(|d| d.trace.is_some_and(|t| t.end.is_none()))
        .count();
    if open > 0 {
        return failed(
            "attempts-without-end",
            format!("{open} attempts were never read to their end"),
        );
    }
    let died = events.iter().find_map(|l| match &l.event {
        Event::RankExit {
            replica,
            expected: false,
            ..
        } => Some(replica.clone()),
        _ => None,
    });
    if let Some(replica) = died {
        return failed(
            "rank-died",
            format!("the engine of {replica} ended by itself"),
        );
    }
    let ended = |name: &str| {
        let exit =
            |l: &EventLine| matches!(&l.event, Event::RankExit { replica, .. } if replica == name);
        events.iter().any(exit)
    };
    let left = events.iter().find_map(|l| match &l.event {
        Event::RankUp { replica, .. } if !ended(replica) => Some(replica),
        _ => None,
    });
    if let Some(replica) = left {
        return failed(
            "rank-did-not-end",
            format!("nothing says that the engine of {replica} ended"),
        );
    }
    Status::Completed
}

/// States in the order they were entered.
pub fn states(events: &[EventLine]) -> Vec<State> {
    events
        .iter()
        .filter_map(|l| match l.event {
            Event::State { state } => Some(state),
            _ => None,
        })
        .collect()
}

/// Taints in log order.
pub fn taints(events: &[EventLine]) -> Vec<Taint> {
    events
        .iter()
        .filter_map(|l| match &l.event {
            Event::Taint {
                cause,
                detail,
                reqs,
            } => Some(Taint {
                cause: cause.clone(),
                detail: detail.clone(),
                reqs: reqs.clone(),
            }),
            _ => None,
        })
        .collect()
}
