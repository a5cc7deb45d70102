/// `moe_gate_up` of folded weights (moe/folded.cuh): sums straight through K, so other bits than those of segments, which depend on the
/// row alone all the same. `x`, `lifts`, `norms`, `plan`, `slabs` and `rows` are what `moe_group_folded` wrote for slabs of SLAB,
/// `exponents` and `bounds` what `moe_exponents` wrote. `h` is `silu(gate x) * up x`, lifted to f16 by a power of two for each place, which
/// `lowers` takes off again.
family! { moe_gate_up_folded, template "moe/gate_up_folded.cuh";
  dims    { H = hidden, I = expert_width / tp }
  variant folded { SLAB = 48, WARPS = 4, STAGES = 3, MIN_CTAS = 2 } when I % 128 == 0
  variant folded_middle { SLAB = 32, WARPS = 4, STAGES = 3, MIN_CTAS = 3 } on sm_90a when I % 128 == 0
  variant folded_half { SLAB = 48, WARPS = 2, STAGES = 3, MIN_CTAS = 2 } when I % 128 > 0
  const   { K = H, UNITS = I / 16, QUEUE = ceil_div(STAGES, K / 64) + 1 }
  require { K % 64 == 0, I % 64 == 0, SLAB % 16 == 0 }
  smem    { ring: u8[STAGES * WARPS * 2 * 1152] align 128, tokens: u8[STAGES * SLAB * 128] align 128, row_exponents: u8[QUEUE * WARPS * 64] align 16,
            factors: f32[QUEUE * 2 * SLAB] align 16, queue: i32[QUEUE * 4] align 16, full: u64[STAGES], vacant: u64[STAGES], offsets: i32[SLAB] align 16 }
  args    { w: int4g32<E, 2 * I, H>, exponents: u8[E, 2 * I], bounds: i32[E], x: f16[M, H], lifts: i32[M], norms: i32[M],
            plan: i32[4], slabs: i32[L, 4], rows: i32[R], h: mut f16[R, I], lowers: mut f32[R] }
  sass    { "HMMA.16816.F32", "UBLKCP" }
  launch  { grid resident, block 32 * WARPS, min_ctas MIN_CTAS, pdl }
}
