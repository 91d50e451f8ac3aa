//! One `[[replica]]` of an inventory: from the flat TOML table to a value in
//! which only sensible combinations exist.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::cluster::{GidIndex, NodeSettings};
use super::{InventoryError, Role};
use crate::digest::Sha256Digest;

/// One copy of every checkpoint, and how to reach it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Replica {
    /// A short name, unique in the inventory; it appears in findings and file names.
    pub name: String,
    /// How to reach the machine.
    pub transport: Transport,
    /// The folder of each checkpoint.
    pub paths: BTreeMap<Role, String>,
    /// Run the program there as root, with `sudo -n`.
    pub sudo: bool,
    /// Where `verify` lies on the node; without it, in the shell's search path.
    pub agent: Option<String>,
    /// SHA-256 that the program on the node must have.
    pub agent_sha256: Option<Sha256Digest>,
    /// File *on the node* with the secret key that signs its reports.
    pub node_key: Option<String>,
    /// What only a multi-node run needs.
    pub node: NodeSettings,
}

/// How a replica is reached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Transport {
    /// A folder of this machine.
    Local,
    /// The system's ssh.
    Ssh(Ssh),
    /// Another program, for example `srun` or `kubectl exec`.
    Command(CommandTemplate),
}

impl Transport {
    /// The word in the inventory.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Local => "local",
            Self::Ssh(_) => "ssh",
            Self::Command(_) => "command",
        }
    }
}

/// Options of the `ssh` transport. Whatever is absent is left to ssh's own
/// configuration.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Ssh {
    /// Host name, address or alias of ssh's configuration.
    pub host: String,
    /// User there.
    pub user: Option<String>,
    /// TCP port there.
    pub port: Option<u16>,
    /// Private key file, `~/` allowed.
    pub identity: Option<String>,
    /// A known_hosts file instead of the user's and the system's.
    pub known_hosts: Option<String>,
    /// Fingerprint (`SHA256:…`) that the host key must have; it stands in for
    /// known_hosts.
    pub host_key: Option<String>,
}

/// Options of the `command` transport.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CommandTemplate {
    /// Words with the placeholders `{host}` and `{agent}`.
    pub command: Vec<String>,
    /// What `{host}` stands for; the replica's name when absent.
    pub host: Option<String>,
}

/// A node and its copy of every checkpoint.
#[derive(Debug, Clone, Default, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "Node")]
pub(super) struct Table {
    /// A short name, unique in the inventory; it appears in findings and file names.
    pub(super) name: String,
    /// "local", "ssh" or "command".
    transport: String,
    /// ssh: host name, address or alias of ssh's configuration. command: what
    /// `{host}` stands for.
    #[serde(skip_serializing_if = "Option::is_none")]
    host: Option<String>,
    /// ssh: user there.
    #[serde(skip_serializing_if = "Option::is_none")]
    user: Option<String>,
    /// ssh: TCP port there.
    #[serde(skip_serializing_if = "Option::is_none")]
    port: Option<u16>,
    /// ssh: private key file, `~/` allowed.
    #[serde(skip_serializing_if = "Option::is_none")]
    identity: Option<String>,
    /// ssh: a known_hosts file instead of the user's and the system's.
    #[serde(skip_serializing_if = "Option::is_none")]
    known_hosts: Option<String>,
    /// ssh: fingerprint (`SHA256:…`) that the host key must have; it stands in for
    /// known_hosts.
    #[serde(skip_serializing_if = "Option::is_none")]
    host_key: Option<String>,
    /// command: words with the placeholders `{host}` and `{agent}`.
    #[serde(skip_serializing_if = "Option::is_none")]
    command: Option<Vec<String>>,
    /// Folder of the target checkpoint on the node.
    path: String,
    /// Run the program there as root, with `sudo -n`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    sudo: bool,
    /// Where `verify` lies on the node; without it, in the search path.
    #[serde(skip_serializing_if = "Option::is_none")]
    agent: Option<String>,
    /// SHA-256 that the program on the node must have.
    #[serde(skip_serializing_if = "Option::is_none")]
    agent_sha256: Option<String>,
    /// File on the node with the secret key that signs its reports.
    #[serde(skip_serializing_if = "Option::is_none")]
    node_key: Option<String>,
    /// Its rank, from 0. Every node has one, or none has.
    #[serde(skip_serializing_if = "Option::is_none")]
    rank: Option<u32>,
    /// Its address on the fast network, as the engine is told it.
    #[serde(skip_serializing_if = "Option::is_none")]
    address: Option<String>,
    /// Interface that it is managed through.
    #[serde(skip_serializing_if = "Option::is_none")]
    management: Option<String>,
    /// Interfaces of the fast network.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    fabric: Vec<String>,
    /// RDMA devices to use, for example "rocep1s0f1".
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    hcas: Vec<String>,
    /// Index of the RoCE address to use, or "auto".
    #[serde(skip_serializing_if = "Option::is_none")]
    gid_index: Option<GidIndex>,
    /// Folders of the other checkpoints, by role.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    paths: BTreeMap<Role, String>,
    /// Environment of this rank, on top of the common one.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    env: BTreeMap<String, String>,
}

