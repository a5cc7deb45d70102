//! Prompt chunks: products through cuBLASLt, expanded attention, latents into pages at once.

use half::bf16;
use kd_attn::prefill::{Chunk, Prefill, Workspace};
use kd_attn::{PAGE_TOKENS, Segment, rows};
use kd_kernels::families::{gather_taps, query_rope};
use kd_kernels::ranks::Exchange;
use kd_kernels::{Choice, CudaSlice, CudaView, Device, KernelError, Kernels, Product, Stream, TensorRef};
use kd_moe::gpu::{Arithmetic, MOST_ROWS};

use super::cache::Moved;
use super::error::within;
use super::inputs::{Move, PassInputs};
use super::kernels::{Multiply, int};
use super::layer::Pass;
use super::limits::Limits;
use super::memory::{head, head_mut, part, part_mut, zeros};
use super::rows::RowState;
use super::state::PassState;
use super::target::CudaTarget;
use super::{CudaError, Dims};

/// That of the experts of every chunk, whatever its size: a prompt's bits do not depend on the chunks that it comes in.
const CHUNK_ARITHMETIC: Arithmetic = Arithmetic::Folded;

/// What memory for prompt chunks is planned for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ChunkLimits {
    /// Rows of a chunk, over all streams.
    pub rows: usize,
    /// Streams of a chunk.
    pub streams: usize,
    /// Keys that are expanded at a time: whole pages.
    pub block: usize,
}

/// The device memory of prompt chunks, and what only they launch.
#[derive(Debug)]
pub struct PrefillState {
    /// What the next chunk reads.
    pub inputs: PassInputs,
    pub(crate) rows: RowState,
    /// `[rows, heads, nope + rope]`
    rotated: CudaSlice<bf16>,
    /// `[rows, latent + rope]`: entries of one layer.
    entries: CudaSlice<bf16>,
    workspace: Workspace,
    attention: Prefill,
    query_rope: query_rope::QueryRope,
    products: LibraryProducts,
}

/// Products through cuBLASLt, one for each shape. Their bits are those of the largest chunk that there can be, whatever chunks are
/// planned: so rows have the same bits in chunks of any size.
#[derive(Debug)]
pub(crate) struct LibraryProducts(Vec<([usize; 2], Product)>);

impl LibraryProducts {
    fn new(device: &Device, dims: &Dims) -> Result<Self, KernelError> {
        let mut shapes =
            vec![[dims.joint(), dims.hidden], [dims.queries(), dims.q_rank], [dims.hidden, dims.values()]];
        for width in [dims.dense_width, dims.shared_width] {
            shapes.extend([[2 * width, dims.hidden], [dims.hidden, width]]);
        }
        shapes.sort_unstable();
        shapes.dedup();
        let product = |[n, k]: [usize; 2]| Ok(([n, k], Product::new(device, n, k, k, MOST_ROWS)?));
        Ok(Self(shapes.into_iter().map(product).collect::<Result<_, KernelError>>()?))
    }

    pub(crate) fn of(&self, shape: [usize; 2]) -> Result<&Product, KernelError> {
        let found = self.0.iter().find(|(own, _)| *own == shape).map(|(_, product)| product);
        found.ok_or_else(|| KernelError::BadTensor {
            shape: shape.to_vec(),
            what: "no product with a matrix of this shape was planned".to_owned(),
        })
    }
}

impl PrefillState {
    /// The tapped residuals of the rows of the last chunk, side by side: `[count, taps · hidden]`.
    ///
    /// # Errors
    /// More rows than planned.
    pub fn kept_taps(&self, count: usize) -> Result<CudaView<'_, bf16>, KernelError> {
        self.rows.kept(count)
    }

    /// The residual stream of the last chunk, before the final norm: `[rows, hidden]`, once `stream` has come this far.
    ///
    /// # Errors
    /// More rows than planned, a failed copy or launch.
    pub fn hidden(&self, stream: &Stream, rows: usize) -> Result<kd_tensor::Matrix, CudaError> {
        self.rows.download_hidden(stream, rows)
    }
}

