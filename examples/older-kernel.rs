//! Runs a program as if the kernel were an older one: the calls that keep a rehash out
//! of the page cache fail as they do there.
//!
//! `older-kernel [no-dontcache] [no-cachestat] PROGRAM ARGUMENT...`; with `--self-test`
//! for PROGRAM it tries the calls itself and prints what became of them.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{IoSliceMut, Write};
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};

use rustix::io::{ReadWriteFlags, preadv2};
use seccompiler::{BpfProgram, SeccompAction, SeccompFilter, apply_filter};

/// Number of preadv2(2), by which `RWF_DONTCACHE` is asked for.
#[cfg(target_arch = "x86_64")]
const PREADV2: i64 = 327;
#[cfg(target_arch = "aarch64")]
const PREADV2: i64 = 286;
/// Number of cachestat(2), everywhere.
const CACHESTAT: i64 = 451;
const EPERM: u32 = 1;
const EOPNOTSUPP: u32 = 95;

fn main() -> ExitCode {
    let mut args = std::env::args_os().skip(1).peekable();
    while let Some(word) = args.next_if(|a| a.as_encoded_bytes().starts_with(b"no-")) {
        let denied = match word.to_str() {
            Some("no-dontcache") => deny(PREADV2, EOPNOTSUPP),
            Some("no-cachestat") => deny(CACHESTAT, EPERM),
            _ => Err(format!("unknown: {}", word.display()).into()),
        };
        if let Err(e) = denied {
            eprintln!("could not install the filter: {e}");
            return ExitCode::from(2);
        }
    }
    let Some(program) = args.next() else {
        eprintln!("usage: older-kernel [no-dontcache] [no-cachestat] PROGRAM ARGUMENT...");
        return ExitCode::from(2);
    };
    if program == "--self-test" {
        let file = File::open("/proc/self/exe");
        let told = file.map_err(|e| e.to_string()).map(|file| {
            let mut byte = [0];
            let mut parts = [IoSliceMut::new(&mut byte)];
            let read = preadv2(&file, &mut parts, 0, ReadWriteFlags::empty());
            (
                read.is_ok(),
                runseal_kernel::pages::cached(&file, 0, 0).is_ok(),
            )
        });
        let _ = writeln!(std::io::stdout(), "{told:?}");
        return ExitCode::SUCCESS;
    }
    let error = Command::new(&program).args(args).exec();
    eprintln!("could not start {}: {error}", program.display());
    ExitCode::from(2)
}

fn deny(call: i64, errno: u32) -> Result<(), Box<dyn std::error::Error>> {
    let filter = SeccompFilter::new(
        BTreeMap::from([(call, Vec::new())]),
        SeccompAction::Allow,
        SeccompAction::Errno(errno),
        std::env::consts::ARCH.try_into()?,
    )?;
    let program: BpfProgram = filter.try_into()?;
    apply_filter(&program)?;
    Ok(())
}