impl Replica {
    /// A folder of this machine that holds the target checkpoint.
    pub fn local(name: impl Into<String>, path: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            transport: Transport::Local,
            paths: BTreeMap::from([(Role::Target, path.into())]),
            sudo: false,
            agent: None,
            agent_sha256: None,
            node_key: None,
            node: NodeSettings::default(),
        }
    }

    /// Its rank, where it has one.
    pub fn rank(&self) -> Option<u32> {
        self.node.rank
    }

    pub(super) fn to_table(&self) -> Table {
        let mut paths = self.paths.clone();
        let mut table = Table {
            name: self.name.clone(),
            transport: self.transport.name().to_owned(),
            path: paths.remove(&Role::Target).unwrap_or_default(),
            paths,
            sudo: self.sudo,
            agent: self.agent.clone(),
            agent_sha256: self.agent_sha256.map(|d| d.hex()),
            node_key: self.node_key.clone(),
            rank: self.node.rank,
            address: self.node.address.clone(),
            management: self.node.management.clone(),
            fabric: self.node.fabric.clone(),
            hcas: self.node.hcas.clone(),
            gid_index: self.node.gid_index,
            env: self.node.env.clone(),
            ..Table::default()
        };
        match &self.transport {
            Transport::Local => {}
            Transport::Ssh(ssh) => {
                table.host = Some(ssh.host.clone());
                table.user.clone_from(&ssh.user);
                table.port = ssh.port;
                table.identity.clone_from(&ssh.identity);
                table.known_hosts.clone_from(&ssh.known_hosts);
                table.host_key.clone_from(&ssh.host_key);
            }
            Transport::Command(template) => {
                table.command = Some(template.command.clone());
                table.host.clone_from(&template.host);
            }
        }
        table
    }
}

impl TryFrom<Table> for Replica {
    type Error = InventoryError;

    fn try_from(t: Table) -> Result<Self, InventoryError> {
        let name = t.name.clone();
        let refuse = |why: &str| InventoryError::Replica {
            name: name.clone(),
            why: why.to_owned(),
        };
        if !is_name(&t.name) {
            return Err(InventoryError::Name(t.name));
        }
        let given = [
            ("host", t.host.is_some()),
            ("user", t.user.is_some()),
            ("port", t.port.is_some()),
            ("identity", t.identity.is_some()),
            ("known_hosts", t.known_hosts.is_some()),
            ("host_key", t.host_key.is_some()),
            ("command", t.command.is_some()),
            ("agent", t.agent.is_some()),
            ("agent_sha256", t.agent_sha256.is_some()),
        ];
        let allowed: &[&str] = match t.transport.as_str() {
            "local" => &[],
            "command" => &["host", "command", "agent", "agent_sha256"],
            _ => &[
                "host",
                "user",
                "port",
                "identity",
                "known_hosts",
                "host_key",
                "agent",
                "agent_sha256",
            ],
        };
        // An option without effect would read as if it had one.
        if let Some((option, _)) = given.iter().find(|(o, is)| *is && !allowed.contains(o)) {
            return Err(refuse(&format!(
                "{option:?} means nothing with transport {:?} (hint: remove it)",
                t.transport
            )));
        }
        let transport = match t.transport.as_str() {
            "local" => Transport::Local,
            "ssh" => Transport::Ssh(Ssh {
                host: t
                    .host
                    .ok_or_else(|| refuse("transport \"ssh\" needs a host"))?,
                user: t.user,
                port: t.port,
                identity: t.identity,
                known_hosts: t.known_hosts,
                host_key: t.host_key,
            }),
            "command" => Transport::Command(CommandTemplate {
                command: t.command.ok_or_else(|| {
                    refuse(
                        "transport \"command\" needs a command (hint: command = [\"srun\", \"-w\", \"{host}\", \"{agent}\"])",
                    )
                })?,
                host: t.host,
            }),
            other => {
                return Err(InventoryError::Transport {
                    name,
                    transport: other.to_owned(),
                });
            }
        };
        let mut paths = t.paths;
        if paths.insert(Role::Target, t.path).is_some() {
            return Err(refuse(
                "the target's folder is named twice (hint: `path` is the target's)",
            ));
        }
        let agent_sha256 = t.agent_sha256.map(|text| text.parse()).transpose();
        let replica = Self {
            transport,
            paths,
            sudo: t.sudo,
            agent: t.agent,
            agent_sha256: agent_sha256
                .map_err(|_| refuse("agent_sha256 is not 64 hexadecimal digits"))?,
            node_key: t.node_key,
            node: NodeSettings {
                rank: t.rank,
                address: t.address,
                management: t.management,
                fabric: t.fabric,
                hcas: t.hcas,
                gid_index: t.gid_index,
                env: t.env,
            },
            name: t.name,
        };
        replica.check().map_err(|why| refuse(&why))?;
        Ok(replica)
    }
}

