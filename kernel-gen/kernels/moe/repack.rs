/// One expert's matrix from the checkpoint's order to that of docs/formats.md, "Experts on the GPU". With `paired` = 1 the rows
/// are eight of `first`, eight of `second` in turn (gate and up), with 0 those of `first`, and `second` is not read.
family! { moe_repack, template "moe/repack.cuh";
  dims    { K = [hidden, expert_width / tp] }
  variant t1 { THREADS = 256 }
  require { K % 64 == 0 }
  args    { first: i32[N, K / 8], first_scales: bf16[N, K / 32], second: i32[N, K / 8], second_scales: bf16[N, K / 32],
            paired: i32, packed: mut u32[W] }
  launch  { grid ceil_div(W, THREADS), block THREADS }
}
