//! Cluster definitions that people already have, as an inventory and a plan.
//!
//! What a file does not say is left at a value that cannot work by accident and
//! marked in the text that is written; what it says and cannot be carried over is
//! noted. Nothing is guessed.

mod dotenv;
mod sparkrun;
pub mod words;
pub mod yaml;

use std::collections::BTreeMap;
use std::fmt::Write as _;

/// Why a file cannot be imported.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("{0}")]
pub struct ImportError(pub String);

/// Formats that are read, as the command line names them.
pub const FORMATS: [&str; 2] = ["spark-vllm-docker", "sparkrun"];

/// What other tools' files say. Several files may each say a part.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Imported {
    /// Name of the cluster.
    pub name: Option<String>,
    /// Addresses of the nodes, head first.
    pub hosts: Vec<String>,
    /// User there.
    pub user: Option<String>,
    /// Interfaces of the fast network.
    pub fabric: Vec<String>,
    /// RDMA devices.
    pub hcas: Vec<String>,
    /// Port where the ranks meet.
    pub master_port: Option<u16>,
    /// Environment of every rank.
    pub env: BTreeMap<String, String>,
    /// Our engine recipe.
    pub recipe: Option<String>,
    /// Container image.
    pub image: Option<String>,
    /// Name of the model where it was downloaded from.
    pub model: Option<String>,
    /// Its revision there.
    pub revision: Option<String>,
    /// Least number of nodes.
    pub nodes: Option<u32>,
    /// Port of the API.
    pub port: Option<u16>,
    /// Ranks that each layer is split over.
    pub tensor_parallel: Option<u32>,
    /// Name that the model is served under.
    pub served_name: Option<String>,
    /// Further arguments of the engine.
    pub args: Vec<String>,
    /// What was not carried over.
    pub notes: Vec<String>,
}

/// Reads a file of one of [`FORMATS`].
pub fn read(format: &str, text: &str) -> Result<Imported, ImportError> {
    match format {
        "spark-vllm-docker" => dotenv::read(text),
        "sparkrun" => sparkrun::read(text),
        _ => Err(ImportError(format!(
            "{format:?} is no format that can be imported (hint: one of {})",
            FORMATS.join(", ")
        ))),
    }
}

impl Imported {
    fn note(&mut self, text: String) {
        self.notes.push(text);
    }

    /// Adds what another file says. What both say is taken from the later one.
    pub fn and(mut self, later: Self) -> Self {
        fn over<T>(mine: &mut Option<T>, theirs: Option<T>) {
            if theirs.is_some() {
                *mine = theirs;
            }
        }
        fn lists<T>(mine: &mut Vec<T>, theirs: Vec<T>) {
            if !theirs.is_empty() {
                *mine = theirs;
            }
        }
        over(&mut self.name, later.name);
        lists(&mut self.hosts, later.hosts);
        over(&mut self.user, later.user);
        lists(&mut self.fabric, later.fabric);
        lists(&mut self.hcas, later.hcas);
        over(&mut self.master_port, later.master_port);
        self.env.extend(later.env);
        over(&mut self.recipe, later.recipe);
        over(&mut self.image, later.image);
        over(&mut self.model, later.model);
        over(&mut self.revision, later.revision);
        over(&mut self.nodes, later.nodes);
        over(&mut self.port, later.port);
        over(&mut self.tensor_parallel, later.tensor_parallel);
        over(&mut self.served_name, later.served_name);
        lists(&mut self.args, later.args);
        self.notes.extend(later.notes);
        self
    }

    fn served(&self) -> String {
        let last = |m: &String| m.rsplit('/').next().unwrap_or_default().to_owned();
        let name = self.served_name.clone().or(self.model.as_ref().map(last));
        name.filter(|n| !n.is_empty()).unwrap_or("model".to_owned())
    }

