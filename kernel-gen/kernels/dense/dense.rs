/// Product of token rows and a weight matrix for every decode and verify pass: `y = x W^T`, f32 sums, rounded once. K is cut
/// into segments fixed by K alone, each summed in ascending k and the segments then in order, so a row's bits depend neither
/// on M nor on the variant.
family! { dense, template "dense/dense.cuh";
  dims    { K = [hidden, q_lora_rank, heads * value_dim / tp, dense_width / tp, shared_experts * expert_width / tp,
                 drafter_heads * drafter_head_dim / tp, drafter_width / tp, drafter_taps * hidden / tp] }
  variant n8  { MT = 1, NT = 1, WR = 1, WT = 1, SPLIT = 1, WHOLE = 0, STEP = 64, DEPTH = 8, FEEDERS = 2 }
              when N % 4 == 0 prefer M <= max(8, 64 / ceil_div(N, 512))
  variant n16 { MT = 1, NT = 2, WR = 1, WT = 1, SPLIT = 1, WHOLE = 0, STEP = 64, DEPTH = 6, FEEDERS = 2 }
              when N % 4 == 0 prefer M <= max(16, min(64, 160000000 / (max(N, 1) * K)))
  variant w40 { MT = 2, NT = 5, WR = 4, WT = 1, SPLIT = 1, WHOLE = 1, STEP = 64, DEPTH = 4, FEEDERS = 2 }
              when N % 4 == 0 prefer M <= 40 && N > 8192 && K <= 2048
  variant w64 { MT = 2, NT = 8, WR = 4, WT = 1, SPLIT = 1, WHOLE = 1, STEP = 64, DEPTH = 4, FEEDERS = 2 }
              when N % 4 == 0 prefer M <= 64 && N > 8192 && K <= 2048
  variant n32 { MT = 2, NT = 4, WR = 2, WT = 1, SPLIT = 2, WHOLE = 0, STEP = 64, DEPTH = 4, FEEDERS = 2 }
              when N % 4 == 0 prefer M <= 64 && N <= 4096
  variant r64 { MT = 2, NT = 4, WR = 2, WT = 2, SPLIT = 8, WHOLE = 0, STEP = 64, DEPTH = 6, FEEDERS = 2 }
              when N % 4 == 0 prefer M <= 64 && N <= 8192
  variant n40 { MT = 2, NT = 5, WR = 4, WT = 1, SPLIT = 8, WHOLE = 0, STEP = 64, DEPTH = 4, FEEDERS = 2 } when N % 4 == 0 prefer M <= 40
  variant n64 { MT = 2, NT = 8, WR = 4, WT = 1, SPLIT = 8, WHOLE = 0, STEP = 64, DEPTH = 4, FEEDERS = 1 }
              when N % 4 == 0 prefer M <= max(64, 420000 / max(N, 1))
  variant n88 { MT = 2, NT = 11, WR = 8, WT = 1, SPLIT = 8, WHOLE = 0, STEP = 32, DEPTH = 4, FEEDERS = 2 } when N % 4 == 0
  const   { SEGS = max(min(4, ceil_div(K, 512)), min(8, ceil_div(K, 5376))), CTAS = min(SPLIT, SEGS),
            RUN = max(1, WHOLE * SEGS), GROUPS = ceil_div(SEGS, CTAS * RUN), PITCH = K, ROWS = 16 * MT * WR,
            TOKENS = 8 * NT * WT, LINE = ROWS + 4, THREADS = 32 * (WR * WT * GROUPS + FEEDERS + 1),
            SLOT = GROUPS * (ROWS + TOKENS) * 2 * STEP, SLOTS = min(DEPTH, 98304 / SLOT) }
  require { K % 8 == 0, SLOTS >= 2 }
  smem    { ring: u8[max(SLOTS * SLOT, GROUPS * TOKENS * LINE * 4)] align 128, full: u64[SLOTS], empty: u64[SLOTS] }
  args    { x: bf16[M, K], w: bf16[N, K], y: mut bf16[M, N] }
  sass    { "HMMA.16816.F32.BF16" }
  launch  { grid (CTAS, ceil_div(M, TOKENS), ceil_div(N, ROWS)), block THREADS, cluster CTAS, pdl }
}
