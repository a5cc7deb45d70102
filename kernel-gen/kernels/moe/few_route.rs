/// For one row, or each alone, in one launch what `add_rms_norm`, `router` and `few_gate` do in three: `sum = h + sum(parts)`,
/// `y = rms_norm(sum)`, the choice of experts, and the activated columns of the shared expert (`gate_up` and `gated` as `w` and `y` of
/// `few_gate`). The same bits. `sum` is other memory than `h`: all CTAs read the one, few write the other. `arrived` as in `router`.
family! { few_route, template "moe/few_route.cuh";
  dims    { H = hidden, E = experts, T = experts_per_token, I = shared_experts * expert_width / tp }
  variant t1 { WARPS = 4 } when H % 512 == 0 && H >= 2048 && H <= 10240 && I % 8 == 0
  const   { SEGS = 4, LENGTH = H / SEGS, SEG = H / 16, BLOCKS = ceil_div(E, 16), QUADS = ceil_div(E, 128),
            NORM_WARPS = ceil_div(H / 8, 64), ROUTER_PITCH = 2 * LENGTH + 64, GATE_PITCH = 2 * LENGTH + 16 }
  require { E % 8 == 0, T <= 32, T <= E, E <= 1024 }
  smem    { tile: u8[16 * ROUTER_PITCH] align 128, x: u8[2 * LENGTH] align 128, zeros: u32[4] align 16, odd: f32[32] align 16,
            sums: f32[128] align 16, biases: f32[E] align 16, space: f32[E + 64] align 16, partial: f32[NORM_WARPS], full: u64[1] }
  args    { h: bf16[M, H], parts: bf16[R, M, H], gain: bf16[H], eps: f32, w: bf16[E, H], bias: f32[E], slots: i32[M], groups: i32,
            top_groups: i32, normalize: i32, scaling: f32, gate_up: bf16[2 * I, H], arrived: mut i32[M], sum: mut bf16[M, H],
            y: mut bf16[M, H], scores: mut f32[M, E], ids: mut i32[M, T], weights: mut f32[M, T], gated: mut bf16[M, I] }
  sass    { "HMMA.16816.F32.BF16", "UBLKCP" }
  launch  { grid (SEGS, BLOCKS + I / 8, M), block 32 * WARPS, cluster SEGS, pdl, optional }
}
