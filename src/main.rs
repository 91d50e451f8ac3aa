//! `verify`: the offline program. It reads files and prints what follows from
//! them; see `verify --help`.

mod cli;

fn main() -> std::process::ExitCode {
    cli::main()
//! verify

use std::process::ExitCode;

fn main() -> ExitCode {
    // Before any argument parsing: the grading child limits itself first.
    if std::env::args_os()
        .nth(1)
        .is_some_and(|a| a == runseal::scorer::child::SUBCOMMAND)
    {
        return runseal::scorer::child::child_main();
    }
    ExitCode::from(2)
}
