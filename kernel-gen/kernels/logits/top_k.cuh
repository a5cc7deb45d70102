// The K best of a row. A CTA finds those of one CHUNK; the last CTA of a row to arrive merges what all of them found.
//
// An entry is one integer, (logit in an order-preserving form, complement of the token), so entries differ and compare as
// the result is ordered. To select: the K-th best of the threads' own maxima is a floor that K entries reach, and only
// entries of the K threads above it can: they are pooled, and each finds its rank by counting. No step depends on the
// order in which threads arrive.
#pragma once

#include "kd/arrive.cuh"
#include "kd/reduce.cuh"
#include "ptx/memory.cuh"
#include "ptx/pdl.cuh"

namespace kd {
namespace topk {

// 0 for what is no token: NaN and -inf.
__device__ __forceinline__ uint64_t entry(float logit, uint32_t token) {
  if (!(logit > -INFINITY)) return 0;
  const uint32_t bits = __float_as_uint(logit + 0.0f);  // -0 becomes +0
  const uint32_t ordered = bits & 0x80000000u ? ~bits : bits | 0x80000000u;
  return uint64_t(ordered) << 32 | uint32_t(~token);
}

__device__ __forceinline__ float logit_of(uint64_t entry) {
  const uint32_t ordered = uint32_t(entry >> 32);
  return __uint_as_float(ordered & 0x80000000u ? ordered ^ 0x80000000u : ~ordered);
}

// The K best of all threads' entries into S::best(), best first; 0 where there are fewer. Called by the whole CTA.
template <class U, class S, int COUNT>
__device__ __forceinline__ void select(const uint64_t (&own)[COUNT]) {
  uint64_t* lead = S::lead();
  uint64_t top = 0;
#pragma unroll
  for (int i = 0; i < COUNT; ++i) top = own[i] > top ? own[i] : top;
  lead[threadIdx.x] = top;
  if (threadIdx.x < U::K) S::best()[threadIdx.x] = 0;
  if (threadIdx.x == 0) {
    S::count()[0] = 0;
    S::floor()[0] = 0;  // stays so if fewer than K threads have an entry
  }
  __syncthreads();
  int rank = 0;
#pragma unroll 16
  for (int i = 0; i < U::THREADS; i += 2) {
    const ulonglong2 two = *reinterpret_cast<const ulonglong2*>(lead + i);
    rank += int(two.x > top) + int(two.y > top);
  }
  // Entries differ, so only threads without one can share a rank.
  if (rank == U::K - 1 && top != 0) S::floor()[0] = top;
  __syncthreads();
  const uint64_t floor = S::floor()[0] > 1 ? S::floor()[0] : 1;
#pragma unroll
  for (int i = 0; i < COUNT; ++i)
    if (own[i] >= floor) S::pool()[atomicAdd(S::count(), 1)] = own[i];
  __syncthreads();
  const int pooled = S::count()[0];
  for (int i = threadIdx.x; i < pooled; i += U::THREADS) {
    const uint64_t mine = S::pool()[i];
    int better = 0;
    for (int j = 0; j < pooled; ++j) better += S::pool()[j] > mine;
    if (better < U::K) S::best()[better] = mine;
  }
  __syncthreads();
}

// One CTA's chunk: its entries, and into `sums` its maximum, its sum and whether it has a NaN or a +inf.
template <class U, class S>
__device__ __forceinline__ void scan(const float* row, int chunk, uint64_t (&own)[U::SCANNED], float* sums) {
  float x[U::SCANNED];
  float most = -INFINITY;
  bool bad = false;
#pragma unroll
  for (int i = 0; i < U::SCANNED; i += 4) {
    const int at = chunk * U::CHUNK + i * U::THREADS + 4 * int(threadIdx.x);
    uint4 v = make_uint4(0xff800000u, 0xff800000u, 0xff800000u, 0xff800000u);  // -inf
    if (at < U::V) v = ptx::load16(row + at);
    const uint32_t word[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      x[i + j] = __uint_as_float(word[j]);
      bad |= !(x[i + j] < INFINITY);
      most = fmaxf(most, x[i + j]);  // drops a NaN, which `bad` keeps
      own[i + j] = entry(x[i + j], uint32_t(at + j));
    }
  }
  most = block_max<U::THREADS>(most, S::partial());
  float sum = 0.0f;
#pragma unroll
  for (int i = 0; i < U::SCANNED; ++i)
    if (x[i] > -INFINITY && most < INFINITY) sum += expf(x[i] - most);
  sum = block_sum<U::THREADS>(sum, S::partial());
  bad = __syncthreads_or(bad);
  if (threadIdx.x == 0) {
    sums[0] = most;
    sums[1] = sum;
    sums[2] = bad ? 1.0f : 0.0f;
  }
}

// One thread a chunk; by the whole CTA.
template <class U, class S>
__device__ __forceinline__ void merge_sums(const float* sums, float* stats, int32_t* finite) {
  float own = -INFINITY, sum = 0.0f;
  bool bad = false;
  if (threadIdx.x < U::CHUNKS) {
    const uint4 v = ptx::load16(sums + 4 * threadIdx.x);
    own = __uint_as_float(v.x);
    sum = __uint_as_float(v.y);
    bad = __uint_as_float(v.z) != 0.0f;
  }
  const float most = block_max<U::THREADS>(own, S::partial());
  const bool counts = own > -INFINITY && most < INFINITY;
  sum = block_sum<U::THREADS>(counts ? sum * expf(own - most) : 0.0f, S::partial());
  bad = __syncthreads_or(bad);
  if (threadIdx.x != 0) return;
  stats[0] = most;
  stats[1] = sum;
  *finite = !bad && most > -INFINITY;
}

}  // namespace topk

template <class U, class S>
__device__ __forceinline__ void top_k(const float* logits, int32_t rank, uint64_t* keys, float* sums, int32_t* arrived,
                                      int32_t* tokens, float* values, float* stats, int32_t* finite, int M) {
  const int64_t row = blockIdx.x;
  const int chunk = blockIdx.y;
  ptx::grid_dependency_wait();
  uint64_t own[U::SCANNED];
  topk::scan<U, S>(logits + row * U::V, chunk, own, sums + (row * U::CHUNKS + chunk) * 4);
  topk::select<U, S>(own);
  uint64_t* row_keys = keys + row * U::CHUNKS * U::K;
  if (threadIdx.x < U::K) row_keys[chunk * U::K + threadIdx.x] = S::best()[threadIdx.x];
  if (!arrive_last(arrived + row, U::CHUNKS, S::count() + 1)) return;

  uint64_t found[U::MERGED];
#pragma unroll
  for (int i = 0; i < U::MERGED; ++i) {
    const int at = i * U::THREADS + threadIdx.x;
    found[i] = at < U::CHUNKS * U::K ? ptx::load8u(row_keys + at) : 0;
  }
  topk::select<U, S>(found);
  if (threadIdx.x < U::K) {
    const uint64_t entry = S::best()[threadIdx.x];
    tokens[row * U::K + threadIdx.x] = entry == 0 ? -1 : rank * U::V + int32_t(~uint32_t(entry));
    values[row * U::K + threadIdx.x] = entry == 0 ? -INFINITY : topk::logit_of(entry);
  }
  topk::merge_sums<U, S>(sums + row * U::CHUNKS * 4, stats + row * 2, finite + row);
}

}  // namespace kd
