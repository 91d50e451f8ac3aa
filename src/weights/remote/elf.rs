//! As much of a program file as tells whether a node can execute it.

/// What an ELF header says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Elf {
    /// The machine as `uname -m` names it; `None` for one we do not know.
    pub machine: Option<&'static str>,
    /// It needs a loader, and with it libraries, on the node.
    pub dynamic: bool,
}

const PT_INTERP: u32 = 3;

/// Reads the header of a 64-bit little-endian ELF file; `None` for anything else.
pub fn read(bytes: &[u8]) -> Option<Elf> {
    if bytes.get(..6)? != b"\x7fELF\x02\x01" {
        return None;
    }
    let machine = match number(bytes, 18, 2)? {
        62 => Some("x86_64"),
        183 => Some("aarch64"),
        243 => Some("riscv64"),
        _ => None,
    };
    let (table, each, entries) = (
        number(bytes, 32, 8)?,
        number(bytes, 54, 2)?,
        number(bytes, 56, 2)?,
    );
    let mut dynamic = false;
    for i in 0..entries {
        let at = table.checked_add(i.checked_mul(each)?)?;
        dynamic |= number(bytes, at, 4)? == u64::from(PT_INTERP);
    }
    Some(Elf { machine, dynamic })
}

fn number(bytes: &[u8], at: u64, len: usize) -> Option<u64> {
    let at = usize::try_from(at).ok()?;
    let field = bytes.get(at..at.checked_add(len)?)?;
    Some(field.iter().rev().fold(0, |n, b| n << 8 | u64::from(*b)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_are_read_and_nonsense_is_not() {
        let mut bytes = vec![0u8; 64 + 56];
        bytes[..6].copy_from_slice(b"\x7fELF\x02\x01");
        bytes[18] = 183;
        (bytes[32], bytes[54], bytes[56]) = (64, 56, 1);
        let elf = |dynamic| Elf {
            machine: Some("aarch64"),
            dynamic,
        };
        assert_eq!(read(&bytes), Some(elf(false)));
        bytes[64] = 3;
        assert_eq!(read(&bytes), Some(elf(true)));
        bytes[56] = 9;
        assert_eq!(read(&bytes), None);
        bytes[32..40].fill(0xff);
        assert_eq!(read(&bytes), None);
        assert_eq!(read(b"#!/bin/sh\n"), None);
        let own = std::fs::read("/proc/self/exe").unwrap();
        assert_eq!(read(&own).unwrap().machine, Some(std::env::consts::ARCH));
    }
}
