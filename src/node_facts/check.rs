//! The facts of all nodes against each other and against what the inventory
//! expects.
//!
//! An expectation that is absent is not checked. One that is there and whose fact
//! could not be read does not hold: in doubt a check fails.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use super::clock::Offset;
use super::{Facts, Link, Pinned, Raw};
use crate::codes::Code;
use crate::finding::Finding;
use crate::weights::{Alike, Expect, GidIndex, Inventory, Launch, Replica};

/// What one node said.
#[derive(Debug, Clone)]
pub struct Node {
    /// Its facts.
    pub facts: Facts,
    /// Where they come from; says why one is absent.
    pub raw: Raw,
    /// How far its clock is; absent for this machine.
    pub clock: Option<Offset>,
}

/// Everything that is wrong or remarkable, node by node in the inventory's order.
pub fn check(inventory: &Inventory, nodes: &BTreeMap<String, Node>) -> Vec<Finding> {
    let mut findings = Vec::new();
    for replica in inventory.replicas() {
        if let Some(node) = nodes.get(&replica.name) {
            let mut one = One {
                replica,
                node,
                inventory,
                findings: &mut findings,
            };
            one.expectations();
            one.network();
            one.engine();
            one.remarks();
        }
    }
    findings.extend(machines(inventory, nodes));
    findings.extend(differences(inventory, nodes));
    findings
}

struct One<'a> {
    replica: &'a Replica,
    node: &'a Node,
    inventory: &'a Inventory,
    findings: &'a mut Vec<Finding>,
}

