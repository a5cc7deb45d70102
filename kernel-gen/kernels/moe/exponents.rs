/// What folded weights need besides their blocks (docs/formats.md, "Experts on the GPU"): for each packed row of a matrix the exponent
/// of its largest scale; and of a pair, gate and up, the largest bound of a product of their norms, to which `bounds` of `expert` rises.
/// Operands as those of `moe_repack`; of one matrix `bounds` stays as it is.
family! { moe_exponents, template "moe/exponents.cuh";
  dims    { K = [hidden, expert_width / tp] }
  variant t1 { THREADS = 256 }
  require { K % 64 == 0, K <= 65536 }
  args    { first: i32[N, K / 8], first_scales: bf16[N, K / 32], second: i32[N, K / 8], second_scales: bf16[N, K / 32],
            paired: i32, exponents: mut u8[P], bounds: mut i32[E], expert: i32 }
  launch  { grid ceil_div(N, THREADS / 32), block THREADS }
}
