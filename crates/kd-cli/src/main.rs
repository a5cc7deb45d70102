//! The `kd` command.
#![forbid(unsafe_code)]

#[macro_use]
mod say;

mod args;
mod bench;
mod calibration;
mod chat;
mod conversation;
mod doctor;
mod generate;
mod golden;
mod input;
mod inspect;
mod interrupt;
mod models;
mod place;
mod plan;
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
    kd_tensor::guard::install();
    match interrupt::install().and_then(|()| run(Cli::parse().verb())) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => exit_code(&error),
    }
}

fn run(verb: Verb) -> anyhow::Result<()> {
    match verb {
        Verb::Generate(args) => generate::run(&args),
        Verb::Chat(args) => chat::run(&args),
        Verb::Bench { what } => bench::run(&what),
        Verb::Plan(args) => plan::run(&args),
        Verb::Tree(args) => tree::run(&args),
        Verb::Inspect(args) => inspect::run(&args),
        Verb::Doctor(args) => doctor::run(&args),
        Verb::Golden(args) => golden::run(&args),
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
    say!("kd: {error:#}");
    ExitCode::from(if error.is::<UsageError>() { 2 } else { 1 })
}

fn is_broken_pipe(error: &std::io::Error) -> bool {
    error.kind() == std::io::ErrorKind::BrokenPipe
}
