/// Dense product for decode and verify rows: `y = x W^T`, f32 sums, rounded once. K is cut into segments fixed by K alone,
/// each summed in order and the segments then in theirs, so a row's bits depend neither on M nor on the variant.
family! { dense, template "dense/dense.cuh";
  dims    { K = [hidden, q_lora_rank, heads * value_dim / tp, dense_width / tp, shared_experts * expert_width / tp,
                 drafter_heads * drafter_head_dim / tp, drafter_width / tp, drafter_taps * hidden] }
  variant n8  { TILES = 1, MT = 1, STEPS = 8 } when N % 8 == 0 prefer M <= 8
  variant n32 { TILES = 4, MT = 1, STEPS = 4 } when N % 8 == 0 prefer M <= 32
  variant n64 { TILES = 8, MT = 1, STEPS = 4 } when N % 8 == 0 prefer M <= 128
  variant m32 { TILES = 8, MT = 2, STEPS = 2 } when N % 8 == 0
  const   { SEG = max(256, 32 * ceil_div(K, 256)), SEGS = ceil_div(K, SEG), STAGES = ceil_div(SEG / 32, STEPS),
            WARPS = 4, THREADS = 32 * WARPS, ROWS = 16 * MT * WARPS, TOKENS = 8 * TILES, LINE = ROWS + 4 }
  require { K % 32 == 0, SEGS <= 8 }
  smem    { sums: f32[TOKENS * LINE] }
  args    { x: bf16[M, K], w: bf16[N, K], y: mut bf16[M, N] }
  sass    { "HMMA.16816.F32.BF16" }
  launch  { grid (SEGS, ceil_div(M, TOKENS), ceil_div(N, ROWS)), block THREADS, cluster SEGS, pdl }
}

/// `dense` without the last rounding, for logits.
family! { dense_f32, template "dense/dense.cuh";
  dims    { K = hidden }
  variant n8  { TILES = 1, MT = 1, STEPS = 8 } when N % 8 == 0 prefer M <= 8
  variant n32 { TILES = 4, MT = 1, STEPS = 4 } when N % 8 == 0 prefer M <= 32
  variant n64 { TILES = 8, MT = 1, STEPS = 4 } when N % 8 == 0 prefer M <= 128
  variant m32 { TILES = 8, MT = 2, STEPS = 2 } when N % 8 == 0
  const   { SEG = max(256, 32 * ceil_div(K, 256)), SEGS = ceil_div(K, SEG), STAGES = ceil_div(SEG / 32, STEPS),
            WARPS = 4, THREADS = 32 * WARPS, ROWS = 16 * MT * WARPS, TOKENS = 8 * TILES, LINE = ROWS + 4 }
  require { K % 32 == 0, SEGS <= 8 }
  smem    { sums: f32[TOKENS * LINE] }
  args    { x: bf16[M, K], w: bf16[N, K], y: mut f32[M, N] }
  sass    { "HMMA.16816.F32.BF16" }
  launch  { grid (SEGS, ceil_div(M, TOKENS), ceil_div(N, ROWS)), block THREADS, cluster SEGS, pdl }
}
