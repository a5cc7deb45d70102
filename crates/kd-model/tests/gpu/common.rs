//! The demo target on both sides, and passes over streams that read the demo's golden texts.

use std::path::PathBuf;

use kd_attn::{Ancestors, Mask, PAGE_TOKENS, PageId, PagedCache, Segment};
use kd_kernels::ranks::OneRank;
use kd_kernels::{Device, Kernels, Stream, testing};
use kd_model::cuda::{Bucket, CudaTarget, Limits, Move, PassState};
use kd_model::{Target, Trace};
use kd_moe::Routing;
use kd_tensor::{Matrix, Pool};

/// Layers whose output is kept.
pub(crate) const TAPS: [usize; 2] = [1, 4];
pub(crate) const LIMITS: Limits = Limits { rows: 160, nodes: 129, streams: 6, pages: 30, stream_pages: 5 };
/// The least router margin at which a row is compared with the CPU: rounding to bf16 chooses no other expert.
const MARGIN: f32 = 0.004;

/// The models, once for each test.
pub(crate) struct Both {
    pub(crate) cpu: Target,
    pub(crate) pool: Pool,
    pub(crate) gpu: CudaTarget,
    pub(crate) stream: Stream,
    pub(crate) device: Device,
    pub(crate) kernels: Kernels,
}

/// The models folder: beside the sources, or where `KD_MODELS` says.
pub(crate) fn models() -> PathBuf {
    let beside = || PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../models");
    std::env::var_os("KD_MODELS").map_or_else(beside, PathBuf::from)
}

impl Both {
    /// The demo target, or nothing where there is no GPU.
    pub(crate) fn demo(test: &str) -> Option<Self> {
        let (device, kernels) = testing::kernels_or_skip(test, "demo-tp1")?;
        let cpu = Target::load(&models().join("demo/target")).expect("the demo target");
        let stream = device.stream().expect("a stream");
        let gpu =
            CudaTarget::load(&stream, &kernels, &cpu, 0, &mut |_, _| ()).expect("the target on the GPU");
        Some(Self { cpu, pool: Pool::available().expect("threads"), gpu, stream, device, kernels })
    }

    pub(crate) fn state(&self) -> PassState {
        self.gpu.state(&self.stream, LIMITS, &TAPS, 1).expect("a state")
    }
}

/// The golden texts of the demo, prompts and answers as one.
pub(crate) fn texts() -> Vec<Vec<u32>> {
    let file = std::fs::read(models().join("demo/golden/golden.json")).expect("the golden");
    let golden: serde_json::Value = serde_json::from_slice(&file).expect("JSON");
    let ids = |value: &serde_json::Value| -> Vec<u32> {
        value.as_array().expect("ids").iter().map(|id| id.as_u64().expect("an id") as u32).collect()
    };
    let cases = golden["cases"].as_array().expect("cases").iter();
    cases.map(|case| [ids(&case["prompt"]), ids(&case["greedy"])].concat()).collect()
}

/// Rows of one stream in one pass: a root and the nodes below it.
#[derive(Clone, Debug)]
pub(crate) struct Draft {
    /// Of the root, then of each node.
    pub(crate) tokens: Vec<u32>,
    /// Of each node but the root.
    pub(crate) parents: Vec<usize>,
}

impl Draft {
    pub(crate) fn chain(tokens: &[u32]) -> Self {
        Self { tokens: tokens.to_vec(), parents: (0..tokens.len() - 1).collect() }
    }

    /// Every `branch`-th node starts anew at the root: many short branches, and one long one.
    pub(crate) fn bushy(tokens: &[u32], branch: usize) -> Self {
        let parent = |node: usize| if node.is_multiple_of(branch) { 0 } else { node - 1 };
        Self { tokens: tokens.to_vec(), parents: (1..tokens.len()).map(parent).collect() }
    }

    pub(crate) fn ancestors(&self) -> Vec<Ancestors> {
        let mut all: Vec<Ancestors> = Vec::new();
        for (i, &parent) in self.parents.iter().enumerate() {
            let mut own = if parent == 0 { [0; 2] } else { all[parent - 1] };
            own[i / 64] |= 1 << (i % 64);
            all.push(own);
        }
        all
    }

    /// From the root to `node`.
    pub(crate) fn path(&self, node: usize) -> Vec<usize> {
        let mut path = vec![node];
        while let Some(&last) = path.last().filter(|last| **last > 0) {
            path.push(self.parents[last - 1]);
        }
        path.reverse();
        path
    }
}

/// Streams with committed tokens on both sides, or on the GPU alone.
pub(crate) struct Work<'b> {
    pub(crate) both: &'b Both,
    pub(crate) state: PassState,
    pub(crate) cache: Option<PagedCache>,
    pub(crate) tables: Vec<Vec<PageId>>,
    pub(crate) committed: Vec<usize>,
}

/// What one side computed.
pub(crate) struct Seen {
    pub(crate) hidden: Matrix,
    pub(crate) logits: Matrix,
    pub(crate) latents: Vec<Matrix>,
    pub(crate) taps: Vec<Matrix>,
}

