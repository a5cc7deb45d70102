/// Accepted entries from scratch into pages, for all `L` layers: `pages[l][to[k]] = scratch[l][from[k]]`. A negative index on
/// either side moves nothing, so that a captured launch serves any number of accepted tokens up to `K`.
family! { commit, template "cache/commit.cuh";
  dims    { W = latent_dim }
  variant l4 { LAYERS = 4 }
  const   { VECS = W / 8 }
  require { W % 8 == 0, VECS <= 1024 }
  args    { scratch: bf16[L, S, W], from: i32[K], to: i32[K], pages: mut bf16[L, T, W] }
  launch  { grid (K, ceil_div(L, LAYERS)), block 32 * ceil_div(VECS, 32), pdl }
}
