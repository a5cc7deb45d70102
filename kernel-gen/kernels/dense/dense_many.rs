/// `dense` for many tokens, with the same bits. `partial` and `arrived` are scratch: as many CTAs work as have 67,584 values
/// and 4 counters each. `arrived` must be zero before the first launch and is left zero.
family! { dense_many, template "dense/many.cuh";
  dims    { K = [hidden, q_lora_rank, heads * value_dim / tp, dense_width / tp, shared_experts * expert_width / tp] }
  variant t88 { MT = 3, NT = 11, WR = 4, WT = 1, DEPTH = 2, KEEP = 0 }
              when K > 2048 && N % 4 == 0 && M <= 2048 && P >= 67584 * ceil_div(M, 88) && A >= 4 * ceil_div(M, 88)
  variant w88 { MT = 2, NT = 11, WR = 4, WT = 1, DEPTH = 3, KEEP = 11 }
              when N % 4 == 0 && M <= 2048 && P >= 67584 * ceil_div(M, 88) && A >= 4 * ceil_div(M, 88)
  const   { SEGS = max(min(4, ceil_div(K, 512)), min(8, ceil_div(K, 5376))), RUN = 1, GROUPS = 1, STEP = 64, ROWS = 16 * MT * WR,
            TOKENS = 8 * NT * WT, WARPS = WR * WT, THREADS = 32 * WARPS, PLACE = ROWS * TOKENS,
            SLOT = (ROWS + TOKENS) * 2 * STEP, SLOTS = min(DEPTH, 98304 / SLOT) }
  require { K % 8 == 0, SLOTS >= 2, SEGS <= 4, PLACE <= 16896 }
  smem    { ring: u8[SLOTS * SLOT] align 1024, full: u64[SLOTS], empty: u64[SLOTS] }
  args    { x: bf16[M, K] boxes [TOKENS, STEP], w: bf16[N, K] boxes [ROWS, STEP], partial: mut f32[P], arrived: mut i32[A],
            y: mut bf16[M, N] }
  sass    { "HMMA.16816.F32.BF16", "UTMALDG.2D" }
  launch  { grid resident, block THREADS, min_ctas 2, pdl }
}