impl<'b> Work<'b> {
    /// `streams` streams without tokens; with the CPU beside it or without. Pages are dealt out in turn and from above, so that
    /// no stream's pages are neighbours.
    pub(crate) fn new(both: &'b Both, streams: usize, compared: bool) -> Self {
        let page = |stream: usize, i: usize| PageId((LIMITS.pages - 1 - (i * streams + stream)) as u32);
        let table = |stream: usize| (0..LIMITS.stream_pages).map(|i| page(stream, i)).collect();
        Self {
            both,
            state: both.state(),
            cache: compared.then(|| both.cpu.new_cache(LIMITS.pages)),
            tables: (0..streams).map(table).collect(),
            committed: vec![0; streams],
        }
    }

    /// One pass on the GPU over `drafts` (a stream without one has no rows), in a bucket of `bucket` rows.
    pub(crate) fn pass(&mut self, drafts: &[Draft], bucket: usize) -> Seen {
        self.write(drafts);
        let rows = drafts.iter().map(|draft| draft.tokens.len()).sum();
        let bucket = Bucket { rows: bucket, streams: LIMITS.streams, pages: LIMITS.table_width() };
        let Self { both: Both { gpu, stream, .. }, state, .. } = self;
        gpu.forward(stream, state, bucket, &OneRank).expect("a pass");
        gpu.logits(stream, state, bucket.rows).expect("logits");
        self.seen(rows)
    }

    pub(crate) fn seen(&self, rows: usize) -> Seen {
        let (stream, state) = (&self.both.stream, &self.state);
        let layers = 0..self.both.gpu.dims().layers;
        Seen {
            hidden: state.hidden(stream, rows).expect("copied"),
            logits: state.logits(stream, rows).expect("copied"),
            latents: layers.map(|layer| state.latents(stream, layer, rows).expect("copied")).collect(),
            taps: state.taps(stream, rows).expect("copied"),
        }
    }

    pub(crate) fn write(&mut self, drafts: &[Draft]) {
        let (tokens, ancestors) = flat(drafts);
        let segments = segments(drafts, &ancestors, &self.tables, &self.committed);
        self.state.inputs.write(&self.both.stream, &tokens, &segments).expect("inputs");
    }

    /// The same pass on the CPU, with the least router margin of each row.
    pub(crate) fn expected(&self, drafts: &[Draft]) -> (Seen, Vec<f32>) {
        let (tokens, ancestors) = flat(drafts);
        let segments = segments(drafts, &ancestors, &self.tables, &self.committed);
        let Both { cpu, pool, .. } = self.both;
        let mut margins = Margins { target: cpu, rows: vec![f32::INFINITY; tokens.len()] };
        let cache = self.cache.as_ref().expect("compared with the CPU");
        let pass = cpu.forward(pool, &tokens, &segments, cache, &TAPS, &mut margins).expect("tokens");
        let width = pass.hidden.cols();
        let tap = |slot: usize| {
            let values = (0..tokens.len()).flat_map(|row| &pass.taps.row(row)[slot * width..][..width]);
            Matrix::from_vec(tokens.len(), width, values.copied().collect()).expect("a shape")
        };
        let (logits, taps) = (cpu.logits(pool, &pass.hidden), (0..TAPS.len()).map(tap).collect());
        (Seen { logits, taps, hidden: pass.hidden, latents: pass.latents }, margins.rows)
    }

    /// Commits the path to `node` of each draft, on both sides.
    pub(crate) fn commit(&mut self, drafts: &[Draft], nodes: &[usize], latents: Option<&[Matrix]>) {
        let (mut moves, mut first) = (Vec::new(), 0);
        for (stream, (draft, &node)) in drafts.iter().zip(nodes).enumerate() {
            let path: Vec<usize> = draft.path(node).into_iter().map(|row| first + row).collect();
            moves.extend(Move::path(&path, &self.tables[stream], self.committed[stream]));
            if let (Some(cache), Some(latents)) = (&mut self.cache, latents) {
                cache.commit(latents, &path, &self.tables[stream], self.committed[stream]);
            }
            self.committed[stream] += path.len();
            first += draft.tokens.len();
        }
        let Both { gpu, stream, .. } = self.both;
        self.state.inputs.write_moves(stream, &moves).expect("moves");
        gpu.commit(stream, &mut self.state, moves.len() + 3).expect("a commit");
    }

    /// Reads `texts` up to their ends, chain by chain of at most `chunk` rows.
    pub(crate) fn read(&mut self, texts: &[&[u32]], chunk: usize) {
        let longest = texts.iter().map(|text| text.len()).max().unwrap_or_default();
        for start in (0..longest).step_by(chunk) {
            for (stream, text) in texts.iter().enumerate() {
                let Some(piece) = text.get(start..).filter(|rest| !rest.is_empty()) else { continue };
                let draft = Draft::chain(&piece[..piece.len().min(chunk)]);
                self.read_one(stream, draft);
            }
        }
    }

