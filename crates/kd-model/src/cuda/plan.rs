//! Whether it fits, before anything is allocated, and what would.

use kd_attn::PAGE_TOKENS;
use kd_kernels::{KernelError, Stream};

use super::limits::Limits;
use super::prefill::ChunkLimits;
use super::{CudaError, Dims};

/// Left alone: the context, loaded kernels and what libraries take.
const RESERVE: usize = 256 << 20;

/// Fails unless the weights of `dims` fit beside what is there.
pub(crate) fn room_for_weights(stream: &Stream, dims: &Dims) -> Result<(), CudaError> {
    let (needed, free) = (dims.weight_bytes()?, free(stream)?);
    if needed <= free {
        return Ok(());
    }
    let fits = layers_that_fit(dims, free)?;
    Err(CudaError::OutOfMemory { what: "the weights need", needed, free, fits })
}

/// How many layers of weights fit in `free` bytes, and what else to do.
pub(crate) fn layers_that_fit(dims: &Dims, free: usize) -> Result<String, CudaError> {
    let mut left = free.saturating_sub(dims.table_bytes());
    let mut layers = 0;
    for moe in &dims.moe {
        let Some(rest) = left.checked_sub(dims.layer_bytes(*moe)?) else { break };
        (left, layers) = (rest, layers + 1);
    }
    Ok(format!("{layers} of {} layers would fit; use a GPU with more memory, or --device cpu", dims.layers))
}

/// Fails unless passes within `limits` fit beside what is there.
pub(crate) fn room_for_state(
    stream: &Stream,
    dims: &Dims,
    limits: Limits,
    taps: usize,
) -> Result<(), CudaError> {
    let (needed, free) = (limits.bytes(dims, taps)?, free(stream)?);
    if needed <= free {
        return Ok(());
    }
    let page = dims.layers * PAGE_TOKENS * dims.entry_bytes();
    let without = needed - limits.pages * page;
    let pages = free.saturating_sub(without) / page.max(1);
    let fits = if pages > 0 {
        format!("{pages} pages ({} tokens) would fit instead of {}", pages * PAGE_TOKENS, limits.pages)
    } else {
        "not even without pages; ask for fewer rows or a shorter context".to_owned()
    };
    Err(CudaError::OutOfMemory { what: "passes and their cache need", needed, free, fits })
}

/// Fails unless prompt chunks within `chunks` fit beside what is there.
pub(crate) fn room_for_chunks(
    stream: &Stream,
    dims: &Dims,
    chunks: ChunkLimits,
    taps: usize,
) -> Result<(), CudaError> {
    let (needed, free) = (chunks.bytes(dims, taps)?, free(stream)?);
    if needed <= free {
        return Ok(());
    }
    let fewer = |rows: &usize| {
        let fewer = ChunkLimits { rows: *rows, ..chunks };
        fewer.bytes(dims, taps).is_ok_and(|bytes| bytes <= free)
    };
    let rows = std::iter::successors(Some(chunks.rows / 2), |rows| (*rows > 0).then_some(rows / 2));
    let fits = match rows.take_while(|rows| *rows > 0).find(fewer) {
        Some(rows) => format!("chunks of {rows} rows would fit"),
        None => "no chunk would fit; ask for fewer pages or a smaller block of keys".to_owned(),
    };
    Err(CudaError::OutOfMemory { what: "prompt chunks need", needed, free, fits })
}

/// Bytes that are free but for a reserve.
pub(super) fn free(stream: &Stream) -> Result<usize, CudaError> {
    let found = stream.cuda().context().mem_get_info();
    let (free, _) = found.map_err(|error| KernelError::driver("asking for free memory", error))?;
    Ok(free.saturating_sub(RESERVE))
}
