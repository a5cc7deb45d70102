/// The query of each head into the latent space (W_UK): `y[t, h, ..N] = q[t, h, ..K] W[h]^T`. Beside both, the part with rotary
/// position, ROPE wide, is left alone. Sums as in `dense`.
family! { absorb_query, template "dense/absorb.cuh";
  dims    { HEADS = heads / tp, K = nope_dim, N = kv_lora_rank, ROPE = rope_dim }
  variant n8  { MT = 1, NT = 1, WR = 4, WT = 1, FEEDERS = 1 } prefer M <= 64
  variant n64 { MT = 2, NT = 8, WR = 4, WT = 1, FEEDERS = 2 }
  const   { SEGS = ceil_div(K, 512), CTAS = 1, RUN = SEGS, GROUPS = 1, LATE = 0, STEP = 64, X_WIDTH = K + ROPE, Y_WIDTH = N + ROPE,
            PITCH = HEADS * X_WIDTH, ROWS = 16 * MT * WR, TILES = ceil_div(N, ROWS), TOKENS = 8 * NT * WT, LINE = ROWS + 4,
            THREADS = 32 * (WR * WT + FEEDERS + 1), SLOT = (ROWS + TOKENS) * 2 * STEP, SLOTS = max(2, min(4, ceil_div(K, STEP))) }
  require { K % 8 == 0, ROPE % 8 == 0, N % 4 == 0 }
  smem    { ring: u8[max(SLOTS * SLOT, TOKENS * LINE * 4)] align 128, full: u64[SLOTS], empty: u64[SLOTS] }
  args    { q: bf16[M, HEADS, K + ROPE], w: bf16[HEADS, N, K], y: mut bf16[M, HEADS, N + ROPE] }
  sass    { "HMMA.16816.F32.BF16" }
  launch  { grid (1, ceil_div(M, TOKENS), HEADS * TILES), block THREADS, pdl }
}

/// The output of each head out of the latent space (W_UV): `y[t, h] = o[t, h] W[h]^T`. Sums as in `dense`.
family! { absorb_value, template "dense/absorb.cuh";
  dims    { HEADS = heads / tp, K = kv_lora_rank, N = value_dim }
  variant n8  { MT = 1, NT = 1, WR = 4, WT = 1, FEEDERS = 1 } prefer M <= 160
  variant n64 { MT = 2, NT = 8, WR = 4, WT = 1, FEEDERS = 2 }
  const   { SEGS = ceil_div(K, 512), CTAS = 1, RUN = SEGS, GROUPS = 1, LATE = 0, STEP = 64, X_WIDTH = K, Y_WIDTH = N,
            PITCH = HEADS * X_WIDTH, ROWS = 16 * MT * WR, TILES = ceil_div(N, ROWS), TOKENS = 8 * NT * WT, LINE = ROWS + 4,
            THREADS = 32 * (WR * WT + FEEDERS + 1), SLOT = (ROWS + TOKENS) * 2 * STEP, SLOTS = max(2, min(4, ceil_div(K, STEP))) }
  require { K % 8 == 0, N % 4 == 0 }
  smem    { ring: u8[max(SLOTS * SLOT, TOKENS * LINE * 4)] align 128, full: u64[SLOTS], empty: u64[SLOTS] }
  args    { o: bf16[M, HEADS, K], w: bf16[HEADS, N, K], y: mut bf16[M, HEADS, N] }
  sass    { "HMMA.16816.F32.BF16" }
  launch  { grid (1, ceil_div(M, TOKENS), HEADS * TILES), block THREADS, pdl }
}
