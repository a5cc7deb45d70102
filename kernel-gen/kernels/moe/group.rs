/// Rows by expert. `ids` of a row are the experts that it goes to, this rank's being `first_expert` and the `E - 1` after it; any
/// other number (padded rows have -1) goes nowhere. `plan` becomes the number of experts with rows, their cost in slabs of `slab`
/// rows, and two counters at 0, of what the products have drawn; `entries` lists those experts, ascending: id, first place in
/// `rows`, number of rows, cost before it; `rows` their rows, ascending; `places` where each choice stands in `rows`, or -1. For
/// slabs of MANY to MOST rows, `plan` and `entries` are the slabs themselves, those with most rows first (moe/slabs.cuh): id, first place,
/// rows, 0. `lifted` is `x` as the products take it, pairs of values in the order of warpgroups' products
/// if `turned` is not 0; `starts` where the sums of its groups start.
family! { moe_group, template "moe/group.cuh";
  dims    { H = hidden, E = experts / ep, T = experts_per_token }
  variant w32 { THREADS = 1024 }
  const   { LISTS = 8, LIFTS = 2, MANY = 32, MOST = 48 }
  require { THREADS == 1024, E <= 768, H % 32 == 0 }
  smem    { counts: i32[THREADS / 32 * E], totals: u64[THREADS / 32] }
  args    { x: bf16[M, H], ids: i32[M, T], first_expert: i32, slab: i32, turned: i32, plan: mut i32[4], entries: mut i32[L, 4],
            rows: mut i32[M * T], places: mut i32[M, T], lifted: mut bf16[M, H], starts: mut f32[M, H / 32] }
  launch  { grid LISTS + ceil_div(M * (H / 8), LIFTS * THREADS), block THREADS, pdl }
}
