//! `verify explain`: what a finding means, why it matters, what to do.

use anyhow::bail;
use runseal::codes::Code;
use runseal::finding::Severity;
use serde_json::json;

use super::output::{print, print_json};
use super::{Answer, Format};

/// Explain a finding code: what it means, why it matters, what to do
#[derive(clap::Args)]
pub struct Args {
    /// The code, for example digest-mismatch; without it all codes are listed
    code: Option<String>,
    /// How to print
    #[arg(long, value_enum, default_value = "human")]
    format: Format,
}

pub fn run(args: Args) -> anyhow::Result<Answer> {
    match (&args.code, args.format) {
        (None, Format::Human) => print(&list())?,
        (None, Format::Json) => {
            print_json(&Code::ALL.iter().map(|c| entry(*c)).collect::<Vec<_>>())?
        }
        (Some(name), format) => {
            let code = find(name)?;
            match format {
                Format::Human => print(&page(code))?,
                Format::Json => print_json(&entry(code))?,
            }
        }
    }
    Ok(Answer::Passed)
}

fn find(name: &str) -> anyhow::Result<Code> {
    if let Ok(code) = name.to_lowercase().parse() {
        return Ok(code);
    }
    let nearest = Code::ALL.iter().min_by_key(|c| distance(c.name(), name));
    match nearest.filter(|c| distance(c.name(), name) <= c.name().len() / 2) {
        Some(code) => bail!("no finding has the code {name:?} (hint: did you mean {code}?)"),
        None => bail!("no finding has the code {name:?} (hint: `verify explain` lists them all)"),
    }
}

fn list() -> String {
    let width = Code::ALL.iter().map(|c| c.name().len()).max().unwrap_or(0);
    let line = |c: &Code| format!("{:width$}  {}\n", c.name(), c.explain().0);
    Code::ALL.iter().map(line).collect()
}

fn page(code: Code) -> String {
    let (meaning, why, todo) = code.explain();
    format!(
        "{code} ({})\n\n{meaning}\n\nWhy it matters: {why}\nWhat to do: {todo}\n",
        severity(code)
    )
}

fn entry(code: Code) -> serde_json::Value {
    let (meaning, why, todo) = code.explain();
    json!({
        "code": code.name(),
        "severity": severity(code),
        "meaning": meaning,
        "why": why,
        "what_to_do": todo,
    })
}

fn severity(code: Code) -> &'static str {
    match code.severity() {
        Severity::Error => "error",
        Severity::Note => "note",
    }
}

/// Edit distance: insertions, deletions and replacements of one character.
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, y) in b.iter().enumerate() {
            let replaced = diagonal + usize::from(x != *y);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distances() {
        for (a, b, d) in [
            ("", "abc", 3),
            ("abc", "abc", 0),
            ("kitten", "sitting", 3),
            ("ab", "ba", 2),
        ] {
            assert_eq!(distance(a, b), d, "{a} {b}");
        }
    }
}
