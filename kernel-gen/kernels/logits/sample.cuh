// Gumbel-max sampling. A CTA draws from one CHUNK of a row; the last CTA of the row to arrive compares the chunks.
//
// Scores are f64 by specification, but most entries cannot win: each is first scored in f32 with a bound on its error, and
// only those that could reach the best lower bound of the chunk are scored again in f64. That changes the time of a draw
// and never its result.
#pragma once

#include "kd/arrive.cuh"
#include "kd/philox.cuh"
#include "kd/reduce.cuh"
#include "ptx/memory.cuh"
#include "ptx/pdl.cuh"

namespace kd {
namespace draw {

struct Leader {
  double value = -INFINITY;
  int32_t id = -1;

  __device__ __forceinline__ void offer(double other, int32_t other_id) {
    if (other > value || (other == value && (id < 0 || (other_id >= 0 && other_id < id)))) {
      value = other;
      id = other_id;
    }
  }

  // The best of the warp, in every lane.
  __device__ __forceinline__ void join_warp() {
#pragma unroll
    for (int step = 16; step > 0; step /= 2)
      offer(__shfl_xor_sync(0xffffffffu, value, step), __shfl_xor_sync(0xffffffffu, id, step));
  }
};

// An f32 score and how far it may be from the f64 one.
struct Estimate {
  float score, error;
};

// logf is within 1 ulp and log1pf within 2 (CUDA C++ Programming Guide, mathematical functions): a relative error under
// 2^-21 of -ln u, which is an absolute one of its logarithm; the sum adds rounding of its terms, each below 2^-23 of them.
__device__ __forceinline__ Estimate estimate(float logit, float inverse, bool greedy, uint32_t word) {
  if (greedy) return {logit, 0.0f};
  const float scaled = logit * inverse, noise = gumbel_f32(word);
  return {scaled + noise, 1e-6f + (fabsf(scaled) + fabsf(noise)) * 6e-7f};
}

__device__ __forceinline__ double exact(float logit, double temperature, uint32_t word) {
  return temperature == 0.0 ? double(logit) : double(logit) / temperature + gumbel(word);
}

// The column of entry `i` of this thread.
template <class U>
__device__ __forceinline__ int place(int chunk, int i) {
  return chunk * U::CHUNK + i / 4 * 4 * U::THREADS + 4 * int(threadIdx.x) + i % 4;
}

}  // namespace draw

template <class U, class S>
__device__ __forceinline__ void sample(const float* logits, int32_t rank, const double* temperature,
                                       const uint64_t* seed, const uint64_t* position, const uint32_t* choice,
                                       double* found, int32_t* arrived, int32_t* tokens, double* value, int M) {
  const int64_t row = blockIdx.x;
  const int chunk = blockIdx.y;
  ptx::grid_dependency_wait();
  const float* own = logits + row * U::V;
  const int32_t first = rank * U::V;  // a multiple of 4, as V is
  const double t = __longlong_as_double(ptx::load8u(reinterpret_cast<const uint64_t*>(temperature) + row));
  const bool greedy = t == 0.0;
  const float inverse = greedy ? 0.0f : float(1.0 / t);
  const Noise noise(ptx::load8u(seed + row), uint32_t(ptx::load4(reinterpret_cast<const int32_t*>(choice) + row)),
                    ptx::load8u(position + row));

  // Bit i: entry i of this thread may win. Estimates of all entries stay in registers; the few that may win are read again.
  static_assert(U::SCANNED <= 32, "one bit an entry");
  draw::Estimate near[U::SCANNED];
  uint32_t possible = 0;
  float reach = -INFINITY;
  bool bad = false;
#pragma unroll
  for (int i = 0; i < U::SCANNED; i += 4) {
    const int at = draw::place<U>(chunk, i);
    uint4 v = make_uint4(0xff800000u, 0xff800000u, 0xff800000u, 0xff800000u);  // -inf
    if (at < U::V) v = ptx::load16(own + at);
    const float x[4] = {__uint_as_float(v.x), __uint_as_float(v.y), __uint_as_float(v.z), __uint_as_float(v.w)};
    uint32_t word[4] = {};
    if (!greedy) noise.four(uint32_t(first + at), word);
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      bad |= !(x[j] < INFINITY);
      near[i + j] = draw::estimate(x[j], inverse, greedy, word[j]);
      if (!(x[j] > -INFINITY)) continue;
      possible |= 1u << (i + j);
      // A bound that is no number (a temperature near 0 overflows f32) does not count; the entry is then scored in f64.
      reach = fmaxf(reach, near[i + j].score - near[i + j].error);
    }
  }
  reach = block_max<U::THREADS>(reach, S::partial());
#pragma unroll
  for (int i = 0; i < U::SCANNED; ++i)
    if (near[i].score + near[i].error < reach) possible &= ~(1u << i);
  draw::Leader leader;
  for (; possible != 0; possible &= possible - 1) {
    const int at = draw::place<U>(chunk, __ffs(possible) - 1);
    uint32_t word[4] = {};
    if (!greedy) noise.four(uint32_t(first + at) & ~3u, word);
    const int lane = at & 3;
    const uint32_t mine = lane == 0 ? word[0] : lane == 1 ? word[1] : lane == 2 ? word[2] : word[3];
    leader.offer(draw::exact(ptx::load4f(own + at), t, mine), at);
  }
  leader.join_warp();
  if (threadIdx.x % 32 == 0) {
    S::score()[threadIdx.x / 32] = leader.value;
    S::id()[threadIdx.x / 32] = leader.id;
  }
  bad = __syncthreads_or(bad);
  double* row_found = found + row * U::CHUNKS * 2;
  if (threadIdx.x == 0) {
    for (int warp = 1; warp < U::THREADS / 32; ++warp) leader.offer(S::score()[warp], S::id()[warp]);
    row_found[2 * chunk] = leader.value;
    row_found[2 * chunk + 1] = bad ? -2.0 : leader.id;
  }
  if (!arrive_last(arrived + row, U::CHUNKS, S::flag()) || threadIdx.x >= 32) return;

  draw::Leader winner;
  bool any_bad = false;
#pragma unroll 4
  for (int c = threadIdx.x; c < U::CHUNKS; c += 32) {
    const uint4 v = ptx::load16(row_found + 2 * c);
    const int32_t id = int32_t(__hiloint2double(int(v.w), int(v.z)));
    any_bad |= id == -2;
    winner.offer(__hiloint2double(int(v.y), int(v.x)), id);
  }
  winner.join_warp();
  bad = __any_sync(0xffffffffu, any_bad);
  if (threadIdx.x != 0) return;
  const bool refused = bad || winner.id < 0;
  tokens[row] = refused ? -1 : first + winner.id;
  value[row] = refused ? __longlong_as_double(0x7ff8000000000000ll) : winner.value;
}

}  // namespace kd
