//! The time to the first token: a prompt read chunk by chunk, then the head over its last row.

use std::time::Instant;

use kd_attn::{Mask, PAGE_TOKENS, PageId, Segment};
use kd_engine::cuda::MOST_CHAIN;
use kd_kernels::bench::{Rates, median};
use kd_kernels::ranks::OneRank;
use kd_kernels::{Device, Kernels, Stream};
use kd_model::cuda::{Bucket, ChunkLimits, Dims, Move};
use serde_json::{Value, json};

use super::rank::Rank;
use crate::bench::table::Table;
use crate::interrupt;

/// Timed readings, after one that is not.
const SAMPLES: usize = 5;
/// Keys that are expanded at a time.
const BLOCK: usize = 8192;

/// Readings in chunks of one size.
pub(super) struct Reading {
    tokens: usize,
    chunk: usize,
    /// What the chunks' passes are.
    passes: &'static str,
    seconds: Vec<f64>,
    /// Multiplications and additions that the prompt needs at least.
    operations: f64,
}

impl Reading {
    fn rate(&self) -> f64 {
        self.operations / median(&self.seconds)
    }

    /// For the result file.
    pub(super) fn json(&self, rates: &Rates) -> Value {
        json!({
            "tokens": self.tokens, "chunk": self.chunk, "passes": self.passes, "samples_s": self.seconds,
            "first_token_s": median(&self.seconds), "operations": self.operations,
            "of_mma_rate": self.rate() / rates.operations,
        })
    }
}

/// Pages of a prompt of so many tokens.
pub(super) fn pages(tokens: usize) -> usize {
    tokens.div_ceil(PAGE_TOKENS)
}

/// Reads a prompt of `tokens` tokens in chunks of `chunk` rows into the first pages of the cache.
pub(super) fn measure(
    (device, kernels): (&Device, &Kernels),
    stream: &Stream,
    rank: &mut Rank,
    tokens: usize,
    chunk: usize,
) -> anyhow::Result<Reading> {
    let Rank { target, state, .. } = rank;
    let limits =
        ChunkLimits { rows: chunk.min(tokens), streams: 1, block: BLOCK.min(pages(tokens) * PAGE_TOKENS) };
    let mut chunks = target.prefill_state(device, stream, kernels, state, limits, 1)?;
    let seconds = time(tokens, chunk, target.dims().vocab, |part| match part {
        Part::Chunk(own, segment) => {
            Ok(target.prefill(stream, state, &mut chunks, own, &[segment], &OneRank)?)
        }
        Part::Head(row) => {
            chunks.inputs.choose(stream, &[row])?;
            target.prefill_logits(stream, state, &chunks, 1)?;
            Ok(stream.synchronize()?)
        }
    })?;
    Ok(Reading {
        tokens,
        chunk,
        passes: "of prompts",
        seconds,
        operations: operations(target.dims(), tokens),
    })
}

/// Reads the same prompt in the passes of rounds, as chains of the most rows.
pub(super) fn measure_rounds(stream: &Stream, rank: &mut Rank, tokens: usize) -> anyhow::Result<Reading> {
    let Rank { target, state, .. } = rank;
    let chunk = MOST_CHAIN.min(tokens);
    let seconds = time(tokens, chunk, target.dims().vocab, |part| match part {
        Part::Chunk(own, segment) => {
            state.inputs.write(stream, own, &[segment])?;
            state.inputs.write_moves(stream, &Move::all(&[segment])?)?;
            let pages = state.limits().pages_for(segment.committed);
            target.forward(stream, state, Bucket { rows: own.len(), streams: 1, pages }, &OneRank)?;
            Ok(target.commit(stream, state, own.len())?)
        }
        Part::Head(row) => {
            state.inputs.choose(stream, &[row])?;
            target.chosen_logits(stream, state, 1)?;
            Ok(stream.synchronize()?)
        }
    })?;
    Ok(Reading { tokens, chunk, passes: "of rounds", seconds, operations: operations(target.dims(), tokens) })
}

/// What is launched for a prompt.
enum Part<'a> {
    Chunk(&'a [u32], Segment<'a>),
    /// The head over this row of the last chunk; its end is waited for.
    Head(usize),
}

