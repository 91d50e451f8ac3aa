//! The audit of a bundle: what its record says, held against what follows.
//!
//! Pure: bytes, trusted keys and a way to run the scorer come in as arguments.
//! Every check has one of three outcomes, and one that could not be performed
//! says why. Nothing starts as "passed".

mod compare;
mod evidence;
mod grades;
mod lag;
mod life;
mod load;
pub mod report;
mod requests;
mod servers;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::bundle::Evidence;
use crate::bundle::index::{INDEX_FILE, Index, RECORD_FILE};
use crate::bundle::read::RawBundle;
use crate::codes::Code;
use crate::digest::Sha256Digest;
use crate::envelope;
use crate::finding::{Check, Finding, Outcome, Severity, all_good};
use crate::keys::PublicKey;
use crate::record::subjects::INDEX_SUBJECT;
use crate::record::{PREDICATE_TYPE, RecordStatement, RunRecord, Stated, derive};
use crate::schema;
use crate::scorer::{GradeItem, GradeResult};
use crate::statement::{PAYLOAD_TYPE, STATEMENT_TYPE};

/// Runs the frozen scorer over items; `Err` says why it was not performed.
pub type Grader<'a> = &'a dyn Fn(&[u8], &[GradeItem]) -> Result<Vec<GradeResult>, String>;

/// What the reader brings to an audit.
pub struct Reader<'a> {
    /// Keys that the reader trusts.
    pub trusted: &'a [PublicKey],
    /// How to run a scorer.
    pub grader: Grader<'a>,
    /// The commitment that the operator handed over before the run, if any.
    pub commitment: Option<Sha256Digest>,
}

/// What an audit comes to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// Every required check passed, and the signer is trusted.
    Verified,
    /// Every required check passed except that the signer is not trusted.
    SelfConsistent,
    /// Something does not hold or could not be checked.
    NotVerified,
}

/// A published figure and what the auditor makes of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Figure {
    /// Definition id.
    pub id: String,
    /// As in the record.
    pub stated: Option<String>,
    /// As it follows from the evidence.
    pub recomputed: Option<String>,
    /// Unit.
    pub unit: String,
    /// Values that went in.
    pub n: u64,
    /// `recomputed`, or `stated` when it could not be derived.
    pub derivation: String,
    /// Who vouches for the events.
    pub witness: String,
    /// Remark on the figure.
    pub note: Option<String>,
}

/// The result of an audit.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct AuditReport {
    /// What was audited.
    pub path: String,
    /// The verdict.
    pub verdict: Verdict,
    /// Checks in the order performed.
    pub checks: Vec<Check>,
    /// Findings, errors first.
    pub findings: Vec<Finding>,
    /// Figures side by side.
    pub figures: Vec<Figure>,
    /// The record as it follows from the evidence, when it could be derived.
    pub derived: Option<Box<RunRecord>>,
    /// How grades were established: `recomputed` or `not recomputed (why)`.
    pub grades: String,
    /// Fingerprints of valid signers.
    pub signers: Vec<String>,
}

impl AuditReport {
    /// Exit code 0 or 1 (DESIGN §2).
    pub fn exit_code(&self) -> u8 {
        u8::from(self.verdict != Verdict::Verified)
    }
}

/// Audits a bundle.
pub fn audit(path: &str, raw: &RawBundle, reader: &Reader) -> AuditReport {
    let mut a = Audit::default();
    a.findings.extend(raw.findings.iter().cloned());
    a.close(
        "bundle-files",
        &[
            Code::EvidenceFileType,
            Code::EvidenceExtra,
            Code::EvidenceMalformed,
        ],
    );
    let statement = a.record(raw, reader);
    let index = a.index(raw, statement.as_ref());
    let evidence = a.evidence(raw);
    let mut derived = None;
    let mut figures = Vec::new();
    if let Some(e) = &evidence {
        evidence::run_identity(&mut a, e, index.as_ref());
        if let Some(wanted) = reader.commitment {
            evidence::commitment(&mut a, e, wanted);
        }
        life::run_life(&mut a, e);
        evidence::suite(&mut a, e);
        evidence::weights(&mut a, e);
        requests::requests(&mut a, e);
        servers::servers(&mut a, e);
        evidence::responses(&mut a, e);
        grades::grades(&mut a, e, reader.grader);
    } else {
        if reader.commitment.is_some() {
            a.skip("commitment", true, "the evidence could not be parsed");
        }
        for name in [
            "run-identity",
            "run-life",
            "suite",
            "weights",
            "requests",
            "servers",
            "responses",
            "grades",
        ] {
            a.skip(name, true, "the evidence could not be parsed");
        }
        a.grades = "not recomputed (the evidence could not be parsed)".into();
    }
    match (&statement, &evidence, &index) {
        (Some(s), Some(e), Some(i)) => {
            let stated = Stated {
                tool: s.predicate.provenance.tool.clone(),
                signers: s.predicate.provenance.signers.clone(),
            };
            let record = derive::record(e, i, &stated);
            let index_digest = Sha256Digest::of(raw.index.as_deref().unwrap_or_default());
            a.findings.extend(compare::record(s, &record, index_digest));
            a.findings.extend(compare::signer_of_log(s, e));
            a.close("record", compare::CODES);
            figures = compare::figures(&s.predicate, &record, a.grades == "recomputed");
            lag::lagging_figures(&mut a, &record);
            servers::foreign_traffic(&mut a, &record);
            requests::claims(&mut a, &record);
            derived = Some(Box::new(record));
        }
        (Some(s), _, _) => {
            a.skip("record", true, "the evidence could not be parsed");
            figures = compare::stated_figures(&s.predicate);
        }
        _ => a.skip("record", true, "there is no record to compare"),
    }
    a.finish(path, derived, figures)
}

