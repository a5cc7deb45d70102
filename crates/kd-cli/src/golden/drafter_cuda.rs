//! `kd golden drafter` on a GPU.

use std::path::Path;

use anyhow::ensure;
use half::bf16;
use kd_attn::{BlockSegment, PAGE_TOKENS, PageId, PagedCache};
use kd_kernels::ranks::OneRank;
use kd_kernels::{Device, Search, TensorRef};
use kd_model::Drafter;
use kd_model::cuda::{
    Committed, CudaDrafter, DeviceLent, DeviceMatrix, DraftInputs, DraftLimits, Uploader,
    open_drafter_kernels,
};
use kd_tensor::safetensors::SafeTensors;
use kd_tensor::{Bf16Matrix, Matrix};

use super::drafter::{self, Round};
use super::record::Arrays;

pub(super) fn run(ordinal: usize, drafter: &Drafter, inputs: &SafeTensors, out: &Path) -> anyhow::Result<()> {
    let device = Device::open(ordinal)?;
    let kernels = open_drafter_kernels(&device, &Search::standard(), drafter)?;
    let stream = device.stream()?;
    let taps = drafter::taps(drafter, inputs)?;
    let tokens = taps.rows();
    ensure!(tokens > 0, "the inputs have no taps");
    let pages = PagedCache::pages_for(tokens);
    let table: Vec<PageId> = (0..pages as u32).map(PageId).collect();
    let limits = DraftLimits { streams: 1, tokens, pages, stream_pages: pages };
    let mut loaded = CudaDrafter::load(&stream, &kernels, drafter, 0, limits)?;
    let staged = DraftInputs::new(&stream, limits, drafter.config().vocab_size)?;

    // What the drafter has of its own is not asked for, so any matrix stands for it.
    let mut upload = Uploader::new(&stream)?;
    let mut borrowed = drafter::borrowed(drafter, inputs)?.into_iter().map(|matrix| match matrix {
        Some(matrix) => upload.matrix(&matrix),
        None => DeviceMatrix::zeros(&stream, 1, drafter.config().hidden_size),
    });
    let (Some(embed), Some(head)) = (borrowed.next().transpose()?, borrowed.next().transpose()?) else {
        anyhow::bail!("two matrices may be borrowed")
    };
    drop(borrowed);
    let lent = DeviceLent { embed: &embed, head: &head };

    let at = |position: usize| Some(Committed { position, page: table[position / PAGE_TOKENS] });
    staged.write_context(&stream, &(0..tokens).map(at).collect::<Vec<_>>())?;
    let rows = upload.matrix(&narrowed(&taps)?)?;
    let rows: TensorRef<'_, bf16, 2> = rows.tensor(&stream)?;
    loaded.context(&stream, &OneRank, staged.context(rows)?)?;
    let layers = 0..drafter.config().layers.len();
    let context: Vec<Matrix> = layers.map(|layer| loaded.cached(&stream, layer)).collect::<Result<_, _>>()?;

    let mut arrays = Arrays::default();
    for Round { name, start, bonus } in drafter::rounds(inputs, tokens)? {
        staged.write_blocks(&stream, &[bonus], &[BlockSegment { pages: &table, start }])?;
        loaded.draft(&stream, &OneRank, lent, &staged.blocks(1)?)?;
        drafter::logits(&mut arrays, drafter, &name, &loaded.logits(&stream, 1)?)?;
        drafter::keys_and_values(&mut arrays, drafter, &name, start, &context);
    }
    arrays.write(inputs, out)
}

/// Taps as the device has them.
fn narrowed(taps: &Matrix) -> anyhow::Result<Bf16Matrix> {
    let values: Vec<bf16> = taps.data().iter().map(|value| bf16::from_f32(*value)).collect();
    Ok(Bf16Matrix::new(taps.rows(), taps.cols(), values)?)
}
