//! YAML as JSON values: what other tools' files need, and no more.
//!
//! Anchors, aliases, tags and keys that are no text are refused: nobody writes them
//! in the files that are imported, and aliases can make a small file endless.

use saphyr_parser::{Event, Parser, ScalarStyle, StrInput};
use serde_json::{Map, Number, Value};

/// Deepest nesting.
const MAX_DEPTH: usize = 32;
/// Longest file, in bytes.
const MAX_BYTES: usize = 1 << 20;

/// Why a file is not read.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum YamlError {
    /// It is not YAML.
    #[error("line {line}: {why}")]
    Syntax {
        /// From 1.
        line: usize,
        /// The parser's complaint.
        why: String,
    },
    /// It is YAML, but of a kind that is not read.
    #[error("line {line}: {what} are not read")]
    Refused {
        /// From 1.
        line: usize,
        /// What stands there.
        what: &'static str,
    },
    /// It is too long.
    #[error("the file is longer than {MAX_BYTES} bytes")]
    TooLong,
}

/// Reads the only document of a file.
pub fn parse(text: &str) -> Result<Value, YamlError> {
    if text.len() > MAX_BYTES {
        return Err(YamlError::TooLong);
    }
    let mut reader = Reader {
        parser: Parser::new_from_str(text),
        line: 1,
    };
    let mut document = None;
    loop {
        match reader.next()? {
            Event::StreamStart | Event::DocumentStart(_) | Event::DocumentEnd | Event::Nothing => {}
            Event::StreamEnd => return Ok(document.unwrap_or(Value::Null)),
            _ if document.is_some() => return Err(reader.refuse("several documents in one file")),
            event => document = Some(reader.value(event, 0)?),
        }
    }
}

struct Reader<'a> {
    parser: Parser<'a, StrInput<'a>>,
    line: usize,
}

impl<'a> Reader<'a> {
    fn next(&mut self) -> Result<Event<'a>, YamlError> {
        match self.parser.next_event() {
            None => Ok(Event::StreamEnd),
            Some(Ok((event, span))) => {
                self.line = span.start.line();
                Ok(event)
            }
            Some(Err(e)) => Err(YamlError::Syntax {
                line: e.marker().line(),
                why: e.info().to_owned(),
            }),
        }
    }

    fn refuse(&self, what: &'static str) -> YamlError {
        YamlError::Refused {
            line: self.line,
            what,
        }
    }

    fn value(&mut self, event: Event<'a>, depth: usize) -> Result<Value, YamlError> {
        if depth > MAX_DEPTH {
            return Err(self.refuse("values so deep in one another"));
        }
        match event {
            Event::Scalar(text, style, 0, None) => Ok(scalar(&text, style)),
            Event::SequenceStart(0, None) => {
                let mut items = Vec::new();
                loop {
                    match self.next()? {
                        Event::SequenceEnd => return Ok(Value::Array(items)),
                        event => items.push(self.value(event, depth + 1)?),
                    }
                }
            }
            Event::MappingStart(0, None) => {
                let mut map = Map::new();
                loop {
                    let key = match self.next()? {
                        Event::MappingEnd => return Ok(Value::Object(map)),
                        Event::Scalar(text, _, 0, None) => text.into_owned(),
                        _ => return Err(self.refuse("keys that are no text")),
                    };
                    let event = self.next()?;
                    let value = self.value(event, depth + 1)?;
                    if map.insert(key, value).is_some() {
                        return Err(self.refuse("keys that stand twice"));
                    }
                }
            }
            Event::Alias(_) => Err(self.refuse("aliases")),
            _ => Err(self.refuse("anchors and tags")),
        }
    }
}

/// The core schema's idea of a plain word; everything in quotes or blocks is text.
fn scalar(text: &str, style: ScalarStyle) -> Value {
    if style != ScalarStyle::Plain {
        return Value::String(text.to_owned());
    }
    match text {
        "" | "~" | "null" | "Null" | "NULL" => Value::Null,
        "true" | "True" | "TRUE" => Value::Bool(true),
        "false" | "False" | "FALSE" => Value::Bool(false),
        // A leading zero or sign would be lost, and with it what was written.
        _ if text.parse::<u64>().is_ok_and(|n| n.to_string() == text) => text
            .parse::<u64>()
            .map_or(Value::Null, |n| Value::Number(Number::from(n))),
        _ => Value::String(text.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn what_the_imported_files_hold_is_read() {
        let text = "name: four  # comment\nhosts:\n  - 10.0.0.1\n  - gx1.lan\nuser: null\n\
                    defaults: {port: 8000, share: 0.88, on: true}\nenv:\n  A: \"1\"\n  B: 007\n\
                    command: |\n  vllm serve x \\\n    --port {port}\n";
        assert_eq!(
            parse(text).unwrap(),
            json!({"name": "four", "hosts": ["10.0.0.1", "gx1.lan"], "user": null,
                "defaults": {"port": 8000, "share": "0.88", "on": true},
                "env": {"A": "1", "B": "007"},
                "command": "vllm serve x \\\n  --port {port}\n"})
        );
        assert_eq!(parse("").unwrap(), Value::Null);
    }

    #[test]
    fn what_nobody_writes_is_refused_with_its_line() {
        for (text, line, says) in [
            ("a: &x 1\nb: *x\n", 1, "anchors"),
            ("a: 1\nb: !!str 2\n", 2, "tags"),
            ("a: 1\na: 2\n", 2, "twice"),
            ("? [a]\n: 1\n", 1, "no text"),
            ("a: 1\n---\nb: 2\n", 3, "several documents"),
            ("a: [1\n", 2, ""),
            ("a:\n\t- b\n", 2, ""),
        ] {
            let e = parse(text).unwrap_err().to_string();
            assert!(e.contains(says) && e.contains("line "), "{text:?}: {e}");
            assert!(e.starts_with(&format!("line {line}:")), "{text:?}: {e}");
        }
        assert!(parse(&"[".repeat(1000)).is_err());
        assert_eq!(parse(&" ".repeat(MAX_BYTES + 1)), Err(YamlError::TooLong));
    }
}
