//! Runs a program that is killed the moment it, or any child of it, asks for a
//! socket. The proof that `verify` opens none is a test that runs it like this.
//!
//! `without-sockets PROGRAM ARGUMENT...`; with `--self-test` it asks for a socket
//! itself and must die of it.

use std::collections::BTreeMap;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};

use seccompiler::{BpfProgram, SeccompAction, SeccompFilter, apply_filter};

/// Numbers of socket(2) and connect(2).
#[cfg(target_arch = "x86_64")]
const DENIED: [i64; 2] = [41, 42];
#[cfg(target_arch = "aarch64")]
const DENIED: [i64; 2] = [198, 203];

fn main() -> ExitCode {
    let mut args = std::env::args_os().skip(1);
    let Some(program) = args.next() else {
        eprintln!("usage: without-sockets PROGRAM ARGUMENT...");
        return ExitCode::from(2);
    };
    if let Err(e) = deny() {
        eprintln!("could not install the filter: {e}");
        return ExitCode::from(2);
    }
    if program == "--self-test" {
        let result = std::net::TcpStream::connect(("127.0.0.1", 9));
        eprintln!("still alive after asking for a socket: {result:?}");
        return ExitCode::SUCCESS;
    }
    let error = Command::new(&program).args(args).exec();
    eprintln!("could not start {}: {error}", program.display());
    ExitCode::from(2)
}

fn deny() -> Result<(), Box<dyn std::error::Error>> {
    let rules: BTreeMap<i64, Vec<seccompiler::SeccompRule>> =
        DENIED.iter().map(|nr| (*nr, Vec::new())).collect();
    let filter = SeccompFilter::new(
        rules,
        SeccompAction::Allow,
        SeccompAction::KillProcess,
        std::env::consts::ARCH.try_into()?,
    )?;
    let program: BpfProgram = filter.try_into()?;
    apply_filter(&program)?;
    Ok(())
}
