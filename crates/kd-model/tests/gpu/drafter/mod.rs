//! The drafter on a GPU against the drafter on the CPU, over texts that the demo target has read.

mod drafts;
mod streams;

use std::path::PathBuf;

use half::bf16;
use kd_attn::{BlockSegment, Mask, PAGE_TOKENS, PageId, Segment};
use kd_kernels::ranks::OneRank;
use kd_kernels::{Stream, testing};
use kd_model::cuda::{
    Committed, CudaDrafter, DeviceLent, DeviceMatrix, DraftInputs, DraftLimits, Uploader,
    open_drafter_kernels,
};
use kd_model::{Drafter, Target};
use kd_tensor::{Bf16Matrix, Matrix, Pool};

const LIMITS: DraftLimits = DraftLimits { streams: 9, tokens: 48, pages: 40, stream_pages: 4 };
/// Committed tokens of the streams: none, one, page edges, more than one page.
const STARTS: [usize; 8] = [64, 0, 129, 63, 1, 65, 128, 100];

/// Both drafters, and what the target made of a text for each stream.
struct Both {
    drafter: Drafter,
    target: Target,
    pool: Pool,
    stream: Stream,
    gpu: CudaDrafter,
    inputs: DraftInputs,
    embed: DeviceMatrix,
    head: DeviceMatrix,
    texts: Vec<Text>,
}

/// A text of one stream.
struct Text {
    tokens: Vec<u32>,
    /// Of each token, rounded to bf16 as a target on a GPU gives them.
    taps: Bf16Matrix,
    pages: Vec<PageId>,
    start: usize,
}

fn demo() -> PathBuf {
    let beside = || PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../models");
    std::env::var_os("KD_MODELS").map_or_else(beside, PathBuf::from).join("demo")
}

impl Both {
    /// The demo pair, or nothing where there is no GPU.
    fn demo(test: &str) -> Option<Self> {
        let (device, _) = testing::kernels_or_skip(test, "demo-tp1")?;
        let drafter = Drafter::load(&demo().join("drafter")).expect("the demo drafter");
        let target = Target::load(&demo().join("target")).expect("the demo target");
        let kernels =
            open_drafter_kernels(&device, &kd_kernels::Search::standard(), &drafter).expect("kernels");
        let (stream, pool) = (device.stream().expect("a stream"), Pool::available().expect("threads"));
        let gpu = CudaDrafter::load(&stream, &kernels, &drafter, 0, LIMITS).expect("the drafter on the GPU");
        let mut upload = Uploader::new(&stream).expect("memory");
        let embed = upload.matrix(target.embedding()).expect("copied");
        let head = upload.matrix(target.head()).expect("copied");
        let inputs = DraftInputs::new(&stream, LIMITS, drafter.config().vocab_size).expect("memory");
        let texts = read(&target, &drafter, &pool);
        Some(Self { drafter, target, pool, gpu, inputs, embed, head, texts, stream })
    }

    /// Computes the context of text `at` from token `first` on, a few tokens at a time: in reverse, with gaps between them.
    fn read(&mut self, at: usize, first: usize) {
        let text = &self.texts[at];
        let tokens: Vec<usize> = (first..text.start).collect();
        for some in tokens.chunks(LIMITS.tokens / 2) {
            let gaps = some.iter().rev().flat_map(|token| [Some(*token), None]);
            let places: Vec<Option<Committed>> = gaps
                .map(|token| {
                    token.map(|position| Committed { position, page: text.pages[position / PAGE_TOKENS] })
                })
                .collect();
            // A row that is not there has taps of NaN.
            let row = |place: &Option<Committed>| match place {
                Some(place) => text.taps.row(place.position).to_vec(),
                None => vec![bf16::NAN; text.taps.cols()],
            };
            let rows: Vec<bf16> = places.iter().flat_map(row).collect();
            let rows = Bf16Matrix::new(places.len(), text.taps.cols(), rows).expect("a shape");
            let taps =
                Uploader::new(&self.stream).and_then(|mut upload| upload.matrix(&rows)).expect("copied");
            self.inputs.write_context(&self.stream, &places).expect("inputs");
            let rows = self.inputs.context(taps.tensor(&self.stream).expect("taps")).expect("rows");
            self.gpu.context(&self.stream, &OneRank, rows).expect("a context");
            self.stream.synchronize().expect("done");
        }
    }

