//! Reports side by side: which replicas hold the same bytes, and how many
//! distinct copies there are.
//!
//! Two names count once when they lead to the same folder or share a file (same
//! boot id, device and inode). The same file system mounted twice, or on two
//! machines, shows other device numbers; there, *every* file having equal inode,
//! size and both times to the nanosecond is taken as one copy. That errs on the
//! side of counting too few.

use std::collections::{BTreeMap, BTreeSet};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::report::{FileReport, FileStat, Kind, ReplicaReport, State};
use crate::codes::Code;
use crate::finding::Finding;
use crate::relpath::RelPath;

/// How the replicas compare with each other.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Agreement {
    /// Distinct replicas.
    pub replicas: usize,
    /// Distinct machines, by boot id.
    pub machines: usize,
    /// Every file was read on every replica, and all hold the same bytes.
    pub all_agree: bool,
    /// Names that lead to one and the same copy; only groups of two or more.
    pub duplicates: Vec<Vec<String>>,
    /// Every path that any replica holds.
    pub files: Vec<FileAgreement>,
}

/// Who holds what at one path.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FileAgreement {
    /// The checkpoint it belongs to; absent for the target.
    #[serde(default = "target", skip_serializing_if = "is_target")]
    pub role: String,
    /// The path.
    pub path: RelPath,
    /// Replicas with equal content, the largest group first.
    pub groups: Vec<Group>,
    /// Replicas without anything at this path.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub missing: Vec<String>,
    /// Replicas where something is there, but no digest was had.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub not_read: Vec<String>,
}

/// Replicas that hold the same content.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Group {
    /// Algorithm and digest, for example `sha256:…`.
    pub digest: String,
    /// Length of the content.
    pub size: u64,
    /// The replicas, by name.
    pub replicas: Vec<String>,
}

fn target() -> String {
    "target".to_owned()
}

fn is_target(role: &str) -> bool {
    role == "target"
}

/// Compares reports, each checkpoint for itself. Replicas that could not be
/// reached have none and do not take part. With several checkpoints, there are
/// as many distinct replicas as there are copies of the one that has fewest.
pub fn agree(reports: &[&ReplicaReport]) -> Agreement {
    let mut roles: Vec<&str> = Vec::new();
    for report in reports {
        if !roles.contains(&report.role.as_str()) {
            roles.push(&report.role);
        }
    }
    let mut files = Vec::new();
    let mut duplicates = Vec::new();
    let mut fewest = None;
    for role in roles {
        let of_role = reports.iter().copied().filter(|r| r.role == role);
        let of_role: Vec<_> = of_role.collect();
        files.extend(agree_on_role(&of_role, role));
        let copies = distinct_copies(&of_role);
        fewest = Some(fewest.map_or(copies.len(), |n: usize| n.min(copies.len())));
        duplicates.extend(copies.into_iter().filter(|c| c.len() > 1));
    }
    let machines: BTreeSet<_> = reports.iter().map(|r| &r.boot_id).collect();
    Agreement {
        replicas: fewest.unwrap_or(0),
        machines: machines.len(),
        all_agree: !reports.is_empty()
            && files
                .iter()
                .all(|f| f.groups.len() == 1 && f.missing.is_empty() && f.not_read.is_empty()),
        duplicates,
        files,
    }
}

fn agree_on_role(reports: &[&ReplicaReport], role: &str) -> Vec<FileAgreement> {
    let by_path: Vec<BTreeMap<&RelPath, &FileReport>> = reports
        .iter()
        .map(|r| {
            let part = r.files.iter().filter(|f| f.state != State::Ignored);
            part.map(|f| (&f.path, f)).collect()
        })
        .collect();
    let paths: BTreeSet<&RelPath> = by_path.iter().flat_map(|m| m.keys().copied()).collect();
    paths
        .into_iter()
        .map(|path| {
            let row = reports.iter().zip(&by_path);
            let row: Vec<_> = row
                .map(|(r, m)| (r.replica.as_str(), m.get(path).copied()))
                .collect();
            agree_on(role, path, &row)
        })
        .collect()
}

