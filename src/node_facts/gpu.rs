//! `nvidia-smi --query-gpu=… --format=csv,nounits`.

use serde::Serialize;

/// Columns that are asked for, in the driver's own names.
pub const QUERY: &str = "name,uuid,driver_version,compute_cap,vbios_version,pstate,clocks.sm,clocks.max.sm,\
    power.draw,power.limit,temperature.gpu,memory.total,clocks_event_reasons.active";

/// A GPU. Absent: the driver answers `[N/A]`, or does not know the question.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Gpu {
    /// Name of the model.
    pub name: Option<String>,
    /// Identity of this very GPU.
    pub uuid: Option<String>,
    /// Version of the driver.
    pub driver: Option<String>,
    /// Compute capability.
    pub compute_cap: Option<String>,
    /// Version of its firmware.
    pub vbios: Option<String>,
    /// Performance state, `P0` and up.
    pub pstate: Option<String>,
    /// Clock of the processors, in MHz.
    pub sm_mhz: Option<u64>,
    /// Highest clock of the processors, in MHz.
    pub sm_max_mhz: Option<u64>,
    /// Power drawn, in milliwatts.
    pub power_mw: Option<u64>,
    /// Power limit, in milliwatts.
    pub power_limit_mw: Option<u64>,
    /// Temperature in degrees Celsius.
    pub temperature_c: Option<i64>,
    /// Memory of its own, in MiB; with unified memory there is none.
    pub memory_mib: Option<u64>,
    /// Why the clocks are what they are.
    pub throttle: Option<Throttle>,
}

/// The driver's bit mask of reasons for the present clocks (`nvml.h`,
/// `nvmlClocksEventReason…`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct Throttle(pub u64);

/// Bits of the mask and their names.
const REASONS: [(u64, &str); 9] = [
    (0x1, "gpu-idle"),
    (0x2, "applications-clocks-setting"),
    (0x4, "sw-power-cap"),
    (0x8, "hw-slowdown"),
    (0x10, "sync-boost"),
    (0x20, "sw-thermal-slowdown"),
    (0x40, "hw-thermal-slowdown"),
    (0x80, "hw-power-brake"),
    (0x100, "display-clock"),
];

impl Throttle {
    /// Too hot, or slowed down by the hardware.
    const SLOWED: u64 = 0x8 | 0x20 | 0x40 | 0x80;

    /// Names of the reasons, unknown bits as numbers.
    pub fn names(self) -> Vec<String> {
        let mut rest = self.0;
        let mut out = Vec::new();
        for (bit, name) in REASONS {
            if self.0 & bit != 0 {
                out.push(name.to_owned());
                rest &= !bit;
            }
        }
        if rest != 0 {
            out.push(format!("{rest:#x}"));
        }
        out
    }

    /// Heat or hardware holds the clocks down.
    pub fn slowed(self) -> bool {
        self.0 & Self::SLOWED != 0
    }
}

/// Reads the table; `None` when it is none. Columns are found by their names, which
/// older drivers spell otherwise.
pub(super) fn nvidia_smi(text: &str) -> Option<Vec<Gpu>> {
    let mut lines = text.lines().filter(|l| !l.trim().is_empty());
    let header: Vec<&str> = lines.next()?.split(',').map(column).collect();
    // A complaint has no such column.
    if !header.contains(&"name") {
        return None;
    }
    let mut gpus = Vec::new();
    for line in lines {
        let cells: Vec<&str> = line.split(',').map(str::trim).collect();
        if cells.len() != header.len() {
            return None;
        }
        let cell = |names: &[&str]| {
            let at = header.iter().position(|h| names.contains(h))?;
            value(cells[at])
        };
        let word = |names: &[&str]| cell(names).map(str::to_owned);
        let number = |names: &[&str]| cell(names).and_then(|v| first_word(v).parse().ok());
        gpus.push(Gpu {
            name: word(&["name"]),
            uuid: word(&["uuid"]),
            driver: word(&["driver_version"]),
            compute_cap: word(&["compute_cap"]),
            vbios: word(&["vbios_version"]),
            pstate: word(&["pstate"]),
            sm_mhz: number(&["clocks.current.sm", "clocks.sm"]),
            sm_max_mhz: number(&["clocks.max.sm"]),
            power_mw: cell(&["power.draw"]).and_then(milli),
            power_limit_mw: cell(&["power.limit"]).and_then(milli),
            temperature_c: cell(&["temperature.gpu"]).and_then(|v| first_word(v).parse().ok()),
            memory_mib: number(&["memory.total"]),
            throttle: cell(&[
                "clocks_event_reasons.active",
                "clocks_throttle_reasons.active",
            ])
            .and_then(|v| u64::from_str_radix(v.strip_prefix("0x")?, 16).ok())
            .map(Throttle),
        });
    }
    Some(gpus)
}

/// `clocks.current.sm [MHz]` is the column `clocks.current.sm`.
fn column(cell: &str) -> &str {
    cell.split('[').next().unwrap_or_default().trim()
}

/// A cell that says something.
fn value(cell: &str) -> Option<&str> {
    let nothing = cell.is_empty() || cell.starts_with('[') || cell == "N/A";
    (!nothing).then_some(cell)
}

/// Without `nounits` a unit follows.
fn first_word(cell: &str) -> &str {
    cell.split_whitespace().next().unwrap_or_default()
}

/// A decimal number in thousandths, exactly.
fn milli(cell: &str) -> Option<u64> {
    let word = first_word(cell);
    let (whole, part) = word.split_once('.').unwrap_or((word, ""));
    if part.len() > 3 || !part.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    let part: u64 = format!("{part:0<3}").parse().ok()?;
    whole
        .parse::<u64>()
        .ok()?
        .checked_mul(1000)?
        .checked_add(part)
}
