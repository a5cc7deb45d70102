/// What attention needs of the rows of the joint `q_a_proj` and `kv_a_proj_with_mqa`: the compressed query, RMS-normed, and the
/// token's cache entry, which is the latent, RMS-normed, then the key that all heads share, rotated in pairs `(2i, 2i + 1)`.
/// Entry `m` goes to row `slots[m]` of `cache`, a layer's pages or scratch rows; a negative slot writes none (a padding row).
/// `rope` holds cosine and sine of each pair at each position; a position outside it makes the entry NaN, which ends the
/// request that reads it.
family! { mla_inputs, template "cache/mla_inputs.cuh";
  dims    { Q = q_lora_rank, C = kv_lora_rank, R = rope_dim }
  variant v2 { VPT = 2 }
  const   { QVECS = Q / 8, CVECS = C / 8, RVECS = R / 8, VECS = QVECS + CVECS + RVECS, WARPS = ceil_div(QVECS, 32 * VPT),
            OWN = ceil_div(CVECS, 32), FP8 = 0 }
  require { Q % 8 == 0, C % 8 == 0, R % 8 == 0, RVECS <= 32, OWN <= 4, WARPS <= 31 }
  smem    { partial: f32[WARPS] }
  args    { x: bf16[M, Q + C + R], q_gain: bf16[Q], kv_gain: bf16[C], eps: f32, rope: f32[P, R], positions: i32[M],
            slots: i32[M], q: mut bf16[M, Q], cache: mut bf16[T, C + R] }
  launch  { grid M, block 32 * (WARPS + 1), pdl }
}

/// The same for FP8 pages: an entry is what such a page would give back of it, in bf16.
family! { mla_inputs_fp8, template "cache/mla_inputs.cuh";
  dims    { Q = q_lora_rank, C = kv_lora_rank, R = rope_dim }
  variant v2 { VPT = 2 }
  const   { QVECS = Q / 8, CVECS = C / 8, RVECS = R / 8, VECS = QVECS + CVECS + RVECS, WARPS = ceil_div(QVECS, 32 * VPT),
            OWN = ceil_div(CVECS, 32), FP8 = 1 }
  require { Q % 8 == 0, C % 8 == 0, R % 8 == 0, RVECS <= 32, OWN <= 4, WARPS <= 31 }
  smem    { partial: f32[WARPS] }
  args    { x: bf16[M, Q + C + R], q_gain: bf16[Q], kv_gain: bf16[C], eps: f32, rope: f32[P, R], positions: i32[M],
            slots: i32[M], q: mut bf16[M, Q], cache: mut bf16[T, C + R] }
  launch  { grid M, block 32 * (WARPS + 1), pdl }
}
