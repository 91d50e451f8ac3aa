//! Room for connections: each open stream holds a file descriptor, and the usual
//! soft limit of 1024 would turn the 1,025th into a connect error of ours that
//! reads like the server's.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Descriptors that are open for other reasons: logs, pipes, the runtime, an extra
/// one per connection while it is looked at.
const OTHERS: u64 = 256;

/// The system allows fewer open files than streams were asked for.
#[derive(Debug, thiserror::Error)]
#[error(
    "{streams} streams need {needed} open files and the limit is {limit} (hint: ulimit -Hn, or fewer streams)"
)]
pub struct TooFew {
    streams: usize,
    needed: u64,
    limit: u64,
}

/// Raises this process's own limit so far that `streams` connections fit.
pub fn room_for(streams: usize) -> Result<(), TooFew> {
    let needed = (streams as u64).saturating_add(OTHERS);
    let now = getrlimit(Resource::Nofile);
    // No limit is written as none.
    let fits = |limit: Option<u64>| limit.is_none_or(|l| l >= needed);
    if fits(now.current) {
        return Ok(());
    }
    let raised = Rlimit {
        current: Some(needed),
        maximum: now.maximum,
    };
    if fits(now.maximum) && setrlimit(Resource::Nofile, raised).is_ok() {
        return Ok(());
    }
    Err(TooFew {
        streams,
        needed,
        limit: now.maximum.or(now.current).unwrap_or(0),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_streams_fit_and_absurdly_many_are_refused() {
        assert!(room_for(1).is_ok());
        if getrlimit(Resource::Nofile).maximum.is_some() {
            let why = room_for(usize::MAX / 2).unwrap_err().to_string();
            assert!(why.contains("hint"), "{why}");
        }
    }
}
