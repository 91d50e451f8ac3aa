//! The options of `verify weights` for replicas on other machines and for reports
//! that are kept.

use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use runseal::keys::load_public;
use runseal::weights::NodeKey;

/// Options for replicas on other machines and for reports that are kept.
#[derive(clap::Args)]
#[command(next_help_heading = "Nodes and reports")]
pub struct Options {
    /// Serve one caller over stdin and stdout; what runs on the nodes
    #[arg(long, conflicts_with_all = ["path", "inventory", "replicas", "reports", "save_reports", "changed_since", "push_agent"])]
    pub agent: bool,
    /// Copy a static `verify` to nodes that lack it [default FILE: this program]
    #[arg(long, value_name = "FILE", num_args = 0..=1, require_equals = true)]
    pub push_agent: Option<Option<PathBuf>>,
    /// The ssh program to start
    #[arg(long, value_name = "PROGRAM")]
    pub ssh: Option<PathBuf>,
    /// Longest silence of a node, in seconds
    #[arg(long, value_name = "SECONDS", default_value = "30", value_parser = clap::value_parser!(u64).range(1..=86400))]
    pub timeout: u64,
    /// Public key (PEM) that must have signed the reports: NAME=FILE for one replica, FILE for
    /// any. With --agent: the secret key that signs them
    #[arg(long = "node-key", value_name = "[NAME=]FILE")]
    pub node_keys: Vec<String>,
    /// Save every replica's report in this folder
    #[arg(long, value_name = "DIR")]
    pub save_reports: Option<PathBuf>,
    /// An earlier report, or a folder of them: files that have not moved since are not re-read,
    /// and do not count as verified
    #[arg(long, value_name = "REPORT")]
    pub changed_since: Vec<PathBuf>,
    /// Judge saved reports (files or folders) against the manifest, without looking at any disk
    #[arg(long = "report", value_name = "FILE", num_args = 1.., conflicts_with_all = ["path", "save_reports", "changed_since", "push_agent"])]
    pub reports: Vec<PathBuf>,
}

impl Options {
    /// The one secret key of `--agent --node-key FILE`.
    pub fn agent_key(&self) -> anyhow::Result<Option<&Path>> {
        match self.node_keys.as_slice() {
            [] => Ok(None),
            [one] => Ok(Some(Path::new(one))),
            _ => bail!("an agent signs with one key (hint: give --node-key once)"),
        }
    }

    /// The public keys trusted for nodes.
    pub fn trusted(&self) -> anyhow::Result<Vec<NodeKey>> {
        let load = |text: &String| {
            // A name never holds a slash, so a path with an equals sign is a path.
            let (replica, path) = match text.split_once('=') {
                Some((name, path)) if !name.contains('/') && !Path::new(text).exists() => {
                    (Some(name.to_owned()), path)
                }
                _ => (None, text.as_str()),
            };
            let key = load_public(Path::new(path)).with_context(|| format!("node key {path}"))?;
            Ok(NodeKey { replica, key })
        };
        self.node_keys.iter().map(load).collect()
    }
}
