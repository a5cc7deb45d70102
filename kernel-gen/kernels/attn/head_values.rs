/// For few rows in one launch what `tree_mla_merge` and `absorb_value` do in two: the partial results of `tree_mla` to the values
/// of each head, `y[t, h] = mixed[t, h] W[h]^T`. The same bits: leaves are added and products summed in the same order. Padding
/// rows become zero; a row whose partial results had no room in `Z` becomes NaN. It must be launched right after `tree_mla` with
/// the same operands: those are read before the wait for its results.
family! { head_values, template "attn/head_values.cuh";
  dims    { H = heads / tp, C = kv_lora_rank, N = value_dim }
  variant t8 { TOKENS = 8 } when H <= 16 && C % 128 == 0 && C <= 512 && N % 32 == 0 && N <= 128
  const   { RANKS = 8, BASE = 256 * max(1, H / 32), SHORT = 128 * max(16, H), ROWS = 16, CLASSES = 8, COLUMNS = C / RANKS,
            SHARE = N / RANKS, PITCH = 2 * C + 16 }
  require { 2048 % BASE == 0, SHORT % (2 * BASE) == 0 }
  smem    { weights: u8[SHARE * PITCH] align 128, mixed: u8[TOKENS * PITCH] align 128, sums: f32[TOKENS * CLASSES * COLUMNS] align 128,
            stream: i32[12 * TOKENS], rows: u64[4 * TOKENS], full: u64[1] }
  args    { part_o: f32[Z, C], part_ml: f32[Z, 2], starts: i32[B + 1], committed: i32[B], ancestors: u64[T, 2], w: bf16[H, N, C],
            queue: mut i32[1], y: mut bf16[T, H, N] }
  sass    { "HMMA.16816.F32.BF16" }
  launch  { grid (RANKS, ceil_div(T, TOKENS), H), block 32 * TOKENS, cluster RANKS, pdl, optional }
}
