/// Rows of an embedding table: `y[m] = table[ids[m]]`. Rank `rank` holds rows `rank * V ..`, `V` of them; an id of another
/// rank gives zeros, so that the sum over ranks is the whole gather.
family! { embed, template "tokens/embed.cuh";
  dims    { H = hidden }
  variant v2 { VPT = 2 }
  const   { VECS = H / 8, THREADS = min(128, 32 * ceil_div(VECS, 32 * VPT)), SPAN = THREADS * VPT }
  require { H % 8 == 0 }
  args    { table: bf16[V, H], ids: i32[M], rank: i32, y: mut bf16[M, H] }
  launch  { grid (M, ceil_div(VECS, SPAN)), block THREADS, pdl }
}

/// Taps of chosen rows, one after another as the drafter takes them: `y[k][n] = taps[n][rows[k]]`. A negative row, one that a
/// captured launch has no use for, gives zeros.
family! { gather_taps, template "tokens/embed.cuh";
  dims    { H = hidden }
  variant v2 { VPT = 2 }
  const   { VECS = H / 8, THREADS = min(128, 32 * ceil_div(VECS, 32 * VPT)), SPAN = THREADS * VPT }
  require { H % 8 == 0 }
  args    { taps: bf16[N, S, H], rows: i32[K], y: mut bf16[K, N, H] }
  launch  { grid (K, N, ceil_div(VECS, SPAN)), block THREADS, pdl }
}
