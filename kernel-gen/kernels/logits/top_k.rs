/// The 64 best tokens of each row of logits, best first, and what its softmax needs: `stats` is the maximum and the sum of
/// `e^(x - max)`. Equal logits are ordered by token id; NaN and -inf are no tokens, and places that are left have token -1.
/// `finite` is 1 unless the row has a NaN, a +inf or no finite entry. Rank `rank` holds tokens `rank * V ..`, and
/// gives global ids. `keys`, `sums` and `arrived` are scratch; `arrived` must be zero before the first launch and is left zero.
family! { top_k, template "logits/top_k.cuh";
  dims    { V = [vocab, vocab / tp] }
  variant c4096 { CHUNK = 4096 }
  const   { K = 64, THREADS = 256, WARPS = THREADS / 32, CHUNKS = ceil_div(V, CHUNK), SCANNED = CHUNK / THREADS,
            MERGED = ceil_div(CHUNKS * K, THREADS), POOL = K * max(SCANNED, MERGED) }
  require { CHUNK == 4096, V % 4 == 0, CHUNK % (4 * THREADS) == 0, K % WARPS == 0, K <= THREADS, CHUNKS <= THREADS }
  smem    { pool: u64[POOL + 32] align 16, lead: u64[THREADS], most: f32[WARPS], sum: f32[WARPS], bad: i32[WARPS], floor: u32[WARPS], count: i32[2] }
  args    { logits: f32[M, V], rank: i32, keys: mut u64[M, ceil_div(V, 4096), 64], sums: mut f32[M, ceil_div(V, 4096), 4],
            arrived: mut i32[M], tokens: mut i32[M, 64], values: mut f32[M, 64], stats: mut f32[M, 2], finite: mut i32[M] }
  launch  { grid (M, CHUNKS), block THREADS, min_ctas 3, pdl }
}
