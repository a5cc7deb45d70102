// The K best of a row. A CTA finds those of one CHUNK; the last CTA of a row to arrive merges what all of them found.
#pragma once

#include "kd/arrive.cuh"
#include "kd/select.cuh"
#include "ptx/memory.cuh"
#include "ptx/pdl.cuh"

namespace kd {
namespace topk {

// The largest of a warp in the order-preserving form, as a logit; -inf if there is none.
__device__ __forceinline__ float warp_max(uint32_t high) {
  const uint32_t most = __reduce_max_sync(0xffffffffu, high);
  return most == 0 ? -INFINITY : logit_of(most);
}

__device__ __forceinline__ float warp_sum(float value) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) value += __shfl_xor_sync(0xffffffffu, value, step);
  return value;
}

// `sum` relative to the larger maximum `most`; nothing where there is no finite maximum.
__device__ __forceinline__ float rescaled(float sum, float own, float most) {
  return own > -INFINITY && most < INFINITY ? sum * expf(own - most) : 0.0f;
}

// One warp's part of a chunk, in the order-preserving form: its maximum, its sum, and whether it has a NaN or a +inf.
template <class U, class S>
__device__ __forceinline__ void weigh(const uint32_t (&high)[U::SCANNED], bool bad) {
  uint32_t lead = 0;
  float sum = 0.0f;
#pragma unroll
  for (int i = 0; i < U::SCANNED; ++i) lead = ::max(lead, high[i]);
  const float most = warp_max(lead);
#pragma unroll
  for (int i = 0; i < U::SCANNED; ++i) sum += high[i] != 0 ? expf(logit_of(high[i]) - most) : 0.0f;
  sum = warp_sum(most < INFINITY ? sum : 0.0f);
  bad = __any_sync(0xffffffffu, bad);
  if (threadIdx.x % 32 != 0) return;
  S::most()[threadIdx.x / 32] = most;
  S::sum()[threadIdx.x / 32] = sum;
  S::bad()[threadIdx.x / 32] = bad;
}

// The parts of all warps, in order, into `sums`: maximum, sum and whether there is a NaN or a +inf. By one thread.
template <class U, class S>
__device__ __forceinline__ void join_warps(float* sums) {
  float most = S::most()[0], sum = 0.0f;
  bool bad = false;
#pragma unroll
  for (int i = 1; i < U::WARPS; ++i) most = fmaxf(most, S::most()[i]);
#pragma unroll
  for (int i = 0; i < U::WARPS; ++i) {
    bad |= S::bad()[i] != 0;
    sum += rescaled(S::sum()[i], S::most()[i], most);
  }
  *reinterpret_cast<float4*>(sums) = make_float4(most, sum, bad ? 1.0f : 0.0f, 0.0f);
}

// The sums of all chunks, by one warp.
template <class U>
__device__ __forceinline__ void join_chunks(const float* sums, float* stats, int32_t* finite) {
  constexpr int OWN = (U::CHUNKS + 31) / 32;
  float most[OWN], sum[OWN], top = -INFINITY, total = 0.0f;
  bool bad = false;
#pragma unroll
  for (int i = 0; i < OWN; ++i) {
    const int chunk = threadIdx.x % 32 + 32 * i;
    uint4 v = make_uint4(0xff800000u, 0, 0, 0);  // -inf
    if (chunk < U::CHUNKS) v = ptx::load16(sums + 4 * chunk);
    most[i] = __uint_as_float(v.x);
    sum[i] = __uint_as_float(v.y);
    bad |= v.z != 0;
    top = fmaxf(top, most[i]);
  }
  top = warp_max(ordered(top));
#pragma unroll
  for (int i = 0; i < OWN; ++i) total += rescaled(sum[i], most[i], top);
  total = warp_sum(total);
  bad = __any_sync(0xffffffffu, bad);
  if (threadIdx.x % 32 != 0) return;
  stats[0] = top;
  stats[1] = total;
  *finite = !bad && top > -INFINITY;
}

}  // namespace topk

template <class U, class S>
__device__ __forceinline__ void top_k(const float* logits, int32_t rank, uint64_t* keys, float* sums, int32_t* arrived,
                                      int32_t* tokens, float* values, float* stats, int32_t* finite, int M) {
  const int64_t row = blockIdx.x;
  const int chunk = blockIdx.y, first = chunk * U::CHUNK + 4 * int(threadIdx.x);
  ptx::grid_dependency_wait();
  uint32_t high[U::SCANNED];
  bool bad = false;
#pragma unroll
  for (int i = 0; i < U::SCANNED; i += 4) {
    const int at = first + i * U::THREADS;
    uint4 v = make_uint4(0xff800000u, 0xff800000u, 0xff800000u, 0xff800000u);  // -inf
    if (at < U::V) v = ptx::load16(logits + row * U::V + at);
    const uint32_t word[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      bad |= !(__uint_as_float(word[j]) < INFINITY);
      high[i + j] = ordered(__uint_as_float(word[j]));
    }
  }
  ptx::grid_dependency_launch();
  topk::weigh<U, S>(high, bad);
  uint64_t* row_keys = keys + row * U::CHUNKS * U::K;
  float* row_sums = sums + row * U::CHUNKS * 4;
  select<U, S, U::SCANNED>(
      [&](int i) { return high[i]; },
      [&](int i) { return entry_of(high[i], uint32_t(first + i / 4 * 4 * U::THREADS + i % 4)); },
      [&](int place, uint64_t entry) { row_keys[chunk * U::K + place] = entry; });
  if (threadIdx.x == 0) topk::join_warps<U, S>(row_sums + 4 * chunk);
  if (!arrive_last(arrived + row, U::CHUNKS, S::count() + 1)) return;

  // Best places first and spread over the warps, so that each has its share of the best.
  uint64_t found[U::MERGED];
#pragma unroll
  for (int i = 0; i < U::MERGED; ++i) {
    const int at = i * U::THREADS + threadIdx.x % 32 * U::WARPS + threadIdx.x / 32;
    found[i] = at < U::CHUNKS * U::K ? ptx::load8u(row_keys + at % U::CHUNKS * U::K + at / U::CHUNKS) : 0;
  }
  if (threadIdx.x >= U::THREADS - 32) topk::join_chunks<U>(row_sums, stats + row * 2, finite + row);
  select<U, S, U::MERGED>([&](int i) { return uint32_t(found[i] >> 32); }, [&](int i) { return found[i]; },
                          [&](int place, uint64_t entry) {
                            tokens[row * U::K + place] = entry == 0 ? -1 : rank * U::V + int32_t(~uint32_t(entry));
                            values[row * U::K + place] = entry == 0 ? -INFINITY : logit_of(uint32_t(entry >> 32));
                          });
}

}  // namespace kd
