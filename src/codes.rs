//! The table of finding codes: the one source of `verify explain` and of
//! docs/codes.md.

use std::fmt;
use std::str::FromStr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::finding::Severity;

macro_rules! codes {
    ($($(#[$meta:meta])* $variant:ident = $kebab:literal, $severity:ident, $meaning:literal, $why:literal, $todo:literal;)*) => {
        /// What kind of finding it is.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
        #[non_exhaustive]
        pub enum Code {
            $(
                #[doc = $meaning]
                #[serde(rename = $kebab)]
                $variant,
            )*
        }

        impl Code {
            /// Every code, in the order of docs/codes.md.
            pub const ALL: &[Code] = &[$(Code::$variant),*];

            /// The kebab-case name.
            pub fn name(self) -> &'static str {
                match self { $(Code::$variant => $kebab),* }
            }

            /// How much a finding of this kind weighs.
            pub fn severity(self) -> Severity {
                match self { $(Code::$variant => Severity::$severity),* }
            }

            /// Meaning, why it matters, what to do: one sentence or two each.
            pub fn explain(self) -> (&'static str, &'static str, &'static str) {
                match self { $(Code::$variant => ($meaning, $why, $todo)),* }
            }
        }
    };
}

codes! {
    // Weights and replicas.
    DigestMismatch = "digest-mismatch", Error,
        "A file has the expected size but other bytes.",
        "Some other weights are on this replica: a bit flip, a half-finished sync, or another revision.",
        "Copy the file again from a replica that agrees with the manifest (rsync needs --checksum), then rehash.";
    SizeMismatch = "size-mismatch", Error,
        "A file is longer or shorter than the manifest says.",
        "A truncated or grown file is not the pinned artifact, even when its beginning matches.",
        "Download or copy the file again, then rehash.";
    FileMissing = "file-missing", Error,
        "A file that the manifest lists is not there.",
        "The replica does not hold the whole checkpoint.",
        "Finish the download or copy the file from another replica.";
    FileExtra = "file-extra", Error,
        "A file is there that the manifest does not list.",
        "Engines read whatever lies in the folder; an unlisted file can change what is served.",
        "Remove it, or pin a manifest that lists it.";
    FileType = "file-type", Error,
        "Something that should be a regular file is a folder, pipe, socket or device.",
        "Reading it could hang or yield other bytes each time, so it was not opened.",
        "Replace it by the file that the manifest lists.";
    SymlinkInFlatFolder = "symlink-in-flat-folder", Error,
        "A symbolic link stands where the manifest has a file.",
        "What it points to can change without the folder changing.",
        "Replace the link by the file itself.";
    SymlinkEscapes = "symlink-escapes", Error,
        "A symbolic link leads out of the declared folder, or in a circle.",
        "It was not followed: bytes outside the folder are not part of the pinned checkpoint.",
        "Remove the link.";
    ChangedDuringRead = "changed-during-read", Error,
        "A file changed while it was being hashed.",
        "The digest describes no state that the file ever had.",
        "Stop whatever writes to the checkpoint, then rehash.";
    CouldNotRead = "could-not-read", Error,
        "A file or folder could not be read.",
        "What was not read is not verified.",
        "Give the user that runs the check read permission.";
    ReplicaUnreachable = "replica-unreachable", Error,
        "A replica's folder could not be opened at all.",
        "A replica that nobody looked at never counts as verified.",
        "Check the path in the inventory and that the node is up.";
    ReplicaCount = "replica-count", Error,
        "The number of distinct replicas that were rehashed is not the number asserted.",
        "A claim about N replicas needs exactly N rehashes.",
        "Correct --replicas or the inventory.";
    ReplicaDuplicate = "replica-duplicate", Error,
        "Two names lead to the same folder or the same files on one machine.",
        "One copy hashed twice is still one copy.",
        "Give every replica a folder of its own.";
    ReplicasDisagree = "replicas-disagree", Error,
        "The replicas do not all hold the same bytes.",
        "Ranks that load different weights serve a model that nobody named.",
        "The groups show which replicas agree; bring the others in line.";

    ModeDiffers = "mode-differs", Note,
        "A file may be executed where the manifest says it may not, or the reverse.",
        "The bytes are the pinned ones; only the permission was changed.",
        "Set the permission back if something depends on it.";

    // Signature and trust.
    RecordMissing = "record-missing", Error,
        "The bundle has no record.intoto.jsonl.",
        "Without a signed record nothing is claimed; a run that was killed leaves such a bundle.",
        "Close the run with `attest close`, or ask for the whole bundle.";
    EnvelopeMalformed = "envelope-malformed", Error,
        "A signed envelope cannot be parsed.",
        "What cannot be read cannot be believed.",
        "Ask for the original file.";
    EnvelopeNotCanonical = "envelope-not-canonical", Error,
        "An envelope of our own bundle is not in its one canonical byte form.",
        "Bytes that no signature covers were changed.",
        "Ask for the original file.";
    EnvelopesDiffer = "envelopes-differ", Error,
        "The envelopes of one record carry different payloads.",
        "Co-signers must sign the same statement.",
        "Ask for the original file.";
    SignatureInvalid = "signature-invalid", Error,
        "No signature verifies over the payload with the key it names.",
        "The payload was changed after signing, or the key is another one.",
        "Ask the signer for the original record and the fingerprint.";
    SignerNotTrusted = "signer-not-trusted", Error,
        "The signature may be good, but the key is not one that you trust.",
        "Anyone can make a key and sign anything; trust comes from you, not from the bundle.",
        "Get the operator's fingerprint by another channel and pass --trusted-key.";
    SignerUnexpected = "signer-unexpected", Error,
        "A signature was made by a key that the payload does not name, or a named signer is missing.",
        "Signatures can be cut from or grafted onto a file; the payload names who must sign.",
        "Ask for the record with all its signatures.";
    StatementMalformed = "statement-malformed", Error,
        "The signed payload is not a statement of a known type.",
        "Figures in a form that this version does not know cannot be checked.",
        "Use a version of verify that knows the predicate type.";
    SchemaInvalid = "schema-invalid", Error,
        "A document does not match its JSON Schema.",
        "A missing or misshapen field can hide what it should say.",
        "Ask for a record written by a released version.";

    // Bundle and index.
    IndexMissing = "index-missing", Error,
        "The bundle has no index.json.",
        "The index is what the signature commits to.",
        "Ask for the whole bundle.";
    IndexMalformed = "index-malformed", Error,
        "index.json cannot be parsed or is not in canonical form.",
        "The list of evidence files must be readable in one way only.",
        "Ask for the original file.";
    IndexDigestMismatch = "index-digest-mismatch", Error,
        "The signed statement commits to another index.json.",
        "The list of evidence files was changed after signing.",
        "Ask for the original bundle.";
    EvidenceMissing = "evidence-missing", Error,
        "A file listed in the index is not in the bundle and is not a withheld part.",
        "Figures that rest on it cannot be recomputed.",
        "Ask for the whole bundle.";
    EvidenceExtra = "evidence-extra", Error,
        "The bundle holds a file that the index does not list.",
        "Unlisted files are not covered by the signature.",
        "Remove it, or ask where it comes from.";
    EvidenceAltered = "evidence-altered", Error,
        "An evidence file is not the one the index commits to.",
        "It was changed after the record was sealed.",
        "Ask for the original file.";
    EvidenceFileType = "evidence-file-type", Error,
        "The bundle holds something that is neither a file nor a folder.",
        "Links and pipes can show different bytes to different readers; nothing was opened.",
        "Ask for a bundle of plain files.";
    EvidenceMalformed = "evidence-malformed", Error,
        "An evidence file cannot be parsed in its format.",
        "What cannot be read cannot be recomputed.",
        "Ask for the original bundle.";
    WrongRun = "wrong-run", Error,
        "A file carries the id or nonce of another run.",
        "Evidence of one run must not stand in for another.",
        "Ask for the bundle as it was written.";

    // Internal consistency of the evidence.
    PlanMismatch = "plan-mismatch", Error,
        "The plan in the bundle is not the one the run declared.",
        "The declaration fixes every input before the first request.",
        "Ask for the plan whose digest was declared.";
    CommitmentMismatch = "commitment-mismatch", Error,
        "The commitment that you were handed before the run is not this run's.",
        "Plan, nonce, cases or key are others than announced: another run is being shown.",
        "Ask for the record of the run that was announced.";
    NonceMismatch = "nonce-mismatch", Error,
        "The revealed nonce does not hash to the declared nonce hash.",
        "The nonce makes prompts unique to this run.",
        "Treat the bundle as not of this run.";
    ManifestMismatch = "manifest-mismatch", Error,
        "A checkpoint manifest does not have the root digest that the plan pins.",
        "The weights that were checked are not the weights that were named.",
        "Ask for the pinned manifest.";
    ReplicaReportMismatch = "replica-report-mismatch", Error,
        "A replica's report does not follow from its own file list, or contradicts the manifest.",
        "The verdict on a replica must follow from the digests that were read there.",
        "Ask for the report as written on the node.";
    SuiteMismatch = "suite-mismatch", Error,
        "The suite, its cases or its scorer are not the bytes that the plan pins.",
        "Other cases or another scorer give other grades.",
        "Ask for the suite as it was run.";
    SuiteNotAsShipped = "suite-not-as-shipped", Error,
        "The record uses the name of a shipped suite with other bytes.",
        "A familiar name must mean the familiar cases and scorer.",
        "Compare only with records of the shipped suite.";
    EventMalformed = "event-malformed", Error,
        "A line of the event log is not an event in its one byte form.",
        "The log is the ground of every figure.",
        "Ask for the original log.";
    EventSequence = "event-sequence", Error,
        "Event numbers have a gap, a repeat, or the log has no end.",
        "A line was removed, added or moved.",
        "Ask for the original log.";
    EventInconsistent = "event-inconsistent", Error,
        "The life of a request or run in the log is impossible.",
        "For example a delta before the request was sent, or time running backwards.",
        "Ask for the original log.";
    RequestNotAsPlanned = "request-not-as-planned", Error,
        "The body that was sent is not the one that plan, case and nonce give.",
        "A different prompt or other settings measure something else.",
        "Ask for the plan and cases as run.";
    PeerNotTheEndpoint = "peer-not-the-endpoint", Error,
        "A request went over a connection whose other end is not the endpoint that it names.",
        "The answer came from a process that this run did not launch and did not look at.",
        "Find out what listens at the peer's address; believe no figure and no attribution of that attempt.";
    ResponseMismatch = "response-mismatch", Error,
        "A recorded answer does not match the digests and lengths in the event log.",
        "The answer was changed after it was received.",
        "Ask for the original responses.";
    ResponseMissing = "response-missing", Error,
        "An attempt that received text has no recorded answer, or an answer belongs to no attempt.",
        "A missing answer cannot be graded again.",
        "Ask for the original responses.";
    GradeMissing = "grade-missing", Error,
        "A case has no grade line, or more than one.",
        "Missing grades stay in the denominator and must be seen.",
        "Ask for the original grades.";
    GradeNotReproduced = "grade-not-reproduced", Error,
        "Running the frozen scorer again gives another grade.",
        "The grade does not follow from the answer.",
        "Believe the recomputed grade.";

    // Figures of the record.
    StatusNotReproduced = "status-not-reproduced", Error,
        "The run status or its cause does not follow from the event log.",
        "A failed run must not read as completed.",
        "Believe the recomputed status.";
    TaintNotReproduced = "taint-not-reproduced", Error,
        "The record's taints are not those of the event log.",
        "A taint says that something else may have touched the measurement.",
        "Believe the recomputed list.";
    CountNotReproduced = "count-not-reproduced", Error,
        "A count of transport states, grades or attribution does not follow from the evidence.",
        "Counts are where failures get hidden.",
        "Believe the recomputed count.";
    MetricNotReproduced = "metric-not-reproduced", Error,
        "A metric does not follow from the events by its definition.",
        "The published figure is not the measured one.",
        "Believe the recomputed figure.";
    CaseNotReproduced = "case-not-reproduced", Error,
        "What the record says of a case does not follow from the evidence.",
        "Per-case outcomes are what the totals rest on.",
        "Believe the recomputed outcome.";
    IntegrityNotReproduced = "integrity-not-reproduced", Error,
        "What the record says of a replica's weights does not follow from its report.",
        "A replica must not be called verified when its report says otherwise.",
        "Believe the recomputed integrity.";
    LimitationNotReproduced = "limitation-not-reproduced", Error,
        "A limitation that the rules derive is missing, or one stands there that they do not derive.",
        "Limitations are derived so that nobody can leave one out.",
        "Read the recomputed list.";
    SubjectNotReproduced = "subject-not-reproduced", Error,
        "A subject of the statement is not the digest that the evidence gives.",
        "The subjects say what the record is about.",
        "Believe the recomputed digests.";
    FieldNotReproduced = "field-not-reproduced", Error,
        "Another field of the record does not follow from the evidence.",
        "Every field must come from a file in the bundle.",
        "Believe the recomputed value.";

    // Remarks.
    PartWithheld = "part-withheld", Note,
        "A part of the evidence is withheld; its commitment is in the signed index.",
        "Figures that rest on it are stated, not recomputed.",
        "Ask the operator to disclose it if you need to recompute them.";
    ClientLag = "client-lag", Note,
        "The client's own threads were late by more than 1 % of a reported median.",
        "What was measured is in part the measuring machine: stamps may be late by as much.",
        "Measure from a quieter or faster machine (`attest self-test` says what this one can do), or read these figures as upper bounds.";
    KeyMadeByRun = "key-made-by-run", Note,
        "The signing key was made by the run that it signs.",
        "The record is consistent with itself; who signed it is not established.",
        "Get the fingerprint by another channel.";
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// No finding has this code.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("no finding has the code {0:?} (hint: `verify explain` lists them all)")]
pub struct UnknownCode(pub String);

impl FromStr for Code {
    type Err = UnknownCode;
    fn from_str(text: &str) -> Result<Self, UnknownCode> {
        Code::ALL
            .iter()
            .copied()
            .find(|c| c.name() == text)
            .ok_or_else(|| UnknownCode(text.to_owned()))
    }
}

/// docs/codes.md, generated.
pub fn markdown() -> String {
    let mut out = String::from(
        "# Finding codes\n\nGenerated from `src/codes.rs`; `verify explain CODE` prints one entry. An *error* makes the exit \
         code 1, a *note* never does.\n",
    );
    for code in Code::ALL {
        let (meaning, why, todo) = code.explain();
        let severity = match code.severity() {
            Severity::Error => "error",
            Severity::Note => "note",
        };
        out.push_str(&format!(
            "\n## {code}\n\n*{severity}.* {meaning}\n\n- Why it matters: {why}\n- What to do: {todo}\n"
        ));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_kebab_case_and_unique() {
        let mut seen = std::collections::BTreeSet::new();
        for code in Code::ALL {
            let name = code.name();
            assert!(seen.insert(name), "{name} twice");
            assert!(
                name.chars().all(|c| c.is_ascii_lowercase() || c == '-'),
                "{name}"
            );
            assert_eq!(name.parse::<Code>().unwrap(), *code);
            assert_eq!(serde_json::to_value(code).unwrap(), name);
        }
        assert!("no-such".parse::<Code>().is_err());
    }
}
