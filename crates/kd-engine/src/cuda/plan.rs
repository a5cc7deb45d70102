//! What an engine will ask of a device, added up before anything is there.

use kd_attn::PAGE_TOKENS;
use kd_kernels::{Kernels, Stream};
use kd_model::cuda::{
    ChunkLimits, CudaDrafter, CudaError, CudaTarget, Dims, DraftDims, Fit, Limits, MOST_ROWS, Walks,
};

use super::buckets::Buckets;
use super::drafting::{Unread, draft_limits};
use super::sampling::Sampling;
use crate::engine::{EngineOptions, Models};

/// Tokens of the prefix that a prompt chunk expands at a time.
const BLOCK: usize = 8192;

/// What a launch in a captured graph takes of the device, in bytes: 8.8 to 10.4 KB were measured on an H200, 20,000 to 164,000 launches.
/// The more, the more each took, so there is room above.
const LAUNCH_BYTES: usize = 12 << 10;
/// Launches of a layer of the target, at most: nine of attention with its products, two norms, three of the shared expert, the router, and
/// four of the experts. Passes of few rows and layers without experts have fewer.
const LAYER_LAUNCHES: usize = 19;
/// Of a layer of the drafter: five of attention with its products, three of the MLP, and two norms.
const DRAFTER_LAUNCHES: usize = 10;
/// Of the rest of either, at most. A pass of the target has embedding, norm, head, draws and their copy, and two of a commit. A round that
/// drafts has the walk, another commit, four of the context and six of the blocks and their best tokens besides.
const OTHER_LAUNCHES: usize = 14;

/// Sizes of everything that the passes of an engine use.
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) dims: Dims,
    pub(super) buckets: Buckets,
    pub(super) limits: Limits,
    /// Trees have nodes.
    pub(super) trees: bool,
    /// Prompt chunks; `None` where prompts take the passes of rounds.
    pub(super) chunk: Option<ChunkLimits>,
    /// Most tokens that the drafter reads at once.
    pub(super) read: usize,
}

impl Plan {
    /// For an engine with given options, in rounds of up to `slots()` streams whose trees have up to `nodes` nodes: kernels are loaded
    /// once, however many options are planned for.
    ///
    /// # Errors
    /// A target that is not implemented on GPUs or has no kernels; then, of a plan, rounds that are not one pass.
    pub(super) fn by_options<'a>(
        models: &'a Models,
        kernels: &Kernels,
        nodes: usize,
        deterministic: bool,
    ) -> Result<impl Fn(EngineOptions) -> Result<Self, CudaError> + use<'a>, CudaError> {
        let dims = Dims::of_target(&models.target, 0)?;
        let attention = CudaTarget::attention(kernels, &dims)?;
        let block = models.drafter.as_ref().map(|drafter| drafter.config().block_size);
        Ok(move |options: EngineOptions| {
            let rows = rows_of_stream(nodes, block);
            within(options.slots(), rows)?;
            let longest = models.target.config().max_position_embeddings.div_ceil(PAGE_TOKENS);
            let pages = options.pages().max(1);
            let stream_pages = longest.clamp(1, pages);
            let buckets = Buckets::new(options.slots(), nodes);
            let chain = if deterministic { options.chunk(false) } else { 0 };
            let limits = Limits {
                rows: buckets.most_rows().max(buckets.most_streams() * rows).max(chain),
                nodes: (1 + nodes).max(chain),
                streams: buckets.most_streams(),
                pages,
                stream_pages,
            };
            let (rows, streams) = (options.chunk(false), options.slots());
            let chunk = ChunkLimits { rows, streams, block: BLOCK.min(limits.context()) };
            let chunk = (!deterministic).then_some(chunk);
            let contexts = limits.contexts().collect::<Vec<_>>();
            let buckets = buckets.with_contexts(&contexts, |bucket| attention(limits, bucket))?;
            let (dims, read) = (dims.clone(), limits.rows.max(rows));
            Ok(Self { dims, buckets, limits, trees: nodes > 0, chunk, read })
        })
    }

    /// Fails unless kernels for both models are there and all of it fits in memory together, as [`fits`](Self::fits) says.
    pub(super) fn admit(
        &self,
        stream: &Stream,
        kernels: &Kernels,
        models: &Models,
        memory: usize,
    ) -> Result<(), CudaError> {
        CudaTarget::check(kernels, &self.dims)?;
        let drafts = drafter(models)?;
        if let Some(dims) = &drafts {
            CudaDrafter::check(kernels, dims)?;
            if self.trees {
                Walks::check(kernels, dims.block)?;
            }
        }
        self.fits(stream, models, memory)
    }

    /// Fails unless all of it fits beside what is on the device, in `memory` bytes.
    pub(super) fn fits(&self, stream: &Stream, models: &Models, memory: usize) -> Result<(), CudaError> {
        let (dims, own) = (drafter(models)?, models.drafter.as_deref());
        let drafts = dims.as_ref().zip(own);
        let other = Sampling::bytes(self.limits.rows, self.dims.vocab) + self.graph_bytes(dims.as_ref());
        let fit = Fit {
            target: &self.dims,
            limits: self.limits,
            taps: own.map_or(0, |drafter| drafter.config().target_layer_ids.len()),
            chunks: self.chunk,
            drafter: drafts
                .map(|(dims, own)| (dims, draft_limits(self.limits, self.read), own.table_bytes())),
            other: other + dims.as_ref().map_or(0, |dims| self.drafting_bytes(dims)),
        };
        fit.check(stream, memory)
    }
}

