/// For one row in one launch what `add_rms_norm`, `router`, `few_gate` and the product with the shared expert's second matrix do in
/// four: `sum = h + sum(parts)`, `y = rms_norm(sum)`, the choice of experts, and `shared`, with its activated columns in `gated`. The
/// same bits. Outputs are other memory than inputs: all CTAs read these, few write those. `arrived` as in `router`; `met` is zero
/// before and after. The device must hold CTAS + SEGS CTAs of it at once, for the CTAS of the router wait for the others.
family! { few_route, template "moe/few_route.cuh";
  dims    { H = hidden, E = experts, T = experts_per_token, I = shared_experts * expert_width / tp }
  variant s4 { SEGS = 4 } when H % 512 == 0 && H >= 2048 && H <= 8192 && I % 32 == 0 && I <= 512 && M <= 1 && 16 * max(H / 2 + 32, ceil_div(ceil_div(H, 16), 4 * ceil_div(E, 16)) * (2 * I + 16)) + H / 2 + 8 * E <= 98000
  variant s1 { SEGS = 1 } when H % 64 == 0 && H <= 512 && I % 32 == 0 && I <= 512 && M <= 1 && 16 * max(2 * H + 32, ceil_div(ceil_div(H, 16), ceil_div(E, 16)) * (2 * I + 16)) + 2 * H + 8 * E <= 98000
  const   { WARPS = 4, LENGTH = H / SEGS, SEG = 32 * ceil_div(H, 512), BLOCKS = ceil_div(E, 16), CTAS = BLOCKS * SEGS,
            QUADS = ceil_div(E, 128), NORM_WARPS = ceil_div(H / 8, 64), EACH = ceil_div(ceil_div(H, 16), CTAS),
            ROUTER_PITCH = 2 * LENGTH + 32, GATE_PITCH = 2 * LENGTH + 16, DOWN_PITCH = 2 * I + 16 }
  require { E % 8 == 0, T <= 32, T <= E, E <= 1024, H % 16 == 0 }
  smem    { tile: u8[16 * max(ROUTER_PITCH, EACH * DOWN_PITCH)] align 128, x: u8[2 * LENGTH] align 128, zeros: u32[4] align 16,
            odd: f32[128 / SEGS] align 16, sums: f32[128] align 16, biases: f32[E] align 16, space: f32[E + 64] align 16,
            full: u64[2] }
  args    { h: bf16[M, H], parts: bf16[R, M, H], gain: bf16[H], eps: f32, w: bf16[E, H], bias: f32[E], slots: i32[M], groups: i32,
            top_groups: i32, normalize: i32, scaling: f32, gate_up: bf16[2 * I, H], down: bf16[H, I], arrived: mut i32[M, E],
            met: mut i32[2], sum: mut bf16[M, H], y: mut bf16[M, H], scores: mut f32[M, E], ids: mut i32[M, T],
            weights: mut f32[M, T], gated: mut bf16[M, I], shared: mut bf16[M, H] }
  sass    { "HMMA.16816.F32.BF16", "UBLKCP" }
  launch  { grid (SEGS, BLOCKS + I / 8, M), block 32 * WARPS, cluster SEGS, pdl, optional }
}
