//! Drawing tokens on the device, where a row needs nothing but temperature and noise.

use kd_kernels::families::sample;
use kd_kernels::{Buffer, Choice, CudaView, Element, Fork, KernelError, Kernels, Outbox, Stream, TensorRef};

use crate::backend::Draw;

/// Entries that one block of the kernel scans.
const CHUNK: usize = 4096;

/// The draw of one row.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct RowDraw {
    pub(super) draw: Draw,
    /// Absolute position of the token that is drawn.
    pub(super) position: usize,
}

/// Parameters of each row and what was drawn, at fixed addresses.
#[derive(Debug)]
pub(super) struct Sampling {
    kernel: sample::Sample,
    vocab: usize,
    temperature: Mirrored<f64>,
    seed: Mirrored<u64>,
    position: Mirrored<u64>,
    choice: Mirrored<u32>,
    cut: Buffer<u64>,
    found: Buffer<f64>,
    arrived: Buffer<i32>,
    tokens: Buffer<i32>,
    value: Buffer<f64>,
    /// The tokens on the host, where what comes behind the draws need not be waited for.
    outbox: Outbox<i32>,
    fork: Fork,
}

/// A buffer and what it holds: most rounds change positions alone.
#[derive(Debug)]
struct Mirrored<T> {
    buffer: Buffer<T>,
    held: Vec<T>,
}

impl Sampling {
    /// Memory for `rows` rows of logits `[rows, vocab]`.
    pub(super) fn new(
        stream: &Stream,
        kernels: &Kernels,
        rows: usize,
        vocab: usize,
    ) -> Result<Self, KernelError> {
        let v = i64::try_from(vocab).unwrap_or(i64::MAX);
        let chunks = vocab.div_ceil(CHUNK);
        Ok(Self {
            kernel: sample::Sample::load(kernels, sample::Dims { v })?,
            vocab,
            temperature: Mirrored::new(stream, vec![0.0; rows])?,
            seed: Mirrored::new(stream, vec![0; rows])?,
            position: Mirrored::new(stream, vec![0; rows])?,
            choice: Mirrored::new(stream, vec![0; rows])?,
            cut: Buffer::new(stream, &vec![0; rows])?,
            found: Buffer::new(stream, &vec![0.0; rows * chunks * 2])?,
            arrived: Buffer::new(stream, &vec![0; rows])?,
            tokens: Buffer::new(stream, &vec![-1; rows])?,
            value: Buffer::new(stream, &vec![0.0; rows])?,
            outbox: Outbox::new(stream, rows)?,
            fork: Fork::new(stream)?,
        })
    }

    /// Bytes on the device of [`Sampling::new`].
    pub(super) fn bytes(rows: usize, vocab: usize) -> usize {
        // Five values of eight bytes and three of four a row, and two of eight a row and chunk.
        rows * (5 * 8 + 3 * 4 + 2 * 8 * vocab.div_ceil(CHUNK))
    }

    /// Sets how the first rows are drawn; of a row without a draw nothing is asked.
    pub(super) fn write(&mut self, stream: &Stream, rows: &[Option<RowDraw>]) -> Result<(), KernelError> {
        let drawn = || rows.iter().enumerate().filter_map(|(row, draw)| Some((row, draw.as_ref()?)));
        // A greedy row has no noise, so nothing of it depends on seed, choice and position.
        let noisy = || drawn().filter(|(_, row)| row.draw.temperature > 0.0);
        self.temperature.set(stream, drawn().map(|(at, row)| (at, row.draw.temperature)))?;
        self.seed.set(stream, noisy().map(|(at, row)| (at, row.draw.seed)))?;
        self.choice.set(stream, noisy().map(|(at, row)| (at, row.draw.choice)))?;
        self.position.set(stream, noisy().map(|(at, row)| (at, row.position as u64)))
    }

    /// Enqueues the draws of the first `rows` rows. Safe to capture in a graph.
    pub(super) fn launch(
        &mut self,
        stream: &Stream,
        logits: CudaView<'_, f32>,
        rows: usize,
    ) -> Result<(), KernelError> {
        let chunks = self.vocab.div_ceil(CHUNK);
        let args = sample::Args {
            logits: TensorRef::new(stream, logits, [rows, self.vocab])?,
            rank: 0,
            temperature: self.temperature.buffer.head(stream, [rows])?,
            seed: self.seed.buffer.head(stream, [rows])?,
            position: self.position.buffer.head(stream, [rows])?,
            choice: self.choice.buffer.head(stream, [rows])?,
            cut: self.cut.head(stream, [rows])?,
            found: self.found.head_mut(stream, [rows, chunks, 2])?,
            arrived: self.arrived.head_mut(stream, [rows])?,
            tokens: self.tokens.head_mut(stream, [rows])?,
            value: self.value.head_mut(stream, [rows])?,
        };
        self.kernel.launch(stream, Choice::Auto, args).map(drop)
    }

    /// Enqueues the copy of the tokens of the first `rows` rows to the host, beside what is enqueued from here to
    /// [`sent`](Self::sent). Safe to capture in a graph.
    pub(super) fn send(&mut self, stream: &Stream, rows: usize) -> Result<(), KernelError> {
        let side = self.fork.begin(stream)?;
        self.outbox.send(&side, &self.tokens.view_as(0, rows)?)
    }

    /// What is enqueued from here on comes behind the copy.
    pub(super) fn sent(&self, stream: &Stream) -> Result<(), KernelError> {
        self.fork.end(stream)
    }

    /// The tokens of the first `rows` rows of the last launch, negative where a row allows none.
    pub(super) fn tokens(&self, rows: usize) -> Result<CudaView<'_, i32>, KernelError> {
        self.tokens.view_as(0, rows)
    }

    /// The same on the host, once the copy has arrived.
    pub(super) fn read(&self, rows: usize) -> Result<Vec<i32>, KernelError> {
        self.outbox.read(rows)
    }
}

impl<T: Element + PartialEq> Mirrored<T> {
    fn new(stream: &Stream, held: Vec<T>) -> Result<Self, KernelError> {
        Ok(Self { buffer: Buffer::new(stream, &held)?, held })
    }

    /// Sets the named elements and leaves the others.
    fn set(&mut self, stream: &Stream, values: impl Iterator<Item = (usize, T)>) -> Result<(), KernelError> {
        let mut changed = false;
        for (at, value) in values {
            changed |= self.held[at] != value;
            self.held[at] = value;
        }
        if changed { self.buffer.write(stream, &self.held) } else { Ok(()) }
    }
}
