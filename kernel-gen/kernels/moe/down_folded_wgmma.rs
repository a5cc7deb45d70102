/// `moe_down_folded` of what `moe_gate_up_folded_wgmma` leaves: `parts = down h` for each place, not yet weighted, rounded to bf16.
family! { moe_down_folded_wgmma, template "moe/down_folded_wgmma.cuh";
  dims    { H = hidden, I = expert_width / tp }
  variant folded_wgmma { SLAB = 56, GROUPS = 4, TILES = 2, STAGES = 4, CHUNK = 8 } on sm_90a when I % 256 == 0 && H % 512 == 0
  variant folded_tall { SLAB = 96, GROUPS = 4, TILES = 1, STAGES = 4, CHUNK = 64 } on sm_90a when I % 256 == 0 && H % 256 == 0
  const   { K = I, UNITS = H / 32, RUN = 1 + 6 * max(0, 1 - H / 256 % 7) * max(0, 1 - I / 1024), QUEUE = STAGES / (RUN * (K / 128)) + 3, REGISTERS = 112,
            BRING_REGISTERS = 32 }
  require { SLAB % 8 == 0, SLAB <= 128 }
  smem    { tokens: u8[STAGES * SLAB * 256] align 1024, ring: u8[STAGES * GROUPS * TILES * 2 * 2304] align 128,
            staging: u8[GROUPS * CHUNK * (128 * TILES + 16)] align 16, factors: f32[QUEUE * SLAB * 2] align 16, offsets: i32[QUEUE * SLAB],
            row_exponents: u8[QUEUE * RUN * GROUPS * TILES * 64] align 16, queue: i32[QUEUE * 4] align 16, full: u64[STAGES],
            vacant: u64[STAGES], told: u64[QUEUE], done: u64[QUEUE] }
  args    { w: int4g32<E, H, I>, exponents: u8[E, H], h: f16[R, I], lowers: f32[R], plan: mut i32[4], slabs: i32[L, 4],
            parts: mut bf16[R, H] }
  sass    { "WARPGROUP.ARRIVE", "UBLKCP" }
  launch  { grid resident, block 128 * (GROUPS + 1), min_ctas 1, pdl, optional }
}
