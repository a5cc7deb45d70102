/// A token for each row of logits, drawn as kd-sample specifies it (docs/sampling.md, steps 0, 4 and 8): the argmax of
/// `logit / temperature + gumbel` in f64, ties to the lower id; at temperature 0 of the logit alone. The noise is that of
/// (seed, choice, position, token id), so a token depends on its own row only. Steps 5 to 7 keep a prefix of the row sorted
/// by (logit, lower id first): `cut` is the last entry that is kept, as kd-sample's `cut_key` writes it, 0 for all. A row
/// with a NaN or +inf, or without a finite entry, gives token -1 and value NaN. Rank `rank` holds tokens `rank * V ..` and
/// draws among those; the largest `value` over ranks wins. `found` and `arrived` are scratch; `arrived` must be zero before
/// the first launch and is left zero.
family! { sample, template "logits/sample.cuh";
  dims    { V = [vocab, vocab / tp] }
  variant c4096 { CHUNK = 4096 }
  const   { THREADS = 256, CHUNKS = ceil_div(V, CHUNK), SCANNED = CHUNK / THREADS }
  require { CHUNK == 4096, V % 4 == 0, CHUNK % (4 * THREADS) == 0, CHUNKS <= 65535 }
  smem    { score: f64[THREADS / 32], partial: f32[THREADS / 32], id: i32[THREADS / 32], near: u16[CHUNK], count: i32[2] }
  args    { logits: f32[M, V], rank: i32, temperature: f64[M], seed: u64[M], position: u64[M], choice: u32[M], cut: u64[M],
            found: mut f64[M, ceil_div(V, 4096), 2], arrived: mut i32[M], tokens: mut i32[M], value: mut f64[M] }
  launch  { grid (M, CHUNKS), block THREADS, min_ctas 3, pdl }
}