impl Replica {
    fn check(&self) -> Result<(), String> {
        let local = self.transport == Transport::Local;
        for (role, path) in &self.paths {
            if path.is_empty() {
                return Err(format!("the {role} has an empty path"));
            }
            if path.contains('\0') {
                return Err(format!("the path of the {role} holds a NUL"));
            }
            if !local && !path.starts_with('/') {
                return Err(format!(
                    "the path of the {role} is not absolute: {path:?} (hint: it is a path on the node)"
                ));
            }
        }
        for (what, value) in [("agent", &self.agent), ("node_key", &self.node_key)] {
            let Some(value) = value else { continue };
            let fine = !value.is_empty()
                && !value.starts_with('-')
                && !value.chars().any(char::is_control);
            if !fine {
                return Err(format!("{what} is not a file name: {value:?}"));
            }
        }
        self.node.check()?;
        match &self.transport {
            Transport::Local => Ok(()),
            Transport::Ssh(ssh) => ssh.check(),
            Transport::Command(template) => template.check(),
        }
    }
}

impl Ssh {
    fn check(&self) -> Result<(), String> {
        // A host that begins with a dash would be read as an option of ssh.
        let word = |text: &str| {
            !text.is_empty()
                && !text.starts_with('-')
                && !text.chars().any(|c| {
                    c.is_control() || c.is_whitespace() || "'\"`$\\;&|<>(){}*?".contains(c)
                })
        };
        if !word(&self.host) || self.host.contains('@') {
            return Err(format!(
                "{:?} is not a host (hint: give the user as `user`, the port as `port`)",
                self.host
            ));
        }
        if let Some(user) = &self.user
            && (!word(user) || user.contains('@'))
        {
            return Err(format!(
                "{user:?} is not a user (hint: a bare name, without the host)"
            ));
        }
        if self.port == Some(0) {
            return Err("port 0 is no port".to_owned());
        }
        for (what, file) in [
            ("identity", &self.identity),
            ("known_hosts", &self.known_hosts),
        ] {
            // ssh takes these apart at spaces and percent signs.
            let odd = |c: char| c.is_control() || c.is_whitespace() || "\"%$".contains(c);
            if file
                .as_ref()
                .is_some_and(|f| f.is_empty() || f.contains(odd))
            {
                return Err(format!(
                    "{what} is empty or holds white space, quotes, % or $, which ssh would interpret"
                ));
            }
        }
        if let Some(pin) = &self.host_key {
            let body = pin.strip_prefix("SHA256:").unwrap_or_default();
            let base64 = |b: u8| b.is_ascii_alphanumeric() || b == b'+' || b == b'/';
            if body.len() != 43 || !body.bytes().all(base64) {
                return Err(format!(
                    "host_key {pin:?} is not a fingerprint (hint: SHA256:… as `ssh-keygen -lf` prints it)"
                ));
            }
            if self.known_hosts.is_some() {
                return Err("host_key and known_hosts exclude each other".to_owned());
            }
        }
        Ok(())
    }
}

impl CommandTemplate {
    fn check(&self) -> Result<(), String> {
        if self
            .command
            .first()
            .is_none_or(|w| w.is_empty() || w.starts_with('-') || w.contains('{'))
        {
            return Err("the command does not begin with a program".to_owned());
        }
        if !self.command.iter().any(|w| w.contains("{agent}")) {
            return Err(
                "the command has no {agent} (hint: it stands for the words to run on the node)"
                    .to_owned(),
            );
        }
        let text = self.command.join("\n");
        if text.contains('\0') {
            return Err("the command holds a NUL".to_owned());
        }
        let rest = text.replace("{agent}", "").replace("{host}", "");
        if let Some(at) = rest.find('{') {
            let odd: String = rest[at..]
                .chars()
                .take_while(|c| *c != '\n')
                .take(20)
                .collect();
            return Err(format!(
                "{odd:?} is not a placeholder (hint: {{host}} and {{agent}} are)"
            ));
        }
        if let Some(host) = &self.host
            && (host.starts_with('-') || host.is_empty())
        {
            return Err(format!("{host:?} is not a host"));
        }
        Ok(())
    }
}

fn is_name(name: &str) -> bool {
    let plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-');
    (1..=64).contains(&name.len()) && name.bytes().all(plain) && !name.starts_with(['.', '-'])
}
