/// For few rows in one launch the product with the gate and up projections of an MLP and its activation: `y = silu(x G^T) * (x U^T)`,
/// with the bits of `dense` followed by `silu_mul`: both products are rounded before the activation. `w` is G's rows, then U's.
family! { few_gate, template "mlp/few_gate.cuh";
  dims    { K = hidden, I = [shared_experts * expert_width / tp, drafter_width / tp] }
  variant g8 { WIDE = 1 } when I % 8 == 0 && I <= 4224 && K % 64 == 0 && K <= 7168 prefer I > 2048
  variant t8 { WIDE = 0 } when I % 8 == 0 && I <= 4224 && K % (64 * max(min(4, ceil_div(K, 512)), min(8, ceil_div(K, 5376)))) == 0 && K <= 1856 * max(min(4, ceil_div(K, 512)), min(8, ceil_div(K, 5376)))
  const   { SEGS = max(min(4, ceil_div(K, 512)), min(8, ceil_div(K, 5376))), LENGTH = K / SEGS, LINES = 2 * LENGTH + 16, SPLIT = 1 - WIDE,
            GROUPS = SEGS, RUN = 1, CTAS = 1, WR = 1, WT = 1, MT = 1, NT = 1, LATE = 0, STEP = 64, ROWS = 16, TOKENS = 8, LINE = 20,
            PITCH = K, FEEDERS = 2, SLOT = GROUPS * (ROWS + TOKENS) * 2 * STEP, SLOTS = min(4, 98304 / SLOT),
            CLUSTER = max(1, SPLIT * SEGS), THREADS = 32 * (1 + WIDE * (GROUPS + FEEDERS)) }
  smem    { ring: u8[WIDE * max(SLOTS * SLOT, GROUPS * TOKENS * LINE * 4) + SPLIT * ROWS * LINES] align 128,
            tokens: u8[max(16, SPLIT * TOKENS * LINES)] align 128, sums: f32[max(1, SPLIT * SEGS * 128)], full: u64[max(2, SLOTS)],
            empty: u64[SLOTS] }
  args    { x: bf16[M, K], w: bf16[2 * I, K], y: mut bf16[M, I] }
  sass    { "HMMA.16816.F32.BF16" }
  launch  { grid (CLUSTER, ceil_div(M, TOKENS), I / 8), block THREADS, cluster CLUSTER, pdl, optional }
}
