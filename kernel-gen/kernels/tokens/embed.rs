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
