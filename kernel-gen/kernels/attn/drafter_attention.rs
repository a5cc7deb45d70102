/// The drafter's attention: grouped-query attention of the BLK rows of each of S streams over committed context and the
/// stream's own block. Stream `s` has `starts[s]` committed tokens in the pages `table[s]`, entries as `drafter_context` writes
/// them, and the entries `own[s]` of its block, at the positions from there on; a stream with a negative start is padding and
/// writes nothing. Row `k` sees the keys `j` with `starts[s] + k - j < window` (all if `window` is 0; at least BLK otherwise)
/// and, if `causal`, not those after itself. Only what a row sees is ever read; a page outside the cache makes it NaN.
///
/// A stream's keys are cut by its own length alone into at most SPLITS ranges of whole multiples of LEN tokens. A stream with
/// one range writes `y`, the others write partial results for `drafter_merge`.
family! { drafter_attention, template "attn/drafter_attention.cuh";
  dims    { D = drafter_head_dim, N = drafter_kv_heads / min(tp, drafter_kv_heads),
            G = drafter_heads / tp / (drafter_kv_heads / min(tp, drafter_kv_heads)), BLK = drafter_block,
            SPLITS = min(128, 256 / (drafter_kv_heads / min(tp, drafter_kv_heads))) }
  variant r32 { MT = 2, NB = 32, ST = 2, HOLD = 0 } when G * BLK > 16 && D <= 128
  variant r16 { MT = 1, NB = 32, ST = 2, HOLD = 0 } when G * BLK <= 16
  const   { KD = D, VD = D, LEN = 128, FEW = 32, ENOUGH = 1024, WM = ceil_div(G * BLK, 16 * MT), GROUPS = max(1, 4 / WM),
            ROWS = 16 * MT * WM, TILE = GROUPS * NB, THREADS = 32 * WM * GROUPS, SLOT = 2 * NB * (KD + VD),
            BYTES = 2 * ROWS * KD + GROUPS * ST * SLOT }
  require { D % 64 == 0, LEN % TILE == 0, 64 % NB == 0, WM <= 8, BYTES >= ROWS * (VD + 2) * 4 }
  smem    { tiles: u8[BYTES] align 1024 }
  args    { q: bf16[S, BLK, N * G, D], own: bf16[S, BLK, 2, N, D], cache: bf16[X, 64, 2, N, D], table: i32[S, P],
            starts: i32[S], window: i32, causal: i32, scale: f32, part_o: mut f32[S, N, SPLITS, BLK * G, D],
            part_ml: mut f32[S, N, SPLITS, BLK * G, 2], y: mut bf16[S, BLK, N * G, D] }
  sass    { "HMMA.16816.F32.BF16", "LDSM.16.M88.4", "LDGSTS" }
  launch  { grid (SPLITS, N, S), block THREADS, pdl }
}

/// The partial results of `drafter_attention` of the streams with more than one range, to `y`.
family! { drafter_merge, template "attn/drafter_attention.cuh";
  dims    { D = drafter_head_dim, N = drafter_kv_heads / min(tp, drafter_kv_heads),
            G = drafter_heads / tp / (drafter_kv_heads / min(tp, drafter_kv_heads)), BLK = drafter_block,
            SPLITS = min(128, 256 / (drafter_kv_heads / min(tp, drafter_kv_heads))) }
  variant w4 { WARPS = 4 }
  const   { LEN = 128, FEW = 32, ENOUGH = 1024, THREADS = 32 * WARPS }
  require { D % 64 == 0, SPLITS <= THREADS, D <= THREADS }
  smem    { weights: f32[SPLITS], sums: f32[WARPS * D], partial: f32[WARPS] }
  args    { part_o: f32[S, N, SPLITS, BLK * G, D], part_ml: f32[S, N, SPLITS, BLK * G, 2], starts: i32[S], window: i32,
            y: mut bf16[S, BLK, N * G, D] }
  launch  { grid (BLK * G, N, S), block THREADS, pdl }
}
