//! The `kd` command.
#![forbid(unsafe_code)]

mod args;
mod chat;
mod conversation;
mod generate;
mod golden;
mod interrupt;
mod models;
mod tree;

use std::process::ExitCode;

use clap::Parser;

use args::{Cli, Verb};

/// A problem with what was asked for, as opposed to one with doing it.
#[derive(Debug)]
pub(crate) struct UsageError(pub(crate) String);

impl std::fmt::Display for UsageError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for UsageError {}

/// The user interrupted the work.
#[derive(Debug)]
pub(crate) struct Interrupted;

impl std::fmt::Display for Interrupted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("interrupted")
    }
}

impl std::error::Error for Interrupted {}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let result = match cli.verb() {
        Verb::Generate(args) => generate::run(&args),
        Verb::Chat(args) => chat::run(&args),
        Verb::Tree(args) => tree::run(&args),
        Verb::Golden(args) => golden::run(&args),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => exit_code(&error),
    }
}

/// Exit codes: 1 the work failed, 2 bad usage, 130 interrupted; a reader that went away is no failure.
fn exit_code(error: &anyhow::Error) -> ExitCode {
    if error.chain().any(|e| e.downcast_ref::<std::io::Error>().is_some_and(is_broken_pipe)) {
        return ExitCode::SUCCESS;
    }
    if error.is::<Interrupted>() {
        return ExitCode::from(130);
    }
    eprintln!("kd: {error:#}");
    ExitCode::from(if error.is::<UsageError>() { 2 } else { 1 })
}

fn is_broken_pipe(error: &std::io::Error) -> bool {
    error.kind() == std::io::ErrorKind::BrokenPipe
}
