/// The `noaux_tc` router: `scores = sigmoid(x W^T)`; the `T` best of `scores + bias`, with `groups > 1` only inside the
/// `top_groups` groups whose two best sums are highest; ties to the lower id, NaN below everything. `ids` ascend in a row;
/// `weights` are the scores of the chosen, over their sum + 1e-20 if `normalize`, times `scaling`. A row whose slot
/// is negative is padding: it chooses nothing (ids -1, weights 0). `arrived` is scratch, for counters or scores on their
/// way; it must be zero before the first launch and is left zero.
family! { router, template "moe/router.cuh";
  dims    { H = hidden, E = experts, T = experts_per_token }
  variant r16  { ROWS = 32, TOKENS = 16, MWARPS = 2, NWARPS = 1, WARPS = 8, STAGES = 0 } when H <= 9728 prefer M <= 16
  variant r24  { ROWS = 64, TOKENS = 24, MWARPS = 4, NWARPS = 1, WARPS = 8, STAGES = 0 } when H <= 9728 prefer M <= 48
  variant r48  { ROWS = 64, TOKENS = 48, MWARPS = 4, NWARPS = 1, WARPS = 8, STAGES = 0 } when H <= 7168 && E <= 760 prefer M <= 96
  variant p64  { ROWS = 128, TOKENS = 64, MWARPS = 2, NWARPS = 2, WARPS = 8, STAGES = 4 } prefer M <= 320
  variant p112 { ROWS = 128, TOKENS = 112, MWARPS = 2, NWARPS = 2, WARPS = 8, STAGES = 3 }
  const   { RANKS = 8, CHOOSERS = 0, DIRECT = 0, PUSH = 1 - min(STAGES, 1), SEG = 32 * ceil_div(H, 64 * RANKS), STEPS = SEG / 32, BLOCKS = ceil_div(E, ROWS),
            MT = ROWS / (16 * MWARPS), NT = TOKENS / (8 * NWARPS), LINE = ROWS + 4,
            TILE = 128 * (min(STAGES, 1) * ROWS + TOKENS), TILES = max(STAGES, STEPS * (1 - min(STAGES, 1))),
            SHARE = TOKENS / RANKS, QUADS = ceil_div(E, 128) }
  require { H % 32 == 0, E % 8 == 0, T <= 32, T <= E, E <= 1024, TOKENS % RANKS == 0, STEPS <= 32 }
  smem    { tile: u8[max(TILES * TILE, 4 * max(TOKENS * LINE, WARPS * (E + 64)))] align 128, parts: f32[max(4, PUSH * TOKENS * ROWS)] align 16,
            biases: f32[E] align 16, ready: u64[1], flag: i32[1] }
  args    { x: bf16[M, H], w: bf16[E, H], bias: f32[E], slots: i32[M], groups: i32, top_groups: i32, normalize: i32, scaling: f32,
            arrived: mut i32[M, E], scores: mut f32[M, E], ids: mut i32[M, T], weights: mut f32[M, T] }
  sass    { "HMMA.16816.F32.BF16" }
  launch  { grid (RANKS, BLOCKS, ceil_div(M, TOKENS)), block 32 * WARPS, cluster RANKS, pdl }
}

/// `router` for more rows on sm_90a alone, with the same bits: warpgroups multiply both operands from shared memory. Not for experts
/// that are no whole tiles of 128. Beside the ring of a96 shared memory has room for some 700 biases; more experts take n112. Variants
/// with CHOOSERS have CTAs that wait for others: not for launches larger than the device holds at once.
family! { router_wgmma, template "moe/router_wgmma.cuh";
  dims    { H = hidden, E = experts, T = experts_per_token }
  variant h40  { ROWS = 64,  TOKENS = 40,  RANKS = 8, SLOTS = 14, WARPS = 8, CHOOSERS = 6, DIRECT = 0 }  on sm_90a when H % 1024 == 0 && E % 128 == 0 prefer M <= 40
  variant h64  { ROWS = 64,  TOKENS = 64,  RANKS = 8, SLOTS = 12, WARPS = 9, CHOOSERS = 6, DIRECT = 1 }  on sm_90a when H % 1024 == 0 && E % 128 == 0 prefer M <= 64
  variant h72  { ROWS = 64,  TOKENS = 72,  RANKS = 8, SLOTS = 11, WARPS = 9, CHOOSERS = 1, DIRECT = 0 }  on sm_90a when H % 1024 == 0 && E % 128 == 0 prefer M <= 144
  variant g64  { ROWS = 128, TOKENS = 64,  RANKS = 8, SLOTS = 7,  WARPS = 9, CHOOSERS = 1, DIRECT = 1 }  on sm_90a when H % 1024 == 0 && E % 128 == 0 prefer M <= 280
  variant a96  { ROWS = 128, TOKENS = 96,  RANKS = 1, SLOTS = 8,  WARPS = 12, CHOOSERS = 0, DIRECT = 0 } on sm_90a when H % 1024 == 0 && E % 128 == 0 && E <= 640 prefer M > 2240
  variant g112 { ROWS = 128, TOKENS = 112, RANKS = 8, SLOTS = 5,  WARPS = 14, CHOOSERS = 2, DIRECT = 1 } on sm_90a when H % 1024 == 0 && E % 128 == 0 prefer M <= 560
  variant n112 { ROWS = 128, TOKENS = 112, RANKS = 8, SLOTS = 5,  WARPS = 14, CHOOSERS = 0, DIRECT = 0 } on sm_90a when H % 1024 == 0 && E % 128 == 0
  const   { PUSH = RANKS / 8, STEP = 64, BLOCKS = E / ROWS, NT = TOKENS / 8, LINE = ROWS + 4, SHARE = TOKENS / RANKS,
            QUADS = ceil_div(E, 128) }
  require { T <= 32, T <= E, E <= 1024, 4 * TOKENS * LINE * (1 - PUSH) + 4 * WARPS * (E + 64) <= 128 * SLOTS * (ROWS + TOKENS),
            4 * TOKENS * LINE <= 128 * SLOTS * (ROWS + TOKENS) }
  smem    { ring: u8[128 * SLOTS * (ROWS + TOKENS)] align 1024, parts: f32[max(4, PUSH * TOKENS * ROWS)] align 16, biases: f32[E] align 16,
            full: u64[SLOTS], empty: u64[SLOTS], ready: u64[1], flag: i32[1] }
  args    { x: bf16[M, H] boxes [TOKENS, STEP], w: bf16[E, H] boxes [ROWS, STEP], bias: f32[E], slots: i32[M], groups: i32, top_groups: i32,
            normalize: i32, scaling: f32, arrived: mut i32[M, E], scores: mut f32[M, E], ids: mut i32[M, T], weights: mut f32[M, T] }
  sass    { "HGMMA", "UTMALDG.2D" }
  launch  { grid (RANKS, BLOCKS, ceil_div(M, TOKENS)), block 32 * WARPS, cluster RANKS, pdl, optional, asked }
}
