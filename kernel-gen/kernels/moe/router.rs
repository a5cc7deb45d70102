/// The `noaux_tc` router: `scores = sigmoid(x W^T)`; the `T` best of `scores + bias`, with `groups > 1` only inside the
/// `top_groups` groups whose two best sums are highest; ties to the lower id, NaN below everything. `ids` ascend in a row;
/// `weights` are the scores of the chosen, over their sum + 1e-20 if `normalize`, times `scaling`. A row whose slot
/// is negative is padding: it chooses nothing (ids -1, weights 0). `arrived` is scratch; it must be zero before the first
/// launch and is left zero.
family! { router, template "moe/router.cuh";
  dims    { H = hidden, E = experts, T = experts_per_token }
  variant r8   { ROWS = 64, TOKENS = 8, MWARPS = 4, NWARPS = 1, WARPS = 8, STAGES = 0 } when H <= 9728 prefer M <= 8
  variant r16  { ROWS = 32, TOKENS = 16, MWARPS = 2, NWARPS = 1, WARPS = 8, STAGES = 0 } when H <= 9728 prefer M <= 16
  variant r24  { ROWS = 64, TOKENS = 24, MWARPS = 4, NWARPS = 1, WARPS = 8, STAGES = 0 } when H <= 9728 prefer M <= 48
  variant r48  { ROWS = 64, TOKENS = 48, MWARPS = 4, NWARPS = 1, WARPS = 8, STAGES = 0 } when H <= 8192 prefer M <= 96
  variant p64  { ROWS = 128, TOKENS = 64, MWARPS = 2, NWARPS = 2, WARPS = 8, STAGES = 4 } prefer M <= 320
  variant p112 { ROWS = 128, TOKENS = 112, MWARPS = 2, NWARPS = 2, WARPS = 8, STAGES = 3 }
  const   { RANKS = 8, SEG = 32 * ceil_div(H, 64 * RANKS), STEPS = SEG / 32, BLOCKS = ceil_div(E, ROWS),
            MT = ROWS / (16 * MWARPS), NT = TOKENS / (8 * NWARPS), LINE = ROWS + 4,
            TILE = 128 * (min(STAGES, 1) * ROWS + TOKENS), TILES = max(STAGES, STEPS * (1 - min(STAGES, 1))),
            SHARE = TOKENS / RANKS, QUADS = ceil_div(E, 128) }
  require { H % 32 == 0, E % 8 == 0, T <= 32, T <= E, E <= 1024, TOKENS % RANKS == 0, STEPS <= 32 }
  smem    { tile: u8[max(TILES * TILE, 4 * max(TOKENS * LINE, WARPS * (E + 64)))] align 128, biases: f32[E] align 16, flag: i32[1] }
  args    { x: bf16[M, H], w: bf16[E, H], bias: f32[E], slots: i32[M], groups: i32, top_groups: i32, normalize: i32, scaling: f32,
            arrived: mut i32[M], scores: mut f32[M, E], ids: mut i32[M, T], weights: mut f32[M, T] }
  sass    { "HMMA.16816.F32.BF16" }
  launch  { grid (RANKS, BLOCKS, ceil_div(M, TOKENS)), block 32 * WARPS, cluster RANKS, pdl }
}
