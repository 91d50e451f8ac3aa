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

    // Layouts: caches, links and what they claim.
    LinkDangling = "link-dangling", Error,
        "A link of a cache's snapshot leads to a blob that is not there.",
        "The file cannot be read; the download was not finished, or the blob was removed.",
        "Download the file again.";
    BlobNameMismatch = "blob-name-mismatch", Error,
        "A blob of a hub cache does not have the content that it is named for.",
        "The client takes a blob's name for its digest and never reads it again, so it serves the wrong bytes for good.",
        "Delete the blob and download it again.";
    EtagMismatch = "etag-mismatch", Error,
        "A file is not the one that its download metadata describe.",
        "The file was changed after it was downloaded, or the metadata belong to another file.",
        "Download the file again, or remove the metadata if the file was replaced on purpose.";
    DownloadIncomplete = "download-incomplete", Error,
        "A download was begun and not finished.",
        "Something may still be writing to the checkpoint, or a part of it was never fetched.",
        "Finish the download, or remove the *.incomplete file if nothing needs it.";
    RevisionMismatch = "revision-mismatch", Error,
        "The cache or the download metadata are of another revision than the manifest names.",
        "Another revision of a model is another model, even when most files are equal.",
        "Fetch the pinned revision, choose its snapshot with --revision, or pin the other one.";
    SnapshotNotFound = "snapshot-not-found", Error,
        "No snapshot of a hub cache could be settled on.",
        "Which files an engine would load depends on the choice, so none was made.",
        "Choose with --revision, or give the path of one snapshot.";
    RefElsewhere = "ref-elsewhere", Note,
        "refs/main of the cache names another commit than the snapshot that was looked at.",
        "An engine that is given the model's name and no revision loads what refs/main names.",
        "Give engines the snapshot's path or the revision.";
    RevisionsMixed = "revisions-mixed", Note,
        "The download metadata of a folder name more than one revision.",
        "Files of several revisions may lie side by side.",
        "Pin a revision and compare.";
    ClaimNotComparable = "claim-not-comparable", Note,
        "What a blob's name or the download metadata say could not be compared with the content.",
        "Etags of some mirrors are no digests; nothing follows from them.",
        "Nothing, when the digests of the manifest match.";
    IgnoredByManifest = "ignored-by-manifest", Note,
        "Something is there that the manifest, or the caller, declares as not part of the checkpoint.",
        "It was not looked into. The root does not commit to such declarations, so they are always shown.",
        "Look at it if you do not expect it.";

    // Structure of weight files.
    ShardTruncated = "shard-truncated", Error,
        "A safetensors file is shorter than its own header accounts for.",
        "Its last tensors are cut off: a download or copy stopped early.",
        "Copy the file again, then rehash.";
    ShardOverlong = "shard-overlong", Error,
        "A safetensors file goes on after its last tensor.",
        "Bytes that no tensor accounts for are no part of the model.",
        "Copy the file again, then rehash.";
    SafetensorsMalformed = "safetensors-malformed", Error,
        "A file named *.safetensors breaks the format.",
        "Two readers could see different tensors in it, or none.",
        "Copy the file again; if it is what was published, tell its publisher.";
    ShardSwapped = "shard-swapped", Error,
        "A file holds what the manifest or the index gives to another file.",
        "Shards were renamed or copied over each other; the bytes may all be there, at the wrong place.",
        "Give the files their names back, then rehash.";
    IndexMismatch = "index-mismatch", Error,
        "The safetensors index and the headers of the files do not say the same.",
        "Tensors are missing, or lie elsewhere than a loader looks for them.",
        "Check which of the files is of another revision.";
    IndexUnlisted = "index-unlisted", Note,
        "A safetensors file holds tensors that the index does not name.",
        "Loaders pass over them; some published checkpoints have such tensors.",
        "Nothing, when the digests match.";
    IndexTotalSize = "index-total-size", Note,
        "The total size that the safetensors index states is not that of the tensors.",
        "Some published checkpoints state it wrongly; after an edit it tells that the files changed.",
        "Nothing, when the digests match.";
    GgufTruncated = "gguf-truncated", Error,
        "A GGUF file is shorter than its header and tensor table account for.",
        "Its last tensors are cut off: a download or copy stopped early.",
        "Copy the file again, then rehash.";
    GgufMalformed = "gguf-malformed", Error,
        "A file named *.gguf breaks the format.",
        "Loaders refuse it, or read something else from it.",
        "Copy the file again; if it is what was published, tell its publisher.";
    GgufSplit = "gguf-split", Error,
        "A set of GGUF parts is incomplete, or a part is not the one that it is named.",
        "The model can only be loaded from all its parts in order.",
        "Fetch the missing parts, or give the files their names back.";
    LfsPointer = "lfs-pointer", Error,
        "A git-lfs pointer lies where the file itself should be.",
        "The repository was cloned without its large files; there are no weights here.",
        "Run `git lfs pull`, or download the files.";
    StructureNotChecked = "structure-not-checked", Note,
        "A weight file uses a type or version that this program does not know.",
        "Its digest was compared all the same; only its inner structure was not.",
        "Use a newer version if there is one.";

    // Manifests and revisions.
    NotCompared = "not-compared", Error,
        "There was no manifest, so nothing was compared.",
        "Without a statement of what should be there, no file can be called right.",
        "Give --manifest; make one from a trusted copy with `attest pin weights`.";
    ComparedBySha1 = "compared-by-sha1", Note,
        "Some files could only be compared by git blob id, which is a SHA-1.",
        "SHA-1 is no longer collision-resistant: whoever made a file can have made two with one id.",
        "Pin the checkpoint with `attest pin weights` and compare by SHA-256.";
    RevisionNotBound = "revision-not-bound", Error,
        "A file of the manifest is not a file of the revision that the manifest names.",
        "Worked out from the repository's own commit and trees, the two do not belong together.",
        "Get the manifest of the pinned revision, or pin the revision that the files are of.";
    RevisionFilesAbsent = "revision-files-absent", Note,
        "The revision has files that the manifest does not list.",
        "A manifest may cover a part of a repository; it says nothing about the rest.",
        "Nothing, when the missing files are not needed.";

    ModeDiffers = "mode-differs", Note,
        "A file may be executed where the manifest says it may not, or the reverse.",
        "The bytes are the pinned ones; only the permission was changed.",
        "Set the permission back if something depends on it.";
    EmptyFolderMissing = "empty-folder-missing", Note,
        "A folder that the manifest records as empty is not there.",
        "Copying tools leave empty folders out; the files are not affected.",
        "Make the folder if a loader looks for it.";
    Blake3NotCompared = "blake3-not-compared", Note,
        "BLAKE3 was computed, and the manifest has none of some files to compare with.",
        "Those files were compared by the other digests alone.",
        "Pin again with `attest pin weights`, which records both digests.";

    // Reaching a replica on another machine.
    NodeUnreachable = "node-unreachable", Error,
        "No connection to the node could be made.",
        "A replica that nobody looked at never counts as verified.",
        "Check that the node is up, and host and port in the inventory; `ssh -v HOST true` says more.";
    NodeTimeout = "node-timeout", Error,
        "The node, or the program on it, stopped answering.",
        "What it had read until then proves nothing about the rest.",
        "Check power, link and load of the node, then run again; --timeout allows longer silences.";
    NodeKeyRefused = "node-key-refused", Error,
        "The node refused every key that ssh offered.",
        "Nothing was read there.",
        "Check user and identity in the inventory and the node's authorized_keys; BatchMode never asks for a password.";
    NodeHostKeyChanged = "node-host-key-changed", Error,
        "The node shows another host key than the one known or pinned.",
        "Another machine may be answering in its place; nothing was sent to it.",
        "Find out why by another channel before you change known_hosts or the pin.";
    NodeHostKeyUnknown = "node-host-key-unknown", Error,
        "No host key of this node is known, and none is accepted unseen.",
        "An unknown machine could report whatever it likes.",
        "Compare the fingerprint by another channel, then add it to known_hosts or pin it as host_key in the inventory.";
    ConnectionLost = "connection-lost", Error,
        "The connection ended before the report arrived.",
        "An unfinished rehash counts as none.",
        "Check the link and the node, then run again.";
    TransportMissing = "transport-missing", Error,
        "The program that should reach the node could not be started on this machine.",
        "Nothing was read there.",
        "Install it, or correct the command in the inventory or --ssh.";
    AgentMissing = "agent-missing", Error,
        "The node has no `verify` where the inventory says.",
        "The rehash is done on the node by the same program that runs here.",
        "Install it there, set `agent` in the inventory, or let --push-agent copy it.";
    AgentExecFormat = "agent-exec-format", Error,
        "The node cannot execute the `verify` that is there.",
        "It was built for another architecture, needs libraries that are not there, or may not be executed.",
        "Build a static one for the node's architecture and give it to --push-agent=FILE.";
    AgentWrongVersion = "agent-wrong-version", Error,
        "The `verify` on the node has another version than the one here.",
        "Two versions may judge the same files differently.",
        "Install the same version on the node, or use --push-agent.";
    AgentDigestMismatch = "agent-digest-mismatch", Error,
        "The `verify` on the node is not the pinned or pushed binary.",
        "A program with other bytes can report whatever it likes.",
        "Find out who replaced it. A file in the agent cache is never overwritten: remove it by hand.";
    AgentBinaryDiffers = "agent-binary-differs", Note,
        "The `verify` on the node has this version but other bytes.",
        "Another architecture or another build explains it; so would a changed program.",
        "Pin the expected digest as agent_sha256 in the inventory, or use --push-agent.";
    AgentProtocol = "agent-protocol", Error,
        "What came back from the node is not what `verify weights --agent` says.",
        "An answer that cannot be read, or that is about something else, counts as none.",
        "Often a login script prints text: make it silent for non-interactive shells. Otherwise check which program `agent` names.";
    AgentFailed = "agent-failed", Error,
        "The program on the node ended without a report.",
        "Nothing is known about the files there.",
        "The detail quotes what it said last.";
    SudoRefused = "sudo-refused", Error,
        "The node's sudo did not let the program run without a password.",
        "Files that only root may read could not be read.",
        "Allow this command with NOPASSWD in sudoers, or remove `sudo` from the inventory.";
    PushFailed = "push-failed", Error,
        "The program could not be copied to the node.",
        "Nothing was read there.",
        "Check space and permissions of ~/.cache/runseal on the node.";
    NotReRead = "not-re-read", Note,
        "A file was not read again: size, times and inode are those of an earlier report.",
        "That is weaker than a digest: a disk that changes bytes by itself leaves no trace in them.",
        "Run without --changed-since for a full rehash.";
    ReportMissing = "report-missing", Error,
        "No report was given for a replica's checkpoint.",
        "A replica without a report on each of its checkpoints never counts as verified.",
        "Give --report every file that --save-reports wrote.";
    ReportNotSigned = "report-not-signed", Error,
        "A node key was named for this replica, but its report carries no signature.",
        "Without the signature it is the caller's word and not the node's.",
        "Set node_key in the inventory, so that the node signs.";
    NoEarlierReport = "no-earlier-report", Note,
        "--changed-since was given, and holds no report on this replica.",
        "Every file was read, as without it. Often the replica only has another name there.",
        "Give the report of this replica, or give the replica the name that it had then.";
    ReportNotAsSigned = "report-not-as-signed", Error,
        "The plain file of a replica report is not the report in the signed file beside it.",
        "One of the two was edited or exchanged; whoever reads the plain one reads what nobody signed.",
        "Rely on the signed one only, and find out who changed the other.";
    ReportSignature = "report-signature", Error,
        "A replica report's signature does not verify with the keys given for its node.",
        "It was changed after signing, or signed with another key.",
        "Ask the node's keeper for its public key, or rehash.";

    // OpenSSF Model Signing bundles.
    OmsMalformed = "oms-malformed", Error,
        "An OMS bundle, its statement or one of its resources cannot be read.",
        "What cannot be read in one way only cannot be believed.",
        "Ask the signer for the original bundle.";
    OmsUnsupported = "oms-unsupported", Error,
        "An OMS bundle is of a kind that is not checked here.",
        "Certificates, transparency logs, BLAKE2b and the format before v1.0 need other checks, and none was made.",
        "Ask for a bundle signed with an ECDSA key, or check it with the signer's own tool.";
    OmsKeyMismatch = "oms-key-mismatch", Error,
        "An OMS bundle names another key than the one you gave.",
        "The bundle's word never makes a key trusted, but it tells that somebody else may have signed.",
        "Get the signer's public key by a channel other than the bundle.";
    OmsRootMismatch = "oms-root-mismatch", Error,
        "The subject of an OMS statement is not the digest of the resources it lists.",
        "The statement contradicts itself, so whatever wrote it cannot be relied on.",
        "Ask the signer for a new signature.";
    OmsEmpty = "oms-empty", Error,
        "An OMS statement lists no files.",
        "It would verify for any empty folder; other tools accept it.",
        "Ask the signer which files were meant.";
    OmsNameEscapes = "oms-name-escapes", Error,
        "A name in an OMS statement is absolute or leads out of the folder.",
        "Following it would read, and report about, files that are not the model's. Nothing was opened.",
        "Do not use this bundle.";
    OmsNameAmbiguous = "oms-name-ambiguous", Error,
        "A name in an OMS statement can be understood in two ways, or stands there twice.",
        "Two readers could check two different files, for example with a colon in a shard's path.",
        "Ask the signer to rename the file, or to sign by files and not by shards.";
    OmsShardsIncomplete = "oms-shards-incomplete", Error,
        "The shards that an OMS statement lists for a file leave out or repeat bytes.",
        "Bytes that no shard covers could be anything.",
        "Ask the signer for a new signature.";
    OmsEmptyFile = "oms-empty-file", Error,
        "An empty file lies in a folder that was signed by shards.",
        "A file of no bytes has no shards, so the signature cannot say whether it belongs there.",
        "Remove it, or ask the signer to sign by files.";
    OmsPathIgnored = "oms-path-ignored", Note,
        "The signer left out a path, and something lies there.",
        "Its bytes are not covered by the signature.",
        "Look at it before you rely on it.";
    OmsRootWithoutNames = "oms-root-without-names", Note,
        "The root digest in an OMS statement does not depend on the names of the files.",
        "Folders with the same contents under other names share it, so it does not identify a model.",
        "Compare models by the root of their manifest.";

    // Two records held against each other.
    RecordNotComparable = "record-not-comparable", Error,
        "A record cannot take part in a comparison.",
        "Its audit does not hold, its run did not end well, it records no conditions, or both records are one run.",
        "Compare completed, untainted runs that `verify record` accepts.";
    ConditionsDiffer = "conditions-differ", Error,
        "Two records were not measured under one and the same condition.",
        "A difference between them may come from that.",
        "Repeat one of the runs under the other's conditions, or declare it as --factor when it was varied on purpose.";
    FactorNotVaried = "factor-not-varied", Error,
        "What was declared as varied is the same in both records.",
        "The difference between them has another cause.",
        "Name what differs; the report lists it.";
    CausalNotSupported = "causal-not-supported", Error,
        "A cause was claimed, and no two of the runs differ in the one declared factor alone.",
        "Whatever else differs may be the cause.",
        "Add a control run that differs in the factor only (--control).";
    RepetitionsTooFew = "repetitions-too-few", Note,
        "There are too few repetitions to say how far a difference is chance.",
        "One run each cannot tell an effect from its own scatter.",
        "Repeat both runs, five times or more.";

    // What a reader's policy wants.
    ThresholdNotMet = "threshold-not-met", Error,
        "Fewer different trusted keys of a role signed than your policy wants.",
        "A copied signature or a second name for a key adds nobody.",
        "Ask for the missing signatures.";
    KeyOutsideWindow = "key-outside-window", Error,
        "A key that signed is not good at the time that you gave with --at.",
        "Keys are given windows because they get lost or change hands.",
        "Ask for a record signed with a key that is good, or correct the window.";
    EvidenceTooWeak = "evidence-too-weak", Error,
        "A figure is founded less well than your policy wants.",
        "What is only stated is somebody's word.",
        "Ask for the evidence that it rests on.";
    StatusNotRequired = "status-not-required", Error,
        "The run ended another way than your policy wants.",
        "A true record of a failed run is still a failed run.",
        "Ask for a run that ended so.";
    SuiteNotAllowed = "suite-not-allowed", Error,
        "The record is of a suite that your policy does not name, or of one with other bytes.",
        "Figures of another suite answer another question.",
        "Name the suite in the policy, or ask for a run of one that it names.";

    // Records that others publish.
    RecordMalformed = "record-malformed", Error,
        "A file that should hold a record is not strict JSON.",
        "Two readers could see two records in it, or none.",
        "Ask for the original file.";
    FieldUnknown = "field-unknown", Note,
        "A published record has a field that its format, as known here, does not have.",
        "Nothing was checked about it.",
        "Read it yourself, or use a newer version of verify.";
    EntryDuplicate = "entry-duplicate", Error,
        "Two cells, cases or configurations of one record go by the same name.",
        "A reader cannot tell which of the two is meant, and totals count both.",
        "Ask which of the two holds.";
    MeanNotReproduced = "mean-not-reproduced", Error,
        "A published mean is not the mean of the values beside it.",
        "The headline figure is not the one that was measured.",
        "Believe the values, and ask where the mean comes from.";
    TotalNotReproduced = "total-not-reproduced", Error,
        "A published total, number of samples or denominator does not follow from the record's own parts.",
        "Requests were left out or counted twice.",
        "Ask for the missing parts, or for a corrected record.";
    PercentileNotReproduced = "percentile-not-reproduced", Error,
        "A published median or percentile is not that of the durations in the record, whatever their rounding.",
        "The figure does not describe the requests that are shown.",
        "Believe the recomputed value.";
    RateNotReproduced = "rate-not-reproduced", Error,
        "A published rate does not follow from count and time; or no whole number of tokens gives it over the published time.",
        "Rate, tokens and time contradict each other, so at least one of them was not measured.",
        "Ask for the token count and the duration.";
    OutcomeNotReproduced = "outcome-not-reproduced", Error,
        "Published numbers of outcomes are not those of the cases in the record, or a case contradicts itself.",
        "Failures are hidden in totals.",
        "Believe the cases.";
    FigureImpossible = "figure-impossible", Error,
        "A figure lies outside of what any measurement could give.",
        "For example a first token that came after the batch was over, or an input beyond the context limit.",
        "Do not use the figure; ask how it came to be.";
    TimeImpossible = "time-impossible", Error,
        "Times of a published record contradict each other, or are none.",
        "A record cannot be made before its run is over.",
        "Ask for the run's own log.";
    ClaimContradicted = "claim-contradicted", Error,
        "The record's prose claims what the record cannot carry, or what its own caveats deny.",
        "Readers remember the sentence and not the caveat.",
        "Strike the sentence, or publish the run that carries it.";
    SourceMismatch = "source-mismatch", Error,
        "A source that the record names lies beside it with other bytes, or under a name that leads elsewhere.",
        "The record was not made from the files that are shown with it.",
        "Ask for the files whose digests the record has.";
    SourceDisagrees = "source-disagrees", Error,
        "A source has the digest that the record names, and other figures than the record.",
        "The record does not follow from its own source.",
        "Believe the source.";
    RunCutShort = "run-cut-short", Note,
        "A benchmark program says that its run was stopped before it was complete.",
        "Its figures are over the requests that happened to be done by then.",
        "Prefer a run that was let to finish.";
    ConfigUnknown = "config-unknown", Error,
        "A recipe card's default configuration is none of its configurations.",
        "Its figures would be read as those of another one.",
        "Ask which configuration is meant.";
    SpreadWide = "spread-wide", Note,
        "The batches of one cell differ by more than a tenth of their mean.",
        "A mean of few values that far apart says little.",
        "Look at the single rates; ask for more repetitions.";
    DenominatorMissing = "denominator-missing", Note,
        "Figures stand without the number of samples and without what they divide by.",
        "They can be neither checked nor compared.",
        "Ask for the runs.";
    ConfigsNotComparable = "configs-not-comparable", Note,
        "Two configurations of one card were not measured under the same conditions.",
        "The difference of their figures has more than one cause.",
        "Compare configurations that differ in one thing only.";
    PoolSmallerThanSlots = "pool-smaller-than-slots", Note,
        "The key-value pool does not hold as many sessions of full length as the server takes requests.",
        "The numbers of slots and the context limit cannot be used at once.",
        "Read them as two separate limits.";
    CaveatMissing = "caveat-missing", Note,
        "A record does not say what it does not show, where its own fields make that necessary.",
        "A reader may take the figure for more than it is.",
        "Add the caveat.";
    SubjectMismatch = "subject-mismatch", Error,
        "A file beside a signed statement is not the one that the statement is about.",
        "The signature is on another file.",
        "Ask for the file whose digest was signed.";

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
    AddressPublished = "address-published", Error,
        "The log holds the address of an endpoint that somebody else runs.",
        "Such addresses are nobody's business but the operator's and the auditor's: the log has a salted digest in their place, and addresses.json, which may be withheld, what it stands for.",
        "Do not publish this bundle; run again with an unmodified attest.";
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

    // Suites and their scorers, before anything is run.
    ScorerPassesNothing = "scorer-passes-nothing", Error,
        "The scorer passes a case that was answered with nothing.",
        "A server that fails silently would then be graded as right.",
        "Add a check that only a real answer satisfies, such as `answer.content != \"\"`.";
    ScorerTestDiffers = "scorer-test-differs", Error,
        "The scorer gives one of the suite's own test answers another grade than the suite wants.",
        "The scorer does not measure what its author meant.",
        "Correct the scorer, or the grade that scorer-tests.jsonl wants.";
    AnswerMissing = "answer-missing", Error,
        "A case of the suite has no answer in the file.",
        "A case that was not answered stays in the denominator.",
        "Add its answer; an empty one is an answer too.";
    AnswerUnknownCase = "answer-unknown-case", Error,
        "An answer names a case that the suite does not have.",
        "It belongs to another suite, or to another version of this one, and was not graded.",
        "Grade it with the suite that it answers.";

    // Remarks.
    PartWithheld = "part-withheld", Note,
        "A part of the evidence is withheld; its commitment is in the signed index.",
        "Figures that rest on it are stated, not recomputed.",
        "Ask the operator to disclose it if you need to recompute them.";
    ForeignTrafficBefore = "foreign-traffic-before", Note,
        "Right before the first measured request, a server said that requests were running or waiting.",
        "They were not ours: the measurement began on a busy server. The run is tainted.",
        "Measure on servers that nobody else uses.";
    ForeignTrafficDuring = "foreign-traffic-during", Note,
        "A server's token counters moved by more than the answers of this run account for.",
        "Somebody else used the server while it was measured, so latencies and rates are not those of this load alone. The run is tainted.",
        "Measure on servers that nobody else uses.";
    FixedOutputRefused = "fixed-output-refused", Note,
        "A fixed number of output tokens was asked for, and not every declared attempt has it by the server's own count.",
        "Rates over outputs of different lengths are not what the suite measures; the record refuses the claim and flags the cases.",
        "Look at the flagged cases: a server that ignores ignore_eos or max_tokens cannot be measured with this suite.";
    LengthTargetMissed = "length-target-missed", Note,
        "Prompts are more than 2 % off their length target by the server's own count, or were not counted.",
        "Figures are of the lengths that were counted, which the record states, not of the target.",
        "Let prompts be filled ([input] in the plan), or choose a target that the suite's documents do not exceed.";
    ClientLag = "client-lag", Note,
        "The client's own threads were late by more than 1 % of a reported median or mean time.",
        "What was measured is in part the measuring machine: stamps may be late by as much.",
        "Measure from a quieter or faster machine (`attest self-test` says what this one can do), or read these figures as upper bounds.";
    KeyMadeByRun = "key-made-by-run", Note,
        "The signing key was made by the run that it signs.",
        "The record is consistent with itself; who signed it is not established.",
        "Get the fingerprint by another channel.";

    // Nodes of a cluster, before anything is started on them.
    ClusterBusy = "cluster-busy", Error,
        "Another run has the cluster.",
        "Two runs at once would measure each other.",
        "Wait for its end; the finding says whose it is and how old. The lock goes with the connection of its owner.";
    NodeFactUnknown = "node-fact-unknown", Error,
        "The inventory expects something of a node, and the node could not say whether it holds.",
        "What was not looked at does not hold: a check in doubt fails.",
        "The finding names the program or file that gave no answer; repair it, or take the expectation out.";
    NodeFactUnexpected = "node-fact-unexpected", Error,
        "A node's GPU, driver, firmware, kernel, DGX OS or container engine is another one than the inventory expects.",
        "Figures of another driver or system are figures of another machine.",
        "Update the node, or the expectation if the change was meant.";
    NodeMemoryLow = "node-memory-low", Error,
        "Less memory is available on a node than the inventory expects.",
        "With unified memory the model, the cache and every other program share it; an engine that starts with too little is killed later.",
        "End what else runs there, or drop the page cache that a download left behind.";
    NodeDiskLow = "node-disk-low", Error,
        "Less space is free where the checkpoint lies than the inventory expects.",
        "Logs and caches of the engine need room; a full disk ends a run.",
        "Free some, or lower the expectation.";
    NodeClockOffset = "node-clock-offset", Error,
        "A node's clock may be further from the clock of the measuring machine than the inventory allows.",
        "Logs of several nodes cannot be laid side by side, and reports carry times that never were.",
        "Synchronise the clocks (chrony, systemd-timesyncd). A slow connection widens the bound: measure again.";
    NodeInterface = "node-interface", Error,
        "An interface that the inventory names is not there, or is down.",
        "The ranks would not find each other, or would fall back to a slow network.",
        "`ip link` on the node shows the names; check the cable and the inventory.";
    NodeAddress = "node-address", Error,
        "No interface of a node has the address that the inventory gives it.",
        "Ranks and addresses are mixed up: a rank would be told an address of another machine.",
        "Compare `ip addr` on the node with `address` and `rank` in the inventory.";
    NodeMtuLow = "node-mtu-low", Error,
        "The MTU of a fast interface is below the expected one.",
        "Small packets cost throughput, and nodes with unlike MTUs can hang.",
        "Set the same MTU on all nodes and on the switch.";
    NodeLinkSlow = "node-link-slow", Error,
        "A fast interface runs at a lower speed than expected.",
        "Tensor parallelism is bounded by the slowest link.",
        "Check cable, port and switch: a bad cable often negotiates half the speed.";
    NodeHca = "node-hca", Error,
        "An RDMA device of the inventory is not there, its port is down, or it lacks the RoCE address to be used.",
        "The engine would fall back to TCP without a word, or not start.",
        "`ibdev2netdev` and `show_gids` on the node list what is there; correct `hcas` or `gid_index`.";
    NodePortBusy = "node-port-busy", Error,
        "Something listens already on a port that the head needs.",
        "The engine could not start, or requests would go to somebody else's server.",
        "`attest clean` removes leftovers of ours; anything else is not ours to end: choose another port or end it yourself.";
    NodeImage = "node-image", Error,
        "The image on a node is not the pinned one, or is not there.",
        "The node would run other software than the plan says.",
        "Pull or load the pinned image there; `docker image inspect` shows the digests.";
    NodesNotAlike = "nodes-not-alike", Error,
        "The nodes differ in something in which the inventory wants them alike.",
        "The slowest or oldest node decides for all, and failures show on one rank only.",
        "Bring the nodes to the same state, or take the word out of `alike`.";
    NodesDiffer = "nodes-differ", Note,
        "The nodes differ in GPU, driver, firmware, system, MTU or link speed.",
        "That may be meant; a reader should know it.",
        "Name the fact in `expect.alike` to make it an error.";
    NodesOneMachine = "nodes-one-machine", Note,
        "Several nodes have one boot id: they are one machine.",
        "Their ranks share its memory and its links.",
        "Nothing, if that is meant; otherwise correct the addresses in the inventory.";
    NodeImageUnpinned = "node-image-unpinned", Note,
        "The inventory has no digest by which the image on a node could be known again.",
        "The record will not say which software ran.",
        "Add `config` or `diff_ids` to [image], or a reference with @sha256:….";
    NodeClockFree = "node-clock-free", Note,
        "A node says that its clock is not synchronised.",
        "It will drift away from the others.",
        "Start chrony or systemd-timesyncd there.";
    NodeThrottled = "node-throttled", Note,
        "Heat, power or the hardware holds the clocks of a node's GPU down.",
        "What is measured is then a hot or throttled machine.",
        "Let it cool, look at its fans and its supply; some states go away only with a restart.";
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
                name.chars()
                    .all(|c| matches!(c, 'a'..='z' | '0'..='9' | '-')),
                "{name}"
            );
            assert_eq!(name.parse::<Code>().unwrap(), *code);
            assert_eq!(serde_json::to_value(code).unwrap(), name);
        }
        assert!("no-such".parse::<Code>().is_err());
    }
}
