/// `moe_down` of folded weights: `parts = down h` for each place, not yet weighted, rounded; as `moe_gate_up_folded` otherwise.
family! { moe_down_folded, template "moe/down_folded.cuh";
  dims    { H = hidden, I = expert_width / tp }
  variant folded { SLAB = 48, WARPS = 4, STAGES = 3, MIN_CTAS = 2 }
  variant folded_middle { SLAB = 32, WARPS = 4, STAGES = 3, MIN_CTAS = 3 } on sm_90a
  const   { K = I, UNITS = H / 32, QUEUE = ceil_div(STAGES, K / 64) + 1 }
  require { K % 64 == 0, H % 256 == 0, SLAB % 16 == 0 }
  smem    { ring: u8[STAGES * WARPS * 2 * 1152] align 128, tokens: u8[STAGES * SLAB * 128] align 128, row_exponents: u8[QUEUE * WARPS * 64] align 16,
            factors: f32[QUEUE * 2 * SLAB] align 16, queue: i32[QUEUE * 4] align 16, full: u64[STAGES], vacant: u64[STAGES], offsets: i32[SLAB] align 16 }
  args    { w: int4g32<E, H, I>, exponents: u8[E, H], h: f16[R, I], lowers: f32[R], plan: i32[4], slabs: i32[L, 4], parts: mut bf16[R, H] }
  sass    { "HMMA.16816.F32", "UBLKCP" }
  launch  { grid resident, block 32 * WARPS, min_ctas MIN_CTAS, pdl }
}
