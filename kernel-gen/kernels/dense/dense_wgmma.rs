/// `dense` for more than 8 tokens on sm_90a alone, with the same bits: warpgroups multiply both operands from shared memory.
family! { dense_wgmma, template "dense/wgmma.cuh";
  dims    { K = [hidden, q_lora_rank, heads * value_dim / tp, dense_width / tp, shared_experts * expert_width / tp] }
  variant t64x40   { ROWS = 64,  TOKENS = 40,  SHARE = 1, WHOLE = 1, TAKEN = 0 }   on sm_90a when N % 4 == 0 && K <= 1024
  variant t64x64   { ROWS = 64,  TOKENS = 64,  SHARE = 1, WHOLE = 1, TAKEN = 0 }   on sm_90a when N % 4 == 0 && K <= 2048
  variant t96x40   { ROWS = 96,  TOKENS = 40,  SHARE = 1, WHOLE = 1, TAKEN = 0 }   on sm_90a when N % 4 == 0 && K > 1024 && K <= 2048
  variant t128x64  { ROWS = 128, TOKENS = 64,  SHARE = 1, WHOLE = 1, TAKEN = 0 }   on sm_90a when N % 4 == 0 && K > 1024 && K <= 2048
  variant t56x40   { ROWS = 56,  TOKENS = 40,  SHARE = 1, WHOLE = 1, TAKEN = 0 }   on sm_90a when N % 4 == 0 && K > 7168
  variant t56x64   { ROWS = 56,  TOKENS = 64,  SHARE = 1, WHOLE = 1, TAKEN = 0 }   on sm_90a when N % 4 == 0 && K > 7168
  variant t104x24  { ROWS = 104, TOKENS = 24,  SHARE = 1, WHOLE = 1, TAKEN = 0 }   on sm_90a when N % 4 == 0 && K > 4096
  variant t104x40  { ROWS = 104, TOKENS = 40,  SHARE = 1, WHOLE = 1, TAKEN = 0 }   on sm_90a when N % 4 == 0 && K > 4096
  variant t160x40  { ROWS = 160, TOKENS = 40,  SHARE = 1, WHOLE = 1, TAKEN = 0 }   on sm_90a when N % 4 == 0 && K > 4096
  variant t160x64  { ROWS = 160, TOKENS = 64,  SHARE = 1, WHOLE = 1, TAKEN = 0 }   on sm_90a when N % 4 == 0 && K > 4096
  variant c64x40   { ROWS = 64,  TOKENS = 40,  SHARE = 1, WHOLE = 0, TAKEN = 0 }   on sm_90a when N % 4 == 0 && K > 1024
  variant c64x64   { ROWS = 64,  TOKENS = 64,  SHARE = 1, WHOLE = 0, TAKEN = 0 }   on sm_90a when N % 4 == 0 && K > 1024
  variant c128x64  { ROWS = 128, TOKENS = 64,  SHARE = 1, WHOLE = 0, TAKEN = 0 }   on sm_90a when N % 4 == 0 && K > 4096
  variant c256x40  { ROWS = 256, TOKENS = 40,  SHARE = 1, WHOLE = 0, TAKEN = 0 }   on sm_90a when N % 4 == 0 && K > 7168
  variant c256x64  { ROWS = 256, TOKENS = 64,  SHARE = 1, WHOLE = 0, TAKEN = 0 }   on sm_90a when N % 4 == 0 && K > 7168
  variant t64x72   { ROWS = 64,  TOKENS = 72,  SHARE = 1, WHOLE = 1, TAKEN = 0 }   on sm_90a when N % 4 == 0
  variant t64x88   { ROWS = 64,  TOKENS = 88,  SHARE = 1, WHOLE = 1, TAKEN = 0 }   on sm_90a when N % 4 == 0 && K <= 2048
  variant t64x136  { ROWS = 64,  TOKENS = 136, SHARE = 1, WHOLE = 1, TAKEN = 0 }   on sm_90a when N % 4 == 0
  variant t128x136 { ROWS = 128, TOKENS = 136, SHARE = 1, WHOLE = 1, TAKEN = 0 }   on sm_90a when N % 4 == 0
  variant t160x136 { ROWS = 160, TOKENS = 136, SHARE = 1, WHOLE = 1, TAKEN = 160 } on sm_90a when N % 4 == 0 && K > 4096
  variant t192x136 { ROWS = 192, TOKENS = 136, SHARE = 1, WHOLE = 1, TAKEN = 160 } on sm_90a when N % 4 == 0 && K > 1024
  variant t128x176 { ROWS = 128, TOKENS = 176, SHARE = 1, WHOLE = 1, TAKEN = 232 } on sm_90a when N % 4 == 0 && K > 4096
  variant c64x72   { ROWS = 64,  TOKENS = 72,  SHARE = 1, WHOLE = 0, TAKEN = 0 }   on sm_90a when N % 4 == 0 && K > 1024
  variant c64x136  { ROWS = 64,  TOKENS = 136, SHARE = 1, WHOLE = 0, TAKEN = 0 }   on sm_90a when N % 4 == 0 && K > 1024
  variant c128x136 { ROWS = 128, TOKENS = 136, SHARE = 2, WHOLE = 0, TAKEN = 0 }   on sm_90a when N % 4 == 0 && K > 4096
  variant c192x72  { ROWS = 192, TOKENS = 72,  SHARE = 2, WHOLE = 0, TAKEN = 0 }   on sm_90a when N % 4 == 0 && K > 4096
  variant c192x136 { ROWS = 192, TOKENS = 136, SHARE = 2, WHOLE = 0, TAKEN = 0 }   on sm_90a when N % 4 == 0 && K > 4096
  const   { SEGS = max(min(4, ceil_div(K, 512)), min(8, ceil_div(K, 5376))), RUN = max(1, WHOLE * SEGS), CTAS = SEGS / RUN,
            CLUSTER = SHARE * CTAS, GROUPS = ceil_div(ROWS, 64), PART = ROWS / SHARE, NT = TOKENS / 8, STEP = 64,
            SLOT = (ROWS + TOKENS) * 2 * STEP, SLOTS = min(12, 230400 / SLOT), THREADS = 128 * GROUPS + 32 + 96 * min(TAKEN, 1) }
  require { K % 8 == 0, SEGS <= 4 }
  smem    { ring: u8[SLOTS * SLOT] align 1024, full: u64[SLOTS], empty: u64[SLOTS] }
  args    { x: bf16[M, K] boxes [TOKENS, STEP], w: bf16[N, K] boxes [PART, STEP], y: mut bf16[M, N] }
  sass    { "HGMMA", "UTMALDG.2D" }
  launch  { grid resident, block THREADS, cluster CLUSTER, pdl }
}
