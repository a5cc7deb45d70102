//! The least time of each phase: what must come from memory, and what must be multiplied.
//!
//! Bytes are those of weights and committed context alone; activations, logits and results may stay in the L2. So the floor
//! of norms, draws and commits is nothing, and what they take is all above it. Operations are those of bf16 `mma.sync`,
//! which all products here use. Of each product the larger of both times counts.

use kd_kernels::bench::Rates;
use kd_model::cuda::{Dims, DraftDims};

use super::phase::Phase;

/// Bytes of a bf16 value.
const BF16: f64 = 2.0;

/// One round as its floors need it.
pub(super) struct Work<'a> {
    pub(super) dims: &'a Dims,
    pub(super) draft: &'a DraftDims,
    pub(super) rates: &'a Rates,
    pub(super) streams: usize,
    /// Rows of the verify pass.
    pub(super) rows: usize,
    /// Rows that are committed at most.
    pub(super) kept: usize,
    /// Committed tokens of each stream.
    pub(super) context: usize,
    /// Keys that all rows of the pass see together, in one layer.
    pub(super) seen: usize,
    /// Different experts of the rows of the pass, in each layer that has experts.
    pub(super) distinct: &'a [usize],
}

impl Work<'_> {
    /// The least microseconds of `phase`.
    pub(super) fn floor(&self, phase: Phase) -> f64 {
        match phase {
            Phase::Moe => self.distinct.iter().map(|experts| self.moe(*experts)).sum(),
            Phase::Attention => self.dims.layers as f64 * self.attention(),
            Phase::Dense => self.dense(),
            Phase::Router => {
                let router = self.product(self.rows, self.dims.experts.experts, self.dims.hidden);
                router * self.moe_layers()
            }
            Phase::Logits => self.product(self.rows, self.dims.vocab, self.dims.hidden),
            Phase::Draft => self.drafting(),
            Phase::Norms | Phase::Small | Phase::Sampling | Phase::Commit => 0.0,
        }
    }

    /// The floor of the routed experts of a layer of which so many are read.
    pub(super) fn moe(&self, experts: usize) -> f64 {
        let shape = self.dims.experts;
        let bytes = shape.weight_bytes().unwrap_or_default() as f64 / shape.experts as f64;
        let products = 3.0 * (self.rows * shape.top_k * shape.hidden) as f64 * shape.width as f64;
        self.rates.floor_micros(experts as f64 * bytes, 2.0 * products).0
    }

    fn moe_layers(&self) -> f64 {
        self.dims.moe.iter().filter(|moe| **moe).count() as f64
    }

    fn attention(&self) -> f64 {
        let a = &self.dims.attention;
        let key = (a.latent + a.rope) as f64;
        let bytes = (self.streams * self.context) as f64 * key * BF16;
        let operations = 2.0 * (key + a.latent as f64) * (a.heads * self.seen) as f64;
        self.rates.floor_micros(bytes, operations).0
    }

    fn dense(&self) -> f64 {
        let (d, a) = (self.dims, &self.dims.attention);
        let product = |outputs, inputs| self.product(self.rows, outputs, inputs);
        // Heads have weights of their own: one product each, or one with as many outputs.
        let attention = product(d.q_rank + a.latent + a.rope, d.hidden)
            + product(a.heads * (a.nope + a.rope), d.q_rank)
            + product(a.heads * a.latent, a.nope)
            + product(a.heads * a.value, a.latent)
            + product(d.hidden, a.heads * a.value);
        let mlp = |width| product(2 * width, d.hidden) + product(d.hidden, width);
        let dense_layers = d.layers as f64 - self.moe_layers();
        d.layers as f64 * attention
            + self.moe_layers() * mlp(d.shared_width)
            + dense_layers * mlp(d.dense_width)
    }

    fn drafting(&self) -> f64 {
        let d = self.draft;
        let (queries, entry) = (d.heads * d.head_dim, 2 * d.kv_heads * d.head_dim);
        let (rows, layers) = (self.streams * d.block, d.layers.len());
        let context = self.product(self.kept, d.hidden, d.tap_width / d.ranks)
            + self.product(self.kept, layers * entry, d.hidden);
        let attention = |window: Option<usize>| {
            let tokens = window.unwrap_or(usize::MAX).min(self.context);
            let bytes = (self.streams * tokens * entry) as f64 * BF16;
            let operations = 4.0 * (queries * rows) as f64 * (tokens + d.block) as f64;
            self.rates.floor_micros(bytes, operations).0
        };
        let layer = self.product(rows, queries + entry, d.hidden)
            + self.product(rows, d.hidden, queries)
            + self.product(rows, 2 * d.width, d.hidden)
            + self.product(rows, d.hidden, d.width);
        let head = self.product(self.streams * d.drafted(), d.vocab, d.hidden);
        context + head + d.layers.iter().map(|own| layer + attention(own.window)).sum::<f64>()
    }

    fn product(&self, rows: usize, outputs: usize, inputs: usize) -> f64 {
        let weights = outputs as f64 * inputs as f64;
        self.rates.floor_micros(BF16 * weights, 2.0 * rows as f64 * weights).0
    }
}

#[cfg(test)]
mod tests {
    use kd_kernels::Profile;

    use super::*;

    #[test]
    fn floors_of_a_single_row_are_the_bytes_of_what_it_reads() {
        let profile = Profile::named("k26-tp8").expect("declared");
        let (dims, draft) = (Dims::sized(profile, 61), DraftDims::sized(profile, 6).expect("a drafter"));
        let rates = Rates { bytes: 1e12, operations: 1e18, launch: 1.0 };
        let distinct = [8; 60];
        let work = |rates| Work {
            dims: &dims,
            draft: &draft,
            rates,
            streams: 1,
            rows: 1,
            kept: 1,
            context: 1024,
            seen: 1025,
            distinct: &distinct,
        };
        let micros = |bytes: f64| bytes / 1e6;
        let near = |found: f64, expected: f64| (found / expected - 1.0).abs() < 1e-9;
        let floor = |phase| work(&rates).floor(phase);
        // Eight experts of 3 x 7168 x 256 codes of half a byte and a bf16 scale for 32 of them.
        assert!(near(floor(Phase::Moe), 60.0 * 8.0 * micros(3.0 * 7168.0 * 256.0 * 9.0 / 16.0)));
        assert!(near(floor(Phase::Attention), 61.0 * micros(1024.0 * 576.0 * 2.0)));
        assert!(near(floor(Phase::Logits), micros(20_480.0 * 7168.0 * 2.0)));
        assert_eq!((floor(Phase::Sampling), floor(Phase::Commit)), (0.0, 0.0));
        let layer = 7168.0 * 2112.0 + 1536.0 * 1536.0 + 2.0 * 8.0 * 512.0 * 128.0 + 1024.0 * 7168.0;
        let mlps = 3.0 * 7168.0 * (60.0 * 256.0 + 2304.0);
        assert!(near(floor(Phase::Dense), micros(2.0 * (61.0 * layer + mlps))));
        // Where products are slow, they are the floor.
        let slow = Rates { bytes: 1e18, operations: 1e12, launch: 1.0 };
        let logits = work(&slow).floor(Phase::Logits);
        assert!(near(logits, micros(2.0 * 20_480.0 * 7168.0)), "{logits}");
    }
}
