// Entries of FP8 pages on their way into tree_mla's ring: a row of the ring has room for values, and an entry lands where its key and
// scale are to be, its codes in the second half of the latent. There they become values before any warp reads the row.
#pragma once

#include "cache/fp8.cuh"
#include "ptx/bulk.cuh"

namespace kd {
namespace mla {

// What pages hold.
template <bool FP8>
struct StoredAs {
  using Type = __nv_bfloat16;
};
template <>
struct StoredAs<true> {
  using Type = uint8_t;
};
template <class U>
using Stored = typename StoredAs<(U::FP8 != 0)>::Type;

// A row of the ring that is asked for: entry `place` of the pages, or the complement of a row of scratch.
template <class U>
struct Asked {
  uint8_t* to;
  const void* from;
  uint32_t bytes;

  __device__ __forceinline__ Asked(uint8_t* row, const uint8_t* pages, const __nv_bfloat16* scratch, int place) {
    const bool stored = place >= 0;
    to = stored ? row + U::C : row;
    from = stored ? static_cast<const void*>(pages + int64_t(place) * U::ENTRY) : scratch + int64_t(~place) * U::W;
    bytes = stored ? U::ENTRY : 2 * U::W;
  }
};

// Requests two neighbouring rows of the ring, from `row` on.
template <class U>
__device__ __forceinline__ void ask_two(uint8_t* row, const uint8_t* pages, const __nv_bfloat16* scratch, int even, int odd,
                                        uint64_t* arrived) {
  if (!ptx::elect_one()) return;
  const Asked<U> first(row, pages, scratch, even), second(row + U::KEY, pages, scratch, odd);
  ptx::copies_after_accesses();
  ptx::barrier_arrive_expect(arrived, first.bytes + second.bytes);
  ptx::bulk_load(first.to, first.from, first.bytes, arrived);
  ptx::bulk_load(second.to, second.from, second.bytes, arrived);
}

// The same for an entry of the pages and the next.
template <class U>
__device__ __forceinline__ void ask_entries(uint8_t* row, const uint8_t* from, uint64_t* arrived) {
  if (!ptx::elect_one()) return;
  ptx::copies_after_accesses();
  ptx::barrier_arrive_expect(arrived, 2 * U::ENTRY);
  ptx::bulk_load(row + U::C, from, U::ENTRY, arrived);
  ptx::bulk_load(row + U::KEY + U::C, from + U::ENTRY, U::ENTRY, arrived);
}

// Makes values of the codes of two neighbouring rows, from `row` on, those of them that `stored` has a bit for. By one warp, which
// sees the rows. One after the other: registers are scarce.
template <class U>
__device__ __forceinline__ void expand_two(uint8_t* row, uint32_t stored) {
  constexpr int VECS = U::C / 8, ROUNDS = (VECS + 31) / 32;
  static_assert(2 * U::C + 2 * U::R + 16 == U::KEY && U::ENTRY + U::C == U::KEY, "an entry ends where its row does");
  const int lane = threadIdx.x % 32;
#pragma unroll 1
  for (int r = 0; r < 2; ++r, row += U::KEY) {
    if ((stored >> r & 1) == 0) continue;
    uint2 codes[ROUNDS];
#pragma unroll
    for (int i = 0; i < ROUNDS; ++i)
      if (VECS % 32 == 0 || lane + 32 * i < VECS) codes[i] = *reinterpret_cast<const uint2*>(row + U::C + 8 * (lane + 32 * i));
    const __nv_bfloat162 factor = fp8::factor(*reinterpret_cast<const float*>(row + 2 * U::W));
    __syncwarp();  // values take the place of codes
#pragma unroll
    for (int i = 0; i < ROUNDS; ++i)
      if (VECS % 32 == 0 || lane + 32 * i < VECS)
        store8(reinterpret_cast<__nv_bfloat16*>(row), lane + 32 * i, fp8::decode8(codes[i], factor));
  }
}

}  // namespace mla
}  // namespace kd
