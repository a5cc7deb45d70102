//! Reading the assembler's report.

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

/// What the assembler says about one kernel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Report {
    /// Registers of a thread.
    pub(crate) registers: u32,
    /// Bytes spilled to local memory: stores and loads together.
    pub(crate) spill_bytes: u32,
    /// Bytes of stack a thread.
    pub(crate) stack_bytes: u32,
}

/// Reads the output of `ptxas -v` for a file with one kernel.
pub(crate) fn parse(text: &str) -> Result<Report> {
    let registers = before(text, " registers, used ").context("the assembler reported no register count")?;
    let stores = before(text, " bytes spill stores").unwrap_or_default();
    let loads = before(text, " bytes spill loads").unwrap_or_default();
    let stack_bytes = before(text, " bytes stack frame").unwrap_or_default();
    Ok(Report { registers, spill_bytes: stores + loads, stack_bytes })
}

/// The number that stands directly before `marker`.
fn before(text: &str, marker: &str) -> Option<u32> {
    let head = &text[..text.find(marker)?];
    head.rsplit(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const REPORT: &str = "\
ptxas info    : 0 bytes gmem
ptxas info    : (C7519) warpgroup.arrive is injected by compiler to allow use of registers in GMMA in function 'k'
ptxas info    : Compiling entry function 'k' for 'sm_90a'
ptxas info    : Function properties for k
    16 bytes stack frame, 24 bytes spill stores, 40 bytes spill loads
ptxas info    : Used 255 registers, used 1 barriers, 16 bytes cumulative stack size";

    #[test]
    fn registers_stack_and_spills_are_read() {
        let report = parse(REPORT).expect("parsed");
        assert_eq!(report, Report { registers: 255, spill_bytes: 64, stack_bytes: 16 });
    }

    #[test]
    fn a_silent_assembler_is_an_error() {
        assert!(parse("nothing here").is_err());
    }
}
