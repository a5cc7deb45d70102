//! Timing tree-verify attention against what the device allows: what `kd bench attn` prints and records.

use kd_kernels::bench::{Rates, median};
use kd_kernels::selftest::{Random, units};
use kd_kernels::{Device, KernelError, Kernels};

use crate::selftest::tree_mla::case::{Branch, Case, Widths};
use crate::selftest::tree_mla::launch::{Attention, Pass, Room};
use crate::{KvCacheDtype, Leaves, PAGE_TOKENS};

/// A working set over several times any L2: reads of it come from memory.
const COLD: usize = 512 << 20;
/// Depth of the trees: a block of 8 drafts them.
const DEPTH: usize = 7;

/// The size of a pass: every stream has as many nodes and committed tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cell {
    /// Streams.
    pub streams: usize,
    /// Nodes of each stream, the root included.
    pub nodes: usize,
    /// Committed tokens of each stream.
    pub context: usize,
}

/// One cell, measured.
#[derive(Debug, Clone, PartialEq)]
pub struct Measured {
    /// What was measured.
    pub cell: Cell,
    /// Microseconds of a pass, attention and merge, in graphs of passes over `copies` copies of the context.
    pub samples: Vec<f64>,
    /// Copies of the context that passes take in turn, so that it comes from memory; 1: it stays in the L2 if it fits.
    pub copies: usize,
    /// Bytes that a pass must move: context, entries of the nodes, queries and results once.
    pub bytes: f64,
    /// Operations that a pass must do.
    pub operations: f64,
    /// Rows of partial results, of `latent + 2` f32.
    pub partial_rows: usize,
}

impl Measured {
    /// The median time in microseconds.
    pub fn micros(&self) -> f64 {
        median(&self.samples)
    }

    /// Least microseconds that `rates` allow, and which of them sets it.
    pub fn floor_micros(&self, rates: &Rates) -> (f64, &'static str) {
        rates.floor_micros(self.bytes, self.operations)
    }
}

/// Measures one cell on the attention of `kernels`' profile over pages of `cache`; `cold`: the context comes from memory. `variant`: that one, else
/// the launcher's choice.
///
/// # Errors
/// A profile without the kernel, no memory, a failed launch.
pub fn measure(
    device: &Device,
    kernels: &Kernels,
    cell: Cell,
    cold: bool,
    variant: Option<&str>,
    samples: usize,
    cache: KvCacheDtype,
) -> Result<Measured, KernelError> {
    let fp8 = cache == KvCacheDtype::Fp8;
    let family = if fp8 { "tree_mla_fp8" } else { "tree_mla" };
    let missing = || KernelError::NoDimension { unit: family.to_owned(), name: "H".to_owned() };
    let row = units(kernels, family).next().ok_or_else(missing)?;
    let width = |name| row.dim(name).map(|(_, length)| length);
    let widths = Widths { heads: width("H")?, latent: width("C")?, rope: width("R")?, fp8 };
    let (stream, mut random) = (device.stream()?, Random::new(1));
    let Cell { streams, nodes, context } = cell;
    let branches = (0..streams).map(|_| Branch::random(nodes, context, DEPTH, &mut random)).collect();
    let case = Case::without_context(widths, branches, &mut random);
    let (_, tables) = case.tables(&mut random);
    let key = widths.key();
    let context_bytes = streams * context * cache.entry_bytes(widths.entry());
    let copies = if cold && context > 0 { COLD.div_ceil(context_bytes) + 1 } else { 1 };
    let limit = || KernelError::Limit {
        unit: row.unit.clone(),
        what: "rows of partial results",
        value: i64::MAX,
        limit: i64::from(i32::MAX),
    };
    let partial_rows = Leaves::new(widths.heads)
        .partial_rows(widths.heads, std::iter::repeat_n((nodes, context), streams))
        .ok_or_else(limit)?;
    let room = Room { partial: 1, ..Room::of(&case, 1) };
    let mut pass = Pass::new(&stream, Attention::load(kernels, widths)?, variant, widths, room)?;
    pass.write(&stream, &case, &tables)?;
    let page = random.values(64 * PAGE_TOKENS * key, 1.0);
    pass.rotate(&stream, &tables, copies, &page, partial_rows)?;
    let launches = if copies == 1 { 20 } else { 1 };
    let graph = stream.capture(pass, Pass::record)?;
    let samples = (0..samples).map(|_| Ok(graph.time(launches)? / copies as f64));
    let rows = (streams * nodes * widths.heads) as f64;
    // A node of depth d sees d + 1 rows of the tree.
    let seen: usize = case.branches.iter().map(Branch::seen).sum();
    Ok(Measured {
        cell,
        samples: samples.collect::<Result<_, KernelError>>()?,
        copies,
        bytes: (context_bytes + case.rows() * key * 2) as f64 + rows * ((key + widths.latent) * 2) as f64,
        operations: 2.0 * (key + widths.latent) as f64 * widths.heads as f64 * seen as f64,
        partial_rows,
    })
}
