/// Product of token rows and a weight matrix for every decode and verify pass: `y = x W^T`, f32 sums, rounded once. K is cut
/// into segments fixed by K alone, each summed in ascending k and the segments then in order, so a row's bits depend neither
/// on M nor on the variant.
family! { dense, template "dense/dense.cuh";
  dims    { K = [hidden, q_lora_rank, heads * value_dim / tp, dense_width / tp, shared_experts * expert_width / tp,
                 drafter_heads * drafter_head_dim / tp, drafter_width / tp, drafter_taps * hidden / tp] }
  variant a8  { MT = 1, NT = 1, WR = 1, WT = 1, SPLIT = 1, WHOLE = 0, APART = 0, LATE = 0, STEP = 64, DEPTH = 4, FEEDERS = 2 }
              when N % 4 == 0 && K > 2048 && K <= 7168 prefer M <= 8 && N > 4224 && N <= 8448
  variant n8  { MT = 1, NT = 1, WR = 1, WT = 1, SPLIT = 1, WHOLE = 0, APART = 0, LATE = 0, STEP = 64, DEPTH = 8, FEEDERS = 2 }
              when N % 4 == 0 prefer M <= max(8, 64 / ceil_div(N, 512))
  variant n16 { MT = 1, NT = 2, WR = 1, WT = 1, SPLIT = 1, WHOLE = 0, APART = 0, LATE = 0, STEP = 64, DEPTH = 6, FEEDERS = 2 }
              when N % 4 == 0 prefer M <= max(16, min(64, 160000000 / (max(N, 1) * K)))
  variant v40 { MT = 1, NT = 5, WR = 3, WT = 1, SPLIT = 1, WHOLE = 1, APART = 0, LATE = 0, STEP = 64, DEPTH = 8, FEEDERS = 2 }
              when N % 4 == 0 && K <= 2048 prefer M <= 40 && N > 8192
  variant v64 { MT = 3, NT = 2, WR = 1, WT = 4, SPLIT = 1, WHOLE = 1, APART = 0, LATE = 1, STEP = 64, DEPTH = 6, FEEDERS = 1 }
              when N % 4 == 0 && K <= 2048 prefer M <= 64 && N > 8192
  variant h40 { MT = 1, NT = 5, WR = 5, WT = 1, SPLIT = 1, WHOLE = 1, APART = 0, LATE = 0, STEP = 64, DEPTH = 6, FEEDERS = 2 }
              when N % 4 == 0 && K > 4096 prefer M <= 40 && N > 16384
  variant h64 { MT = 5, NT = 2, WR = 1, WT = 4, SPLIT = 1, WHOLE = 1, APART = 0, LATE = 1, STEP = 64, DEPTH = 5, FEEDERS = 1 }
              when N % 4 == 0 && K > 4096 prefer M <= 64 && N > 16384
  variant p48 { MT = 3, NT = 2, WR = 1, WT = 4, SPLIT = 4, WHOLE = 0, APART = 1, LATE = 1, STEP = 64, DEPTH = 7, FEEDERS = 2 }
              when N % 4 == 0 && K > 4096 && K <= 21504 && M <= 8 * B prefer M <= 64 && N <= 1584 && N > 1024
  variant p40 { MT = 1, NT = 5, WR = 4, WT = 1, SPLIT = 4, WHOLE = 0, APART = 1, LATE = 1, STEP = 64, DEPTH = 7, FEEDERS = 2 }
              when N % 4 == 0 && K > 4096 && K <= 21504 && M <= 8 * B prefer M <= 40 && N <= 2112 && N > 1024
  variant p64 { MT = 2, NT = 4, WR = 2, WT = 2, SPLIT = 4, WHOLE = 0, APART = 1, LATE = 1, STEP = 64, DEPTH = 6, FEEDERS = 2 }
              when N % 4 == 0 && K > 4096 && K <= 21504 && M <= 8 * B prefer M <= 64 && N <= 2112 && N > 1024
  variant r40 { MT = 1, NT = 5, WR = 4, WT = 1, SPLIT = 8, WHOLE = 0, APART = 0, LATE = 1, STEP = 64, DEPTH = 7, FEEDERS = 1 }
              when N % 4 == 0 prefer M <= 40 && N * K <= 40000000
  variant r64 { MT = 2, NT = 4, WR = 2, WT = 2, SPLIT = 8, WHOLE = 0, APART = 0, LATE = 1, STEP = 64, DEPTH = 6, FEEDERS = 2 }
              when N % 4 == 0 prefer M <= max(64, min(144, 340000000 / max(N * K, 1))) && N * K <= 40000000
  variant n64 { MT = 2, NT = 8, WR = 4, WT = 1, SPLIT = 8, WHOLE = 0, APART = 0, LATE = 1, STEP = 64, DEPTH = 4, FEEDERS = 1 }
              when N % 4 == 0 prefer M <= max(64, 420000 / max(N, 1))
  variant n88 { MT = 2, NT = 11, WR = 8, WT = 1, SPLIT = 8, WHOLE = 0, APART = 0, LATE = 0, STEP = 32, DEPTH = 4, FEEDERS = 2 }
              when N % 4 == 0 prefer N <= 4096
  variant s88 { MT = 3, NT = 11, WR = 4, WT = 1, SPLIT = 8, WHOLE = 0, APART = 0, LATE = 0, STEP = 32, DEPTH = 5, FEEDERS = 0 }
              when N % 4 == 0
  const   { SEGS = max(min(4, ceil_div(K, 512)), min(8, ceil_div(K, 5376))), CTAS = min(SPLIT, SEGS),
            CLUSTER = max(1, CTAS * (1 - APART)), MAX_CTAS = 32 - 31 * APART,
            RUN = max(1, WHOLE * SEGS), GROUPS = ceil_div(SEGS, CTAS * RUN), PITCH = K, ROWS = 16 * MT * WR,
            TOKENS = 8 * NT * WT, LINE = ROWS + 4, THREADS = 32 * (WR * WT * GROUPS + FEEDERS + min(FEEDERS, 1)),
            SLOT = GROUPS * (ROWS + TOKENS) * 2 * STEP, SLOTS = min(DEPTH, 98304 / SLOT) }
  require { K % 8 == 0, SLOTS >= 2 }
  smem    { ring: u8[max(SLOTS * SLOT, GROUPS * TOKENS * LINE * 4)] align 128, full: u64[SLOTS], empty: u64[SLOTS] }
  args    { x: bf16[M, K], w: bf16[N, K], y: mut bf16[M, N], parts: mut f32[4, B, ceil_div(N, 16), 128],
            arrived: mut i32[B, ceil_div(N, 16)] }
  sass    { "HMMA.16816.F32.BF16" }
  launch  { grid (CTAS, ceil_div(M, TOKENS), ceil_div(N, ROWS)), block THREADS, cluster CLUSTER, pdl }
}
