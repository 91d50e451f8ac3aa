//! Which bytes lie on which replica.
//!
//! The pieces follow the question in the order it is answered:
//!
//! 1. [`Manifest`] says which files a checkpoint consists of. Its root
//!    (`runseal-tree/v1`) is the checkpoint's identity. A foreign file that says
//!    less is a [`Listing`]; [`git`] ties either to a repository's revision.
//! 2. [`Place::locate`] settles how the checkpoint lies on disk, and [`rehash`] looks at one folder: lists it, opens every regular file without
//!    following a link, and hashes what it reads. The [`ReplicaScan`] holds facts
//!    and no opinion.
//! 3. A [`ReplicaReport`] is those facts judged against the manifest. The
//!    judgement is a pure function of the two, so an auditor runs it again
//!    ([`derive_integrity`], [`check_report`]) and never reads the stored verdict.
//! 4. [`agree`] lays the reports side by side: which replicas hold the same
//!    bytes, and whether they are distinct copies at all.
//! 5. [`survey`] does all of this for every replica of an [`Inventory`], and is
//!    what `verify weights` prints.
//!
//! A state starts at "not checked" and only a digest that was computed from
//! bytes read in this run turns it into "verified".

mod agree;
mod beneath;
mod check;
mod claims;
pub mod git;
mod hashing;
mod inventory;
mod judge;
mod layout;
mod links;
mod look;
mod manifest;
mod pieces;
mod pointer_tree;
mod rehash;
pub mod remote;
mod report;
mod restat;
mod signed;
mod since;
mod structure;
mod survey;
mod values;

pub use agree::{Agreement, FileAgreement, Group, agree};
pub use check::check_report;
pub use hashing::{Pace, PageCache, Reading};
pub(crate) use inventory::File as InventoryFile;
pub use inventory::{
    Alike, Auto, Cluster, CommandTemplate, Engine, Expect, Extra, GidIndex, INVENTORY_FORMAT,
    Image, Inventory, InventoryError, Launch, Limits, Mount, NodeSettings, Replica, Role, Ssh,
    Topology, Transport,
};
pub use layout::{Chosen, Claim, Layout, LayoutKind, LocateError, Place, Wanted};
pub(crate) use links::{Followed, follow};
pub use look::{Expected, Looked, Target, looked, second_look};
pub use manifest::{
    Binding, Entry, ListFormat, Listing, MANIFEST_FORMAT, MAX_MANIFEST, Manifest, ManifestError,
    ManifestFile, PinError, Source,
};
pub use pieces::{PieceDigests, PieceFile, PieceHash, PieceScan, scan_pieces};
pub use pointer_tree::pointer_tree;
pub use rehash::{
    At, NoProgress, Progress, ReplicaScan, Request, Unreachable, What, rehash, rehash_each,
    rehash_place, scan_folder, scan_place,
};
pub use report::{
    Compared, FileReport, FileStat, Integrity, Kind, Problem, ProblemKind, REPLICA_FORMAT,
    ReplicaReport, ReportContext, Restat, RootIdentity, StatChange, State, derive_integrity,
    is_not_re_read,
};
pub use restat::restat;
pub use signed::{
    NodeKey, REPLICA_PAYLOAD_TYPE, SavedReport, SavedReportError, Signature, report_bytes,
    sign_report,
};
pub use since::Since;
pub use structure::{Structure, StructureKind, StructureProblem};
pub use survey::{Basis, ManifestSummary, Survey, SurveyedReplica, Verdict, conclude, survey};
pub use values::{Algorithm, Blake3Digest, GitId, Mode, Wide};

use std::io;

/// The boot id of the running kernel: two replicas with the same one are on the
/// same machine.
pub fn boot_id() -> io::Result<String> {
    let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id")?;
    Ok(text.trim().to_owned())
}
