//! How a run ends before its time, and what the operator can do next.

/// Why a run does not go on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Stop {
    /// It cannot.
    Failure {
        /// Kebab-case cause.
        cause: &'static str,
        /// One sentence.
        detail: String,
    },
    /// It will not: something is not as pinned.
    Refusal {
        /// Kebab-case cause.
        cause: &'static str,
        /// One sentence.
        detail: String,
    },
    /// Someone asked it to end.
    Signal(&'static str),
}

impl Stop {
    pub(super) fn failure(cause: &'static str, detail: impl ToString) -> Self {
        Stop::Failure {
            cause,
            detail: detail.to_string(),
        }
    }

    /// What to do next, for whoever reads the terminal. Never part of the record.
    pub fn hint(&self) -> Option<&'static str> {
        let cause = match self {
            Stop::Signal(_) => {
                return Some("what was measured is kept, and the record will say aborted");
            }
            Stop::Failure { cause, .. } | Stop::Refusal { cause, .. } => *cause,
        };
        Some(match cause {
            "weights-not-verified" => {
                "nothing was launched or repaired; look with `verify weights`, replace the named copy, run again"
            }
            "replica-duplicate" => "give every replica of the plan a folder of its own",
            "replica-folders" => "is the folder writable, and is there space? (df -h .)",
            "launch-failed" | "not-ready" | "canary-failed" => {
                "the engine's own words are in engine/<replica>.log of the bundle"
            }
            "rank-died" => {
                "see engine/<replica>.log of the bundle; after signal 9 also dmesg, for out of memory"
            }
            "rank-would-not-end" => "look at the named process by hand before the next run",
            "process-not-as-planned" => {
                "compare engine/<replica>.json with plan.json in the bundle"
            }
            "evidence-write" => {
                "is the disk full, or a limit on file sizes set? (df -h, ulimit -f)"
            }
            "scorer-failed" => "docs/scorer-dialect.md has the limits; the answers are kept",
            _ => return None,
        })
    }
}
