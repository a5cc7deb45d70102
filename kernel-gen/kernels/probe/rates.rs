/// Reads `x` once: the rate at which memory can be read. `y` is never written unless all of `x` is NaN.
family! { read_rate, template "probe/rates.cuh";
  dims    { H = hidden }
  variant v4 { AHEAD = 4 }
  require { H % 8 == 0 }
  args    { x: bf16[N, H], y: mut u32[N] }
  launch  { grid min(N, 1056), block 512 }
}

/// `mma.sync` of bf16 on registers alone, `SUMS * steps` in each of eight warps, on values of `x`: the rate that no kernel of
/// that instruction can exceed. `y` is never written unless the sums are NaN.
family! { mma_rate, template "probe/rates.cuh";
  dims    { H = hidden }
  variant m8 { SUMS = 8 }
  require { H % 32 == 0 }
  args    { x: bf16[N, H], steps: i32, y: mut f32[N] }
  sass    { "HMMA.16816.F32.BF16" }
  launch  { grid max(N, 1), block 256 }
}
