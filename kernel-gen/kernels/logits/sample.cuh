// Gumbel-max sampling. A CTA draws from one CHUNK of a row; the last CTA of the row to arrive compares the chunks.
//
// Scores are f64 by specification, but most entries cannot win, and are passed over in two steps: those too far below the
// chunk's largest logit for any noise, and those whose noise is too small by its leading bit. The few that are left are
// listed, so that the threads share them. That changes the time of a draw and never its result.
#pragma once

#include "kd/arrive.cuh"
#include "kd/philox.cuh"
#include "kd/reduce.cuh"
#include "kd/select.cuh"
#include "ptx/memory.cuh"
#include "ptx/pdl.cuh"

namespace kd {
namespace draw {

// Noise lies in -2.86 .. 17.33 (u from 2^-25 to 1 - 2^-25), so no entry further than this below the largest can win.
constexpr float RANGE = 20.5f;
// Error of an f32 sum of a scaled difference above -RANGE and a noise: at most four roundings of at most 38.
constexpr float SLACK = 2e-5f;

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

// A row's temperature, in the forms that the steps use.
struct Heat {
  double value;
  float inverse, reach;  // 1 / value, and RANGE * value rounded up
  bool greedy, extreme;

  __device__ __forceinline__ explicit Heat(double t)
      : value(t),
        inverse(float(1.0 / t)),
        reach(t == 0.0 ? 0.0f : __fmul_ru(RANGE, __double2float_ru(t))),
        greedy(t == 0.0),
        extreme(!(t > 1e-30 && t < 1e30)) {}

  // (logit - most) / temperature, for a logit no further than `reach` below `most`.
  __device__ __forceinline__ float scaled(float logit, float most) const {
    if (greedy || logit == most) return 0.0f;
    return extreme ? float((double(logit) - double(most)) / value) : (logit - most) * inverse;
  }

  __device__ __forceinline__ double exact(float logit, uint32_t word) const {
    return greedy ? double(logit) : double(logit) / value + gumbel(word);
  }
};

// The column of entry `i` of this thread.
template <class U>
__device__ __forceinline__ int place(int chunk, int i) {
  return chunk * U::CHUNK + i / 4 * 4 * U::THREADS + 4 * int(threadIdx.x) + i % 4;
}

}  // namespace draw

template <class U, class S>
__device__ __forceinline__ void sample(const float* logits, int32_t rank, const double* temperature,
                                       const uint64_t* seed, const uint64_t* position, const uint32_t* choice,
                                       const uint64_t* cut, double* found, int32_t* arrived, int32_t* tokens,
                                       double* value, int M) {
  const int64_t row = blockIdx.x;
  const int chunk = blockIdx.y;
  ptx::grid_dependency_wait();
  const float* own = logits + row * U::V;
  const int32_t first = rank * U::V;  // a multiple of 4, as V is
  const uint64_t least = ptx::load8u(cut + row);
  float x[U::SCANNED], most = -INFINITY;
  bool bad = false;
#pragma unroll
  for (int i = 0; i < U::SCANNED; i += 4) {
    const int at = draw::place<U>(chunk, i);
    uint4 v = make_uint4(0xff800000u, 0xff800000u, 0xff800000u, 0xff800000u);  // -inf
    if (at < U::V) v = ptx::load16(own + at);
    const uint32_t word[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const float logit = __uint_as_float(word[j]);
      bad |= !(logit < INFINITY);
      x[i + j] = least == 0 || entry_of(ordered(logit), uint32_t(first + at + j)) >= least ? logit : -INFINITY;
      most = fmaxf(most, x[i + j]);  // drops a NaN, which `bad` keeps
    }
  }
  const draw::Heat heat(__longlong_as_double(ptx::load8u(reinterpret_cast<const uint64_t*>(temperature) + row)));
  const Noise noise(ptx::load8u(seed + row), uint32_t(ptx::load4(reinterpret_cast<const int32_t*>(choice) + row)),
                    ptx::load8u(position + row));
  ptx::grid_dependency_launch();

  // Bit i: entry i of this thread may win.
  static_assert(U::SCANNED <= 32, "one bit an entry");
  uint32_t possible = 0;
  if (threadIdx.x == 0) S::count()[0] = 0;
  most = block_max<U::THREADS>(most, S::partial());
  const float floor = __fsub_rd(most, heat.reach);
  float upper[U::SCANNED] = {}, reach = -INFINITY;
#pragma unroll
  for (int i = 0; i < U::SCANNED; i += 4) {
    uint32_t near = 0;
#pragma unroll
    for (int j = 0; j < 4; ++j) near |= uint32_t(x[i + j] >= floor && x[i + j] > -INFINITY) << j;
    if (near == 0) continue;
    uint32_t word[4] = {};
    if (!heat.greedy) noise.four(uint32_t(first + draw::place<U>(chunk, i)), word);
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const Span span = heat.greedy ? Span{} : gumbel_span(word[j]);
      const float scaled = heat.scaled(x[i + j], most);
      upper[i + j] = scaled + span.most;
      if (near >> j & 1) reach = fmaxf(reach, scaled + span.least - draw::SLACK);
    }
    possible |= near << i;
  }
  reach = block_max<U::THREADS>(reach, S::partial());
#pragma unroll
  for (int i = 0; i < U::SCANNED; ++i)
    if (upper[i] + draw::SLACK < reach) possible &= ~(1u << i);

  for (; possible != 0; possible &= possible - 1)
    S::near()[atomicAdd(S::count(), 1)] = uint16_t(draw::place<U>(0, __ffs(possible) - 1));
  __syncthreads();
  draw::Leader leader;
  for (int i = threadIdx.x; i < S::count()[0]; i += U::THREADS) {
    const int at = chunk * U::CHUNK + S::near()[i];
    uint32_t word[4] = {};
    if (!heat.greedy) noise.four(uint32_t(first + at) & ~3u, word);
    const uint32_t mine = at % 4 == 0 ? word[0] : at % 4 == 1 ? word[1] : at % 4 == 2 ? word[2] : word[3];
    leader.offer(heat.exact(ptx::load4f(own + at), mine), at);
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
  if (!arrive_last(arrived + row, U::CHUNKS, S::count() + 1) || threadIdx.x >= 32) return;

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
