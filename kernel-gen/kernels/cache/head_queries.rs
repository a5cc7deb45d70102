/// For few rows in one launch what `mla_inputs`, the product with `q_b_proj`, `query_rope` and `absorb_query` do in four: from
/// the rows of the joint `q_a_proj` and `kv_a_proj_with_mqa` to absorbed queries, their rotated part behind, and each row's cache
/// entry at `slots[m]` (none where that is negative). The same bits: norms, products and rotation sum in the same order. `q_b` has
/// the rows of each head one after another, `N` without position and `R` rotated; `key_up` is W_UK, a matrix a head.
family! { head_queries, template "cache/head_queries.cuh";
  dims    { H = heads / tp, Q = q_lora_rank, C = kv_lora_rank, N = nope_dim, R = rope_dim }
  variant t8 { TOKENS = 8 } when H <= 16 && Q % 32 == 0 && Q <= 1536 && N % 32 == 0 && N <= 512 && (N + R) % 64 == 0 && C % 128 == 0 && 4 * ceil_div(Q, 512) * (16 * ceil_div(N + R, 128) + 4) <= 2 * Q + 16 && ((N + R) / 8 + 8) * (2 * Q + 16) + 16 * N <= 101000
  const   { RANKS = 8, QVECS = Q / 8, CVECS = C / 8, RVECS = R / 8, VECS = QVECS + CVECS + RVECS, OWN = ceil_div(CVECS, 32),
            VPT = 2, WARPS = ceil_div(QVECS, 32 * VPT), SHARE = (N + R) / RANKS, TILES = ceil_div(SHARE, 16),
            SEGS = max(min(4, ceil_div(Q, 512)), min(8, ceil_div(Q, 5376))), LATENTS = C / (16 * RANKS),
            TEAM = max(3 * WARPS, max(TILES * SEGS, LATENTS)), PITCH = 2 * Q + 16, Q_PITCH = 2 * N + 16, LINE = 16 * TILES + 4, FP8 = 0 }
  require { R % 8 == 0, RVECS <= 32, OWN <= 4, 4 * SEGS * LINE <= PITCH }
  smem    { weights: u8[SHARE * PITCH] align 128, tokens: u8[TOKENS * PITCH] align 128, query: u8[TOKENS * Q_PITCH] align 128,
            partial: f32[TOKENS * WARPS], full: u64[1] }
  args    { joint: bf16[M, Q + C + R], q_gain: bf16[Q], kv_gain: bf16[C], eps: f32, q_b: bf16[H * (N + R), Q], key_up: bf16[H, C, N],
            rope: f32[P, R], positions: i32[M], slots: i32[M], cache: mut bf16[T, C + R], y: mut bf16[M, H, C + R] }
  sass    { "HMMA.16816.F32.BF16" }
  launch  { grid (RANKS, ceil_div(M, TOKENS), H), block 32 * (TEAM + 1), cluster RANKS, pdl, optional }
}

/// The same for FP8 pages, with the entries of `mla_inputs_fp8`.
family! { head_queries_fp8, template "cache/head_queries.cuh";
  dims    { H = heads / tp, Q = q_lora_rank, C = kv_lora_rank, N = nope_dim, R = rope_dim }
  variant t8 { TOKENS = 8 } when H <= 16 && Q % 32 == 0 && Q <= 1536 && N % 32 == 0 && N <= 512 && (N + R) % 64 == 0 && C % 128 == 0 && 4 * ceil_div(Q, 512) * (16 * ceil_div(N + R, 128) + 4) <= 2 * Q + 16 && ((N + R) / 8 + 8) * (2 * Q + 16) + 16 * N <= 101000
  const   { RANKS = 8, QVECS = Q / 8, CVECS = C / 8, RVECS = R / 8, VECS = QVECS + CVECS + RVECS, OWN = ceil_div(CVECS, 32),
            VPT = 2, WARPS = ceil_div(QVECS, 32 * VPT), SHARE = (N + R) / RANKS, TILES = ceil_div(SHARE, 16),
            SEGS = max(min(4, ceil_div(Q, 512)), min(8, ceil_div(Q, 5376))), LATENTS = C / (16 * RANKS),
            TEAM = max(3 * WARPS, max(TILES * SEGS, LATENTS)), PITCH = 2 * Q + 16, Q_PITCH = 2 * N + 16, LINE = 16 * TILES + 4, FP8 = 1 }
  require { R % 8 == 0, RVECS <= 32, OWN <= 4, 4 * SEGS * LINE <= PITCH }
  smem    { weights: u8[SHARE * PITCH] align 128, tokens: u8[TOKENS * PITCH] align 128, query: u8[TOKENS * Q_PITCH] align 128,
            partial: f32[TOKENS * WARPS], full: u64[1] }
  args    { joint: bf16[M, Q + C + R], q_gain: bf16[Q], kv_gain: bf16[C], eps: f32, q_b: bf16[H * (N + R), Q], key_up: bf16[H, C, N],
            rope: f32[P, R], positions: i32[M], slots: i32[M], cache: mut bf16[T, C + R], y: mut bf16[M, H, C + R] }
  sass    { "HMMA.16816.F32.BF16" }
  launch  { grid (RANKS, ceil_div(M, TOKENS), H), block 32 * (TEAM + 1), cluster RANKS, pdl, optional }
}
