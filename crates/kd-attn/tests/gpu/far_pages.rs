//! Pages whose first element lies beyond 2³¹ elements (sglang#9344: a page index times its stride overflowed 32 bits).

use half::bf16;
use kd_attn::PAGE_TOKENS;
use kd_kernels::families::{drafter_attention, latent_gather};
use kd_kernels::selftest::{Output, upload};
use kd_kernels::{Choice, CudaSlice, Stream, TensorMut, TensorRef, testing};

/// A cache of zeros whose last page, `last`, starts beyond 2³¹ elements; its id.
fn cache(stream: &Stream, last: &[bf16]) -> (CudaSlice<bf16>, usize) {
    let page = (1usize << 31) / last.len() + 1;
    let mut cache = stream.cuda().alloc_zeros::<bf16>((page + 1) * last.len()).expect("5 GB");
    let mut place = cache.slice_mut(page * last.len()..);
    stream.cuda().memcpy_htod(last, &mut place).expect("copied");
    (cache, page)
}

#[test]
fn latents_of_a_far_page_are_gathered() {
    const WIDTH: usize = 576;
    let Some((device, kernels)) = testing::kernels_or_skip("latents_of_a_far_page_are_gathered", "k26-tp8")
    else {
        return;
    };
    let stream = device.stream().expect("a stream");
    let gather = latent_gather::LatentGather::load(&kernels, latent_gather::Dims { w: WIDTH as i64 });
    let gather = gather.expect("loaded");
    let last: Vec<bf16> = (0..PAGE_TOKENS * WIDTH).map(|i| bf16::from_f32((i % 251) as f32)).collect();
    let (pages, page) = cache(&stream, &last);
    let table = upload(&stream, &[page as i32]).expect("uploaded");
    let own = upload(&stream, &[bf16::ZERO; WIDTH]).expect("uploaded");
    let mut entries = Output::poisoned(&stream, PAGE_TOKENS, WIDTH).expect("memory");
    let args = latent_gather::Args {
        pages: TensorRef::new(&stream, pages.as_view(), [page + 1, PAGE_TOKENS, WIDTH]).expect("pages"),
        table: TensorRef::new(&stream, table.as_view(), [1]).expect("table"),
        own: TensorRef::new(&stream, own.as_view(), [1, WIDTH]).expect("own"),
        committed: PAGE_TOKENS as i32,
        first: 0,
        entries: entries.tensor(&stream, [PAGE_TOKENS, WIDTH]).expect("entries"),
    };
    gather.launch(&stream, Choice::Auto, args).expect("launched");
    let written = entries.written(&stream, "entries").expect("read");
    let found: Vec<bf16> = (0..PAGE_TOKENS).flat_map(|row| written.values(row)).collect();
    assert_eq!(found, last);
}

#[test]
fn keys_of_a_far_page_are_seen() {
    let Some((device, kernels)) = testing::kernels_or_skip("keys_of_a_far_page_are_seen", "k26-tp8") else {
        return;
    };
    let stream = device.stream().expect("a stream");
    let (dim, block, heads, splits) = (128, 8, 8, 128);
    let dims = drafter_attention::Dims { d: 128, n: 1, g: 8, blk: 8, splits: 128 };
    let attention = drafter_attention::DrafterAttention::load(&kernels, dims).expect("loaded");
    // Keys of zeros: every output is the average of the values, 1 in the page and 0 in the block.
    let entry = [vec![bf16::ZERO; dim], vec![bf16::ONE; dim]].concat();
    let (pages, page) = cache(&stream, &entry.repeat(PAGE_TOKENS));
    let table = upload(&stream, &[page as i32]).expect("uploaded");
    let starts = upload(&stream, &[PAGE_TOKENS as i32]).expect("uploaded");
    let queries = upload(&stream, &vec![bf16::ONE; block * heads * dim]).expect("uploaded");
    let own = upload(&stream, &vec![bf16::ZERO; block * 2 * dim]).expect("uploaded");
    let mut part_o = upload(&stream, &vec![0.0f32; splits * block * heads * dim]).expect("uploaded");
    let mut part_ml = upload(&stream, &vec![0.0f32; splits * block * heads * 2]).expect("uploaded");
    let mut y = Output::poisoned(&stream, 1, block * heads * dim).expect("memory");
    let args = drafter_attention::Args {
        q: TensorRef::new(&stream, queries.as_view(), [1, block, heads, dim]).expect("q"),
        own: TensorRef::new(&stream, own.as_view(), [1, block, 2, 1, dim]).expect("own"),
        cache: TensorRef::new(&stream, pages.as_view(), [page + 1, PAGE_TOKENS, 2, 1, dim]).expect("cache"),
        table: TensorRef::new(&stream, table.as_view(), [1, 1]).expect("table"),
        starts: TensorRef::new(&stream, starts.as_view(), [1]).expect("starts"),
        window: 0,
        causal: 0,
        scale: 0.1,
        part_o: TensorMut::new(&stream, part_o.as_view_mut(), [1, 1, splits, block * heads, dim]).expect("o"),
        part_ml: TensorMut::new(&stream, part_ml.as_view_mut(), [1, 1, splits, block * heads, 2])
            .expect("ml"),
        y: y.tensor(&stream, [1, block, heads, dim]).expect("y"),
    };
    attention.launch(&stream, Choice::Auto, args).expect("launched");
    let found: Vec<bf16> = y.written(&stream, "y").expect("read").values(0);
    let expected = bf16::from_f32(64.0 / 72.0);
    assert!(found.iter().all(|value| *value == expected), "{} is not {expected}", found[0]);
}
