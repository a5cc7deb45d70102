/// `dense` for some more than 64 tokens, with the same bits: tiles of 64 weights and 144 tokens, so that a pass of 132 rows reads its
/// weights once. `parts` and `arrived` as in `dense`.
family! { dense_mid, template "dense/boxes.cuh";
  dims    { K = [hidden, q_lora_rank, heads * value_dim / tp, dense_width / tp, shared_experts * expert_width / tp] }
  variant i144 { WHOLE = 1, APART = 0, ALONE = 0 } when K <= 2048 && N % 4 == 0
  variant a144 { WHOLE = 0, APART = 1, ALONE = 1 } when K > 2048 && N % 4 == 0 && M <= 8 * B prefer M <= 144 && N <= 2112
  variant b144 { WHOLE = 0, APART = 1, ALONE = 0 } when K > 2048 && N % 4 == 0 && M <= 8 * B
  const   { SEGS = max(min(4, ceil_div(K, 512)), min(8, ceil_div(K, 5376))), RUN = max(1, WHOLE * SEGS), CTAS = SEGS / RUN,
            MAX_CTAS = 32 - 31 * ALONE, GROUPS = 1, LATE = 1, STEP = 64, SLOTS = 3, MT = 2, NT = 9, WR = 2, WT = 2,
            ROWS = 16 * MT * WR, TOKENS = 8 * NT * WT, THREADS = 32 * (WR * WT + 1) }
  require { K % 8 == 0, SEGS <= 4 }
  smem    { ring: u8[SLOTS * (ROWS + TOKENS) * 2 * STEP] align 1024, full: u64[SLOTS], empty: u64[SLOTS] }
  args    { x: bf16[M, K] boxes [TOKENS, STEP], w: bf16[N, K] boxes [ROWS, STEP], y: mut bf16[M, N],
            parts: mut f32[4, B, ceil_div(N, 16), 128], arrived: mut i32[B, ceil_div(N, 16)] }
  sass    { "HMMA.16816.F32.BF16", "UTMALDG.2D" }
  launch  { grid (CTAS, ceil_div(M, TOKENS), ceil_div(N, ROWS)), block THREADS, pdl }
}
