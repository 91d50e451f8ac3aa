//! The Prometheus text format, as far as servers use it: one sample a line.
//!
//! Numbers stay text until they are asked for, and whole numbers are read exactly:
//! `8.128902e+06` is 8128902 and no double.

use std::collections::BTreeMap;

use super::FactValue;
use crate::json::MAX_INTEGER;

/// Most samples of a document that are read.
const MAX_SERIES: usize = 200_000;

/// One sample.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Series {
    /// Metric name.
    pub name: String,
    /// Its labels.
    pub labels: BTreeMap<String, String>,
    /// Its value as written.
    pub value: String,
}

/// All samples of a document, in order; `None` when a line is no sample, comment or
/// empty line, because then nothing can be said of what is missing.
pub fn parse(bytes: &[u8]) -> Option<Vec<Series>> {
    let text = std::str::from_utf8(bytes).ok()?;
    let mut out = Vec::new();
    for line in text.split('\n') {
        let line = line
            .strip_suffix('\r')
            .unwrap_or(line)
            .trim_matches([' ', '\t']);
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        out.push(sample(line)?);
        if out.len() > MAX_SERIES {
            return None;
        }
    }
    Some(out)
}

fn sample(line: &str) -> Option<Series> {
    let end = line.find(['{', ' ', '\t'])?;
    let (name, mut rest) = line.split_at(end);
    let mut labels = BTreeMap::new();
    if let Some(inner) = rest.strip_prefix('{') {
        rest = read_labels(inner, &mut labels)?;
    }
    // A timestamp may follow the value.
    let value = rest.split([' ', '\t']).find(|part| !part.is_empty())?;
    (!name.is_empty()).then(|| Series {
        name: name.to_owned(),
        labels,
        value: value.to_owned(),
    })
}

/// Reads labels up to the closing brace and gives what follows it.
fn read_labels<'a>(mut rest: &'a str, into: &mut BTreeMap<String, String>) -> Option<&'a str> {
    loop {
        rest = rest.trim_start_matches([' ', ',']);
        if let Some(after) = rest.strip_prefix('}') {
            return Some(after);
        }
        let (name, after) = rest.split_once("=\"")?;
        let (mut value, mut escaped, mut end) = (String::new(), false, None);
        for (i, c) in after.char_indices() {
            match (escaped, c) {
                (true, 'n') => value.push('\n'),
                (true, other) => value.push(other),
                (false, '\\') => {}
                (false, '"') => {
                    end = Some(i + 1);
                    break;
                }
                (false, other) => value.push(other),
            }
            escaped = !escaped && c == '\\';
        }
        if into.insert(name.trim().to_owned(), value).is_some() {
            return None;
        }
        rest = &after[end?..];
    }
}

/// Ranks of one group report the same number each; the first one speaks for them.
fn first_rank(series: &Series) -> bool {
    ["tp_rank", "pp_rank"]
        .iter()
        .all(|rank| series.labels.get(*rank).is_none_or(|r| r == "0"))
}

/// Sum over the series of a metric, where all are whole numbers; the one value as it
/// is written where there is one and it is another number.
pub fn total(series: &[Series], name: &str) -> Option<FactValue> {
    let mut of_name = series.iter().filter(|s| s.name == name && first_rank(s));
    let values: Vec<&str> = of_name.by_ref().map(|s| s.value.as_str()).collect();
    let whole: Option<Vec<u64>> = values.iter().map(|v| whole(v)).collect();
    match (values.as_slice(), whole) {
        ([], _) => None,
        (_, Some(whole)) => {
            let sum = whole.iter().try_fold(0u64, |sum, n| sum.checked_add(*n))?;
            (sum <= MAX_INTEGER).then_some(FactValue::Count(sum))
        }
        ([one], None) => Some(FactValue::Text((*one).to_owned())),
        _ => None,
    }
}

