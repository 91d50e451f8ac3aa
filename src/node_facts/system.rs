//! Files of the system: releases, memory, pressure, clock, listening ports.

use std::collections::BTreeSet;

use serde::Serialize;

/// Memory in bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Memory {
    /// All of it.
    pub total: Option<u64>,
    /// What a new program can have without swapping.
    pub available: Option<u64>,
    /// Swap space.
    pub swap_total: Option<u64>,
    /// Swap space that is free.
    pub swap_free: Option<u64>,
}

/// Share of the last ten seconds in which something waited for a resource, in
/// hundredths of a percent.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Pressure {
    /// At least one task waited.
    pub some10: Option<u64>,
    /// All tasks waited.
    pub full10: Option<u64>,
}

/// A value of a file in the form of shell variables. Of several the last counts.
pub(super) fn shell_value(text: &str, name: &str) -> Option<String> {
    let mut values = text.lines().filter_map(|line| {
        let value = line.trim().strip_prefix(name)?.strip_prefix('=')?.trim();
        let bare = value.strip_prefix('"').and_then(|v| v.strip_suffix('"'));
        Some(bare.unwrap_or(value))
    });
    let value = values.next_back()?;
    (!value.is_empty()).then(|| value.to_owned())
}

/// Each update over the air adds its version; the image's stays.
pub(super) fn dgx_version(text: &str) -> Option<String> {
    shell_value(text, "DGX_OTA_VERSION").or_else(|| shell_value(text, "DGX_SWBUILD_VERSION"))
}

pub(super) fn meminfo(text: &str) -> Memory {
    let field = |name: &str| -> Option<u64> {
        let mut lines = text.lines();
        let line = lines.find_map(|l| l.strip_prefix(name)?.strip_prefix(':'))?;
        let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
        kib.checked_mul(1024)
    };
    Memory {
        total: field("MemTotal"),
        available: field("MemAvailable"),
        swap_total: field("SwapTotal"),
        swap_free: field("SwapFree"),
    }
}

/// A file of /proc/pressure.
pub(super) fn pressure(text: &str) -> Option<Pressure> {
    let share = |kind: &str| -> Option<u64> {
        let mut lines = text.lines();
        let line = lines.find_map(|l| l.strip_prefix(kind)?.strip_prefix(' '))?;
        let mut fields = line.split_whitespace();
        let (whole, part) = fields
            .find_map(|f| f.strip_prefix("avg10="))?
            .split_once('.')?;
        (part.len() == 2).then_some(())?;
        Some(whole.parse::<u64>().ok()? * 100 + part.parse::<u64>().ok()?)
    };
    let out = Pressure {
        some10: share("some"),
        full10: share("full"),
    };
    (out.some10.is_some() || out.full10.is_some()).then_some(out)
}

/// `timedatectl show -p NTPSynchronized`.
pub(super) fn ntp_synchronised(text: &str) -> Option<bool> {
    match text.trim().strip_prefix("NTPSynchronized=")? {
        "yes" => Some(true),
        "no" => Some(false),
        _ => None,
    }
}

/// `chronyc -c tracking`: the last field but none is the leap status.
pub(super) fn chrony_synchronised(text: &str) -> Option<bool> {
    let fields: Vec<&str> = text.trim().split(',').collect();
    match *fields.get(13)? {
        "Not synchronised" => Some(false),
        "Normal" | "Insert second" | "Delete second" => Some(true),
        _ => None,
    }
}

/// Ports in state LISTEN of /proc/net/tcp and tcp6.
pub(super) fn listening(tcp: Option<&str>, tcp6: Option<&str>) -> Option<BTreeSet<u16>> {
    const LISTEN: &str = "0A";
    // Without IPv6 there is no such file.
    let tcp = tcp?;
    let lines = tcp
        .lines()
        .skip(1)
        .chain(tcp6.unwrap_or_default().lines().skip(1));
    let ports = lines.filter_map(|line| {
        let mut fields = line.split_whitespace().skip(1);
        let (local, _, state) = (fields.next()?, fields.next()?, fields.next()?);
        let (_, port) = local.rsplit_once(':')?;
        (state == LISTEN).then(|| u16::from_str_radix(port, 16).ok())?
    });
    Some(ports.collect())
}
