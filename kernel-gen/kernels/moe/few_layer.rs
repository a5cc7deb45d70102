/// The routed experts of at most 64 rows in one launch: `y = sum of weight * down(silu(gate x) * up x)` over a row's choices, which
/// differ, in their order, rounded once. `ids` as in `moe_group`. `h` (rounded) and `parts` are scratch, with a row for each choice;
/// `arrived` is 0 before and after. Segments and sums are those of `moe_gate_up`, `moe_down` and `moe_combine`: the same bits.
family! { moe_few, template "moe/few_layer.cuh";
  dims    { H = hidden, I = expert_width / tp, E = experts / ep, T = experts_per_token }
  variant few { MIN_CTAS = 2, STAGES = 3 }
  const   { THREADS = 256, WARPS = THREADS / 32, SLAB = 8, MOST_ROWS = 64, STAGE_BYTES = 2 * 1152, WHOLE_UNITS = 64 }
  require { H % 64 == 0, I % 64 == 0, MOST_ROWS * T <= 512, E <= 1024 }
  smem    { ring: u8[WARPS * STAGES * STAGE_BYTES] align 128, entries: i32[4 * E] align 16, bias: u32[4] align 16,
            sums: f32[WARPS * 256] align 16, bars: u64[WARPS * STAGES], joints: u64[4 * WARPS], walks: i32[WARPS * 2 * 10],
            chosen: u32[2 * E], firsts: i32[E], list: i32[MOST_ROWS * T], plan: i32[2], warp_sums: u32[WARPS],
            items: i32[H / 32], completed: i32[H / 32], complete: i32[1] }
  args    { gate_up: int4g32<N, 2 * I, H>, down: int4g32<N, H, I>, x: bf16[M, H], ids: i32[M, T], weights: f32[M, T],
            first_expert: i32, h: mut bf16[M * T, I], parts: mut f32[M * T, H], arrived: mut i32[H / 32 + 2], y: mut bf16[M, H] }
  sass    { "HMMA.16816.F32.BF16", "UBLKCP" }
  launch  { grid resident, block THREADS, min_ctas MIN_CTAS, cooperative, pdl }
}