impl Plan {
    /// What the graphs of all rounds take of the device; those that commit or draft alone are few and short.
    fn graph_bytes(&self, drafter: Option<&DraftDims>) -> usize {
        let (rounds, plain) = (self.buckets.all().len(), self.buckets.plain().len());
        let pass = self.dims.layers * LAYER_LAUNCHES + OTHER_LAUNCHES;
        // Rounds that draft have a graph of their own besides.
        let drafting = drafter
            .filter(|_| self.trees)
            .map(|drafter| drafter.layers.len() * DRAFTER_LAUNCHES + OTHER_LAUNCHES);
        let drafted = drafting.map_or(0, |drafting| rounds * (pass + drafting));
        ((rounds + plain) * pass + drafted) * LAUNCH_BYTES
    }

    /// What drafting has of its own beside the drafter.
    fn drafting_bytes(&self, dims: &DraftDims) -> usize {
        let walks = if self.trees { Walks::bytes(self.limits, dims.block) } else { 0 };
        Unread::bytes(dims.tap_width, self.limits.rows) + walks
    }
}

fn drafter(models: &Models) -> Result<Option<DraftDims>, CudaError> {
    models.drafter.as_deref().map(|drafter| DraftDims::of(drafter.config(), 0, 1)).transpose()
}

/// Rows that a round has for a stream at most: its tree's, or the block that a round of trees commits at most, which is laid out as
/// the rows of a pass are. Without trees the drafter only reads, a row of each stream.
fn rows_of_stream(nodes: usize, block: Option<usize>) -> usize {
    (1 + nodes).max(block.filter(|_| nodes > 0).unwrap_or(1))
}

/// Streams whose rounds are one pass, each with a tree of up to `nodes` nodes.
pub(super) fn most_streams(nodes: usize, block: Option<usize>) -> usize {
    (MOST_ROWS / rows_of_stream(nodes, block)).max(1)
}

/// Fails unless a round of so many streams of so many rows is one pass.
fn within(streams: usize, rows: usize) -> Result<(), CudaError> {
    let (what, found) = (
        "rows of a round (streams times one and the nodes of a tree, or a block)",
        streams.saturating_mul(rows),
    );
    if found <= MOST_ROWS { Ok(()) } else { Err(CudaError::Limit { what, found, limit: MOST_ROWS }) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_many_streams_as_are_promised_fit_one_pass_and_no_more() {
        for (nodes, block) in [(0, None), (0, Some(8)), (4, Some(8)), (7, Some(8)), (64, Some(8)), (64, None)]
        {
            let (most, rows) = (most_streams(nodes, block), rows_of_stream(nodes, block));
            assert!(within(most, rows).is_ok(), "{most} streams of {nodes} nodes, {block:?}");
            assert!(within(most + 1, rows).is_err(), "{most} streams and one of {nodes} nodes, {block:?}");
        }
        assert_eq!(most_streams(0, Some(8)), MOST_ROWS, "a drafter that never drafts takes no rows");
        assert_eq!(most_streams(4, Some(8)), MOST_ROWS / 8, "a block is more than a small tree");
    }
}
