/// The drafter's queries: each head RMS-normed over its own `D` values with one gain for all heads, then rotated in pairs
/// `(i, i + D / 2)`. f32 inside, rounded once. A position outside `rope` makes the row NaN.
family! { head_norm_rope, template "cache/head_norm_rope.cuh";
  dims    { D = drafter_head_dim }
  variant h16 { THREADS = 128 }
  const   { LANES = D / 16, HEADS = THREADS / LANES }
  require { D % 16 == 0, 32 % LANES == 0, LANES <= 32 }
  args    { x: bf16[M, N, D], gain: bf16[D], eps: f32, rope: f32[P, D], positions: i32[M], y: mut bf16[M, N, D] }
  launch  { grid (M, ceil_div(N, HEADS)), block THREADS, pdl }
}

/// The drafter's cache entry: keys of all `N` heads normed and rotated as in `head_norm_rope`, then their values as they
/// are. Entry `m` goes to row `slots[m]` of `cache`; a negative slot writes nothing.
family! { drafter_append, template "cache/head_norm_rope.cuh";
  dims    { D = drafter_head_dim, N = drafter_kv_heads / min(tp, drafter_kv_heads) }
  variant h16 { THREADS = 128 }
  const   { LANES = D / 16, HEADS = THREADS / LANES }
  require { D % 16 == 0, 32 % LANES == 0, LANES <= 32 }
  args    { keys: bf16[M, N, D], values: bf16[M, N, D], gain: bf16[D], eps: f32, rope: f32[P, D], positions: i32[M],
            slots: i32[M], cache: mut bf16[T, 2, N, D] }
  launch  { grid (M, ceil_div(N, HEADS)), block THREADS, pdl }
}

/// `drafter_append` of committed tokens for all `L` layers at once: `kv[m][l]` is what one product with the layers' key and
/// value projections, one after another, makes of a token's fused taps, and `gain[l]` the layer's.
family! { drafter_context, template "cache/head_norm_rope.cuh";
  dims    { D = drafter_head_dim, N = drafter_kv_heads / min(tp, drafter_kv_heads) }
  variant h16 { THREADS = 128 }
  const   { LANES = D / 16, HEADS = THREADS / LANES }
  require { D % 16 == 0, 32 % LANES == 0, LANES <= 32 }
  args    { kv: bf16[M, L, 2, N, D], gain: bf16[L, D], eps: f32, rope: f32[P, D], positions: i32[M], slots: i32[M],
            cache: mut bf16[L, T, 2, N, D] }
  launch  { grid (M, ceil_div(N, HEADS), L), block THREADS, pdl }
}