/// A label of the one series of a metric. `None`, as Python writes nothing, states nothing.
pub fn label(series: &[Series], name: &str, label: &str) -> Option<FactValue> {
    let mut of_name = series.iter().filter(|s| s.name == name && first_rank(s));
    let only = of_name.next()?;
    if of_name.next().is_some() {
        return None;
    }
    let text = only.labels.get(label).filter(|t| *t != "None")?;
    Some(whole(text).map_or_else(|| FactValue::Text(text.clone()), FactValue::Count))
}

/// The exact whole number that a decimal stands for, up to 2^53.
fn whole(text: &str) -> Option<u64> {
    let (mantissa, exponent) = match text.split_once(['e', 'E']) {
        Some((m, e)) => (m, e.parse::<i32>().ok()?),
        None => (text, 0),
    };
    let (int, part) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let digits = format!("{int}{part}");
    if digits.is_empty() || digits.len() > 40 || !digits.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    let shift = exponent.checked_sub(i32::try_from(part.len()).ok()?)?;
    let digits = match shift {
        0.. => {
            let zeros = usize::try_from(shift).ok().filter(|z| *z <= 40)?;
            digits + &"0".repeat(zeros)
        }
        _ => {
            let drop = usize::try_from(-shift).ok()?;
            let keep = digits.len().saturating_sub(drop);
            let cut = digits[keep..].bytes().all(|b| b == b'0');
            cut.then(|| digits[..keep].to_owned())?
        }
    };
    let digits = digits.trim_start_matches('0');
    match digits {
        "" => Some(0),
        _ => digits.parse().ok().filter(|n| *n <= MAX_INTEGER),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_numbers_are_read_exactly() {
        for (text, want) in [
            ("0", Some(0)),
            ("62.0", Some(62)),
            ("8.128902e+06", Some(8_128_902)),
            ("1e3", Some(1000)),
            ("4.685590528e+09", Some(4_685_590_528)),
            ("120e-1", Some(12)),
            ("9007199254740992", Some(1 << 53)),
            ("9007199254740993", None),
            ("0.5", None),
            ("1.5e-3", None),
            ("-1", None),
            ("NaN", None),
            ("+Inf", None),
            ("", None),
            ("1e999999999", None),
            (".", None),
        ] {
            assert_eq!(whole(text), want, "{text:?}");
        }
    }

    #[test]
    fn samples_labels_and_comments() {
        let text =
            "# HELP a b\n\na 1\nb{x=\"1\",y=\"a \\\"q\\\" \\\\ \\n}\"} 2.0 1700000000\r\nc{} 3\n";
        let series = parse(text.as_bytes()).unwrap();
        assert_eq!(series.len(), 3);
        assert_eq!(series[1].labels["y"], "a \"q\" \\ \n}");
        assert_eq!(total(&series, "b"), Some(FactValue::Count(2)));
        assert_eq!(total(&series, "d"), None);
        for torn in [
            "a",
            "a{x=\"1\" 2",
            "a{x=1} 2",
            "a{x=\"1\",x=\"2\"} 1",
            "{} 1",
            "\u{fffd}{",
        ] {
            assert_eq!(parse(torn.as_bytes()), None, "{torn:?}");
        }
        assert_eq!(parse(b"a \xff"), None);
    }

    #[test]
    fn series_add_up_and_ranks_do_not() {
        let text = "g{dp_rank=\"0\",tp_rank=\"0\"} 1\ng{dp_rank=\"0\",tp_rank=\"1\"} 1\ng{dp_rank=\"1\",tp_rank=\"0\"} 2\n\
                    r 0.5\nm{a=\"1\"} 1\nm{a=\"2\"} NaN\n";
        let series = parse(text.as_bytes()).unwrap();
        assert_eq!(total(&series, "g"), Some(FactValue::Count(3)));
        assert_eq!(total(&series, "r"), Some(FactValue::Text("0.5".into())));
        assert_eq!(total(&series, "m"), None);
        assert_eq!(label(&series, "m", "a"), None, "of which of the two?");
    }
}
