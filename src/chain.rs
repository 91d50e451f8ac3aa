//! An error and its causes in one line, each thing said once.

use std::error::Error;

/// The messages from the error down to its last cause, joined by colons. Many
/// messages quote their cause already; what was said is not said again.
pub fn chain(error: &(dyn Error + 'static)) -> String {
    let mut out = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let text = error.to_string();
        if !out.contains(&text) {
            out.push_str(": ");
            out.push_str(&text);
        }
        cause = error.source();
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("outside")]
    struct Outside(#[source] Quoting);

    #[derive(Debug, thiserror::Error)]
    #[error("quoting: {0}")]
    struct Quoting(#[source] Inside);

    #[derive(Debug, thiserror::Error)]
    #[error("inside")]
    struct Inside;

    #[test]
    fn a_cause_that_was_quoted_is_not_repeated() {
        assert_eq!(chain(&Outside(Quoting(Inside))), "outside: quoting: inside");
        assert_eq!(chain(&Inside), "inside");
    }
}
