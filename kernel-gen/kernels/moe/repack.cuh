// Expert weights from the checkpoint's order to blocks of 32 rows and 64 values (docs/formats.md); one thread a word.
#pragma once

#include "moe/stream.cuh"

namespace kd {

template <class U, class S>
__device__ __forceinline__ void moe_repack(const int32_t* first, const __nv_bfloat16* first_scales, const int32_t* second,
                                           const __nv_bfloat16* second_scales, int32_t paired, uint32_t* packed, int N,
                                           int W) {
  constexpr int BLOCK_WORDS = moe::BLOCK_BYTES / 4, CODE_WORDS = moe::WORD_BYTES / 4, BLOCKS = U::K / moe::BLOCK_K;
  const int64_t word = int64_t(blockIdx.x) * U::THREADS + threadIdx.x;
  if (word >= W) return;
  const int64_t block = word / BLOCK_WORDS;
  const int at = int(word % BLOCK_WORDS), k_block = int(block % BLOCKS);
  const int64_t unit = block / BLOCKS;
  // Tile of 16, row of 8 in it, and the source's row for the lower (0) or upper (1) eight.
  auto row = [&](int tile, int low, int high) { return paired ? 16 * unit + 8 * tile + low : 32 * unit + 16 * tile + 8 * high + low; };
  if (at < CODE_WORDS) {
    const int tile = at / 128, low = at % 128 / 16, quarter = at / 4 % 4, group = at / 2 % 2, high = at % 2;
    const int64_t from = row(tile, low, high) * (U::K / 8) + 8 * k_block + 4 * group + quarter;
    if (row(tile, low, high) >= N) return;
    const uint32_t codes = paired && high ? second[from] : first[from];
    uint32_t spread = 0;
#pragma unroll
    for (int i = 0; i < 8; ++i) spread |= (codes >> (4 * i) & 15) << (16 * (i % 2) + 4 * (i / 2));
    packed[word] = spread;
  } else {
    const int place = at - CODE_WORDS, tile = place / 16, low = place % 16 / 2, group = place % 2;
    if (row(tile, low, 1) >= N) return;
    const int64_t lower = row(tile, low, 0) * (U::K / 32) + 2 * k_block + group;
    const int64_t upper = row(tile, low, 1) * (U::K / 32) + 2 * k_block + group;
    packed[word] = uint32_t(__bfloat16_as_ushort(first_scales[lower])) |
                   uint32_t(__bfloat16_as_ushort(paired ? second_scales[upper] : first_scales[upper])) << 16;
  }
}

}  // namespace kd
