/// `moe_gate_up` for many rows where warpgroups have products of their own: 64 GROUPS TILES rows of weights a CTA, the same bits. `x`
/// is lifted and turned, as `moe_group` leaves it with `turned`, and so is `h`.
family! { moe_gate_up_wgmma, template "moe/gate_up_wgmma.cuh";
  dims    { H = hidden, I = expert_width / tp }
  variant wgmma { SLAB = 48, GROUPS = 2, TILES = 2, DEPTH = 2, STAGES = 9 } on sm_90a
              when I % 128 == 0 && H % (128 * (1 + min(1, H / 1024) + 2 * min(1, H / 2048) + 4 * min(1, H / 4096))) == 0
  const   { K = H, UNITS = I / 16, SEGS = 1 + min(1, K / 1024) + 2 * min(1, K / 2048) + 4 * min(1, K / 4096), SEG = K / SEGS, RUN = 1,
            BRINGERS = 3, REGISTERS = 224, BRING_REGISTERS = 56 }
  require { K % (64 * DEPTH * SEGS) == 0, SLAB % 8 == 0, SLAB <= 64 }
  smem    { tokens: u8[STAGES * SLAB * 128] align 1024, ring: u8[STAGES * GROUPS * TILES * 2 * 1152] align 128,
            totals: f32[max(GROUPS * SLAB * 20, min(1, SEGS - 1) * GROUPS * TILES * SLAB * 64)] align 16,
            bias: u32[4] align 16, queue: i32[STAGES * 4] align 16, full: u64[STAGES], vacant: u64[STAGES] }
  args    { w: int4g32<E, 2 * I, H>, x: bf16[M, H], plan: i32[2], slabs: i32[L, 4], rows: i32[R], h: mut bf16[R, I] }
  sass    { "WARPGROUP.ARRIVE", "UBLKCP" }
  launch  { grid resident, block 128 * (GROUPS + 1), min_ctas 1, pdl, optional }
}
