/// Absorbed MLA of tree nodes (DeepSeek-V2, arXiv 2405.04434, section 2.1): partial results, to be merged by `tree_mla_merge`.
/// Stream `b` has the rows `starts[b] .. starts[b + 1]` of the pass, the first of them the root, and `committed[b]` tokens in
/// the pages `table[b]`; rows from `starts[B]` on are padding. `q` holds absorbed queries, `scratch` the entries of the rows
/// themselves, `ancestors` 128 bits a row (bit `i`: node `i + 1`, itself included; the root is implied, its own are not read).
/// `queries` and `entries` are
/// `q` and `pages`, one row below the other. Of its operands only `q` and `scratch` may come from the kernel in front. A row sees all committed tokens, the root and its ancestors, and only what it sees is ever read.
/// The partial results take one row for each leaf, node and head of each stream; `Z` is how many there is room for. CTAs take
/// work items from `queue`, which must be zero, and is again after `tree_mla_merge`; clusters have theirs dealt.
family! { tree_mla, template "attn/tree_mla.cuh";
  dims    { H = heads / tp, C = kv_lora_rank, R = rope_dim }
  variant d8  { MT = 0, NT = 1, ST = 32, GO = 2, CLUSTER = 4, CTAS = 1, GROUPS = 0 } on sm_90a when H <= 8
    prefer T * H <= max(8, 250 / (4 + P / 8)) && P <= 768
  variant g8  { MT = 0, NT = 1, ST = 4, GO = 1, CLUSTER = 1, CTAS = 1, GROUPS = 3 } on sm_90a when C == 512 && R == 64 && H == 8
    prefer T * H <= max(16 * B, min(2112, 20800 / max(1, P)))
  variant g64 { MT = 4, NT = 0, ST = 4, GO = 1, CLUSTER = 1, CTAS = 1, GROUPS = 4 } on sm_90a when C == 512 && R == 64 && H % 8 == 0
    prefer T * H > min(max(16 * B, min(2112, 20800 / max(1, P))), max(12 * B, max(96, min(1024, 4608 / max(1, P)))))
  variant c8  { MT = 0, NT = 1, ST = 16, GO = 1, CLUSTER = 4, CTAS = 1, GROUPS = 0 } when H <= 8
    prefer T * H <= max(8, min(96, 4160 / max(1, P)))
  variant c16 { MT = 0, NT = 2, ST = 8, GO = 1, CLUSTER = 2, CTAS = 1, GROUPS = 0 } when H <= 8
    prefer T > B && T * H <= max(96, min(1088, 70 + 20200 / max(1, P)))
  variant m64 { MT = 4, NT = 0, ST = 4, GO = 1, CLUSTER = 1, CTAS = 1, GROUPS = 0 }
    prefer T * H > max(12 * B, max(96, min(1024, 4608 / max(1, P))))
  variant n8  { MT = 0, NT = 1, ST = 5, GO = 1, CLUSTER = 1, CTAS = 2, GROUPS = 0 } when H <= 8
  variant n16 { MT = 0, NT = 2, ST = 4, GO = 1, CLUSTER = 1, CTAS = 1, GROUPS = 0 } when H > 8 && H <= 16
  const   { BASE = 256 * max(1, H / 32), SHORT = 128 * max(16, H), ROWS = 16 * MT + 8 * NT,
            W = C + R, WIDE = min(1, GROUPS), SHARED = min(1, CLUSTER - 1), STEP = 16 + 48 * max(WIDE, SHARED), BOX = 32 + 32 * WIDE,
            TILE = WIDE * ROWS + (1 - WIDE) * STEP, QUERIES = 5 - GROUPS, FP8 = 0,
            KEY = 1 / CLUSTER * (2 * W + 16) + SHARED * 64 * (C / CLUSTER / 32 + ceil_div(R, 64)),
            NODES = ROWS / H + 2 }
  require { C % 128 == 0, 512 % C == 0, R % 16 == 0, 2048 % BASE == 0, SHORT % (2 * BASE) == 0, NODES <= 32 }
  smem    { ring: u8[(1 - WIDE) * ST * 16 * KEY + WIDE * (256 * W + ROWS * (2 * W * QUERIES + 128))] align 1024,
            scores: f32[max(4, (1 - WIDE) * 1024 * MT + NT * (256 * GO * CLUSTER * CLUSTER + 1024 * (1 / CLUSTER)))],
            weights: u16[max(8, (1 - WIDE) * 512 * MT + 256 * NT * (1 / CLUSTER))], keep: f32[max(64, (2 + 2 * WIDE) * GO * ROWS * CLUSTER)],
            changed: u8[16], step: i32[max(64 - 32 * WIDE, SHARED * 4 * ST)], work: i32[96], page: i32[128], paths: u64[8 * NODES],
            arrived: u64[ST + 12 * WIDE], ready: u64[3 + 3 * WIDE + 5 * SHARED], factor: f32[1], base: f32[16 * max(1, (1 - WIDE) * MT)] }
  args    { q: bf16[T, H, C + R], pages: bf16[X, 64, C + R],
            queries: bf16[T * H, C + R] boxes [TILE, BOX], entries: bf16[64 * X, C + R] boxes [STEP, BOX], table: i32[B, P],
            starts: i32[B + 1], committed: i32[B], ancestors: u64[T, 2], scratch: bf16[T, C + R], scale: f32,
            queue: mut i32[1], part_o: mut f32[Z, C], part_ml: mut f32[Z, 2] }
  sass    { "HMMA.16816.F32.BF16+LDSM.16.M88.4|HGMMA+UTMALDG.2D" }
  launch  { grid resident, block 256 + 128 * max(0, GROUPS - 2) + 32 * SHARED, min_ctas CTAS, cluster CLUSTER, pdl, asked }
}

