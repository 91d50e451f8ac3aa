//! The one door for printing. Data goes to stdout; stderr is for people.
//!
//! File names and values from files end up on a terminal, so every character
//! that could move the cursor, hide text or turn its direction is shown as an
//! escape.

use std::fmt::Write as _;
use std::io::{self, IsTerminal, Write};

use anyhow::Context;
use serde::Serialize;

/// Writes text to stdout. A reader that went away (`| head`) is not an error: the
/// exit code still tells.
pub fn print(text: &str) -> anyhow::Result<()> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(e) if e.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        other => other.context("could not write to stdout"),
    }
}

/// Writes one JSON object and a newline to stdout.
pub fn print_json(value: &impl Serialize) -> anyhow::Result<()> {
    let mut text = String::from_utf8(runseal::json::canonical(value))?;
    text.push('\n');
    print(&text)
}

/// Writes a line to stderr.
pub fn complain(text: &str) {
    // Nobody is left to tell when stderr is gone.
    let _ = writeln!(io::stderr(), "{}", plain(text));
}

/// Text that shows as what it is: control, direction and invisible characters
/// become escapes.
pub fn plain(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        let unseen = matches!(c, '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}'
            | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{e0000}'..='\u{e007f}');
        if unseen || (c.is_control() && c != '\n') {
            // Writing to a String cannot fail.
            let _ = write!(out, "\\u{{{:x}}}", c as u32);
        } else {
            out.push(c);
        }
    }
    out
}

/// A number with a comma between groups of three digits.
pub fn thousands(n: u64) -> String {
    let digits = n.to_string();
    let mut out = String::new();
    for (i, c) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(c);
    }
    out
}

/// `1 file`, `2 files`.
pub fn count(n: usize, what: &str) -> String {
    format!("{n} {what}{}", if n == 1 { "" } else { "s" })
}

/// Colours, when stdout is a terminal and nobody objects.
pub struct Paint(bool);

impl Paint {
    /// Looks at stdout, `NO_COLOR` and `TERM`.
    pub fn for_stdout() -> Self {
        let set = |name: &str| std::env::var_os(name).filter(|v| !v.is_empty());
        let dumb = set("TERM").is_some_and(|t| t == "dumb");
        Self(io::stdout().is_terminal() && set("NO_COLOR").is_none() && !dumb)
    }

    fn wrap(&self, code: &str, text: &str) -> String {
        if self.0 {
            format!("\x1b[{code}m{text}\x1b[0m")
        } else {
            text.to_owned()
        }
    }

    /// Good news.
    pub fn good(&self, text: &str) -> String {
        self.wrap("32", text)
    }

    /// Bad news.
    pub fn bad(&self, text: &str) -> String {
        self.wrap("1;31", text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_reaches_the_terminal_unseen() {
        assert_eq!(
            plain("a\u{9b}2Jb\u{202e}c\x1b[2J"),
            "a\\u{9b}2Jb\\u{202e}c\\u{1b}[2J"
        );
        assert_eq!(plain("naïve 日本\n"), "naïve 日本\n");
    }

    #[test]
    fn numbers_are_grouped() {
        for (n, text) in [
            (0, "0"),
            (999, "999"),
            (1000, "1,000"),
            (1234567, "1,234,567"),
        ] {
            assert_eq!(thousands(n), text);
        }
    }
}
