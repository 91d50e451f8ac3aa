//! `verify`: the offline program. It reads files and prints what follows from
//! them; see `verify --help`.

mod cli;

fn main() -> std::process::ExitCode {
    cli::main()
}
