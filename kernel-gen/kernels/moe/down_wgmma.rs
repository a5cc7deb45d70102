/// `moe_down` for many rows, as `moe_gate_up_wgmma` is `moe_gate_up`: `parts = down h` for each place, not yet weighted.
family! { moe_down_wgmma, template "moe/down_wgmma.cuh";
  dims    { H = hidden, I = expert_width / tp }
  variant wgmma { SLAB = 48, GROUPS = 2, TILES = 2, DEPTH = 2, STAGES = 9 } on sm_90a
              when H % 256 == 0 && I % (128 * (1 + min(1, I / 1024) + 2 * min(1, I / 2048) + 4 * min(1, I / 4096))) == 0
  const   { K = I, UNITS = H / 32, SEGS = 1 + min(1, K / 1024) + 2 * min(1, K / 2048) + 4 * min(1, K / 4096), SEG = K / SEGS, RUN = 1 + 6 * max(0, 1 - H / 256 % 7),
            BRINGERS = 3, REGISTERS = 224, BRING_REGISTERS = 56 }
  require { K % (64 * DEPTH * SEGS) == 0, H % 256 == 0, SLAB % 8 == 0, SLAB <= 64 }
  smem    { tokens: u8[STAGES * SLAB * 128] align 1024, ring: u8[STAGES * GROUPS * TILES * 2 * 1152] align 128,
            totals: f32[max(4, min(1, SEGS - 1) * GROUPS * TILES * SLAB * 64)] align 16,
            bias: u32[4] align 16, queue: i32[STAGES * 4] align 16, full: u64[STAGES], vacant: u64[STAGES] }
  args    { w: int4g32<E, H, I>, h: bf16[R, I], plan: i32[2], slabs: i32[L, 4], parts: mut f32[R, H] }
  sass    { "WARPGROUP.ARRIVE", "UBLKCP" }
  launch  { grid resident, block 128 * (GROUPS + 1), min_ctas 1, pdl, optional }
}
