//! A command line as words, the way a POSIX shell splits it, without expanding
//! anything.

/// Why a command is not split.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum WordsError {
    /// A quote is not closed.
    #[error("a quote is not closed")]
    Quote,
    /// A shell would put something else in its place.
    #[error("a shell would interpret {0:?}")]
    Shell(char),
}

/// Splits at white space, minding quotes and backslashes.
pub fn split(text: &str) -> Result<Vec<String>, WordsError> {
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        match c {
            '\'' => {
                let word = word.get_or_insert_default();
                loop {
                    match chars.next().ok_or(WordsError::Quote)? {
                        '\'' => break,
                        c => word.push(c),
                    }
                }
            }
            '"' => {
                let word = word.get_or_insert_default();
                loop {
                    match chars.next().ok_or(WordsError::Quote)? {
                        '"' => break,
                        '\\' => match chars.next().ok_or(WordsError::Quote)? {
                            '\n' => {}
                            c @ ('"' | '\\' | '$' | '`') => word.push(c),
                            c => word.extend(['\\', c]),
                        },
                        c @ ('$' | '`') => return Err(WordsError::Shell(c)),
                        c => word.push(c),
                    }
                }
            }
            '\\' => match chars.next() {
                Some('\n') => {}
                Some(c) => word.get_or_insert_default().push(c),
                None => return Err(WordsError::Quote),
            },
            '#' if word.is_none() => while chars.next_if(|c| *c != '\n').is_some() {},
            c @ ('$' | '`' | ';' | '|' | '&' | '<' | '>' | '(' | ')') => {
                return Err(WordsError::Shell(c));
            }
            c if c.is_whitespace() => words.extend(word.take()),
            c => word.get_or_insert_default().push(c),
        }
    }
    words.extend(word);
    Ok(words)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_those_of_a_shell() {
        let text =
            "vllm serve 'a b' \\\n  --x={y} \"q\\\"\\n\" '' -cc.ops='[\"all\"]' # end\nlast\\ one";
        let ours = split(text).unwrap();
        assert_eq!(
            ours,
            [
                "vllm",
                "serve",
                "a b",
                "--x={y}",
                "q\"\\n",
                "",
                "-cc.ops=[\"all\"]",
                "last one"
            ]
        );
        let out = std::process::Command::new("sh")
            .args([
                "-c",
                &format!(
                    "for w in {}; do printf '%s|' \"$w\"; done",
                    text.replace("# end\n", "")
                ),
            ])
            .output()
            .unwrap();
        assert_eq!(String::from_utf8_lossy(&out.stdout), ours.join("|") + "|");
    }

    #[test]
    fn what_a_shell_would_change_is_refused() {
        for text in [
            "a $HOME",
            "a \"`b`\"",
            "a; b",
            "a | b",
            "a && b",
            "a > b",
            "$(a)",
        ] {
            assert!(matches!(split(text), Err(WordsError::Shell(_))), "{text}");
        }
        for text in ["'a", "\"a", "a\\"] {
            assert_eq!(split(text), Err(WordsError::Quote), "{text}");
        }
        // In single quotes nothing is special.
        assert_eq!(split("'$a;`b`'").unwrap(), ["$a;`b`"]);
    }
}
