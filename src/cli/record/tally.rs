//! What became of several records.

use runseal::audit::Verdict;

use super::one::Report;
use crate::cli::output;

/// Counts over all records.
#[derive(Default)]
pub struct Tally {
    pub verified: usize,
    self_consistent: usize,
    unsigned: usize,
    not_verified: usize,
    pub other_status: usize,
    pub unread: usize,
    pub passed_over: usize,
    pub links: usize,
}

impl Tally {
    pub fn count(&mut self, report: &Report, status_ok: bool) {
        match report.verdict() {
            Verdict::Verified => self.verified += 1,
            Verdict::SelfConsistent if report.unsigned() => self.unsigned += 1,
            Verdict::SelfConsistent => self.self_consistent += 1,
            Verdict::NotVerified => self.not_verified += 1,
        }
        self.other_status += usize::from(!status_ok);
    }

    /// Records that were audited or should have been.
    pub fn all(&self) -> usize {
        self.verified + self.self_consistent + self.unsigned + self.not_verified + self.unread
    }

    pub fn line(&self) -> String {
        let mut line = format!(
            "{}: {} verified, {} self-consistent with a signer not trusted, {} not verified",
            output::count(self.all(), "record"),
            self.verified,
            self.self_consistent,
            self.not_verified
        );
        for (n, what) in [
            (self.unsigned, "self-consistent and not signed"),
            (self.other_status, "without the required status"),
            (self.unread, "not readable"),
            (self.passed_over, "other files passed over"),
            (self.links, "links not followed"),
        ] {
            if n > 0 {
                line.push_str(&format!(", {n} {what}"));
            }
        }
        line
    }
}
