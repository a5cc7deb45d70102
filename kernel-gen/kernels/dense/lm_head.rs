/// Logits `x W^T` in f32, with sums as in `dense`, and of each tile of 80 tokens of the vocabulary what its softmax and its best
/// tokens need: maximum, sum of `e^(x - max)`, 1 if there is a NaN or a +inf, and the token of the maximum (bits of an int).
family! { lm_head, template "dense/lm_head.cuh";
  dims    { K = hidden }
  variant h16 { MT = 1, NT = 2, WR = 5, WT = 1, SPLIT = 1, WHOLE = 1, LATE = 0, STEP = 64, DEPTH = 8, FEEDERS = 2 } when N % 4 == 0 prefer M <= 16
  variant h40 { MT = 1, NT = 5, WR = 5, WT = 1, SPLIT = 1, WHOLE = 1, LATE = 0, STEP = 64, DEPTH = 6, FEEDERS = 2 } when N % 4 == 0 prefer M <= 40
  variant h64 { MT = 5, NT = 2, WR = 1, WT = 4, SPLIT = 1, WHOLE = 1, LATE = 1, STEP = 64, DEPTH = 5, FEEDERS = 1 } when N % 4 == 0 prefer M <= 64
  variant s88 { MT = 2, NT = 11, WR = 5, WT = 1, SPLIT = 8, WHOLE = 0, LATE = 0, STEP = 32, DEPTH = 5, FEEDERS = 0 } when N % 4 == 0
  const   { SEGS = max(min(4, ceil_div(K, 512)), min(8, ceil_div(K, 5376))), CTAS = min(SPLIT, SEGS),
            RUN = max(1, WHOLE * SEGS), GROUPS = 1, PITCH = K, ROWS = 16 * MT * WR, TOKENS = 8 * NT * WT, LINE = ROWS + 4,
            THREADS = 32 * (WR * WT + FEEDERS + min(FEEDERS, 1)), SLOT = (ROWS + TOKENS) * 2 * STEP,
            SLOTS = min(DEPTH, 98304 / SLOT) }
  require { K % 8 == 0, SLOTS >= 2, ROWS % 80 == 0 }
  smem    { ring: u8[max(SLOTS * SLOT, TOKENS * LINE * 4)] align 128, full: u64[SLOTS], empty: u64[SLOTS] }
  args    { x: bf16[M, K], w: bf16[N, K], logits: mut f32[M, N], tiles: mut f32[M, ceil_div(N, 80), 4] }
  sass    { "HMMA.16816.F32.BF16" }
  launch  { grid (CTAS, ceil_div(M, TOKENS), ceil_div(N, ROWS)), block THREADS, cluster CTAS, pdl }
}

/// `lm_head` on sm_90a alone, with the same bits: warpgroups multiply, and a tile is two of 80 tokens of the vocabulary.
family! { lm_head_wgmma, template "dense/head_wgmma.cuh";
  dims    { K = hidden }
  variant t160x40  { TOKENS = 40,  KEPT = 40, TAKEN = 0, HELPERS = 0 }   on sm_90a when N % 4 == 0
  variant t160x64  { TOKENS = 64,  KEPT = 64, TAKEN = 0, HELPERS = 4 }   on sm_90a when N % 4 == 0
  variant t160x136 { TOKENS = 136, KEPT = 48, TAKEN = 160, HELPERS = 0 } on sm_90a when N % 4 == 0
  const   { SEGS = max(min(4, ceil_div(K, 512)), min(8, ceil_div(K, 5376))), ROWS = 160, SHARE = 1, RUN = SEGS, CTAS = 1, CLUSTER = 1,
            GROUPS = ceil_div(ROWS, 64), PART = ROWS, NT = TOKENS / 8, STEP = 64, LINE = ROWS + 4, SLOT = (ROWS + TOKENS) * 2 * STEP,
            SLOTS = min(12, (230400 - KEPT * LINE * 4) / SLOT), THREADS = 128 * GROUPS + 32 + 96 * min(TAKEN, 1) + 32 * HELPERS }
  require { K % 8 == 0, SEGS <= 4 }
  smem    { ring: u8[SLOTS * SLOT] align 1024, sums: f32[KEPT * LINE] align 16, full: u64[SLOTS], empty: u64[SLOTS] }
  args    { x: bf16[M, K] boxes [TOKENS, STEP], w: bf16[N, K] boxes [PART, STEP], logits: mut f32[M, N],
            tiles: mut f32[M, ceil_div(N, 80), 4] }
  sass    { "HGMMA", "UTMALDG.2D" }
  launch  { grid resident, block THREADS, pdl }
}

/// From what `lm_head` wrote: the 64 best tokens of each row, best first, and the maximum of its logits and the sum of
/// `e^(x - max)` (`stats`). Equal logits are ordered by token id; NaN and -inf are no tokens, and places that are left have
/// token -1. `finite` is 1 unless the row has a NaN, a +inf or no finite entry. Rank `rank` holds tokens `rank * V ..`, and
/// gives global ids.
family! { lm_head_top_k, template "dense/head_top_k.cuh";
  dims    { V = [vocab, vocab / tp] }
  variant alone { THREADS = 512, MAX_CTAS = 1 } prefer M <= 132
  variant pair  { THREADS = 512, MAX_CTAS = 2 }
  const   { K = 64, HOLDERS = 256, WARPS = THREADS / 32, TILES = ceil_div(V, 80), OWN = ceil_div(TILES, HOLDERS),
            SCANNED = 4 * ceil_div(K * 20, THREADS), ROOM = 512, POOL = K * max(SCANNED, OWN) }
  require { V % 4 == 0, K % WARPS == 0, K <= THREADS, HOLDERS <= THREADS, SCANNED <= 32, OWN <= 32 }
  smem    { pool: u64[POOL + 32] align 16, lead: u64[THREADS] align 16, quads: f32[4 * ROOM] align 16, above: i32[8] align 16,
            floor: u32[WARPS] align 16, firsts: i32[ROOM], list: i32[ROOM], most: u32[8], bad: i32[8], sum: f32[8], count: i32[3] }
  args    { logits: f32[M, V], tiles: f32[M, ceil_div(V, 80), 4], rank: i32, tokens: mut i32[M, 64],
            values: mut f32[M, 64], stats: mut f32[M, 2], finite: mut i32[M] }
  launch  { grid M, block THREADS, min_ctas 2, pdl }
}
