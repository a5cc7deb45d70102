//! The same texts read on both sides: how far bf16 moves the logits of each row, and which experts it exchanges.

use std::sync::Arc;

use kd_attn::{Ancestors, Mask, PAGE_TOKENS, PageId, Segment};
use kd_kernels::ranks::OneRank;
use kd_kernels::{Device, Kernels, Stream};
use kd_model::cuda::{Bucket, ChunkLimits, CudaTarget, Limits, Move};
use kd_model::{Target, Trace};
use kd_moe::Routing;
use kd_tensor::{Matrix, Pool};

/// Rows of one pass of the answer.
const ROWS: usize = 64;

/// Both sides of a target.
pub(crate) struct Teacher {
    cpu: Arc<Target>,
    pool: Pool,
    gpu: CudaTarget,
    device: Device,
    kernels: Kernels,
    stream: Stream,
}

/// The row of one token of an answer: what comes after it.
#[derive(Debug)]
pub(crate) struct Row {
    /// Lead of the largest logit over the second, in f32.
    pub(crate) margin: f64,
    /// Root of the mean square by which the GPU's logits differ, but for what all of them share.
    pub(crate) noise: f64,
    /// The same, divided by that of the logits.
    pub(crate) relative: f64,
    /// Whether another logit is the largest.
    pub(crate) flips: bool,
    /// Of each layer in which other experts were chosen: the lead of the last expert that f32 chooses over the first that it
    /// does not.
    pub(crate) exchanged: Vec<f32>,
}

#[derive(Default)]
struct Routings(Vec<(usize, Routing)>);

impl Trace for Routings {
    fn routing(&mut self, layer: usize, routing: &Routing) {
        self.0.push((layer, routing.clone()));
    }
}

impl Teacher {
    pub(crate) fn new(cpu: Arc<Target>, device: Device, kernels: Kernels) -> Self {
        let stream = device.stream().expect("a stream");
        let gpu = CudaTarget::load(&stream, &kernels, &cpu, 0, &mut |_, _| ()).expect("the target");
        Self { cpu, pool: Pool::available().expect("threads"), gpu, device, kernels, stream }
    }

    /// Reads `prompt` as prompts are read and `answer` as decoding does, with the f32 tokens on both sides: a row for the last
    /// token of the prompt is not among the results, one for every token of the answer is.
    pub(crate) fn read(&self, prompt: &[u32], answer: &[u32]) -> Vec<Row> {
        let text = [prompt, answer].concat();
        let pages: Vec<PageId> = (0..text.len().div_ceil(PAGE_TOKENS) as u32).map(PageId).collect();
        let (expected, routed) = self.on_cpu(&text, &pages);
        let Self { gpu, stream, .. } = self;
        let limits =
            Limits { rows: ROWS, nodes: ROWS, streams: 1, pages: pages.len(), stream_pages: pages.len() };
        let mut state = gpu.state(stream, limits, &[], 1).expect("memory");
        let chunks = ChunkLimits { rows: prompt.len(), streams: 1, block: pages.len() * PAGE_TOKENS };
        let chunks = gpu.prefill_state(&self.device, stream, &self.kernels, &state, chunks, 1);
        let segment = Segment { pages: &pages, committed: 0, rows: prompt.len(), mask: Mask::Causal };
        gpu.prefill(stream, &mut state, &mut chunks.expect("memory"), prompt, &[segment], &OneRank)
            .expect("a prompt");
        let mut rows = Vec::new();
        for (index, piece) in answer.chunks(ROWS).enumerate() {
            let (first, count) = (prompt.len() + index * ROWS, piece.len());
            let masks: Vec<Ancestors> = (1..count).map(|node| [(1u64 << node) - 1, 0]).collect();
            let segment = Segment { pages: &pages, committed: first, rows: count, mask: Mask::Tree(&masks) };
            state.inputs.write(stream, piece, &[segment]).expect("inputs");
            let (mut seen, bucket) = (
                Routings::default(),
                Bucket { rows: count, streams: 1, pages: state.limits().table_width() },
            );
            gpu.forward_traced(stream, &mut state, bucket, &OneRank, &mut seen, count).expect("a pass");
            gpu.logits(stream, &mut state, count).expect("logits");
            let logits = state.logits(stream, count).expect("copied");
            let moves = Move::path(&(0..count).collect::<Vec<_>>(), &pages, first);
            state.inputs.write_moves(stream, &moves).expect("moves");
            gpu.commit(stream, &mut state, count).expect("a commit");
            rows.extend((0..count).map(|row| {
                let own = Row::of(logits.row(row), expected.row(first + row));
                self.routed(own, (&seen, row), (&routed, first + row))
            }));
        }
        rows
    }

    fn on_cpu(&self, text: &[u32], pages: &[PageId]) -> (Matrix, Routings) {
        let (cache, mut routed) = (self.cpu.new_cache(pages.len()), Routings::default());
        let segment = Segment { pages, committed: 0, rows: text.len(), mask: Mask::Causal };
        let pass = self.cpu.forward(&self.pool, text, &[segment], &cache, &[], &mut routed).expect("tokens");
        (self.cpu.logits(&self.pool, &pass.hidden), routed)
    }

    /// `row`, with what the router chose for it: `found` on the GPU instead of `expected`.
    fn routed(
        &self,
        mut row: Row,
        (found, at): (&Routings, usize),
        (expected, own): (&Routings, usize),
    ) -> Row {
        assert_eq!(found.0.len(), expected.0.len(), "layers with experts");
        for ((layer, found), (_, expected)) in found.0.iter().zip(&expected.0) {
            let chosen = |routing: &Routing, row: usize| {
                let mut ids = routing.ids[row * routing.top_k..][..routing.top_k].to_vec();
                ids.sort_unstable();
                ids
            };
            if chosen(found, at) != chosen(expected, own) {
                let router = self.cpu.router(*layer).expect("a layer with experts");
                row.exchanged.push(router.margin(expected.scores.row(own)));
            }
        }
        row
    }
}

impl Row {
    /// The lead of the largest logit in standard deviations of the difference of two logits of this row.
    pub(crate) fn deviations(&self) -> f64 {
        self.margin / (std::f64::consts::SQRT_2 * self.noise)
    }

    fn of(found: &[f32], expected: &[f32]) -> Self {
        let count = expected.len() as f64;
        let centred = |values: Vec<f64>| {
            let mean = values.iter().sum::<f64>() / count;
            (values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / count).sqrt()
        };
        let differences = found.iter().zip(expected).map(|(f, e)| f64::from(*f) - f64::from(*e));
        let noise = centred(differences.collect());
        let best = |values: &[f32]| {
            let mut order: Vec<usize> = (0..values.len()).collect();
            order.sort_by(|a, b| values[*b].total_cmp(&values[*a]));
            [order[0], order[1]]
        };
        let [first, second] = best(expected);
        Self {
            margin: f64::from(expected[first]) - f64::from(expected[second]),
            noise,
            relative: noise / centred(expected.iter().map(|value| f64::from(*value)).collect()),
            flips: best(found)[0] != first,
            exchanged: Vec::new(),
        }
    }
}