fn agree_on(role: &str, path: &RelPath, row: &[(&str, Option<&FileReport>)]) -> FileAgreement {
    // One algorithm for the whole row: the one that most entries have.
    let count =
        |has: fn(&FileReport) -> bool| row.iter().filter(|(_, f)| f.is_some_and(has)).count();
    let by_sha256 = count(|f| f.sha256.is_some()) >= count(|f| f.blake3.is_some());
    let mut groups: BTreeMap<(String, u64), Vec<String>> = BTreeMap::new();
    let (mut missing, mut not_read) = (Vec::new(), Vec::new());
    for (name, file) in row {
        let name = (*name).to_owned();
        let Some(file) = file else {
            missing.push(name);
            continue;
        };
        let digest = if by_sha256 {
            file.sha256.map(|d| format!("sha256:{d}"))
        } else {
            file.blake3.map(|d| format!("blake3:{d}"))
        };
        match (digest, file.stat) {
            (Some(digest), Some(stat)) => groups.entry((digest, stat.size)).or_default().push(name),
            _ => not_read.push(name),
        }
    }
    let mut groups: Vec<_> = groups
        .into_iter()
        .map(|((digest, size), replicas)| Group {
            digest,
            size,
            replicas,
        })
        .collect();
    groups.sort_by_key(|g| std::cmp::Reverse(g.replicas.len()));
    FileAgreement {
        role: role.to_owned(),
        path: path.clone(),
        groups,
        missing,
        not_read,
    }
}

impl FileAgreement {
    /// The path, with its checkpoint in front unless that is the target.
    fn subject(&self) -> String {
        match self.role.as_str() {
            "target" => self.path.to_string(),
            other => format!("{other}:{}", self.path),
        }
    }

    /// At least two replicas are known to differ here.
    pub fn disagrees(&self) -> bool {
        self.groups.len() > 1 || (!self.groups.is_empty() && !self.missing.is_empty())
    }

    /// The groups in one sentence: `r0, r1, r3 agree on sha256:…; r2 has sha256:…`.
    pub fn in_words(&self) -> String {
        let mut parts: Vec<_> = self
            .groups
            .iter()
            .map(|g| {
                let verb = if g.replicas.len() == 1 {
                    "has"
                } else {
                    "agree on"
                };
                format!("{} {verb} {}", g.replicas.join(", "), g.digest)
            })
            .collect();
        if !self.missing.is_empty() {
            let verb = if self.missing.len() == 1 {
                "does"
            } else {
                "do"
            };
            parts.push(format!("{} {verb} not have it", self.missing.join(", ")));
        }
        if !self.not_read.is_empty() {
            parts.push(format!(
                "{} could not be compared",
                self.not_read.join(", ")
            ));
        }
        parts.join("; ")
    }
}

impl Agreement {
    /// A finding for each path on which replicas differ, and for each copy that
    /// goes by several names.
    pub fn findings(&self) -> Vec<Finding> {
        let differ = self
            .files
            .iter()
            .filter(|f| f.disagrees())
            .map(|f| Finding::new(Code::ReplicasDisagree, f.subject(), f.in_words()));
        let duplicate = self.duplicates.iter().map(|names| {
            let detail = format!(
                "{} are one copy under {} names",
                names.join(", "),
                names.len()
            );
            Finding::new(Code::ReplicaDuplicate, names.join(", "), detail)
        });
        differ.chain(duplicate).collect()
    }

