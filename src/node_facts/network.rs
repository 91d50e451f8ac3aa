//! Interfaces, RDMA devices and their addresses.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use serde::Serialize;
use serde_json::Value;

use crate::json;

/// A network interface.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Link {
    /// Largest packet, in bytes.
    pub mtu: Option<u64>,
    /// It is up and has a carrier.
    pub up: Option<bool>,
    /// Its speed in Mbit/s.
    pub mbps: Option<u64>,
    /// Its addresses.
    pub addresses: BTreeSet<IpAddr>,
}

/// A port of an RDMA device.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Hca {
    /// Its network interface.
    pub netdev: Option<String>,
    /// The interface is up.
    pub up: Option<bool>,
    /// Its RoCE addresses by index.
    pub gids: BTreeMap<u32, Gid>,
}

/// An entry of a port's GID table.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Gid {
    /// The address.
    pub address: Ipv6Addr,
    /// RoCE v2, which is routed; v1 is not.
    pub v2: bool,
}

impl Gid {
    /// The IPv4 address in it, where there is one.
    pub fn ipv4(&self) -> Option<Ipv4Addr> {
        self.address.to_ipv4_mapped()
    }
}

impl Hca {
    /// Index of the RoCE v2 entry with an IPv4 address: what `gid_index = "auto"`
    /// means.
    pub fn auto_index(&self) -> Option<u32> {
        let mut entries = self.gids.iter();
        entries
            .find(|(_, g)| g.v2 && g.ipv4().is_some())
            .map(|(i, _)| *i)
    }
}

/// `ip -j addr` or `ip -j link`.
pub(super) fn ip_json(text: &str) -> Option<BTreeMap<String, Link>> {
    let value: Value = json::from_slice(text.as_bytes()).ok()?;
    let mut out = BTreeMap::new();
    for item in value.as_array()? {
        let Some(name) = item.get("ifname").and_then(Value::as_str) else {
            continue;
        };
        let addresses = item.get("addr_info").and_then(Value::as_array);
        let each = addresses.into_iter().flatten();
        let link = Link {
            mtu: item.get("mtu").and_then(Value::as_u64),
            up: item
                .get("operstate")
                .and_then(Value::as_str)
                .and_then(|s| match s {
                    "UP" => Some(true),
                    "DOWN" | "LOWERLAYERDOWN" | "DORMANT" | "NOTPRESENT" => Some(false),
                    // Virtual interfaces do not say.
                    _ => None,
                }),
            mbps: None,
            addresses: each
                .filter_map(|a| a.get("local")?.as_str()?.parse().ok())
                .collect(),
        };
        out.insert(name.to_owned(), link);
    }
    Some(out)
}

/// The speed in the output of `ethtool INTERFACE`. A link that is down has none.
pub(super) fn ethtool_mbps(text: &str) -> Option<u64> {
    let line = text.lines().find_map(|l| l.trim().strip_prefix("Speed:"))?;
    line.trim().strip_suffix("Mb/s")?.parse().ok()
}

/// `rocep1s0f0 port 1 ==> enp1s0f0np0 (Up)`, one line a port.
pub(super) fn ibdev2netdev(text: &str) -> Option<BTreeMap<String, Hca>> {
    let mut out = BTreeMap::new();
    for line in text.lines().filter(|l| !l.trim().is_empty()) {
        let (port, netdev) = line.split_once("==>")?;
        let name = port.split_whitespace().next()?;
        let mut rest = netdev.split_whitespace();
        let netdev = rest.next()?;
        let up = match rest.next() {
            Some("(Up)") => Some(true),
            Some("(Down)") => Some(false),
            _ => None,
        };
        let hca = Hca {
            netdev: Some(netdev.to_owned()),
            up,
            gids: BTreeMap::new(),
        };
        out.insert(name.to_owned(), hca);
    }
    Some(out)
}

/// Lines `INDEX GID TYPE`, as [`super::collect`] joins them from sysfs. Entries that
/// are all zero are none.
pub(super) fn gids(text: &str) -> BTreeMap<u32, Gid> {
    let entries = text.lines().filter_map(|line| {
        let mut fields = line.splitn(3, ' ');
        let index = fields.next()?.parse().ok()?;
        let address: Ipv6Addr = fields.next()?.parse().ok()?;
        let kind = fields.next()?.trim();
        let gid = Gid {
            address,
            v2: kind == "RoCE v2",
        };
        (!address.is_unspecified()).then_some((index, gid))
    });
    entries.collect()
}
