/// Accepted entries from scratch into FP8 pages, for all `L` layers, as `commit`: an entry becomes `C` e4m3 codes, `R` bf16 values of
/// the rotated key, the scale in f32 and zeros up to 16 bytes. One that `mla_inputs_fp8` wrote loses nothing.
family! { commit_fp8, template "cache/commit_fp8.cuh";
  dims    { C = kv_lora_rank, R = rope_dim }
  variant l4 { LAYERS = 4 }
  const   { CVECS = C / 8, RVECS = R / 8, OWN = ceil_div(CVECS, 32), ENTRY = C + 2 * R + 16 }
  require { C % 16 == 0, R % 8 == 0, RVECS <= 32, OWN <= 4 }
  args    { scratch: bf16[L, S, C + R], from: i32[K], to: i32[K], pages: mut u8[L, T, C + 2 * R + 16] }
  launch  { grid (K, ceil_div(L, LAYERS)), block 32 * LAYERS, pdl }
}
