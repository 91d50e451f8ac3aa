//! Hints for names that nobody knows: the nearest one that somebody does.

/// Hint for the TOML reader's "unknown field" message, which lists what it knows.
pub fn unknown_name(message: &str) -> Option<String> {
    let rest = message.strip_prefix("unknown field ")?;
    let mut names = rest.split('`').skip(1).step_by(2);
    let unknown = names.next()?;
    nearest(unknown, names)
}

/// ` (hint: did you mean "...")`, when a name is near enough.
pub fn nearest<'a>(unknown: &str, known: impl Iterator<Item = &'a str>) -> Option<String> {
    let (distance, name) = known
        .map(|name| (strsim::damerau_levenshtein(unknown, name), name))
        .min()?;
    let near = distance <= (unknown.chars().count() / 3).max(1);
    near.then(|| format!(" (hint: did you mean {name:?}?)"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn near_names_are_suggested_and_far_ones_are_not() {
        let message = "unknown field `concurency`, expected `concurrency` or `repetitions`";
        let hint = unknown_name(message);
        assert_eq!(
            hint.as_deref(),
            Some(" (hint: did you mean \"concurrency\"?)")
        );
        assert_eq!(
            unknown_name("unknown field `colour`, expected `concurrency`"),
            None
        );
        assert_eq!(unknown_name("missing field `seed`"), None);
    }
}
