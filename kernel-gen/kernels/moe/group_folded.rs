/// `moe_group` for folded weights: rows by expert, in slabs of `slab` rows, 8 to MOST, and the rows themselves as f16. `folded` is
/// `x * 2^lift`, exactly, for `lifts` that bring a row's largest value into [2^14, 2^15) (a row of zeros has 0), pairs of values in
/// the order of warpgroups' products if `turned` is not 0; a row with a value that is not finite is all NaN. `norms` are above the
/// logarithm to base 2 of the square of the row's norm, by 1 at most. Neither depends on other rows.
family! { moe_group_folded, template "moe/group_folded.cuh";
  dims    { H = hidden, E = experts / ep, T = experts_per_token }
  variant w32 { THREADS = 1024 }
  const   { LISTS = 8, EACH = 128 * ceil_div(H, 8192), MANY = 8, MOST = 128, VECS = ceil_div(H / 8, EACH) }
  require { THREADS == 1024, THREADS % EACH == 0, E <= 768, H % 32 == 0, VECS <= 8 }
  smem    { counts: i32[THREADS / 32 * E], totals: u64[THREADS / 32], partial: f32[THREADS / 32] }
  args    { x: bf16[M, H], ids: i32[M, T], first_expert: i32, slab: i32, turned: i32, plan: mut i32[4], slabs: mut i32[L, 4],
            rows: mut i32[M * T], places: mut i32[M, T], folded: mut f16[M, H], lifts: mut i32[M], norms: mut i32[M] }
  launch  { grid LISTS + ceil_div(M, THREADS / EACH), block THREADS, pdl }
}