/// An audit in progress.
#[derive(Default)]
struct Audit {
    checks: Vec<Check>,
    findings: Vec<Finding>,
    withheld: Vec<String>,
    unopened: Vec<String>,
    grades: String,
    signers: Vec<String>,
}

impl Audit {
    fn add(&mut self, code: Code, subject: &str, detail: impl Into<String>) {
        self.findings.push(Finding::new(code, subject, detail));
    }

    /// Closes a check: failed when a finding has one of its codes.
    fn close(&mut self, name: &str, codes: &[Code]) {
        let failed = self
            .findings
            .iter()
            .any(|f| f.severity == Severity::Error && codes.contains(&f.code));
        let outcome = if failed {
            Outcome::Failed
        } else {
            Outcome::Passed
        };
        self.push(name, true, outcome);
    }

    fn skip(&mut self, name: &str, required: bool, reason: &str) {
        let reason = reason.to_owned();
        self.push(name, required, Outcome::NotPerformed { reason });
    }

    fn push(&mut self, name: &str, required: bool, outcome: Outcome) {
        self.checks.push(Check {
            name: name.to_owned(),
            required,
            outcome,
        });
    }

    /// Why a check that needs `file` cannot be performed: withheld (allowed) or
    /// there but tied to nothing (not allowed).
    fn absent(&self, file: &str) -> Option<(bool, String)> {
        if self.withheld.iter().any(|w| w == file) {
            return Some((false, format!("{file} is withheld")));
        }
        if self.unopened.iter().any(|w| w == file) {
            return Some((
                true,
                format!("{file} is here without the salt of its commitment"),
            ));
        }
        None
    }

    /// Envelope, signature, trust, statement.
    fn record(&mut self, raw: &RawBundle, reader: &Reader) -> Option<RecordStatement> {
        const LATER: [&str; 4] = ["envelope", "statement", "signature", "signer-trusted"];
        let Some(bytes) = &raw.record else {
            self.add(Code::RecordMissing, RECORD_FILE, "the bundle has no record");
            for name in LATER {
                self.skip(name, true, "there is no record");
            }
            return None;
        };
        let envelopes = match envelope::parse_own_lines(bytes) {
            Ok(e) => e,
            Err(findings) => {
                self.findings.extend(findings);
                self.close(
                    "envelope",
                    &[
                        Code::EnvelopeMalformed,
                        Code::EnvelopeNotCanonical,
                        Code::EnvelopesDiffer,
                    ],
                );
                for name in &LATER[1..] {
                    self.skip(name, true, "the envelope could not be read");
                }
                return None;
            }
        };
        self.push("envelope", true, Outcome::Passed);
        let statement = envelopes
            .first()
            .and_then(|e| self.statement(&e.payload_type, &e.payload));
        self.close(
            "statement",
            &[Code::StatementMalformed, Code::SchemaInvalid],
        );
        let Some(statement) = statement else {
            self.skip(
                "signature",
                true,
                "the payload names no signer that could be read",
            );
            self.skip(
                "signer-trusted",
                true,
                "the payload names no signer that could be read",
            );
            return None;
        };
        let mut named = Vec::new();
        for signer in &statement.predicate.provenance.signers {
            match PublicKey::from_pem(&signer.public_key) {
                Ok(key) if key.to_pem() != signer.public_key => self.add(
                    Code::SignerUnexpected,
                    RECORD_FILE,
                    "a public key in the payload is not in its one text form",
                ),
                Ok(key) => named.push((signer.keyid.clone(), key)),
                Err(e) => self.add(Code::SignerUnexpected, RECORD_FILE, e.to_string()),
            }
        }
        let report = envelope::check_signers(&envelopes, &named, reader.trusted);
        self.findings.extend(report.findings);
        self.signers = report.valid.iter().map(PublicKey::fingerprint).collect();
        self.close(
            "signature",
            &[Code::SignatureInvalid, Code::SignerUnexpected],
        );
        self.close("signer-trusted", &[Code::SignerNotTrusted]);
        if statement.predicate.provenance.key_origin == "this_run" {
            self.add(
                Code::KeyMadeByRun,
                RECORD_FILE,
                "the run that it signs made the key",
            );
        }
        Some(statement)
    }

