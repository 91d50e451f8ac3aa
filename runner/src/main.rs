//! `attest`: the live program. It runs a pinned workload and seals the record;
//! see `attest --help`.

mod cli;

fn main() -> std::process::ExitCode {
    cli::main()
}
