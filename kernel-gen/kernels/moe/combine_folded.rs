/// `moe_combine` of bf16 parts: f32 sums in the order of a row's choices, rounded once; a choice at place -1 adds nothing.
family! { moe_combine_folded, template "moe/combine_folded.cuh";
  dims    { H = hidden, T = experts_per_token }
  variant v8 { THREADS = 128 }
  require { H % 8 == 0 }
  args    { parts: bf16[R, H], weights: f32[M, T], places: i32[M, T], y: mut bf16[M, H] }
  launch  { grid (M, ceil_div(H / 8, THREADS)), block THREADS, pdl }
}
