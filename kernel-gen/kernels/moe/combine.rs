/// `y = sum of weight * part` over a row's choices, in their order, rounded once; a choice at place -1 adds nothing.
family! { moe_combine, template "moe/combine.cuh";
  dims    { H = hidden, T = experts_per_token }
  variant v8 { THREADS = 128 }
  require { H % 8 == 0 }
  args    { parts: f32[R, H], weights: f32[M, T], places: i32[M, T], y: mut bf16[M, H] }
  launch  { grid (M, ceil_div(H / 8, THREADS)), block THREADS, pdl }
}
