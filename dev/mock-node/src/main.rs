//! The mock node as a process of its own.

use std::process::ExitCode;

fn main() -> ExitCode {
    ExitCode::from(u8::try_from(mock_node::cli::run(std::env::args_os())).unwrap_or(1))
}
