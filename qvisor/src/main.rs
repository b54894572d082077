//! The `dormouse` command.

fn main() -> std::process::ExitCode {
    qvisor::cli::main()
}
