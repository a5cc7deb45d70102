//! A node's entry that is not finite: rows that see it show it, others have the bits that they had.

use half::bf16;
use kd_kernels::selftest::Failure;

use super::Subject;
use super::case::{Branch, Case, Inputs};

impl Subject<'_> {
    /// (node, head) rows that a variant multiplies with what any of them sees: a weight of zero does not make NaN zero.
    fn together(&self) -> usize {
        match self.row.variant.as_str() {
            "g64" => 1,
            "m64" | "n16" => 16,
            _ => 8,
        }
    }

    /// The root, nodes with and without others below them; a whole entry, a value of the latent, one of the key.
    pub(super) fn not_finite(&mut self) -> Result<(), Failure> {
        let branches =
            vec![Branch::random(21, 78, 3, &mut self.random), Branch::random(5, 130, 2, &mut self.random)];
        let case = Case::new(self.widths, branches, Inputs::Random, &mut self.random);
        let variant = self.row.variant.clone();
        let whole = self.run(&case, Some(&variant))?;
        let (key, latent) = (self.widths.key(), self.widths.latent);
        for node in [0, 1, 10, 20] {
            for (values, value) in
                [(0..key, bf16::NAN), (latent - 1..latent, bf16::INFINITY), (key - 1..key, bf16::NAN)]
            {
                let mut broken = case.clone();
                broken.scratch[node * key..][values.clone()].fill(value);
                let found = self.run(&broken, Some(&variant))?;
                self.contained(&case, node, &whole, &found).map_err(|what| {
                    self.wrong(&case, format!("{value} in values {values:?} of node {node}: {what}"))
                })?;
            }
        }
        Ok(())
    }

    /// What row `broken` does to `whole`, which has made it `found`.
    fn contained(&self, case: &Case, broken: usize, whole: &[bf16], found: &[bf16]) -> Result<(), String> {
        let (heads, latent) = (self.widths.heads, self.widths.latent);
        let (seeing, starts) = (case.seeing(broken), case.starts());
        for (first, end) in starts.iter().zip(&starts[1..]) {
            let sees = |row: usize| seeing[first + row / heads];
            let rows = (end - first) * heads;
            for row in 0..rows {
                let at = (first * heads + row) * latent;
                let (before, after) = (&whole[at..][..latent], &found[at..][..latent]);
                let group = row / self.together() * self.together();
                let near = (group..rows.min(group + self.together())).any(sees);
                let same = |(before, after): (&bf16, &bf16)| {
                    before.to_bits() == after.to_bits() || near && after.is_nan()
                };
                let (node, head) = (first + row / heads, row % heads);
                if sees(row) && !after.iter().any(|value| value.is_nan()) {
                    return Err(format!("row {node}, head {head} sees it and is finite"));
                }
                if !sees(row) && !before.iter().zip(after).all(same) {
                    return Err(format!("row {node}, head {head} does not see it and is another"));
                }
            }
        }
        Ok(())
    }
}
