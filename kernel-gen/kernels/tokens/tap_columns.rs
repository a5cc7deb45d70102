/// A rank's part of the drafter's fused taps: `y[m] = x[m][rank * C .. (rank + 1) * C]`. The product with as many columns of `fc`
/// is the rank's part of a sum over ranks.
family! { tap_columns, template "tokens/tap_columns.cuh";
  dims    { C = drafter_taps * hidden / tp }
  variant v4 { VPT = 4 }
  const   { VECS = C / 8, THREADS = min(256, 32 * ceil_div(VECS, 32 * VPT)), SPAN = THREADS * VPT }
  require { C % 8 == 0 }
  args    { x: bf16[M, W], rank: i32, y: mut bf16[M, C] }
  launch  { grid (M, ceil_div(VECS, SPAN)), block THREADS, pdl }
}
