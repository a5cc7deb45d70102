/// Products of tensor-core tiles in registers, `rounds` of `CHAINS` independent ones a warp, on the values of `x`: the rate of `mma.sync` in bf16.
family! { mma_rate, template "bench/mma_rate.cuh";
  dims    { H = hidden }
  variant c8 { CHAINS = 8, THREADS = 256 }
  require { H % 2 == 0, H >= THREADS }
  args    { x: bf16[H], rounds: i32, sums: mut f32[N, H] }
  sass    { "HMMA.16816.F32.BF16" }
  launch  { grid N, block THREADS, min_ctas 2 }
}
