/// Root-mean-square norm of each row: `y = x / sqrt(mean(x^2) + eps) * gain`, f32 inside, rounded once at the end.
family! { rms_norm, template "norm/rms_norm.cuh";
  dims    { H = [hidden, q_lora_rank, kv_lora_rank] }
  variant v4 { VPT = 4 } when H >= 2048
  variant v2 { VPT = 2 }
  const   { VECS = H / 8, WARPS = ceil_div(VECS, 32 * VPT), ROWS = max(1, 4 / WARPS) }
  require { H % 8 == 0, WARPS <= 32 }
  smem    { partial: f32[ROWS * WARPS] }
  args    { x: bf16[M, H], gain: bf16[H], eps: f32, y: mut bf16[M, H] }
  launch  { grid ceil_div(M, ROWS), block 32 * WARPS * ROWS, pdl }
}

/// Residual add, then the norm of the sum: `h += sum(parts); y = rms_norm(h)`. `parts` are the partial sums of `R` ranks (one
/// where they were added on the way, see `kd_kernels::ranks`), added in f32 in rank order, so that every rank computes the
/// same bits. The norm sees `h` as it is stored (bf16): the result is bitwise that of an add followed by `rms_norm` of the
/// same variant. Where `tap` has rows, it gets the sum as well. `early` lets the kernel behind start before the parts are there: worth it where that has many weights to bring, and
/// nothing in front is short of room.
family! { add_rms_norm, template "norm/rms_norm.cuh";
  dims    { H = hidden }
  variant v2 { VPT = 2 }
  variant v4 { VPT = 4 } when H >= 1024
  const   { VECS = H / 8, WARPS = ceil_div(VECS, 32 * VPT), ROWS = max(1, 4 / WARPS) }
  require { H % 8 == 0, WARPS <= 32 }
  smem    { partial: f32[ROWS * WARPS] }
  args    { h: mut bf16[M, H], parts: bf16[R, M, H], gain: bf16[H], eps: f32, early: i32, tap: mut bf16[T, H], y: mut bf16[M, H] }
  launch  { grid ceil_div(M, ROWS), block 32 * WARPS * ROWS, pdl }
}
