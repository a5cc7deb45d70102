/// Cache entries of consecutive tokens in one piece, for the expansion of a block of keys: token `first + i` to row `i` of
/// `entries`. Tokens before `committed` lie in the pages `table` of 64 tokens, the others are rows of `own`, the first of them
/// token `committed`. Only these rows are read; one outside the pages or `own` becomes NaN.
family! { latent_gather, template "attn/prefill.cuh";
  dims    { W = latent_dim }
  variant r8 { ROWS = 8 }
  const   { VECS = W / 8, THREADS = 256 }
  require { W % 8 == 0 }
  args    { pages: bf16[X, 64, W], table: i32[P], own: bf16[M, W], committed: i32, first: i32, entries: mut bf16[T, W] }
  launch  { grid ceil_div(T, ROWS), block THREADS, pdl }
}

/// The same from FP8 pages: an entry is `C` e4m3 codes, `R` bf16 values of the rotated key, the scale in f32 and zeros up to 16 bytes.
family! { latent_gather_fp8, template "attn/latent_gather_fp8.cuh";
  dims    { C = kv_lora_rank, R = rope_dim }
  variant r8 { ROWS = 8 }
  const   { CVECS = C / 8, VECS = CVECS + R / 8, THREADS = 256, ENTRY = C + 2 * R + 16 }
  require { C % 16 == 0, R % 8 == 0 }
  args    { pages: u8[X, 64, C + 2 * R + 16], table: i32[P], own: bf16[M, C + R], committed: i32, first: i32,
            entries: mut bf16[T, C + R] }
  launch  { grid ceil_div(T, ROWS), block THREADS, pdl }
}

/// Expanded MLA of a prompt chunk over one block of keys (DeepSeek-V2, arXiv 2405.04434, section 2.1). Row `r` of `q` sees the
/// keys `0 ..= ahead + r` of the block, so `ahead` is the position of the chunk's first row less that of the block's first
/// key. Key `j` of head `h` is the first `N` values of `kv[j][h]` and the last `R` of `entries[j]`, which all heads share; its
/// value is the rest of `kv[j][h]`. Blocks of a longer context follow each other: the first is not `resumed`, the last is
/// `finished` and writes `y`, the others keep the softmax as it stands in `part_o` and `part_ml`, which a block that is both
/// first and last leaves alone. `scale` is that of the scores. Keys are taken in tiles of NB from the block's first on: with
/// blocks of whole tiles, a row's bits depend neither on the blocks, nor on where its chunk begins, nor on the variant.
family! { prefill_attention, template "attn/prefill.cuh";
  dims    { N = nope_dim, R = rope_dim, VD = value_dim, C = kv_lora_rank }
  variant r64  { WM = 4 } prefer M * H <= 16384
  variant r128 { WM = 8 } when N + R <= 192
  const   { KD = N + R, MT = 1, NB = 64, GROUPS = 1, HOLD = 1, ROWS = 16 * MT * WM, THREADS = 32 * WM,
            SLOT = 2 * NB * (KD + VD), BYTES = max(2 * ROWS * KD + SLOT, 2 * SLOT) }
  require { N % 32 == 0, R % 32 == 0, KD % 64 == 0, VD % 32 == 0, C % 8 == 0 }
  smem    { tiles: u8[BYTES] align 1024 }
  args    { q: bf16[M, H, N + R], kv: bf16[T, H, N + VD], entries: bf16[T, C + R], ahead: i32, scale: f32, resumed: i32,
            finished: i32, part_o: mut f32[M, H, VD], part_ml: mut f32[M, H, 8], y: mut bf16[M, H, VD] }
  sass    { "HMMA.16816.F32.BF16", "LDSM.16.M88.4", "LDGSTS" }
  launch  { grid ceil_div(M, ROWS) * H, block THREADS, pdl }
}

/// `prefill_attention` by warpgroups, on sm_90a alone, with the same bits.
family! { prefill_wgmma, template "attn/prefill_wgmma.cuh";
  dims    { N = nope_dim, R = rope_dim, VD = value_dim, C = kv_lora_rank }
  variant g64 { KEYS = 6, VALUES = 5 } on sm_90a when N % 64 == 0 && R % 64 == 0 && N + R <= 192 && VD == 128
  const   { KD = N + R, MT = 1, NB = 64, GROUPS = 2, WM = 4, BOX = 64, KEY_BYTES = 2 * NB * KD, VALUE_BYTES = 2 * NB * VD }
  require { C % 8 == 0 }
  smem    { keys: u8[KEYS * KEY_BYTES] align 1024, values: u8[VALUES * VALUE_BYTES] align 1024, keys_full: u64[KEYS],
            keys_empty: u64[KEYS], values_full: u64[VALUES], values_empty: u64[VALUES] }
  args    { q: bf16[M, H, N + R], kv: bf16[T, H * (N + VD)] boxes [NB, BOX], entries: bf16[T, C + R] boxes [NB, BOX], ahead: i32,
            scale: f32, resumed: i32, finished: i32, part_o: mut f32[M, H, VD], part_ml: mut f32[M, H, 8],
            y: mut bf16[M, H, VD] }
  sass    { "HGMMA", "UTMALDG.2D" }
  launch  { grid resident, block 128 * GROUPS + 128, pdl, optional }
}
