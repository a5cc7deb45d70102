/// Second half of the experts: `parts = down h` for each place, not yet weighted; as `moe_gate_up` otherwise.
family! { moe_down, template "moe/down.cuh";
  dims    { H = hidden, I = expert_width / tp }
  variant narrow { WIDE = 0, SLAB = 8, MIN_CTAS = 2, SHARE_TOTALS = 0 } prefer R <= 1024
  variant wide { WIDE = 1, SLAB = 16, MIN_CTAS = 2, SHARE_TOTALS = 1 } when H % 256 == 0
  const   { RAW_ROWS = 0, K = I, UNITS = H / 32, WARPS = 8, SEGS = 1 + min(1, K / 1024) + 2 * min(1, K / 2048) + 4 * min(1, K / 4096), SEG = K / SEGS,
            BLOCKS = SEG / 64, PER_STAGE = 2 - BLOCKS % 2, STAGES = 3, EARLY = 1, POOL = 4, QUANTUM = 4 }
  require { K % (64 * SEGS) == 0, WARPS % SEGS == 0, BLOCKS % PER_STAGE == 0, H % 32 == 0, SLAB % 8 == 0 }
  smem    { ring: u8[WARPS * STAGES * PER_STAGE * 1152] align 128, tokens: u8[max(16, WIDE * STAGES * SLAB * PER_STAGE * 128)] align 128,
            totals: f32[max(4, SHARE_TOTALS * min(1, SEGS - 1) * WARPS * SLAB * 32)] align 16,
            sums: f32[max(4, (1 - WIDE) * min(1, SEGS - 1) * WARPS * 256)], bars: u64[WARPS * STAGES],
            joints: u64[2 * WARPS], landed: u64[STAGES], vacant: u64[STAGES], walks: i32[max(1, WIDE * WARPS * 3 * 10)], bias: u32[4] align 16,
            feeds: i32[max(4, (1 - WIDE) * WARPS * 28)] align 16, costs: i32[max(1, (1 - WIDE) * 1024)], told: u64[max(1, (1 - WIDE) * 8 * WARPS / SEGS)],
            numbers: i32[max(1, (1 - WIDE) * 8 * WARPS / SEGS)] }
  args    { w: int4g32<E, H, I>, h: bf16[R, I], plan: mut i32[4], entries: i32[E, 4], parts: mut f32[R, H] }
  sass    { "HMMA.16816.F32.BF16", "UBLKCP" }
  launch  { grid resident, block 32 * WARPS, min_ctas MIN_CTAS, pdl }
}
