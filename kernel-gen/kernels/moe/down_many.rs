/// `moe_down` for many rows: `parts = down h` for each place, not yet weighted, the same bits; as `moe_gate_up_many` otherwise.
family! { moe_down_many, template "moe/down_many.cuh";
  dims    { H = hidden, I = expert_width / tp }
  variant many { SLAB = 48, WARPS = 4, STAGES = 3, MIN_CTAS = 2 }
  variant middle { SLAB = 32, WARPS = 4, STAGES = 3, MIN_CTAS = 3 }
  const   { K = I, UNITS = H / 32, SEGS = 1 + min(1, K / 1024) + 2 * min(1, K / 2048) + 4 * min(1, K / 4096), SEG = K / SEGS, DRAWN = 0 }
  require { K % (64 * SEGS) == 0, H % 256 == 0, SLAB % 8 == 0 }
  smem    { ring: u8[STAGES * WARPS * 2 * 1152] align 128, tokens: u8[STAGES * SLAB * 128] align 128,
            totals: f32[max(4, min(1, SEGS - 1) * WARPS * SLAB * 64)] align 16, row_starts: f32[STAGES * SLAB * 4] align 16,
            queue: i32[4 * 4] align 16, full: u64[STAGES], vacant: u64[STAGES], offsets: i32[SLAB] }
  args    { w: int4g32<E, H, I>, h: bf16[R, I], starts: f32[R, I / 32], plan: i32[2], slabs: i32[L, 4], parts: mut f32[R, H] }
  sass    { "HMMA.16816.F32.BF16", "UBLKCP" }
  launch  { grid resident, block 32 * WARPS, min_ctas MIN_CTAS, pdl }
}
