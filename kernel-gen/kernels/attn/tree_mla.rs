/// Absorbed MLA of tree nodes (DeepSeek-V2, arXiv 2405.04434, section 2.1): partial results, to be merged by `tree_mla_merge`.
/// Stream `b` has the rows `starts[b] .. starts[b + 1]` of the pass, the first of them the root, and `committed[b]` tokens in
/// the pages `table[b]`; rows from `starts[B]` on are padding. `q` holds absorbed queries, `scratch` the entries of the rows
/// themselves, `ancestors` 128 bits a row (bit `i`: node `i + 1`, itself included; the root is implied, its own are not read).
/// A row sees all committed tokens, the root and its ancestors, and only what it sees is ever read. The partial results take
/// one row for each leaf, node and head of each stream; `Z` is how many there is room for.
family! { tree_mla, template "attn/tree_mla.cuh";
  dims    { H = heads / tp, C = kv_lora_rank, R = rope_dim }
  variant m64 { MT = 4, ST = 4 } prefer T * H > 16 * B && T * H > 256
  variant m16 { MT = 1, ST = 5 } when H <= 32
  const   { BASE = 128 * max(1, H / 16), ROWS = 16 * MT, W = C + R, CSTEPS = C / 16, STEPS = W / 16,
            QSTEPS = ceil_div(STEPS, 4), LATENT = 2 * C + 16, KEY = 2 * R + 16, RST = ST - 1,
            NODES = ROWS / H + 2 }
  require { C % 128 == 0, 512 % C == 0, R % 16 == 0, R <= 64, BASE <= 2048 }
  smem    { latents: u8[ST * 16 * LATENT], keys: u8[RST * 16 * KEY], scores: f32[MT * 1024],
            weights: u16[ROWS * 16], keep: f32[ROWS], changed: u8[8], places: i32[64], step: i32[32],
            work: i32[28], page: i32[32], paths: u64[2 * NODES] }
  args    { q: bf16[T, H, C + R], pages: bf16[X, 64, C + R], table: i32[B, P], starts: i32[B + 1], committed: i32[B],
            ancestors: u64[T, 2], scratch: bf16[T, C + R], scale: f32, part_o: mut f32[Z, C], part_ml: mut f32[Z, 2] }
  sass    { "HMMA.16816.F32.BF16", "LDSM.16.M88.4", "LDGSTS.E.BYPASS.128" }
  launch  { grid resident, block 256, pdl }
}

/// The partial results of `tree_mla` to each row's mixed latent. Padding rows become zero; a row whose partial results had no
/// room in `Z` becomes NaN.
family! { tree_mla_merge, template "attn/tree_mla_merge.cuh";
  dims    { H = heads / tp, C = kv_lora_rank }
  variant w8 { WARPS = 8 }
  const   { BASE = 128 * max(1, H / 16), COLUMNS = 128, ROWS = 16, AHEAD = 4 }
  require { C % COLUMNS == 0, COLUMNS == 128 }
  smem    { sums: f32[2 * WARPS * COLUMNS], stream: i32[8 * WARPS] }
  args    { part_o: f32[Z, C], part_ml: f32[Z, 2], starts: i32[B + 1], committed: i32[B], ancestors: u64[T, 2],
            y: mut bf16[T, H, C] }
  launch  { grid (T, min(H * C / 128, max(1, 4096 / max(1, T)))), block 32 * WARPS, min_ctas 4, pdl }
}