impl CudaTarget {
    /// Memory for prompt chunks of streams whose pages are those of `state`, with the taps of `state`. `exchanged` is how
    /// many parts the exchange between ranks gives.
    ///
    /// # Errors
    /// No cuBLASLt, too little memory, with what would fit.
    pub fn prefill_state(
        &self,
        device: &Device,
        stream: &Stream,
        kernels: &Kernels,
        state: &PassState,
        chunks: ChunkLimits,
        exchanged: usize,
    ) -> Result<PrefillState, CudaError> {
        let (dims, a) = (&self.dims, self.dims.attention);
        let limits = Limits { rows: chunks.rows, streams: chunks.streams, ..state.limits };
        super::plan::room_for_chunks(stream, dims, chunks, state.rows.taps.len())?;
        let attention = Prefill::new(device, kernels, a, chunks.block, dims.kv_cache_dtype)?;
        Ok(PrefillState {
            inputs: PassInputs::new(stream, limits, dims.vocab, false)?,
            rows: RowState::new(stream, dims, chunks.rows, &state.rows.taps, exchanged, CHUNK_ARITHMETIC)?,
            rotated: zeros!(stream, chunks.rows * dims.queries())?,
            entries: zeros!(stream, chunks.rows * a.cache_width())?,
            workspace: attention.workspace(stream, chunks.rows)?,
            attention,
            query_rope: query_kernel(kernels, dims)?,
            products: LibraryProducts::new(device, dims)?,
        })
    }

