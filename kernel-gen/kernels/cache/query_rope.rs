/// The rotated part of each head's query, in pairs `(2i, 2i + 1)`: from behind the `N` values of `q` without position to behind
/// the `W` of `y`, where the attention kernels look for it. With `W = N` the values in front are copied as well; else they are
/// `absorb_query`'s to write. A position outside `rope` makes the part NaN.
family! { query_rope, template "cache/query_rope.cuh";
  dims    { N = nope_dim, R = rope_dim, W = [kv_lora_rank, nope_dim] }
  variant t128 { THREADS = 128 }
  const   { NVECS = N / 8, RVECS = R / 8, SKIP = min(1, max(W - N, N - W)), OWN = NVECS * (1 - SKIP) + RVECS }
  require { N % 8 == 0, R % 8 == 0, W % 8 == 0 }
  args    { q: bf16[M, H, N + R], rope: f32[P, R], positions: i32[M], y: mut bf16[M, H, W + R] }
  launch  { grid ceil_div(M * H * OWN, THREADS), block THREADS, pdl }
}
