/// The `noaux_tc` router: `scores = sigmoid(x W^T)`; the `T` best of `scores + bias`, with `groups > 1` only inside the
/// `top_groups` groups whose two best sums are highest; ties to the lower id, NaN below everything. `ids` ascend in a row;
/// `weights` are the scores of the chosen, over their sum + 1e-20 if `normalize`, times `scaling`. `partial`, `summed` and
/// `scored` are scratch; the two counters must be zero before the first launch and are left zero.
family! { router, template "moe/router.cuh";
  dims    { H = hidden, E = experts, T = experts_per_token }
  variant n8 { TILES = 1 } prefer M <= 256
  variant n32 { TILES = 4 }
  const   { SEG = 256, SEGS = ceil_div(H, SEG), ROWS = 128, THREADS = 2 * ROWS, BLOCKS = ceil_div(E, ROWS),
            TOKENS = 8 * TILES, STEPS = SEG / 32, PER_LANE = ceil_div(E, 32) }
  require { SEG == 256, ROWS == 128, H % 32 == 0, E % 8 == 0, T <= 32, T <= E, E <= 1024 }
  smem    { choice: f32[THREADS / 32 * E], flag: i32[1] }
  args    { x: bf16[M, H], w: bf16[E, H], bias: f32[E], groups: i32, top_groups: i32, normalize: i32, scaling: f32,
            partial: mut f32[M, ceil_div(H, 256), E], summed: mut i32[ceil_div(M, 8), ceil_div(E, 128)],
            scored: mut i32[ceil_div(M, 8)], scores: mut f32[M, E], ids: mut i32[M, T], weights: mut f32[M, T] }
  sass    { "HMMA.16816.F32.BF16" }
  launch  { grid (BLOCKS, SEGS, ceil_div(M, TOKENS)), block THREADS, pdl }
}
