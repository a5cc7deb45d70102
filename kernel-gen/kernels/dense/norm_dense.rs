/// For one row, or each alone, in one launch what `add_rms_norm` and `dense` do in two: `sum = h + sum(parts); y = rms_norm(sum) W^T`,
/// with the same bits. `sum` is other memory than `h`: all CTAs read the one, and one writes the other. Where `tap` has rows,
/// it gets the sum as well.
family! { norm_dense, template "dense/norm_dense.cuh";
  dims    { H = hidden }
  variant f4 { FEEDERS = 4, RING = 98304 } on sm_90a when H % (64 * max(min(4, ceil_div(H, 512)), min(8, ceil_div(H, 5376)))) == 0 && H <= 7168
  variant t1 { FEEDERS = 2, RING = 83000 } when H % (64 * max(min(4, ceil_div(H, 512)), min(8, ceil_div(H, 5376)))) == 0 && H <= 7168
  const   { HELPERS = 3, SEGS = max(min(4, ceil_div(H, 512)), min(8, ceil_div(H, 5376))), WARPS = SEGS, LENGTH = H / SEGS,
            NORM_WARPS = ceil_div(H / 8, 64), SLOT = SEGS * 2048, SLOTS = min(LENGTH / 64, RING / SLOT) }
  require { H % 8 == 0 }
  smem    { ring: u8[SLOTS * SLOT] align 128, x: u8[2 * H] align 128, zeros: u32[4] align 16, partial: f32[NORM_WARPS],
            sums: f32[16 * SEGS], full: u64[SLOTS], empty: u64[SLOTS] }
  args    { h: bf16[M, H], parts: bf16[R, M, H], gain: bf16[H], eps: f32, w: bf16[N, H], sum: mut bf16[M, H], tap: mut bf16[T, H],
            y: mut bf16[M, N] }
  sass    { "HMMA.16816.F32.BF16" }
  launch  { grid (1, M, ceil_div(N, 16)), block 32 * (WARPS + HELPERS + FEEDERS), pdl, optional }
}