    fn read_one(&mut self, stream: usize, draft: Draft) {
        let nothing = Draft { tokens: Vec::new(), parents: Vec::new() };
        let mut drafts = vec![nothing; self.tables.len()];
        let last = draft.tokens.len() - 1;
        drafts[stream] = draft;
        let latents = self.cache.is_some().then(|| self.expected(&drafts).0.latents);
        let rows = last + 1;
        self.pass(&drafts, rows);
        let path: Vec<usize> = (0..rows).collect();
        let (table, committed) = (self.tables[stream].clone(), self.committed[stream]);
        if let (Some(cache), Some(latents)) = (&mut self.cache, latents) {
            cache.commit(&latents, &path, &table, committed);
        }
        let moves = Move::path(&path, &table, committed);
        self.state.inputs.write_moves(&self.both.stream, &moves).expect("moves");
        self.both.gpu.commit(&self.both.stream, &mut self.state, rows).expect("a commit");
        self.committed[stream] += rows;
    }
}

fn flat(drafts: &[Draft]) -> (Vec<u32>, Vec<Vec<Ancestors>>) {
    let tokens = drafts.iter().flat_map(|draft| draft.tokens.iter().copied()).collect();
    (tokens, drafts.iter().map(Draft::ancestors).collect())
}

fn segments<'a>(
    drafts: &[Draft],
    ancestors: &'a [Vec<Ancestors>],
    tables: &'a [Vec<PageId>],
    committed: &[usize],
) -> Vec<Segment<'a>> {
    let mut segments = Vec::with_capacity(drafts.len());
    for (i, draft) in drafts.iter().enumerate() {
        let (pages, committed, rows) = (&tables[i], committed[i], draft.tokens.len());
        assert!(committed + rows <= pages.len() * PAGE_TOKENS, "pages of the test");
        segments.push(Segment { pages, committed, rows, mask: Mask::Tree(&ancestors[i]) });
    }
    segments
}

/// The least router margin of each row.
struct Margins<'t> {
    target: &'t Target,
    rows: Vec<f32>,
}

impl Trace for Margins<'_> {
    fn routing(&mut self, layer: usize, routing: &Routing) {
        let router = self.target.router(layer).expect("the layer was routed");
        for (row, least) in self.rows.iter_mut().enumerate() {
            *least = least.min(router.margin(routing.scores.row(row)));
        }
    }
}

/// Compares rows with the CPU's where no expert is in doubt: the relative error of `what`, over all of them, is below `limit`.
pub(crate) fn compare(what: &str, found: &Matrix, expected: &Matrix, margins: &[f32], limit: f64) {
    let clear: Vec<usize> = (0..expected.rows()).filter(|row| margins[*row] >= MARGIN).collect();
    assert!(
        4 * clear.len() >= expected.rows(),
        "{what}: only {} of {} rows are clear",
        clear.len(),
        expected.rows()
    );
    let square = |values: &mut dyn Iterator<Item = f64>| values.map(|value| value * value).sum::<f64>();
    let pairs = || clear.iter().flat_map(|row| found.row(*row).iter().zip(expected.row(*row)));
    let error = square(&mut pairs().map(|(f, e)| f64::from(f - e)));
    let size = square(&mut pairs().map(|(_, e)| f64::from(*e)));
    let relative = (error / size).sqrt();
    println!("{what}: {} of {} rows, relative error {relative:.5}", clear.len(), expected.rows());
    assert!(relative <= limit, "{what}: relative error {relative}, at most {limit}");
    assert!(relative > 0.0, "{what}: bf16 has no f32 results");
}

/// The best token of clear rows, where it leads by `lead`.
pub(crate) fn compare_best(found: &Matrix, expected: &Matrix, margins: &[f32], lead: f32) {
    let mut compared = 0;
    for row in (0..expected.rows()).filter(|row| margins[*row] >= MARGIN) {
        let best = |values: &[f32]| {
            let mut order: Vec<usize> = (0..values.len()).collect();
            order.sort_by(|a, b| values[*b].total_cmp(&values[*a]));
            (order[0], values[order[0]] - values[order[1]])
        };
        let (token, margin) = best(expected.row(row));
        if margin >= lead {
            assert_eq!(best(found.row(row)).0, token, "row {row}, which leads by {margin}");
            compared += 1;
        }
    }
    assert!(compared > 0, "a comparison that compared nothing");
}

/// Whether two matrices hold the same bits in the rows given.
pub(crate) fn assert_same(what: &str, found: (&Matrix, usize), expected: (&Matrix, usize)) {
    let bits = |(matrix, row): (&Matrix, usize)| -> Vec<u32> {
        matrix.row(row).iter().map(|value| value.to_bits()).collect()
    };
    let (found, expected) = (bits(found), bits(expected));
    let differing = found.iter().zip(&expected).filter(|(f, e)| f != e).count();
    assert_eq!(differing, 0, "{what}: {differing} of {} values differ", expected.len());
}
