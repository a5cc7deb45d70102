/// The routed experts of one row in one launch, with the bits of `moe_few`. `ids` as in `moe_group`. `told` is 0 once and belongs to
/// these launches from then on: activated values with a mark of their launch, its number, and a count that is 0 between launches.
family! { moe_one, template "moe/one_row.cuh";
  dims    { H = hidden, I = expert_width / tp, E = experts / ep, T = experts_per_token }
  variant one { STAGES = 4 } when M == 1 && H % 1024 == 0 && H >= 4096 && H <= 10240 && I % 128 == 0 && I <= 256 && 8 * I <= H && T <= 8
  const   { PAIRS = 8, WARPS = 2 * PAIRS, OWN_STARTS = 8 * ceil_div(I, 256) }
  smem    { ring: u8[PAIRS * STAGES * 2304] align 128, row: u8[2 * H] align 128, starts: f32[H / 32] align 16,
            own_starts: f32[PAIRS * OWN_STARTS] align 16, sums: f32[PAIRS * 32] align 16, parts: f32[T * 64] align 16,
            weight: f32[T], full: u64[PAIRS * STAGES], empty: u64[PAIRS * STAGES] }
  args    { gate_up: int4g32<N, 2 * I, H>, down: int4g32<N, H, I>, x: bf16[M, H], ids: i32[M, T], weights: f32[M, T],
            first_expert: i32, told: mut i32[T * I + 2], y: mut bf16[M, H] }
  sass    { "HMMA.16816.F32.BF16", "UBLKCP" }
  launch  { grid resident, block 32 * (WARPS + 1), cooperative, pdl, optional }
}
