/// For few rows in one launch the product with the gate and up projections of an MLP and its activation: `y = silu(x G^T) * (x U^T)`,
/// with the bits of `dense` followed by `silu_mul`: both products are rounded before the activation. `w` is G's rows, then U's.
family! { few_gate, template "mlp/few_gate.cuh";
  dims    { K = hidden, I = shared_experts * expert_width / tp }
  variant t8 { TOKENS = 8 } when I % 8 == 0 && K % (64 * max(min(4, ceil_div(K, 512)), min(8, ceil_div(K, 5376)))) == 0 && K <= 1856 * max(min(4, ceil_div(K, 512)), min(8, ceil_div(K, 5376)))
  const   { SEGS = max(min(4, ceil_div(K, 512)), min(8, ceil_div(K, 5376))), LENGTH = K / SEGS, PITCH = 2 * LENGTH + 16 }
  smem    { weights: u8[16 * PITCH] align 128, tokens: u8[TOKENS * PITCH] align 128, sums: f32[SEGS * 128], full: u64[2] }
  args    { x: bf16[M, K], w: bf16[2 * I, K], y: mut bf16[M, I] }
  sass    { "HMMA.16816.F32.BF16" }
  launch  { grid (SEGS, ceil_div(M, TOKENS), I / 8), block 32, cluster SEGS, pdl, optional }
}
