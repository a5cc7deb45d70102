/// The gate of an MLP: `y = silu(gate) * up` with `silu(z) = z / (1 + e^-z)`, f32 inside, rounded once at the end. A row of
/// `gate_up` is the gate's columns, then those of up, as one projection of both writes them.
family! { silu_mul, template "mlp/silu_mul.cuh";
  dims    { I = [dense_width / tp, shared_experts * expert_width / tp, drafter_width / tp] }
  variant v1 { THREADS = 128 }
  const   { VECS = I / 8 }
  require { I % 8 == 0 }
  args    { gate_up: bf16[M, 2 * I], y: mut bf16[M, I] }
  launch  { grid (M, ceil_div(VECS, THREADS)), block THREADS, pdl }
}
