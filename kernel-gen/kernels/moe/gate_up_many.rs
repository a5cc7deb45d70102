/// `moe_gate_up` for many rows: `h = silu(gate x) * up x` for each place in `rows`, the same bits. `starts` are those of the sums of
/// the groups of `x`; `h_starts` become those of `h`. `plan` and `slabs` are what `moe_group` wrote for slabs of SLAB;
/// `plan[2]` counts items as they are drawn, so it must be 0 again before another launch.
family! { moe_gate_up_many, template "moe/gate_up_many.cuh";
  dims    { H = hidden, I = expert_width / tp }
  variant many { SLAB = 48, WARPS = 4, STAGES = 3, MIN_CTAS = 2 } when I % 128 == 0
  variant middle { SLAB = 32, WARPS = 4, STAGES = 3, MIN_CTAS = 3 } when I % 128 == 0
  variant many_half { SLAB = 48, WARPS = 2, STAGES = 3, MIN_CTAS = 2 } when I % 128 > 0
  const   { K = H, UNITS = I / 16, SEGS = 1 + min(1, K / 1024) + 2 * min(1, K / 2048) + 4 * min(1, K / 4096), SEG = K / SEGS, DRAWN = 1 }
  require { K % (64 * SEGS) == 0, I % 64 == 0, SLAB % 8 == 0 }
  smem    { ring: u8[STAGES * WARPS * 2 * 1152] align 128, tokens: u8[STAGES * SLAB * 128] align 128,
            totals: f32[max(160 * WARPS, min(1, SEGS - 1) * WARPS * SLAB * 64)] align 16, row_starts: f32[STAGES * SLAB * 4] align 16,
            queue: i32[4 * 4] align 16, full: u64[STAGES], vacant: u64[STAGES], offsets: i32[SLAB] }
  args    { w: int4g32<E, 2 * I, H>, x: bf16[M, H], starts: f32[M, H / 32], plan: mut i32[4], slabs: i32[L, 4], rows: i32[R],
            h: mut bf16[R, I], h_starts: mut f32[R, I / 32] }
  sass    { "HMMA.16816.F32.BF16", "UBLKCP" }
  launch  { grid resident, block 32 * WARPS, min_ctas MIN_CTAS, pdl }
}
