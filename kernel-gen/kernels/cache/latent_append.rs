/// A token's cache entry from the row of `kv_a_proj_with_mqa`: the latent, RMS-normed, then the key that all heads share,
/// rotated in pairs `(2i, 2i + 1)`. Entry `m` goes to row `slots[m]` of `cache`, a layer's pages or scratch rows; a negative
/// slot writes nothing (a padding row). `rope` holds cosine and sine of each pair at each position; a position outside it
/// makes the entry NaN, which ends the request that reads it.
family! { latent_append, template "cache/latent_append.cuh";
  dims    { C = kv_lora_rank, R = rope_dim }
  variant r4 { ROWS = 4 }
  const   { CVECS = C / 8, RVECS = R / 8, VECS = CVECS + RVECS, VPT = ceil_div(CVECS, 32) }
  require { C % 8 == 0, R % 8 == 0, RVECS <= 32, VPT <= 4 }
  args    { kv: bf16[M, C + R], gain: bf16[C], eps: f32, rope: f32[P, R], positions: i32[M], slots: i32[M],
            cache: mut bf16[T, C + R] }
  launch  { grid ceil_div(M, ROWS), block 32 * ROWS, pdl }
}
