//! Facts of this machine, read from the system. What cannot be read is absent.

use runseal::bundle::files::NodeFacts;

/// Now, RFC 3339 in UTC to the millisecond.
pub fn now_text() -> String {
    let now = jiff::Timestamp::now();
    jiff::Timestamp::from_millisecond(now.as_millisecond())
        .unwrap_or(now)
        .to_string()
}

/// Reads the facts of the local machine.
pub fn local() -> NodeFacts {
    let uname = rustix::system::uname();
    let text = |c: &std::ffi::CStr| c.to_string_lossy().into_owned();
    NodeFacts {
        at: now_text(),
        kernel: Some(format!(
            "{} {}",
            text(uname.sysname()),
            text(uname.release())
        )),
        os: read("/etc/os-release").and_then(|t| os_name(&t)),
        arch: text(uname.machine()),
        cpu_model: read("/proc/cpuinfo").and_then(|t| cpu_model(&t)),
        cpus: std::thread::available_parallelism().map_or(0, |n| n.get() as u64),
        mem_total: meminfo("MemTotal"),
        mem_available: meminfo("MemAvailable"),
        boot_id: boot_id(),
        gpus: gpus(),
    }
}

fn read(path: &str) -> Option<String> {
    std::fs::read_to_string(path).ok()
}

/// Boot id of the running kernel.
pub fn boot_id() -> Option<String> {
    runseal::weights::boot_id().ok()
}

fn os_name(text: &str) -> Option<String> {
    text.lines()
        .find_map(|l| l.strip_prefix("PRETTY_NAME="))
        .map(|v| v.trim_matches('"').to_owned())
}

/// `model name` on x86-64; arm64 kernels give implementer and part numbers.
fn cpu_model(text: &str) -> Option<String> {
    let field = |name: &str| {
        text.lines().find_map(|l| {
            let (key, value) = l.split_once(':')?;
            (key.trim() == name).then(|| value.trim().to_owned())
        })
    };
    field("model name").or_else(|| {
        Some(format!(
            "implementer {} part {}",
            field("CPU implementer")?,
            field("CPU part")?
        ))
    })
}

/// A field of /proc/meminfo, in bytes.
pub fn meminfo(name: &str) -> Option<u64> {
    parse_meminfo(&read("/proc/meminfo")?, name)
}

fn parse_meminfo(text: &str, name: &str) -> Option<u64> {
    let line = text
        .lines()
        .find_map(|l| l.strip_prefix(name)?.strip_prefix(':'))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

/// Devices of the NVIDIA driver, from its own folder in /proc.
fn gpus() -> Vec<String> {
    let Ok(entries) = std::fs::read_dir("/proc/driver/nvidia/gpus") else {
        return Vec::new();
    };
    let mut models: Vec<String> = entries
        .flatten()
        .filter_map(|e| std::fs::read_to_string(e.path().join("information")).ok())
        .filter_map(|t| {
            t.lines()
                .find_map(|l| l.strip_prefix("Model:").map(|m| m.trim().to_owned()))
        })
        .collect();
    models.sort();
    models
}

/// One-minute load average in thousandths.
pub fn load1_milli() -> Option<u64> {
    let text = read("/proc/loadavg")?;
    let (whole, part) = text.split_whitespace().next()?.split_once('.')?;
    let hundredths: u64 = part.parse().ok()?;
    Some(whole.parse::<u64>().ok()? * 1000 + hundredths * 10)
}

/// Busy time of all processors since boot, in clock ticks: user, nice, system,
/// irq, softirq and steal of the first line of /proc/stat.
pub fn cpu_busy_ticks() -> Option<u64> {
    let text = read("/proc/stat")?;
    let numbers: Vec<u64> = text
        .lines()
        .next()?
        .split_whitespace()
        .skip(1)
        .map(|n| n.parse().ok())
        .collect::<Option<_>>()?;
    let at = |i: usize| numbers.get(i).copied();
    Some(at(0)? + at(1)? + at(2)? + at(5)? + at(6)? + at(7).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_of_proc_are_read_and_absent_ones_are_absent() {
        let mem = "MemTotal:       24576 kB\nMemAvailable:   1024 kB\n";
        assert_eq!(parse_meminfo(mem, "MemTotal"), Some(24576 * 1024));
        assert_eq!(parse_meminfo(mem, "Mem"), None);
        assert_eq!(parse_meminfo("MemTotal: x kB", "MemTotal"), None);
        assert_eq!(cpu_model("model name\t: A B\n").as_deref(), Some("A B"));
        assert_eq!(
            cpu_model("CPU implementer\t: 0x41\nCPU part\t: 0xd85\n").as_deref(),
            Some("implementer 0x41 part 0xd85")
        );
        assert_eq!(cpu_model("processor: 0\n"), None);
        assert_eq!(
            os_name("ID=x\nPRETTY_NAME=\"X 1\"\n").as_deref(),
            Some("X 1")
        );
    }

    #[test]
    fn this_machine_has_facts() {
        let facts = local();
        assert!(facts.mem_total.unwrap() > facts.mem_available.unwrap() / 2);
        assert!(facts.cpus > 0);
        assert_eq!(facts.boot_id.unwrap().len(), 36);
        assert!(load1_milli().is_some() && cpu_busy_ticks().is_some());
    }
}
