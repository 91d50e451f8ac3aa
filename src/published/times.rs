//! Times as published records write them: RFC 3339 with or without seconds.

use jiff::Timestamp;

/// A time, known to within a span.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Time {
    start: i64,
    span: i64,
}

impl Time {
    /// Earliest second since 1970.
    pub fn earliest(self) -> i64 {
        self.start
    }

    /// Latest second since 1970.
    pub fn latest(self) -> i64 {
        self.start + self.span
    }
}

/// Reads `2026-09-05T17:00:46Z` and `2026-09-05T17:00Z`.
pub fn read(text: &str) -> Option<Time> {
    if let Ok(t) = text.parse::<Timestamp>()
        && text.matches(':').count() >= 2
    {
        let start = t.as_second();
        return Some(Time { start, span: 0 });
    }
    let minute = text.strip_suffix('Z')?;
    let t: Timestamp = format!("{minute}:00Z").parse().ok()?;
    let start = t.as_second();
    Some(Time { start, span: 59 })
}

/// The time that a run id such as `20260905T170046Z-name` begins with.
pub fn of_run_id(id: &str) -> Option<Time> {
    let stamp = id.get(..16)?.strip_suffix('Z')?;
    let (date, time) = stamp.split_once('T')?;
    let digits = |s: &str, n: usize| s.len() == n && s.bytes().all(|b| b.is_ascii_digit());
    if !digits(date, 8) || !digits(time, 6) {
        return None;
    }
    read(&format!(
        "{}-{}-{}T{}:{}:{}Z",
        &date[..4],
        &date[4..6],
        &date[6..],
        &time[..2],
        &time[2..4],
        &time[4..]
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn minutes_and_seconds_are_told_apart() {
        let minute = read("2026-09-20T14:31Z").unwrap();
        assert_eq!(minute.latest() - minute.earliest(), 59);
        let second = read("2026-09-20T14:31:05Z").unwrap();
        assert_eq!(second.earliest() - minute.earliest(), 5);
        assert_eq!(of_run_id("20260920T143105Z-x"), Some(second));
        for bad in ["", "yesterday", "2026-09-20", "2026-13-01T00:00Z"] {
            assert_eq!(read(bad), None, "{bad}");
        }
        assert_eq!(of_run_id("glm53-flash"), None);
        assert_eq!(of_run_id("2026é920T143105Z-x"), None);
    }
}
