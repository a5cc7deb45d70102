/// `dense` for more than 64 tokens on sm_90a alone, with the same bits: warpgroups multiply both operands from shared memory.
/// `parts` and `arrived` as in `dense`.
family! { dense_wgmma, template "dense/wgmma.cuh";
  dims    { K = [hidden, q_lora_rank, heads * value_dim / tp, dense_width / tp, shared_experts * expert_width / tp] }
  variant t136 { ROWS = 128, TOKENS = 136, SHARE = 1, WHOLE = 1, TAKEN = 0 } on sm_90a when N % 4 == 0
  const   { SEGS = max(min(4, ceil_div(K, 512)), min(8, ceil_div(K, 5376))), RUN = max(1, WHOLE * SEGS), CTAS = SEGS / RUN,
            GROUPS = ceil_div(ROWS, 64), PART = ROWS / SHARE, NT = TOKENS / 8, STEP = 64, SLOT = (ROWS + TOKENS) * 2 * STEP,
            SLOTS = min(12, 229376 / SLOT), THREADS = 128 * GROUPS + 32 + 96 * min(TAKEN, 1) }
  require { K % 8 == 0, SEGS <= 4 }
  smem    { ring: u8[SLOTS * SLOT] align 1024, full: u64[SLOTS], empty: u64[SLOTS] }
  args    { x: bf16[M, K] boxes [TOKENS, STEP], w: bf16[N, K] boxes [PART, STEP], y: mut bf16[M, N],
            parts: mut f32[4, B, ceil_div(N, 16), 128], arrived: mut i32[B, ceil_div(N, 16)] }
  sass    { "HGMMA", "UTMALDG.2D" }
  launch  { grid (ceil_div(ceil_div(M, TOKENS), SHARE) * SHARE, CTAS, ceil_div(N, ROWS)), block THREADS, cluster SHARE, pdl }
}
