//! Ctrl-C ends the work at the next safe point.

use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::Context;

use crate::Interrupted;

static STOP: AtomicBool = AtomicBool::new(false);

/// Installs the handler. A second Ctrl-C before the first was heeded ends the process at once.
pub(crate) fn install() -> anyhow::Result<()> {
    ctrlc::set_handler(|| {
        if STOP.swap(true, Ordering::Relaxed) {
            std::process::exit(130);
        }
    })
    .context("cannot install the Ctrl-C handler")
}

/// An error once the user has asked to stop.
pub(crate) fn check() -> Result<(), Interrupted> {
    if STOP.load(Ordering::Relaxed) { Err(Interrupted) } else { Ok(()) }
}

/// Whether the user has asked to stop since this was last called.
pub(crate) fn take() -> bool {
    STOP.swap(false, Ordering::Relaxed)
}