impl One<'_> {
    fn add(&mut self, code: Code, detail: impl Into<String>) -> &mut Finding {
        let finding = Finding::new(code, &self.replica.name, detail);
        self.findings.push(finding);
        let last = self.findings.len() - 1;
        &mut self.findings[last]
    }

    fn values(&mut self, code: Code, detail: &str, expected: impl ToString, found: impl ToString) {
        let finding = Finding::new(code, &self.replica.name, detail);
        self.findings.push(finding.values(expected, found));
    }

    /// An expectation whose fact is absent.
    fn unknown(&mut self, what: &str, source: &str) {
        let why = self.node.raw.absent(source).to_owned();
        self.add(
            Code::NodeFactUnknown,
            format!("{what} is expected and could not be read: {why}"),
        );
    }

    fn expectations(&mut self) {
        let expect: &Expect = &self.inventory.extra.expect;
        let facts = &self.node.facts;
        let gpu = facts.gpu();
        let container = facts.container_engine.as_ref();
        let texts = [
            (
                "gpu",
                &expect.gpu,
                gpu.and_then(|g| g.name.clone()),
                "nvidia-smi",
            ),
            (
                "driver",
                &expect.driver,
                gpu.and_then(|g| g.driver.clone()),
                "nvidia-smi",
            ),
            (
                "vbios",
                &expect.vbios,
                gpu.and_then(|g| g.vbios.clone()),
                "nvidia-smi",
            ),
            (
                "kernel",
                &expect.kernel,
                facts.kernel.clone(),
                "/proc/sys/kernel/osrelease",
            ),
            (
                "dgx_version",
                &expect.dgx_version,
                facts.dgx_version.clone(),
                "/etc/dgx-release",
            ),
            (
                "container_engine",
                &expect.container_engine,
                container.and_then(|c| c.version.clone()),
                "docker-info",
            ),
        ];
        for (what, expected, found, source) in texts {
            match (expected, found) {
                (None, _) => {}
                (Some(_), None) => self.unknown(what, source),
                (Some(expected), Some(found)) if *expected == found => {}
                (Some(expected), Some(found)) => {
                    let detail = format!("{what} is another one than expected");
                    self.values(Code::NodeFactUnexpected, &detail, expected, found);
                }
            }
        }
        if let Some(least) = expect.mem_available {
            match facts.memory.available {
                None => self.unknown("mem_available", "/proc/meminfo"),
                Some(there) if there >= least => {}
                Some(there) => {
                    self.values(
                        Code::NodeMemoryLow,
                        "less memory is available than expected",
                        least,
                        there,
                    );
                }
            }
        }
        if let Some(least) = expect.disk_free {
            let path = target(self.replica).to_owned();
            match facts.disk_free.get(&path).copied() {
                None => self.unknown("disk_free", &format!("disk:{path}")),
                Some(there) if there >= least => {}
                Some(there) => {
                    self.values(
                        Code::NodeDiskLow,
                        "less space is free than expected",
                        least,
                        there,
                    );
                }
            }
        }
        self.clock(expect.clock_offset_ms);
    }

    fn clock(&mut self, limit_ms: Option<u64>) {
        let (Some(limit), Some(clock)) = (limit_ms, self.node.clock) else {
            return;
        };
        // In doubt it is too far: the bound counts, not the best guess.
        if clock.at_most_us() > limit.saturating_mul(1000) {
            let found = format!("{} us, known to {} us", clock.offset_us, clock.error_us);
            let detail = "its clock may be further from this machine's than expected";
            self.values(Code::NodeClockOffset, detail, format!("{limit} ms"), found);
        }
    }

    fn network(&mut self) {
        let node = &self.replica.node;
        let expect = &self.inventory.extra.expect;
        let named: Vec<&String> = node.management.iter().chain(&node.fabric).collect();
        let links = self.node.facts.links.as_ref();
        if links.is_none() && (!named.is_empty() || node.address.is_some()) {
            self.unknown("the list of interfaces", "ip-addr");
        }
        for name in named {
            let Some(links) = links else { break };
            match links.get(name) {
                None => {
                    self.add(Code::NodeInterface, format!("it has no interface {name}"));
                }
                Some(link) if link.up == Some(false) => {
                    self.add(Code::NodeInterface, format!("{name} is down"));
                }
                Some(link) if node.fabric.contains(name) => self.fast(name, link, expect),
                Some(_) => {}
            }
        }
        if let (Some(links), Some(address)) = (links, &node.address)
            && let Ok(wanted) = address.parse::<IpAddr>()
            && !links.values().any(|l| l.addresses.contains(&wanted))
        {
            let detail = format!("no interface has the address {address} of the inventory");
            self.add(Code::NodeAddress, detail);
        }
        self.hcas();
    }

    fn fast(&mut self, name: &str, link: &Link, expect: &Expect) {
        if let Some(least) = expect.mtu {
            match link.mtu {
                None => self.unknown(&format!("the MTU of {name}"), "ip-addr"),
                Some(mtu) if mtu >= least => {}
                Some(mtu) => {
                    let detail = format!("the MTU of {name} is below the expected one");
                    self.values(Code::NodeMtuLow, &detail, least, mtu);
                }
            }
        }
        if let Some(least) = expect.link_mbps {
            match link.mbps {
                None => self.unknown(&format!("the speed of {name}"), &format!("ethtool:{name}")),
                Some(mbps) if mbps >= least => {}
                Some(mbps) => {
                    let detail = format!("{name} is slower than expected, in Mbit/s");
                    self.values(Code::NodeLinkSlow, &detail, least, mbps);
                }
            }
        }
    }

    fn hcas(&mut self) {
        let node = &self.replica.node;
        for name in &node.hcas {
            let there = self.node.facts.hcas.as_ref().and_then(|h| h.get(name));
            let Some(hca) = there else {
                let why = self.node.raw.absent("ibdev2netdev").to_owned();
                self.add(
                    Code::NodeHca,
                    match self.node.facts.hcas {
                        Some(_) => format!("it has no RDMA device {name}"),
                        None => format!("its RDMA devices could not be listed: {why}"),
                    },
                );
                continue;
            };
            if hca.up == Some(false) {
                self.add(Code::NodeHca, format!("the port of {name} is down"));
            }
            let found = match node.gid_index {
                None => continue,
                Some(GidIndex::Auto(_)) => hca.auto_index().map(|_| true),
                Some(GidIndex::Index(i)) => hca.gids.get(&i).map(|g| g.v2),
            };
            let wanted = match node.gid_index {
                Some(GidIndex::Index(i)) => format!("entry {i} of its GID table"),
                _ => "an entry of its GID table with an IPv4 address".to_owned(),
            };
            match found {
                Some(true) => {}
                Some(false) => {
                    self.add(Code::NodeHca, format!("{name}: {wanted} is not RoCE v2"));
                }
                None => {
                    self.add(Code::NodeHca, format!("{name} does not have {wanted}"));
                }
            }
        }
    }

    /// The port that the head will listen on, and the image.
    fn engine(&mut self) {
        let extra = &self.inventory.extra;
        let Some(engine) = &extra.engine else { return };
        if engine.launch != Launch::Attach {
            let meeting = extra.cluster.as_ref().and_then(|c| c.rendezvous());
            let mut ports: BTreeSet<u16> = meeting.map(|(_, p)| p).into_iter().collect();
            ports.insert(engine.port);
            let busy: Vec<u16> = match (&self.node.facts.listening, self.replica.rank()) {
                (Some(listening), Some(0)) => ports.intersection(listening).copied().collect(),
                _ => Vec::new(),
            };
            for port in busy {
                let detail =
                    format!("something listens on port {port} already, and the head needs it");
                self.add(Code::NodePortBusy, detail);
            }
        }
        if engine.launch != Launch::Docker {
            return;
        }
        let Some(pins) = &extra.image else { return };
        let Some(container) = &self.node.facts.container_engine else {
            return self.unknown("the container engine", "docker-info");
        };
        let Some(image) = &self.node.facts.image else {
            let why = self.node.raw.absent("docker-image").to_owned();
            let detail = format!("the image {} could not be looked at: {why}", pins.reference);
            self.add(Code::NodeImage, detail);
            return;
        };
        match image.is(pins, container.containerd_store) {
            Pinned::Yes(_) => {}
            Pinned::No(found) => {
                let detail = format!("{} is another image than the pinned one", pins.reference);
                self.add(Code::NodeImage, detail).found = Some(found);
            }
            Pinned::Unknown => {
                let detail = format!("no digest of the inventory says what {} is", pins.reference);
                self.add(Code::NodeImageUnpinned, detail);
            }
        }
    }

    fn remarks(&mut self) {
        let facts = &self.node.facts;
        if facts.clock_synchronised == Some(false) {
            self.add(Code::NodeClockFree, "its clock is not held to any other");
        }
        let mut slowed = facts.gpus.iter().flatten().filter_map(|g| g.throttle);
        if let Some(throttle) = slowed.rfind(|t| t.slowed()) {
            let names = throttle.names().join(", ");
            self.add(
                Code::NodeThrottled,
                format!("the clocks of its GPU are held down: {names}"),
            );
        }
    }
}

