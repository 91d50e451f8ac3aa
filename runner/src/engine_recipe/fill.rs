//! Placeholders: `{name}` or `{name:port}` in words and environments.
//!
//! Only a lower-case name between braces is one, so JSON among the arguments stays
//! as it is. A name that nobody knows is an error, not text.

use std::collections::BTreeMap;

/// Values of placeholders. `None`: known, but without a value here.
pub type Values = BTreeMap<String, Option<String>>;

/// Why a word cannot be filled.
#[derive(Debug, Clone, thiserror::Error, PartialEq, Eq)]
pub enum FillError {
    /// A name that nobody knows.
    #[error("{{{name}}} stands for nothing{hint}")]
    Unknown {
        /// The name.
        name: String,
        /// The nearest known one, as a hint.
        hint: String,
    },
    /// A placeholder without a value on this node.
    #[error("{{{0}}} has no value here (hint: the inventory does not say it)")]
    Absent(String),
}

/// Replaces the placeholders of a word. Those in `keep` stay.
pub fn fill(word: &str, values: &Values, keep: &[&str]) -> Result<String, FillError> {
    let mut out = String::with_capacity(word.len());
    let mut rest = word;
    while let Some(at) = rest.find('{') {
        out.push_str(&rest[..at]);
        rest = &rest[at..];
        let Some(name) = name_at(rest) else {
            out.push('{');
            rest = &rest[1..];
            continue;
        };
        match values.get(name) {
            None if keep.contains(&name) => out.push_str(&rest[..name.len() + 2]),
            None => return Err(unknown(name, values)),
            Some(_) if keep.contains(&name) => out.push_str(&rest[..name.len() + 2]),
            Some(None) => return Err(FillError::Absent(name.to_owned())),
            Some(Some(value)) => out.push_str(value),
        }
        rest = &rest[name.len() + 2..];
    }
    out.push_str(rest);
    Ok(out)
}

/// The name of the placeholder that text begins with.
fn name_at(text: &str) -> Option<&str> {
    let inner = &text[1..text.find('}')?];
    let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '_' | ':');
    let begins = inner.starts_with(|c: char| c.is_ascii_lowercase());
    (begins && inner.chars().all(plain)).then_some(inner)
}

fn unknown(name: &str, values: &Values) -> FillError {
    let nearest = values
        .keys()
        .map(|k| (strsim::damerau_levenshtein(name, k), k))
        .min()
        .filter(|(distance, k)| *distance <= 1 + k.len() / 3);
    FillError::Unknown {
        name: name.to_owned(),
        hint: nearest.map_or(String::new(), |(_, k)| {
            format!(" (hint: did you mean {{{k}}}?)")
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values() -> Values {
        [
            ("rank", Some("3")),
            ("head:ray", Some("10.0.0.1:6379")),
            ("draft", None),
        ]
        .map(|(k, v)| (k.to_owned(), v.map(str::to_owned)))
        .into()
    }

    #[test]
    fn names_are_filled_and_everything_else_stays() {
        let fill = |w| fill(w, &values(), &["address"]);
        assert_eq!(fill("--node-rank={rank}{rank}").unwrap(), "--node-rank=33");
        assert_eq!(fill("{head:ray}").unwrap(), "10.0.0.1:6379");
        for word in [
            "{\"a\":1}",
            "{}",
            "{A}",
            "{1}",
            "{a b}",
            "{",
            "x}",
            "{address}",
            "a{{b",
        ] {
            assert_eq!(fill(word).unwrap(), word);
        }
        assert_eq!(fill("{\"r\":{rank}}").unwrap(), "{\"r\":3}");
        assert_eq!(fill("{draft}"), Err(FillError::Absent("draft".to_owned())));
        let e = fill("{rnak}").unwrap_err().to_string();
        assert_eq!(e, "{rnak} stands for nothing (hint: did you mean {rank}?)");
        let e = fill("{completely_other}").unwrap_err().to_string();
        assert!(!e.contains("hint"), "{e}");
    }
}