/// The same over FP8 pages: an entry is `C` e4m3 codes, `R` bf16 values of the rotated key, the scale in f32 and zeros up to 16 bytes.
/// `scratch` holds what such an entry gives back. The bits are those of `tree_mla` over pages of these values.
family! { tree_mla_fp8, template "attn/tree_mla.cuh";
  dims    { H = heads / tp, C = kv_lora_rank, R = rope_dim }
  variant m64 { MT = 4, NT = 0, ST = 4, CTAS = 1 }
    prefer T * H > max(12 * B, max(96, min(1024, 4608 / max(1, P))))
  variant n8  { MT = 0, NT = 1, ST = 5, CTAS = 2 } when H <= 8
  variant n16 { MT = 0, NT = 2, ST = 4, CTAS = 1 } when H > 8 && H <= 16
  const   { BASE = 256 * max(1, H / 32), SHORT = 128 * max(16, H), ROWS = 16 * MT + 8 * NT, CLUSTER = 1,
            W = C + R, ENTRY = C + 2 * R + 16, FP8 = 1, KEY = 2 * W + 16, NODES = ROWS / H + 2 }
  require { C % 128 == 0, 512 % C == 0, R % 16 == 0, 2048 % BASE == 0, SHORT % (2 * BASE) == 0, NODES <= 32 }
  smem    { ring: u8[ST * 16 * KEY] align 1024, scores: f32[1024 * MT + NT * 1280],
            weights: u16[max(8, 512 * MT + 256 * NT)], keep: f32[max(64, 2 * ROWS)],
            changed: u8[16], step: i32[64], work: i32[96], page: i32[128], paths: u64[8 * NODES], arrived: u64[ST], ready: u64[4], factor: f32[1],
            base: f32[16 * max(1, MT)], total: f32[max(4, 64 * MT)] }
  args    { q: bf16[T, H, C + R], pages: u8[X, 64, C + 2 * R + 16], table: i32[B, P],
            starts: i32[B + 1], committed: i32[B], ancestors: u64[T, 2], scratch: bf16[T, C + R], scale: f32,
            queue: mut i32[1], part_o: mut f32[Z, C], part_ml: mut f32[Z, 2] }
  sass    { "HMMA.16816.F32.BF16", "LDSM.16.M88.4" }
  launch  { grid resident, block 256, min_ctas CTAS, pdl, asked }
}

/// The partial results of `tree_mla` to each row's mixed latent. Padding rows become zero; a row whose partial results had no
/// room in `Z` becomes NaN. It must be launched right after `tree_mla` with the same operands: those are read before the wait
/// for its results.
family! { tree_mla_merge, template "attn/tree_mla_merge.cuh";
  dims    { H = heads / tp, C = kv_lora_rank }
  variant few  { SPAN = 128, CTAS = 3 } prefer T * H < 96
  variant rows { SPAN = 512, CTAS = 2 } when C % 512 == 0 prefer T * H >= 2112
  variant many { SPAN = 1024, CTAS = 2 } when 1024 % C == 0 && C < 1024
  const   { BASE = 256 * max(1, H / 32), SHORT = 128 * max(16, H), CLASSES = 8, ROWS = 16 }
  require { C % 128 == 0, 2048 % BASE == 0, SHORT % (2 * BASE) == 0 }
  smem    { sums: f32[max(4, SPAN % 1024 * CLASSES)], stream: i32[12 * CLASSES] }
  args    { part_o: f32[Z, C], part_ml: f32[Z, 2], starts: i32[B + 1], committed: i32[B], ancestors: u64[T, 2],
            queue: mut i32[1], y: mut bf16[T, H, C] }
  launch  { grid (T, min(ceil_div(H * C, SPAN), max(1, 524288 / SPAN / max(1, T)))), block 32 * CLASSES, min_ctas CTAS, pdl }
}
