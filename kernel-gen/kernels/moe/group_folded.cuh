// From the experts of each row to the rows of each expert; and the rows as f16 under a power of two of their own.
#pragma once

#include "moe/folded.cuh"
#include "moe/group.cuh"

namespace kd {
namespace moe {

// Joins `value` over the EACH threads of a row, the same in all of them whatever else the CTA does. `partial` has one place a warp.
template <class U, class Join>
__device__ __forceinline__ float join_row(float value, float* partial, Join join) {
  constexpr int WARPS = U::EACH / 32;
  const int warp = threadIdx.x / 32, first = warp / WARPS * WARPS;
#pragma unroll
  for (int step = 16; step > 0; step /= 2) value = join(value, __shfl_xor_sync(0xffffffffu, value, step));
  __syncthreads();  // what was joined before may still be read
  if (threadIdx.x % 32 == 0) partial[warp] = value;
  __syncthreads();
  value = partial[first];
#pragma unroll
  for (int i = 1; i < WARPS; ++i) value = join(value, partial[first + i]);
  return value;
}

// THREADS / EACH rows from `first` on.
template <class U, class S>
__device__ __forceinline__ void fold_rows(const __nv_bfloat16* x, bool turned, __half* folded, int32_t* lifts, int32_t* norms, int first,
                                          int M) {
  constexpr int VECS = U::VECS;
  const int row = first + int(threadIdx.x) / U::EACH, thread = threadIdx.x % U::EACH;
  Bf16x8 from[VECS] = {};
#pragma unroll
  for (int i = 0; i < VECS; ++i)
    if (row < M && thread + i * U::EACH < U::H / 8) from[i] = load8(x, int64_t(row) * (U::H / 8) + thread + i * U::EACH);
  uint32_t largest = 0;
#pragma unroll
  for (int i = 0; i < VECS; ++i)
#pragma unroll
    for (int k = 0; k < 4; ++k)
      largest = ::max(largest, ::max(from[i].word[k] & 0x7fffu, from[i].word[k] >> 16 & 0x7fffu));
  // Patterns of numbers are in the order of their size, and exact as f32.
  largest = uint32_t(join_row<U>(float(largest), S::partial(), [](float a, float b) { return fmaxf(a, b); }));
  const bool finite = largest < 0x7f80u;
  // The exponent of the largest is its field less 127, -126 if it is subnormal; a lift of 126 is enough for any such value.
  const int lift = largest == 0 || !finite ? 0 : ::min(14 + 127 - ::max(int(largest >> 7), 1), 126);
  const float factor = power_of_two(lift + 127);
  float squares = 0;
#pragma unroll
  for (int i = 0; i < VECS; ++i) {
    float value[8];
    widen8(from[i], value);
#pragma unroll
    for (int k = 0; k < 8; ++k) value[k] *= factor, squares = fmaf(value[k], value[k], squares);
    Bf16x8 own;
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const __half2 pair = __floats2half2_rn(value[2 * k], value[2 * k + 1]);
      own.word[k] = finite ? reinterpret_cast<const uint32_t&>(pair) : 0x7fff7fffu;
    }
    if (turned) own = turn(own);
    if (row < M && thread + i * U::EACH < U::H / 8)
      reinterpret_cast<uint4*>(folded)[int64_t(row) * (U::H / 8) + thread + i * U::EACH] =
          make_uint4(own.word[0], own.word[1], own.word[2], own.word[3]);
  }
  // A little more than rounding can have taken off, then the exponent of the next power of two.
  squares = join_row<U>(squares, S::partial(), [](float a, float b) { return a + b; }) * (1 + 0x1p-12f);
  const int norm = largest == 0 || !finite ? 0 : int(__float_as_uint(squares) >> 23) - 126 - 2 * lift;
  if (row < M && thread == 0) lifts[row] = lift, norms[row] = norm;
}

}  // namespace moe

template <class U, class S>
__device__ __forceinline__ void moe_group_folded(const __nv_bfloat16* x, const int32_t* ids, int32_t first_expert, int32_t slab,
                                                 int32_t turned, int32_t* plan, int32_t* slabs, int32_t* rows, int32_t* places,
                                                 __half* folded, int32_t* lifts, int32_t* norms, int M, int L) {
  ptx::grid_dependency_wait();
  ptx::grid_dependency_launch();
  const int list = int(blockIdx.x);
  if (list < U::LISTS)
    moe::list_rows<U, S>(ids, first_expert, slab, plan, slabs, rows, places, list, M);
  else
    moe::fold_rows<U, S>(x, turned != 0, folded, lifts, norms, (list - U::LISTS) * (U::THREADS / U::EACH), M);
}

}  // namespace kd