    /// What the replicas other than this one say about a path, in words, when
    /// there are any: `the other three agree on sha256:…`.
    pub fn others(&self, replica: &str, role: &str, path: &RelPath) -> Option<String> {
        // Role by role, and in order of the paths within each.
        let from = self.files.iter().position(|f| f.role == role)?;
        let of_role = &self.files[from..];
        let of_role = &of_role[..of_role.partition_point(|f| f.role == role)];
        let at = of_role.binary_search_by(|f| f.path.cmp(path)).ok()?;
        let file = &of_role[at];
        let count = |names: &[String]| names.iter().filter(|r| *r != replica).count();
        let mut said: Vec<(usize, &str, &str)> = file
            .groups
            .iter()
            .map(|g| match count(&g.replicas) {
                1 => (1, "has ", g.digest.as_str()),
                n => (n, "agree on ", g.digest.as_str()),
            })
            .collect();
        let missing = count(&file.missing);
        said.push((
            missing,
            if missing == 1 { "does" } else { "do" },
            " not have it",
        ));
        said.push((count(&file.not_read), "could not be compared", ""));
        said.retain(|(n, _, _)| *n > 0);
        match said.as_slice() {
            [] => None,
            // All of them say one thing.
            [(n, verb, what)] => Some(format!("the other {} {verb}{what}", words(*n))),
            _ => {
                let parts = said
                    .iter()
                    .map(|(n, verb, what)| format!("{} {verb}{what}", words(*n)));
                Some(format!(
                    "of the others, {}",
                    parts.collect::<Vec<_>>().join("; ")
                ))
            }
        }
    }
}

fn words(n: usize) -> String {
    const WORDS: [&str; 13] = [
        "no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten",
        "eleven", "twelve",
    ];
    WORDS
        .get(n)
        .map_or_else(|| n.to_string(), |w| (*w).to_owned())
}

/// Names grouped by the copy they lead to, in order of first appearance.
fn distinct_copies(reports: &[&ReplicaReport]) -> Vec<Vec<String>> {
    let files: Vec<_> = reports.iter().map(|r| Inodes::of(r)).collect();
    // Copies are merged transitively: a third name can connect two others.
    let mut group: Vec<usize> = (0..reports.len()).collect();
    for b in 1..reports.len() {
        for a in 0..b {
            if group[a] != group[b] && same_copy((reports[a], &files[a]), (reports[b], &files[b])) {
                let (from, to) = (group[b].max(group[a]), group[b].min(group[a]));
                group
                    .iter_mut()
                    .filter(|g| **g == from)
                    .for_each(|g| *g = to);
            }
        }
    }
    let mut copies: BTreeMap<usize, Vec<String>> = BTreeMap::new();
    for (report, group) in reports.iter().zip(group) {
        copies
            .entry(group)
            .or_default()
            .push(super::report::subject(&report.replica, &report.role));
    }
    copies.into_values().collect()
}

/// The non-empty regular files of a replica as the file system names them.
struct Inodes {
    local: BTreeSet<(super::Wide, super::Wide)>,
    anywhere: BTreeSet<(super::Wide, u64, super::Wide, super::Wide)>,
}

impl Inodes {
    fn of(report: &ReplicaReport) -> Self {
        let stats: Vec<FileStat> = report
            .files
            .iter()
            .filter(|f| f.kind == Kind::File)
            .filter_map(|f| f.stat)
            .filter(|s| s.size > 0)
            .collect();
        Self {
            local: stats.iter().map(|s| (s.dev, s.ino)).collect(),
            anywhere: stats
                .iter()
                .map(|s| (s.ino, s.size, s.mtime_ns, s.ctime_ns))
                .collect(),
        }
    }
}

fn same_copy(a: (&ReplicaReport, &Inodes), b: (&ReplicaReport, &Inodes)) -> bool {
    let one_machine = a.0.boot_id == b.0.boot_id;
    // An overlay shows the files of the layer below under another device number, and
    // those that were touched in it under another inode: one that is shared is enough.
    let shared = !a.1.local.is_disjoint(&b.1.local) || !a.1.anywhere.is_disjoint(&b.1.anywhere);
    if one_machine && (a.0.root_identity == b.0.root_identity || shared) {
        return true;
    }
    !a.1.anywhere.is_empty() && a.1.anywhere == b.1.anywhere
}
