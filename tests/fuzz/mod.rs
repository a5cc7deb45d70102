//! Fuzzing every reader with mutated goldens: whatever the bytes, no panic and no result that contradicts itself.
//!
//! A target is a plain function of bytes. Ordinary tests run each a bounded number of times from a fixed seed; the
//! example `fuzz` of this package runs them as long as asked for and writes down what was run.

mod mutate;
mod readers;
mod seeds;
mod text;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use rand::SeedableRng;
use rand::rngs::StdRng;
use tempfile::TempDir;

use mutate::mutate;

/// One reader under test.
pub struct Target {
    /// Its name.
    pub name: &'static str,
    /// How many executions it gets for each one of the slowest target.
    pub weight: u64,
    /// Inputs to begin with.
    seeds: fn() -> Vec<Vec<u8>>,
    /// Reads the bytes; the folder is its own.
    run: fn(&[u8], &Path),
    /// Fills the folder before the first execution.
    prepare: fn(&Path),
}

/// What a run came to.
#[derive(Debug, Default)]
pub struct Outcome {
    /// Inputs that were read.
    pub executions: u64,
    /// Inputs that made the reader panic.
    pub panics: Vec<Vec<u8>>,
}

/// All targets.
pub fn targets() -> Vec<Target> {
    [readers::targets(), text::targets()].into_iter().flatten().collect()
}

impl Target {
    /// Runs the unchanged seeds, then mutations of them, `executions` in all, or until something panics.
    ///
    /// # Panics
    /// If no temporary folder can be made.
    pub fn fuzz(&self, executions: u64, seed: u64) -> Outcome {
        let folder = TempDir::new().expect("a temporary folder");
        (self.prepare)(folder.path());
        let seeds = (self.seeds)();
        let mut random = StdRng::seed_from_u64(seed);
        let mut outcome = Outcome::default();
        let mut input = Vec::new();
        while outcome.executions < executions && outcome.panics.is_empty() {
            match usize::try_from(outcome.executions).ok().and_then(|i| seeds.get(i)) {
                Some(seed) => input.clone_from(seed),
                None => mutate(&mut random, &seeds, &mut input),
            }
            outcome.executions += 1;
            if catch_unwind(AssertUnwindSafe(|| (self.run)(&input, folder.path()))).is_err() {
                outcome.panics.push(input.clone());
            }
        }
        outcome
    }
}
