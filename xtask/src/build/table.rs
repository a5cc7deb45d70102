//! The table that a build prints.

use kernel_gen::Unit;

use super::ptxas::Report;

/// One image.
pub(crate) struct Row<'a> {
    pub(crate) unit: &'a Unit,
    pub(crate) arch: &'static str,
    pub(crate) report: &'a Report,
    pub(crate) bytes: usize,
}

/// Columns aligned, numbers to the right.
pub(crate) fn render(rows: &[Row<'_>]) -> String {
    let width = rows.iter().map(|row| row.unit.name.len()).max().unwrap_or(4);
    let line = |unit: &str, cells: [&str; 6]| {
        let [arch, block, registers, smem, spills, bytes] = cells;
        format!("{unit:width$}  {arch:7} {block:>5} {registers:>9} {smem:>6} {spills:>6} {bytes:>7}\n")
    };
    let mut text = line("unit", ["arch", "block", "registers", "smem", "spills", "bytes"]);
    for row in rows {
        let number = |value: i64| value.to_string();
        let cells = [
            row.arch,
            &number(row.unit.block),
            &row.report.registers.to_string(),
            &number(row.unit.layout.bytes),
            &row.report.spill_bytes.to_string(),
            &row.bytes.to_string(),
        ];
        text.push_str(&line(&row.unit.name, cells));
    }
    text
}
