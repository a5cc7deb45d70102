/// The heads of a drafted row. Of `qkv[m]`, which one product makes, `Q` query heads, `N` key heads and `N` value heads, one after
/// another: queries and keys are RMS-normed over their own `D` values, with one gain for all queries and one for all keys,
/// then rotated in pairs `(i, i + D / 2)`. f32 inside, rounded once. Keys and values are an entry of `drafter_attention`'s cache.
/// A position outside `rope` makes queries and keys NaN.
family! { drafter_heads, template "cache/drafter_heads.cuh";
  dims    { D = drafter_head_dim, Q = drafter_heads / tp, N = drafter_kv_heads / min(tp, drafter_kv_heads) }
  variant h16 { THREADS = 128 }
  const   { LANES = D / 16, HEADS = THREADS / LANES, ALL = Q + 2 * N }
  require { D % 16 == 0, 32 % LANES == 0, LANES <= 32 }
  args    { qkv: bf16[M, Q + 2 * N, D], query_gain: bf16[D], key_gain: bf16[D], eps: f32, rope: f32[P, D],
            positions: i32[M], q: mut bf16[M, Q, D], own: mut bf16[M, 2, N, D] }
  launch  { grid (M, ceil_div(ALL, HEADS)), block THREADS, pdl }
}

/// The cache entries of committed tokens for all `L` layers at once, as `drafter_heads` makes those of a block: `kv[m][l]` is
/// what one product with the layers' key and value projections, one after another, makes of a token's fused taps, and `gain[l]`
/// the layer's. Entry `m` of a layer goes to row `slots[m]` of its `cache`; a negative slot writes nothing.
family! { drafter_context, template "cache/drafter_heads.cuh";
  dims    { D = drafter_head_dim, N = drafter_kv_heads / min(tp, drafter_kv_heads) }
  variant h16 { THREADS = 128 }
  const   { LANES = D / 16, HEADS = THREADS / LANES }
  require { D % 16 == 0, 32 % LANES == 0, LANES <= 32 }
  args    { kv: bf16[M, L, 2, N, D], gain: bf16[L, D], eps: f32, rope: f32[P, D], positions: i32[M], slots: i32[M],
            cache: mut bf16[L, T, 2, N, D] }
  launch  { grid (M, ceil_div(N, HEADS), L), block THREADS, pdl }
}