    fn statement(&mut self, payload_type: &str, payload: &[u8]) -> Option<RecordStatement> {
        if payload_type != PAYLOAD_TYPE {
            self.add(
                Code::StatementMalformed,
                RECORD_FILE,
                format!("its payload type is {payload_type:?}, not {PAYLOAD_TYPE:?}"),
            );
            return None;
        }
        let value: Value = match crate::json::parse(payload) {
            Ok(v) if crate::json::canonical(&v) == payload => v,
            Ok(_) => {
                self.add(
                    Code::StatementMalformed,
                    RECORD_FILE,
                    "its payload is not in canonical form",
                );
                return None;
            }
            Err(e) => {
                self.add(Code::StatementMalformed, RECORD_FILE, e.to_string());
                return None;
            }
        };
        let kind = |key: &str| value[key].as_str().unwrap_or_default().to_owned();
        if kind("_type") != STATEMENT_TYPE || kind("predicateType") != PREDICATE_TYPE {
            self.add(
                Code::StatementMalformed,
                RECORD_FILE,
                format!(
                    "it is a {:?} of type {:?}",
                    kind("predicateType"),
                    kind("_type")
                ),
            );
            return None;
        }
        if let Err(errors) = schema::validate("record", &value) {
            for e in errors {
                self.add(Code::SchemaInvalid, RECORD_FILE, e);
            }
            return None;
        }
        match serde_json::from_value(value) {
            Ok(s) => Some(s),
            Err(e) => {
                self.add(Code::SchemaInvalid, RECORD_FILE, e.to_string());
                None
            }
        }
    }

    /// Index against statement and files.
    fn index(&mut self, raw: &RawBundle, statement: Option<&RecordStatement>) -> Option<Index> {
        const CODES: &[Code] = &[
            Code::IndexMissing,
            Code::IndexMalformed,
            Code::IndexDigestMismatch,
            Code::EvidenceMissing,
            Code::EvidenceExtra,
            Code::EvidenceAltered,
        ];
        let Some(bytes) = &raw.index else {
            self.add(Code::IndexMissing, INDEX_FILE, "the bundle has no index");
            self.close("index", CODES);
            return None;
        };
        if let Some(s) = statement {
            let found = Sha256Digest::of(bytes);
            let want = s.subject.iter().find(|s| s.name == INDEX_SUBJECT);
            if want.is_none_or(|w| w.digest.sha256 != found) {
                let text = want.map_or("nothing".into(), |w| w.digest.sha256.hex());
                self.findings.push(
                    Finding::new(
                        Code::IndexDigestMismatch,
                        INDEX_FILE,
                        "it is not the index that the signed statement commits to",
                    )
                    .values(text, found),
                );
            }
        }
        let index = match Index::parse(bytes) {
            Ok(index) => index,
            Err(finding) => {
                self.findings.push(*finding);
                self.close("index", CODES);
                return None;
            }
        };
        let check = index.check(&raw.files, &raw.salts);
        self.findings.extend(check.findings);
        self.withheld = check.withheld;
        self.unopened = check.unopened;
        self.close("index", CODES);
        Some(index)
    }

    fn evidence(&mut self, raw: &RawBundle) -> Option<Evidence> {
        const CODES: &[Code] = &[
            Code::EvidenceMalformed,
            Code::EventMalformed,
            Code::EventSequence,
            Code::EventInconsistent,
            Code::WrongRun,
            Code::ResponseMissing,
            Code::SchemaInvalid,
        ];
        match Evidence::parse(&raw.files) {
            Ok(e) => {
                self.close("evidence", CODES);
                Some(e)
            }
            Err(findings) => {
                // A file that is merely missing was already reported by the index.
                for f in findings {
                    let known = self
                        .findings
                        .iter()
                        .any(|k| k.code == f.code && k.subject == f.subject);
                    if !known {
                        self.findings.push(f);
                    }
                }
                self.push("evidence", true, Outcome::Failed);
                None
            }
        }
    }

    fn finish(
        mut self,
        path: &str,
        derived: Option<Box<RunRecord>>,
        figures: Vec<Figure>,
    ) -> AuditReport {
        self.findings.sort_by_key(|f| std::cmp::Reverse(f.severity));
        // A check that nothing requires says what it found, and a true record of a
        // tainted run is still true.
        let counts = |c: &&Check| c.required || c.outcome != Outcome::Failed;
        let counted: Vec<Check> = self.checks.iter().filter(counts).cloned().collect();
        let trust_apart = |code: Code| code == Code::SignerNotTrusted;
        let rest: Vec<Finding> = self
            .findings
            .iter()
            .filter(|f| !trust_apart(f.code))
            .cloned()
            .collect();
        let other_checks: Vec<Check> = counted
            .iter()
            .filter(|c| c.name != "signer-trusted")
            .cloned()
            .collect();
        let verdict = if all_good(&counted, &self.findings) {
            Verdict::Verified
        } else if all_good(&other_checks, &rest) {
            Verdict::SelfConsistent
        } else {
            Verdict::NotVerified
        };
        AuditReport {
            path: path.to_owned(),
            verdict,
            checks: self.checks,
            findings: self.findings,
            figures,
            derived,
            grades: self.grades,
            signers: self.signers,
        }
    }
}
