//! `commit` against [`PagedCache::commit`](crate::PagedCache::commit).

use half::bf16;
use kd_kernels::bundle::Row;
use kd_kernels::families::commit;
use kd_kernels::selftest::{
    Failure, Outcome, Output, Random, Subject, Written, gather, units, upload, verify,
};
use kd_kernels::{Choice, CudaSlice, Device, KernelError, Kernels, Stream, TensorRef};
use kd_tensor::Matrix;

use crate::{PAGE_TOKENS, PageId, PagedCache};

/// Layers of the test: not a whole number of CTAs.
const LAYERS: usize = 6;

pub(super) fn check(
    device: &Device,
    kernels: &Kernels,
    rows: &[usize],
    seed: u64,
) -> Result<Vec<Outcome>, Failure> {
    let mut outcomes = Vec::new();
    let most = rows.iter().copied().max().unwrap_or_default();
    for row in units(kernels, "commit") {
        outcomes.extend(verify(&Commit::new(device, kernels, row, most, seed)?, rows)?);
    }
    Ok(outcomes)
}

/// Token `i` of the launch is scratch row `from[i]`; it goes to position `i` of a sequence with shuffled pages.
struct Commit {
    stream: Stream,
    unit: String,
    variant: String,
    kernel: commit::Commit,
    width: usize,
    scratch_rows: usize,
    /// `[LAYERS, scratch_rows, width]`
    scratch: Vec<bf16>,
    device_scratch: CudaSlice<bf16>,
    from: Vec<i32>,
    table: Vec<PageId>,
}

struct Memory {
    order: Vec<usize>,
    from: CudaSlice<i32>,
    to: CudaSlice<i32>,
    pages: Output<bf16>,
}

impl Commit {
    fn new(
        device: &Device,
        kernels: &Kernels,
        row: &Row,
        rows: usize,
        seed: u64,
    ) -> Result<Self, KernelError> {
        let (w, width) = row.dim("W")?;
        let (stream, mut random) = (device.stream()?, Random::new(seed));
        let scratch_rows = rows + 5;
        let scratch = random.values(LAYERS * scratch_rows * width, 4.0);
        let mut from: Vec<i32> =
            random.distinct(rows, scratch_rows).into_iter().map(|row| row as i32).collect();
        from.iter_mut().skip(4).step_by(10).for_each(|row| *row = -1);
        let pages = PagedCache::pages_for(rows);
        Ok(Self {
            unit: row.unit.clone(),
            variant: row.variant.clone(),
            kernel: commit::Commit::load(kernels, commit::Dims { w })?,
            width,
            scratch_rows,
            device_scratch: upload(&stream, &scratch)?,
            scratch,
            from,
            table: random.distinct(pages, pages + 2).into_iter().map(|page| PageId(page as u32)).collect(),
            stream,
        })
    }

    fn page_rows(&self) -> usize {
        (self.table.len() + 2) * PAGE_TOKENS
    }

    /// The row of a layer's pages that holds position `position`.
    fn target(&self, position: usize) -> i32 {
        let page = self.table[position / PAGE_TOKENS].0 as usize;
        (page * PAGE_TOKENS + position % PAGE_TOKENS) as i32
    }

    /// The scratch of one layer.
    fn layer(&self, layer: usize) -> Result<Matrix, String> {
        let size = self.scratch_rows * self.width;
        let values = self.scratch[layer * size..][..size].iter().map(|value| value.to_f32()).collect();
        Matrix::from_vec(self.scratch_rows, self.width, values).map_err(|error| error.to_string())
    }
}

impl Subject for Commit {
    type Memory = Memory;

    fn unit(&self) -> &str {
        &self.unit
    }

    fn stream(&self) -> &Stream {
        &self.stream
    }

    fn memory(&self, order: &[usize]) -> Result<Memory, KernelError> {
        let to: Vec<i32> = order.iter().map(|position| self.target(*position)).collect();
        Ok(Memory {
            order: order.to_vec(),
            from: upload(&self.stream, &gather(&self.from, 1, order))?,
            to: upload(&self.stream, &to)?,
            pages: Output::poisoned(&self.stream, LAYERS * self.page_rows(), self.width)?,
        })
    }

    fn launch(&self, memory: &mut Memory) -> Result<(), KernelError> {
        let (stream, count) = (&self.stream, memory.order.len());
        let scratch_shape = [LAYERS, self.scratch_rows, self.width];
        let args = commit::Args {
            scratch: TensorRef::new(stream, self.device_scratch.as_view(), scratch_shape)?,
            from: TensorRef::new(stream, memory.from.as_view(), [count])?,
            to: TensorRef::new(stream, memory.to.as_view(), [count])?,
            pages: memory.pages.tensor(stream, [LAYERS, self.page_rows(), self.width])?,
        };
        self.kernel.launch(stream, Choice::Forced(&self.variant), args).map(drop)
    }

    /// One row a token: its entries of all layers, one after another.
    fn written(&self, memory: &mut Memory) -> Result<Vec<Written>, KernelError> {
        let pages = memory.pages.written(&self.stream, "pages")?;
        let entries = |position: &usize| -> Vec<i32> {
            let moved = self.from[*position] >= 0;
            let at = |layer: usize| (layer * self.page_rows()) as i32 + self.target(*position);
            (0..LAYERS).map(|layer| if moved { at(layer) } else { -1 }).collect()
        };
        let slots: Vec<i32> = memory.order.iter().flat_map(entries).collect();
        let scattered = pages.scattered(&slots);
        Ok(vec![Written { row_bytes: LAYERS * scattered.row_bytes, ..scattered }])
    }

    fn judge(&self, order: &[usize], written: &[Written]) -> Result<f64, String> {
        let pages = written.first().ok_or("the output is missing")?;
        let layers = (0..LAYERS).map(|layer| self.layer(layer)).collect::<Result<Vec<_>, _>>()?;
        let mut cache = PagedCache::new(LAYERS, self.table.len() + 2, self.width);
        for &position in order {
            if let Ok(row) = usize::try_from(self.from[position]) {
                cache.commit(&layers, &[row], &self.table, position);
            }
        }
        for (i, &position) in order.iter().enumerate().filter(|(_, position)| self.from[**position] >= 0) {
            let found: Vec<f32> = pages.values::<bf16>(i).iter().map(|value| value.to_f32()).collect();
            let expected: Vec<f32> =
                (0..LAYERS).flat_map(|layer| cache.token(layer, &self.table, position)).collect();
            if found != expected {
                return Err(format!("position {position} does not hold scratch row {}", self.from[position]));
            }
        }
        Ok(0.0)
    }

    fn bytes(&self, rows: usize) -> usize {
        rows * (2 * LAYERS * self.width * size_of::<bf16>() + 2 * size_of::<i32>())
    }
}