    /// The inventory's text.
    pub fn cluster_toml(&self) -> String {
        let mut out = String::from(
            "# A cluster, imported. Lines marked FILL IN say what the imported files did not;\n\
             # docs/runner.md has every key.\n\
             format = \"runseal.cluster/v1\"\n\
             manifest = \"target.manifest.json\"  # attest pin weights FOLDER -o target.manifest.json\n",
        );
        let name = self
            .name
            .as_deref()
            .map(alias)
            .unwrap_or("cluster".to_owned());
        let _ = write!(
            out,
            "\n[cluster]\nname = {}\nhead = \"gx0\"\n",
            quoted(&name)
        );
        let hosts = match self.hosts.is_empty() {
            false => self.hosts.clone(),
            true => (0..self.nodes.unwrap_or(1))
                .map(|i| format!("gx{i}.invalid"))
                .collect(),
        };
        let port = self.master_port.unwrap_or(29501);
        match hosts.first().filter(|h| is_ip(h)) {
            Some(head) => {
                let _ = writeln!(out, "rendezvous = {}", quoted(&format!("{head}:{port}")));
            }
            None => {
                let _ = writeln!(
                    out,
                    "# FILL IN: the head's address on the fast network.\nrendezvous = \"head.invalid:{port}\""
                );
            }
        }
        if let Some(recipe) = &self.recipe {
            let _ = write!(
                out,
                "\n[engine]\nrecipe = {}\nlaunch = \"docker\"\nserved_name = {}\nport = {}\n",
                quoted(recipe),
                quoted(&self.served()),
                self.port.unwrap_or(8000)
            );
            if let Some(n) = self.tensor_parallel {
                let _ = writeln!(out, "tensor_parallel = {n}");
            }
            if !self.args.is_empty() {
                let _ = writeln!(out, "args = {}", list(&self.args));
            }
            match &self.image {
                Some(image) => {
                    let _ = write!(
                        out,
                        "\n# Not pinned yet: add `config` and `diff_ids`, or a reference with @sha256:…\n\
                         [image]\nreference = {}\n",
                        quoted(image)
                    );
                }
                None => out
                    .push_str("\n# FILL IN: the image.\n[image]\nreference = \"image.invalid\"\n"),
            }
            out.push_str(
                "\n# Every node's own copy, seen by its container and pinned by the manifest.\n\
                 [[mount]]\ntarget = \"/models/target\"\ncheckpoint = \"target\"\n",
            );
        }
        if !self.env.is_empty() {
            out.push_str("\n# Environment of every rank.\n[env]\n");
            for (name, value) in &self.env {
                let _ = writeln!(out, "{name} = {}", quoted(value));
            }
        }
        for (rank, host) in hosts.iter().enumerate() {
            let _ = write!(
                out,
                "\n[[node]]\nname = \"gx{rank}\"\nrank = {rank}\ntransport = \"ssh\"\nhost = {}\n",
                quoted(host)
            );
            if self.hosts.is_empty() {
                out.push_str("# FILL IN: host.\n");
            }
            if let Some(user) = &self.user {
                let _ = writeln!(out, "user = {}", quoted(user));
            }
            if is_ip(host) {
                let _ = writeln!(out, "address = {}", quoted(host));
            } else {
                out.push_str("# FILL IN: address = \"…\", the node's own on the fast network.\n");
            }
            if !self.fabric.is_empty() {
                let _ = writeln!(out, "fabric = {}", list(&self.fabric));
            }
            if !self.hcas.is_empty() {
                let _ = writeln!(out, "hcas = {}\ngid_index = \"auto\"", list(&self.hcas));
            }
            out.push_str("# FILL IN: the folder of the model's files on this node.\npath = \"/models/target\"\n");
        }
        out
    }

    /// A plan that goes with the inventory.
    pub fn attest_toml(&self) -> String {
        let mut checkpoint = format!(
            "name = {}\n",
            quoted(self.model.as_deref().unwrap_or("model"))
        );
        if let Some(revision) = &self.revision {
            let _ = writeln!(checkpoint, "revision = {}", quoted(revision));
        }
        PLAN.replace("name = \"model\"\n", &checkpoint).replace(
            "model = \"served\"",
            &format!("model = {}", quoted(&self.served())),
        )
    }
}

/// The plan for a cluster, to be filled in.
const PLAN: &str = include_str!("plan.toml");

/// A name as plans want it.
fn alias(name: &str) -> String {
    let plain = |c: char| match c.to_ascii_lowercase() {
        c if c.is_ascii_alphanumeric() || c == '_' => c,
        _ => '-',
    };
    name.chars().map(plain).take(40).collect()
}

fn is_ip(host: &str) -> bool {
    host.parse::<std::net::IpAddr>().is_ok()
}

fn quoted(text: &str) -> String {
    toml::Value::String(text.to_owned()).to_string()
}

fn list(items: &[String]) -> String {
    let each: Vec<String> = items.iter().map(|i| quoted(i)).collect();
    match each.iter().map(String::len).sum::<usize>() > 60 {
        true => format!("[\n  {},\n]", each.join(",\n  ")),
        false => format!("[{}]", each.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use runseal::weights::{Inventory, Launch};

    #[test]
    fn what_is_written_is_an_inventory() {
        let env = "CLUSTER_NODES=10.0.0.1,10.0.0.2\nETH_IF=enp1s0f1np1\nIB_IF=rocep1s0f1\nCONTAINER_A=\"x y\"\n";
        let recipe = "model: o/Big\nmodel_revision: abc\nruntime: sglang\ncontainer: sg:1\ndefaults:\n  port: 30000\n\
                      command: python3 -m sglang.launch_server --model-path o/Big --reasoning-parser glm45\n";
        let both = read("spark-vllm-docker", env)
            .unwrap()
            .and(read("sparkrun", recipe).unwrap());
        let inventory = Inventory::parse(&both.cluster_toml()).unwrap();
        let ranks = inventory.ranks();
        assert_eq!(ranks.len(), 2);
        assert_eq!(ranks[1].1.node.address.as_deref(), Some("10.0.0.2"));
        assert_eq!(ranks[0].1.node.hcas, ["rocep1s0f1"]);
        let extra = &inventory.extra;
        let engine = extra.engine.as_ref().unwrap();
        assert_eq!(
            (engine.recipe.as_str(), engine.launch),
            ("sglang", Launch::Docker)
        );
        assert_eq!((engine.port, engine.served_name.as_str()), (30000, "Big"));
        assert_eq!(engine.args, ["--reasoning-parser", "glm45"]);
        assert_eq!(extra.env["A"], "x y");
        assert_eq!(
            extra.cluster.as_ref().unwrap().rendezvous(),
            Some(("10.0.0.1", 29501))
        );
        let plan = both.attest_toml();
        assert!(
            plan.contains("name = \"o/Big\"\nrevision = \"abc\""),
            "{plan}"
        );
        assert!(
            plan.contains("model = \"Big\"") && !plan.contains("served"),
            "{plan}"
        );

        // A recipe alone has no nodes; what is missing is marked.
        let alone = read("sparkrun", recipe).unwrap().cluster_toml();
        Inventory::parse(&alone).unwrap();
        assert!(
            alone.contains("FILL IN: host") && alone.contains("gx0.invalid"),
            "{alone}"
        );
        assert!(read("compose", "").is_err());
    }
}
