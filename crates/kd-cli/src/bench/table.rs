//! Tables for the terminal.

use std::fmt;

/// Rows of cells under a header; all columns but the first are aligned to the right.
#[derive(Debug, Clone)]
pub(crate) struct Table {
    rows: Vec<Vec<String>>,
}

impl Table {
    /// A table with these columns.
    pub(crate) fn new<S: Into<String>>(columns: impl IntoIterator<Item = S>) -> Self {
        Self { rows: vec![columns.into_iter().map(Into::into).collect()] }
    }

    /// Adds a row; missing cells are empty.
    pub(crate) fn row<S: Into<String>>(&mut self, cells: impl IntoIterator<Item = S>) {
        self.rows.push(cells.into_iter().map(Into::into).collect());
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let width = |column: usize| {
            self.rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max()
        };
        let widths: Vec<usize> = (0..).map_while(width).collect();
        for (i, row) in self.rows.iter().enumerate() {
            let cells = row.iter().zip(&widths).enumerate().map(|(column, (cell, &width))| {
                if column == 0 { format!("{cell:<width$}") } else { format!("{cell:>width$}") }
            });
            writeln!(f, "{}", cells.collect::<Vec<_>>().join("  ").trim_end())?;
            if i == 0 {
                let total = widths.iter().sum::<usize>() + 2 * widths.len().saturating_sub(1);
                writeln!(f, "{}", "─".repeat(total))?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::Table;

    #[test]
    fn columns_line_up() {
        let mut table = Table::new(["rows", "ms"]);
        table.row(["1", "0.25"]);
        table.row(["128", "12.5"]);
        table.row(["µ"]);
        assert_eq!(table.to_string(), "rows    ms\n──────────\n1     0.25\n128   12.5\nµ\n");
    }
}
