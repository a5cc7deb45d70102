/// `moe_gate_up_folded` where warpgroups have products of their own: 64 GROUPS TILES rows of weights a CTA. `x` is turned, as
/// `moe_group_folded` leaves it with `turned`, and so is `h`. Items are drawn by a counter in `plan`, which that has cleared.
family! { moe_gate_up_folded_wgmma, template "moe/gate_up_folded_wgmma.cuh";
  dims    { H = hidden, I = expert_width / tp }
  variant folded_wgmma { SLAB = 56, GROUPS = 4, TILES = 2, STAGES = 4, CHUNK = 16 } on sm_90a when I % 256 == 0 && H % 256 == 0
  variant folded_tall { SLAB = 96, GROUPS = 4, TILES = 1, STAGES = 5, CHUNK = 16 } on sm_90a when I % 256 == 0 && H % 256 == 0
  const   { K = H, UNITS = I / 16, RUN = 1, QUEUE = STAGES / (K / 128) + 3, REGISTERS = 112, BRING_REGISTERS = 32 }
  require { SLAB % 8 == 0, SLAB <= 128 }
  smem    { tokens: u8[STAGES * SLAB * 256] align 1024, ring: u8[STAGES * GROUPS * TILES * 2 * 2304] align 128,
            staging: u8[GROUPS * CHUNK * 80] align 16, factors: f32[QUEUE * SLAB * 2] align 16, offsets: i32[QUEUE * SLAB],
            row_exponents: u8[QUEUE * RUN * GROUPS * TILES * 64] align 16, queue: i32[QUEUE * 4] align 16, full: u64[STAGES],
            vacant: u64[STAGES], told: u64[QUEUE], done: u64[QUEUE] }
  args    { w: int4g32<E, 2 * I, H>, exponents: u8[E, 2 * I], bounds: i32[E], x: f16[M, H], lifts: i32[M], norms: i32[M],
            plan: mut i32[4], slabs: i32[L, 4], rows: i32[R], h: mut f16[R, I], lowers: mut f32[R] }
  sass    { "WARPGROUP.ARRIVE", "UBLKCP" }
  launch  { grid resident, block 128 * (GROUPS + 1), min_ctas 1, pdl, optional }
}