    /// Enqueues one chunk: the rows of each segment follow its committed tokens, and every row sees those before it, whatever
    /// the segment's mask says. Their latents go into the streams' pages, layer by layer, and their taps side by side
    /// ([`PrefillState::kept_taps`]). A row's bits depend neither on the chunk that it comes in nor on its neighbours.
    ///
    /// # Errors
    /// A limit exceeded, a token outside the vocabulary, a table that does not reach as far as the rows, a refused launch.
    pub fn prefill(
        &self,
        stream: &Stream,
        state: &mut PassState,
        chunk: &mut PrefillState,
        tokens: &[u32],
        segments: &[Segment<'_>],
        exchange: &dyn Exchange,
    ) -> Result<(), CudaError> {
        let count = rows(segments);
        chunk.inputs.write(stream, tokens, segments)?;
        chunk.inputs.write_moves(stream, &Move::all(segments)?)?;
        let PrefillState { inputs, rows, rotated, entries, workspace, attention, query_rope, products } =
            chunk;
        let (a, width) = (&self.dims.attention, self.dims.attention.cache_width());
        let mut pass = Pass {
            stream,
            target: self,
            rows,
            count,
            slots: TensorRef::new(stream, inputs.slots(count)?, [count])?,
            positions: TensorRef::new(stream, inputs.positions(count)?, [count])?,
            rope: head(stream, &state.rope, [state.limits.positions(), a.rope])?,
            products: Multiply::Library(products),
            exchange,
            joins: false,
            left: None,
        };
        pass.embed(TensorRef::new(stream, inputs.tokens(count)?, [count])?)?;
        let page_rows = state.limits.pages * PAGE_TOKENS;
        for (index, layer) in self.layers.iter().enumerate() {
            pass.attention_inputs(layer, head_mut(stream, entries, [count, width])?)?;
            let heads = [count, a.heads, a.nope + a.rope];
            let args = query_rope::Args {
                q: head(stream, &pass.rows.queries, heads)?,
                rope: pass.rope,
                positions: pass.positions,
                y: head_mut(stream, rotated, heads)?,
            };
            query_rope.launch(stream, Choice::Auto, args)?;
            let mut first = 0;
            for (s, segment) in segments.iter().enumerate().filter(|(_, segment)| segment.rows > 0) {
                let [_, heads, wide] = heads;
                let own = Chunk {
                    queries: part(stream, rotated, first * heads * wide, [segment.rows, heads, wide])?,
                    kv_b: layer.kv_b.tensor(stream)?,
                    pages: state.pages.layer(stream, &self.dims, index, state.limits.pages)?,
                    table: inputs.stream_table(stream, s)?,
                    own: part(stream, entries, first * width, [segment.rows, width])?,
                    committed: segment.committed,
                };
                let at = first * self.dims.values();
                let shape = [segment.rows, a.heads, a.value];
                let mut values = part_mut(stream, &mut pass.rows.values, at, shape)?;
                attention.launch(stream, Choice::Auto, &own, workspace, &mut values)?;
                first += segment.rows;
            }
            let moved = Moved {
                scratch: head(stream, entries, [1, count, width])?,
                first: index,
                from: TensorRef::new(stream, inputs.moves_from(count)?, [count])?,
                to: TensorRef::new(stream, inputs.moves_to(count)?, [count])?,
            };
            self.kernels.cache.commit(stream, &self.dims, &mut state.pages, moved, page_rows)?;
            pass.attention_output(index, layer)?;
            pass.finish(index, layer)?;
        }
        let (taps, slots) = (pass.rows.taps.len(), pass.slots);
        if taps > 0 {
            let RowState { tapped, kept, limit, .. } = pass.rows;
            let args = gather_taps::Args {
                taps: head(stream, tapped, [taps, *limit, self.dims.hidden])?,
                rows: slots,
                y: head_mut(stream, kept, [count, taps, self.dims.hidden])?,
            };
            self.kernels.gather_taps.launch(stream, Choice::Auto, args)?;
        }
        Ok(())
    }

    /// Enqueues the head over rows of the last chunk, those that [`PassInputs::choose`] of the chunk's inputs named, `count` of
    /// them; results are those of `state`, as after [`CudaTarget::logits`].
    ///
    /// # Errors
    /// More rows than planned, a refused launch.
    pub fn prefill_logits(
        &self,
        stream: &Stream,
        state: &mut PassState,
        chunk: &PrefillState,
        count: usize,
    ) -> Result<(), CudaError> {
        within("the number of rows for the head", count, state.limits.rows)?;
        let table = head(stream, &chunk.rows.normed, [chunk.rows.limit, self.dims.hidden])?;
        let ids = TensorRef::new(stream, chunk.inputs.chosen(count)?, [count])?;
        self.gathered_logits(stream, &mut state.head, table, ids)
    }
}

/// Fails unless `kernels` has the units that prompt chunks alone launch.
pub(crate) fn check(kernels: &Kernels, dims: &Dims) -> Result<(), CudaError> {
    query_kernel(kernels, dims)?;
    Ok(Prefill::check(kernels, dims.attention, dims.kv_cache_dtype)?)
}

fn query_kernel(kernels: &Kernels, dims: &Dims) -> Result<query_rope::QueryRope, KernelError> {
    let [n, r] = [dims.attention.nope, dims.attention.rope].map(int);
    query_rope::QueryRope::load(kernels, query_rope::Dims { n, r, w: n })
}

impl ChunkLimits {
    /// Bytes of a [`PrefillState`] of one rank.
    ///
    /// # Errors
    /// More rows than the experts can run.
    pub fn bytes(&self, dims: &Dims, taps: usize) -> Result<usize, CudaError> {
        let a = &dims.attention;
        let width = a.cache_width();
        let rows = self.rows * (2 * (dims.queries() + width) + 4 * a.heads * (a.value + 8));
        let block = 2 * self.block * (width + a.heads * (a.nope + a.value));
        Ok(RowState::bytes(dims, self.rows, taps, CHUNK_ARITHMETIC)? + rows + block)
    }
}
