//! Ctrl-C ends the process with exit code 130, or the work at its next safe point.

use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::Context;

use crate::Interrupted;

static HEEDED: AtomicBool = AtomicBool::new(false);
static STOP: AtomicBool = AtomicBool::new(false);

/// Installs the handler for every verb: Ctrl-C ends the process at once. Files appear whole or not at all, so nothing
/// half-written can be left under its final name.
pub(crate) fn install() -> anyhow::Result<()> {
    ctrlc::set_handler(|| {
        if !HEEDED.load(Ordering::Relaxed) || STOP.swap(true, Ordering::Relaxed) {
            std::process::exit(130);
        }
    })
    .context("cannot install the Ctrl-C handler")
}

/// From here on the work itself looks for Ctrl-C with [`check`] or [`take`]. A second one before the first was heeded
/// still ends the process at once.
pub(crate) fn heed() {
    HEEDED.store(true, Ordering::Relaxed);
}

/// An error once the user has asked to stop.
pub(crate) fn check() -> Result<(), Interrupted> {
    if STOP.load(Ordering::Relaxed) { Err(Interrupted) } else { Ok(()) }
}

/// Whether the user has asked to stop since this was last called.
pub(crate) fn take() -> bool {
    STOP.swap(false, Ordering::Relaxed)
}