/// Seconds of [`SAMPLES`] readings of a prompt in chunks of `chunk` rows, into the first pages of the cache.
fn time(
    tokens: usize,
    chunk: usize,
    vocab: usize,
    mut launch: impl FnMut(Part<'_>) -> anyhow::Result<()>,
) -> anyhow::Result<Vec<f64>> {
    let table: Vec<PageId> = (0..pages(tokens) as u32).map(PageId).collect();
    let ids: Vec<u32> = (0..tokens).map(|token| (token * 37 % vocab) as u32).collect();
    let mut seconds = Vec::new();
    for sample in 0..=SAMPLES {
        interrupt::check()?;
        let begin = Instant::now();
        for (index, own) in ids.chunks(chunk).enumerate() {
            let (committed, rows) = (index * chunk, own.len());
            launch(Part::Chunk(own, Segment { pages: &table, committed, rows, mask: Mask::Causal }))?;
        }
        launch(Part::Head((tokens - 1) % chunk))?;
        if sample > 0 {
            seconds.push(begin.elapsed().as_secs_f64());
        }
    }
    Ok(seconds)
}

/// Operations of a prompt: every product once a token, every key expanded once, causal attention, one row of logits.
fn operations(dims: &Dims, tokens: usize) -> f64 {
    let a = &dims.attention;
    let size = |values: usize| values as f64;
    let (h, moe) = (size(dims.hidden), size(dims.moe.iter().filter(|moe| **moe).count()));
    let (layers, n) = (size(dims.layers), size(tokens));
    let key = size(a.heads * (a.nope + a.rope));
    let attention = h * size(dims.q_rank + a.latent + a.rope)
        + size(dims.q_rank) * key
        + size(a.latent * a.heads * (a.nope + a.value))
        + size(a.heads * a.value) * h;
    let scores = (n + 1.0) / 2.0 * (key + size(a.heads * a.value));
    let mlp = |width: usize| 3.0 * h * size(width);
    let experts = mlp(dims.experts.top_k * dims.experts.width)
        + mlp(dims.shared_width)
        + h * size(dims.experts.experts);
    let token = layers * (attention + scores) + moe * experts + (layers - moe) * mlp(dims.dense_width);
    2.0 * (n * token + h * size(dims.vocab))
}

pub(super) fn table(readings: &[Reading], rates: &Rates) -> Table {
    let mut table = Table::new([
        "prompt",
        "rows a chunk",
        "passes",
        "first token ms",
        "tokens/s",
        "TFLOP/s",
        "of mma.sync",
    ]);
    for reading in readings {
        let seconds = median(&reading.seconds);
        table.row([
            reading.tokens.to_string(),
            reading.chunk.to_string(),
            reading.passes.to_owned(),
            format!("{:.1}", seconds * 1e3),
            format!("{:.0}", reading.tokens as f64 / seconds),
            format!("{:.0}", reading.rate() / 1e12),
            format!("{:.0} %", 100.0 * reading.rate() / rates.operations),
        ]);
    }
    table
}

#[cfg(test)]
mod tests {
    use kd_kernels::Profile;

    use super::*;

    #[test]
    fn a_long_prompt_costs_attention_besides() {
        let dims = Dims::sized(Profile::named("k26-tp8").expect("declared"), 61);
        let per_token = |tokens: usize| operations(&dims, tokens) / tokens as f64;
        // 2 x (61 x 26.9 M of attention + 60 x 52.3 M of experts, shared expert and router + 49.5 M of the dense MLP).
        let products = 2.0
            * (61.0 * (15_138_816.0 + 2_359_296.0 + 1_048_576.0 + 7_340_032.0)
                + 60.0 * (9.0 * 5_505_024.0 + 2_752_512.0)
                + 49_545_216.0);
        let head = 2.0 * 7168.0 * 20_480.0;
        let scores = |n: f64| 61.0 * (n + 1.0) * (1536.0 + 1024.0);
        for tokens in [1, 8192] {
            let n = tokens as f64;
            let expected = products + scores(n) + head / n;
            assert!((per_token(tokens) / expected - 1.0).abs() < 1e-9, "{tokens}: {}", per_token(tokens));
        }
        assert_eq!([pages(1), pages(64), pages(8192)], [1, 1, 128]);
    }
}
