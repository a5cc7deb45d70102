//! Repository chores: `cargo xtask build-kernels | codegen | gpu-bundle | ci`.
#![forbid(unsafe_code)]

mod build;
mod ci;
mod codegen;
mod flags;
mod gpu_bundle;
mod paths;
mod toolchain;

use std::process::ExitCode;

use flags::Command;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let command = match flags::parse(&arguments) {
        Ok(command) => command,
        Err(usage) => {
            eprintln!("{usage}\n\n{}", flags::USAGE);
            return ExitCode::from(2);
        }
    };
    let result = match &command {
        Command::Help => {
            println!("{}", flags::USAGE);
            Ok(())
        }
        Command::BuildKernels(options) => build::run(options),
        Command::Codegen { check } => codegen::run(*check),
        Command::GpuBundle(options) => gpu_bundle::run(options),
        Command::Ci => ci::run(),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