/// The folder of the target.
fn target(replica: &Replica) -> &str {
    let path = replica.paths.get(&crate::weights::Role::Target);
    path.map_or("", String::as_str)
}

/// Two nodes with one boot id are one machine, and their ranks would share it.
fn machines(inventory: &Inventory, nodes: &BTreeMap<String, Node>) -> Vec<Finding> {
    if inventory.ranks().is_empty() {
        return Vec::new();
    }
    let mut names: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for (name, node) in nodes {
        if let Some(boot) = &node.facts.boot_id {
            names.entry(boot).or_default().push(name);
        }
    }
    let several = names.into_values().filter(|n| n.len() > 1);
    several
        .map(|n| {
            Finding::new(
                Code::NodesOneMachine,
                n.join(", "),
                "these nodes are one machine",
            )
        })
        .collect()
}

/// Facts in which nodes differ: an error where the inventory wants them alike.
fn differences(inventory: &Inventory, nodes: &BTreeMap<String, Node>) -> Vec<Finding> {
    const ALL: [Alike; 8] = [
        Alike::Gpu,
        Alike::Driver,
        Alike::Vbios,
        Alike::Kernel,
        Alike::DgxVersion,
        Alike::ContainerEngine,
        Alike::Mtu,
        Alike::LinkMbps,
    ];
    let alike = &inventory.extra.expect.alike;
    let mut out = Vec::new();
    for fact in ALL {
        let mut groups: BTreeMap<String, Vec<&str>> = BTreeMap::new();
        let mut unknown = Vec::new();
        for replica in inventory.replicas() {
            let Some(node) = nodes.get(&replica.name) else {
                continue;
            };
            match value(fact, replica, &node.facts) {
                Some(value) => groups.entry(value).or_default().push(&replica.name),
                None => unknown.push(replica.name.as_str()),
            }
        }
        let wanted = alike.contains(&fact);
        if groups.len() > 1 {
            let each = groups
                .iter()
                .map(|(value, names)| format!("{value} on {}", names.join(", ")));
            let detail = format!("{}: {}", fact.name(), each.collect::<Vec<_>>().join("; "));
            let code = match wanted {
                true => Code::NodesNotAlike,
                false => Code::NodesDiffer,
            };
            out.push(Finding::new(code, "cluster", detail));
        }
        if wanted && !unknown.is_empty() {
            let detail = format!(
                "whether the nodes are alike in {} is not known",
                fact.name()
            );
            out.push(Finding::new(
                Code::NodeFactUnknown,
                unknown.join(", "),
                detail,
            ));
        }
    }
    out
}

fn value(fact: Alike, replica: &Replica, facts: &Facts) -> Option<String> {
    let gpu = facts.gpu();
    let fabric = |of: &dyn Fn(&Link) -> Option<u64>| -> Option<String> {
        let links = facts.links.as_ref()?;
        let values = replica.node.fabric.iter().map(|name| of(links.get(name)?));
        let values: Option<BTreeSet<u64>> = values.collect();
        let values = values.filter(|v| !v.is_empty())?;
        let each: Vec<String> = values.iter().map(u64::to_string).collect();
        Some(each.join("/"))
    };
    match fact {
        Alike::Gpu => gpu?.name.clone(),
        Alike::Driver => gpu?.driver.clone(),
        Alike::Vbios => gpu?.vbios.clone(),
        Alike::Kernel => facts.kernel.clone(),
        Alike::DgxVersion => facts.dgx_version.clone(),
        Alike::ContainerEngine => facts.container_engine.as_ref()?.version.clone(),
        Alike::Mtu => fabric(&|l| l.mtu),
        Alike::LinkMbps => fabric(&|l| l.mbps),
    }
}