    fn read_all(&mut self) {
        (0..self.texts.len()).for_each(|at| self.read(at, 0));
    }

    /// The newest tokens and the segments of the texts `order`.
    fn streams(&self, order: &[usize]) -> (Vec<u32>, Vec<BlockSegment<'_>>) {
        let text = |at: &usize| &self.texts[*at];
        let bonus = order.iter().map(|at| text(at).tokens[text(at).start]).collect();
        let segments = order.iter().map(|at| BlockSegment { pages: &text(at).pages, start: text(at).start });
        (bonus, segments.collect())
    }

    /// Logits of a draft of the texts `order`, with `padding` streams behind them.
    fn draft(&mut self, order: &[usize], padding: usize) -> Matrix {
        let (bonus, segments) = self.streams(order);
        self.inputs.write_blocks(&self.stream, &bonus, &segments).expect("inputs");
        let blocks = self.inputs.blocks(order.len() + padding).expect("blocks");
        let lent = DeviceLent { embed: &self.embed, head: &self.head };
        self.gpu.draft(&self.stream, &OneRank, lent, &blocks).expect("a draft");
        self.gpu.logits(&self.stream, order.len()).expect("logits")
    }

    /// The same on the CPU.
    fn expected(&self, order: &[usize]) -> Matrix {
        let mut cache = self.drafter.new_cache(LIMITS.pages);
        for text in &self.texts {
            let rows: Vec<usize> = (0..text.start).collect();
            cache.commit(&self.context(text), &rows, &text.pages, 0);
        }
        let (bonus, segments) = self.streams(order);
        let lent = (&self.target).into();
        self.drafter.draft(&self.pool, lent, &bonus, &segments, &cache).expect("tokens").logits
    }

    /// Keys and values of a text's committed tokens on the CPU, a matrix for each layer.
    fn context(&self, text: &Text) -> Vec<Matrix> {
        let values = (0..text.start).flat_map(|row| text.taps.row(row)).map(|value| value.to_f32());
        let taps = Matrix::from_vec(text.start, text.taps.cols(), values.collect()).expect("a shape");
        self.drafter.context(&self.pool, &taps, 0..text.start)
    }
}

/// The demo's golden texts, prompts and answers as one, with the target's taps.
fn read(target: &Target, drafter: &Drafter, pool: &Pool) -> Vec<Text> {
    let file = std::fs::read(demo().join("golden/golden.json")).expect("the golden");
    let golden: serde_json::Value = serde_json::from_slice(&file).expect("JSON");
    let ids = |value: &serde_json::Value| -> Vec<u32> {
        value.as_array().expect("ids").iter().map(|id| id.as_u64().expect("an id") as u32).collect()
    };
    let cases = golden["cases"].as_array().expect("cases").iter();
    let all: Vec<Vec<u32>> =
        cases.map(|case| [ids(&case["prompt"]), ids(&case["greedy"])].concat()).collect();
    let text = |(i, start): (usize, usize)| {
        let tokens: Vec<u32> = all[i % all.len()].iter().copied().cycle().take(start + 1).collect();
        let segment = Segment { pages: &[], committed: 0, rows: tokens.len(), mask: Mask::Causal };
        let taps = &drafter.config().target_layer_ids;
        let nothing = target.new_cache(1);
        let pass = target.forward(pool, &tokens, &[segment], &nothing, taps, &mut ()).expect("tokens");
        let values: Vec<bf16> = pass.taps.data().iter().map(|value| bf16::from_f32(*value)).collect();
        let taps = Bf16Matrix::new(tokens.len(), pass.taps.cols(), values).expect("a shape");
        // Dealt out in turn and from above: no stream's pages are neighbours.
        let page = |page: usize| PageId((LIMITS.pages - 1 - (page * STARTS.len() + i)) as u32);
        Text { tokens, taps, pages: (0..LIMITS.stream_pages).map(page).collect(), start }
    };
    STARTS.into_iter().enumerate().map(text).collect()
}

/// Root mean square of the difference, relative to that of what is expected.
fn error(found: &[f32], expected: &[f32]) -> f64 {
    assert_eq!(found.len(), expected.len());
    let square = |values: &mut dyn Iterator<Item = f64>| values.map(|value| value * value).sum::<f64>();
    let differences = square(&mut found.iter().zip(expected).map(|(f, e)| f64::from(f - e)));
    (differences / square(&mut expected.iter().map(|e| f64::from(*e)))).sqrt()
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}
