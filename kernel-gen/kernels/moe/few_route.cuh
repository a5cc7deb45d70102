// One row: residual add, norm, router and shared expert, so that nothing runs beside the routed experts, which take all of the device.
//
// A cluster has 16 rows of weights, of the router or eight of the gate and the same eight of up, each of its CTAs a segment
// of K as `dense` has them.
// Weights are in shared memory before the kernel in front has ended; then the CTAs of a cluster make the normed row together. Sums are
// pushed to the first of them: scores, of which the last cluster of the router chooses, or activated columns. The CTAs of the router
// then have nothing to do but the second product of the shared expert, for which they wait until all columns are there. There are
// fewer of them than the device holds CTAs, so those that they wait for find room.
#pragma once

#include "kd/mma.cuh"
#include "mlp/silu_mul.cuh"
#include "moe/top_experts.cuh"
#include "ptx/bulk.cuh"
#include "ptx/cluster.cuh"
#include "ptx/ldmatrix.cuh"
#include "ptx/memory.cuh"
#include "ptx/pdl.cuh"
#include "ptx/prefetch.cuh"
#include "ptx/push.cuh"

namespace kd {
namespace few_route_parts {

// The row for a cluster: a warp does what one of the NORM_WARPS warps of `add_rms_norm` does, in the same order, and each vector of the
// sum goes to the CTA whose segment it lies in, which then norms it: so the row is read once a cluster.
template <class U, class S>
struct Row {
  static constexpr int OWN = U::LENGTH / 8, THREADS = 32 * U::WARPS, EACH = (OWN + THREADS - 1) / THREADS;
  static_assert(U::SEGS * U::WARPS >= U::NORM_WARPS && 2 * U::NORM_WARPS <= S::SPACE_COUNT, "a warp for each, and room for their sums");

  int rank = blockIdx.x, warp = rank + int(threadIdx.x) / 32 * U::SEGS;
  Bf16x8 gain[EACH] = {};

  // Before the wait for the kernel in front: the gain is a weight.
  __device__ __forceinline__ void load_gain(const __nv_bfloat16* from) {
#pragma unroll
    for (int i = 0; i < EACH; ++i)
      if (int(threadIdx.x) + i * THREADS < OWN) gain[i] = load8_constant(from, rank * OWN + threadIdx.x + i * THREADS);
  }

  // This warp's part of `h` plus its R parts, `stride` vectors apart, rounded: to the CTAs that it belongs to; its sum of squares to
  // all of them.
  __device__ __forceinline__ void deal(const __nv_bfloat16* h, const __nv_bfloat16* parts, int64_t stride, int R) const {
    const auto at = [&](int i) { return 32 * (warp + i * U::NORM_WARPS) + int(threadIdx.x % 32); };
    const auto holds = [&](int i) { return warp < U::NORM_WARPS && at(i) < U::H / 8; };
    Bf16x8 vec[2] = {}, part[2] = {};
    float sum[2][8];
#pragma unroll
    for (int i = 0; i < 2; ++i)
      if (holds(i)) vec[i] = load8(h, at(i)), part[i] = load8(parts, at(i));
#pragma unroll
    for (int i = 0; i < 2; ++i) widen8(part[i], sum[i]);
#pragma unroll 1
    for (int64_t other = 1; other < R; ++other)
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        float term[8];
        if (holds(i)) widen8(load8(parts, other * stride + at(i)), term);
#pragma unroll
        for (int j = 0; j < 8; ++j) sum[i][j] += holds(i) ? term[j] : 0.0f;
      }
    float squares = 0.0f;
    ptx::cluster_wait();  // all have started
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      float v[8];
      widen8(vec[i], v);
#pragma unroll
      for (int j = 0; j < 8; ++j) v[j] += sum[i][j];
      vec[i] = narrow8(v);
      widen8(vec[i], v);
#pragma unroll
      for (int j = 0; j < 8; ++j) squares = fmaf(v[j], v[j], squares);
      if (holds(i))
        ptx::store_cluster16(S::x() + at(i) % OWN * 16, at(i) / OWN,
                             make_uint4(vec[i].word[0], vec[i].word[1], vec[i].word[2], vec[i].word[3]));
    }
#pragma unroll
    for (int step = 16; step > 0; step /= 2) squares += __shfl_xor_sync(0xffffffffu, squares, step);
    if (warp < U::NORM_WARPS && threadIdx.x % 32 < U::SEGS)
      ptx::store_cluster8(S::space() + 2 * warp, threadIdx.x % 32, make_uint2(__float_as_uint(squares), 0));
  }

  // Once all have dealt: norms this CTA's segment in place; `store(vector, sum, normed)` for each of its vectors.
  template <class Store>
  __device__ __forceinline__ void normalise(float eps, Store store) const {
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < U::NORM_WARPS; ++i) sum += S::space()[2 * i];
    const float scale = 1.0f / sqrtf(sum * (1.0f / U::H) + eps);
#pragma unroll
    for (int i = 0; i < EACH; ++i) {
      const int own = threadIdx.x + i * THREADS;
      if (own >= OWN) continue;
      uint4* place = reinterpret_cast<uint4*>(S::x()) + own;
      const Bf16x8 vec = from_words(*place);
      float v[8], g[8];
      widen8(vec, v);
      widen8(gain[i], g);
#pragma unroll
      for (int j = 0; j < 8; ++j) v[j] = v[j] * scale * g[j];
      const Bf16x8 normed = narrow8(v);
      *place = make_uint4(normed.word[0], normed.word[1], normed.word[2], normed.word[3]);
      store(rank * OWN + own, vec, normed);
    }
  }
};

// What column 0 of a warp's sums holds: rows g and g + 8, in the lanes 4 g.
__device__ __forceinline__ uint2 pair_of(const float (&sum)[4]) { return {__float_as_uint(sum[0]), __float_as_uint(sum[2])}; }

// Segments of `router`, EACH by each of the warps, then those of a pair added: to the first CTA.
template <class U, class S>
__device__ __forceinline__ void score(int rank) {
  constexpr int SEGMENTS = 16 / U::SEGS, EACH = SEGMENTS / U::WARPS;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  // Four of each 16 values of k, as mma_k32 has them.
  const auto fours = [](const unsigned char* at) {
    const uint2 first = *reinterpret_cast<const uint2*>(at), second = *reinterpret_cast<const uint2*>(at + 32);
    return from_words(make_uint4(first.x, first.y, second.x, second.y));
  };
  float2* odd = reinterpret_cast<float2*>(S::odd());
  float sum[EACH][4] = {};
#pragma unroll
  for (int i = 0; i < EACH; ++i) {
    const int begin = (warp + i * U::WARPS) * U::SEG;
#pragma unroll
    for (int step = 0; step < U::SEG / 32; ++step) {
      if (begin + 32 * step >= U::LENGTH) continue;  // the last segments of a short row have nothing
      const unsigned char* low = S::tile() + g * U::ROUTER_PITCH + 2 * begin + 64 * step + 8 * t;
      Bf16x8 x = {};
      if (g == 0) x = fours(S::x() + 2 * begin + 64 * step + 8 * t);
      mma_k32(sum[i], fours(low), fours(low + 8 * U::ROUTER_PITCH), x);
    }
    if (warp % 2 == 1 && t == 0) odd[(warp + i * U::WARPS) / 2 * 8 + g] = make_float2(sum[i][0], sum[i][2]);
  }
  __syncthreads();
  if (warp % 2 == 1 || t > 0) return;
#pragma unroll
  for (int i = 0; i < EACH; ++i) {
    const int pair = (warp + i * U::WARPS) / 2;
    const float2 other = odd[pair * 8 + g];
    sum[i][0] += other.x, sum[i][2] += other.y;
    ptx::store_cluster8(S::sums() + ((rank * (SEGMENTS / 2) + pair) * 8 + g) * 2, 0, pair_of(sum[i]));
  }
}

// A segment of `dense`, by one warp: to the first CTA.
template <class U, class S>
__device__ __forceinline__ void gate(int rank) {
  if (threadIdx.x >= 32) return;
  const int lane = threadIdx.x;
  const uint32_t rows = ptx::shared_address(S::tile()) + lane % 16 * U::GATE_PITCH + lane / 16 * 16;
  const bool own = lane % 8 == 0;  // other lanes give rows of tokens that do not exist
  const uint32_t x = ptx::shared_address(own ? S::x() + lane / 8 * 16 : reinterpret_cast<const unsigned char*>(S::zeros()));
  float sum[4] = {};
  // Operands of the next 32 values of k are on their way while these are multiplied.
  uint32_t a[2][2][4], b[2][4];
  const auto load = [&](int at, int k) {
    ptx::ldmatrix4(b[at], own ? x + 2 * k : x);
    ptx::ldmatrix4(a[at][0], rows + 2 * k);
    ptx::ldmatrix4(a[at][1], rows + 2 * k + 32);
  };
  load(0, 0);
#pragma unroll 4
  for (int k = 0; k < U::LENGTH; k += 32) {
    const int at = k / 32 % 2;
    if (k + 32 < U::LENGTH) load(1 - at, k + 32);
#pragma unroll
    for (int i = 0; i < 2; ++i)
      ptx::mma_16816_bf16(sum, a[at][i][0], a[at][i][1], a[at][i][2], a[at][i][3], b[at][2 * i], b[at][2 * i + 1]);
  }
  if (lane % 4 == 0) ptx::store_cluster8(S::sums() + (rank * 8 + lane / 4) * 2, 0, pair_of(sum));
}

// The second product of the shared expert: tiles `cta`, `cta` + CTAS .. of 16 rows, whose weights take the place of the router's.
template <class U, class S>
struct Down {
  static constexpr int ROWS = 16 * U::EACH, OTHERS = U::WARPS - 1, ROUNDS = (U::EACH + OTHERS - 1) / OTHERS;

  int cta = blockIdx.x + int(blockIdx.y) * U::SEGS;

  __device__ __forceinline__ int row(int i) const { return (cta + i * U::BLOCKS * U::SEGS) * 16; }
  __device__ __forceinline__ int tiles() const {
    int count = 0;
#pragma unroll
    for (int i = 0; i < U::EACH; ++i) count += row(i) < U::H;
    return count;
  }

  // By one thread, long before.
  __device__ __forceinline__ void prefetch(const __nv_bfloat16* w) const {
    for (int i = 0; i < tiles(); ++i) ptx::bulk_prefetch(w + int64_t(row(i)) * U::I, 16 * 2 * U::I);
  }

  // By one warp, once all have read the router's weights.
  __device__ __forceinline__ void fetch(const __nv_bfloat16* w) const {
    const int lane = threadIdx.x % 32, count = tiles();
    ptx::copies_after_accesses();
    if (lane == 0) ptx::barrier_arrive_expect(S::full() + 1, count * 16 * 2 * U::I);
    __syncwarp();
    for (int i = lane; i < 16 * count; i += 32)
      ptx::bulk_load(S::tile() + i * U::DOWN_PITCH, w + int64_t(row(i / 16) + i % 16) * U::I, 2 * U::I, S::full() + 1);
  }

  // By each warp but the first.
  __device__ __forceinline__ void multiply(const __nv_bfloat16* gated, int32_t* met, __nv_bfloat16* y) const {
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4, first = threadIdx.x / 32 - 1;
    ptx::barrier_wait(S::full() + 1, 0);
    if (lane == 0)
      while (ptx::load_acquire(met) < U::I / 8) {
      }
    __syncwarp();
    uint32_t b[U::I / 16][2];
#pragma unroll
    for (int k = 0; k < U::I / 16; ++k)
#pragma unroll
      for (int half = 0; half < 2; ++half)
        b[k][half] = g == 0 ? ptx::load4(reinterpret_cast<const int32_t*>(gated + 16 * k + 8 * half) + t) : 0;
    float sum[ROUNDS][4] = {};
    const uint32_t from = ptx::shared_address(S::tile()) + lane % 16 * U::DOWN_PITCH + lane / 16 * 16;
#pragma unroll
    for (int k = 0; k < U::I / 16; ++k)
#pragma unroll
      for (int round = 0; round < ROUNDS; ++round) {
        const int tile = first + round * OTHERS;
        if (tile >= U::EACH) continue;
        uint32_t a[4];
        ptx::ldmatrix4(a, from + tile * 16 * U::DOWN_PITCH + 32 * k);
        ptx::mma_16816_bf16(sum[round], a[0], a[1], a[2], a[3], b[k][0], b[k][1]);
      }
#pragma unroll
    for (int round = 0; round < ROUNDS; ++round) {
      const int tile = first + round * OTHERS;
      if (tile >= U::EACH || row(tile) >= U::H || t > 0) continue;
      y[row(tile) + g] = __float2bfloat16_rn(sum[round][0]);
      y[row(tile) + g + 8] = __float2bfloat16_rn(sum[round][2]);
    }
    // The last to leave makes both counters zero again.
    if (lane == 0 && atomicAdd(met + 1, 1) == U::BLOCKS * U::SEGS * OTHERS - 1) met[0] = 0, met[1] = 0;
  }
};

// Value `row` of 16 of the sums that PARTS pushed, added in order.
template <class S, int PARTS>
__device__ __forceinline__ float total(int row) {
  const float* from = S::sums() + row % 8 * 2 + row / 8;
  float sum = from[0];
#pragma unroll
  for (int part = 1; part < PARTS; ++part) sum += from[16 * part];
  return sum;
}

}  // namespace few_route_parts

template <class U, class S>
__device__ __forceinline__ void few_route(const __nv_bfloat16* h, const __nv_bfloat16* parts, const __nv_bfloat16* gain, float eps,
                                          const __nv_bfloat16* w, const float* bias, const int32_t* slots, int32_t groups,
                                          int32_t top_groups, int32_t normalize, float scaling, const __nv_bfloat16* gate_up,
                                          const __nv_bfloat16* down, int32_t* arrived, int32_t* met, __nv_bfloat16* sum,
                                          __nv_bfloat16* y, float* scores, int32_t* ids, float* weights, __nv_bfloat16* gated,
                                          __nv_bfloat16* shared, int M, int R) {
  using namespace few_route_parts;
  const int rank = blockIdx.x, unit = blockIdx.y, lane = threadIdx.x % 32;
  const bool routes = unit < U::BLOCKS;
  const int first = (routes ? unit * 16 : (unit - U::BLOCKS) * 8), live = routes ? ::min(16, U::E - first) : 16;
  const Down<U, S> second;
  if (threadIdx.x == 0) {
    ptx::barrier_init(S::full(), 1);
    ptx::barrier_init(S::full() + 1, 1);
    ptx::barriers_ready();
    ptx::barrier_arrive_expect(S::full(), live * 2 * U::LENGTH);
  }
  if (threadIdx.x < 4) S::zeros()[threadIdx.x] = 0;
  __syncthreads();
  ptx::cluster_arrive();  // others may write to this CTA
  ptx::grid_dependency_launch();
  if (threadIdx.x < live) {
    const int own = threadIdx.x, row = routes || own < 8 ? first + own : U::I + first + own - 8;
    ptx::bulk_load(S::tile() + own * (routes ? U::ROUTER_PITCH : U::GATE_PITCH),
                   (routes ? w : gate_up) + int64_t(row) * U::H + rank * U::LENGTH, 2 * U::LENGTH, S::full());
  }
  if (routes && threadIdx.x == 32) second.prefetch(down);
  if (routes && rank == 0)
    for (int i = 4 * threadIdx.x; i < U::E; i += 4 * 32 * U::WARPS) ptx::copy16(ptx::shared_address(S::biases() + i), bias + i);
  ptx::copy_commit();
  Row<U, S> row;
  row.load_gain(gain);
  ptx::grid_dependency_wait();
  const int slot = ptx::load4(slots);
  row.deal(h, parts, U::H / 8, R);
  ptx::copy_wait<0>();
  ptx::cluster_sync();
  row.normalise(eps, [&](int vec, const Bf16x8& residual, const Bf16x8& normed) {
    if (unit > 0) return;
    store8(sum, vec, residual);
    store8(y, vec, normed);
  });
  __syncthreads();
  ptx::barrier_wait(S::full(), 0);
  if (routes)
    score<U, S>(rank);
  else
    gate<U, S>(rank);
  ptx::cluster_arrive();
  if (routes && threadIdx.x / 32 == U::WARPS - 1) second.fetch(down);
  ptx::cluster_wait();
  if (threadIdx.x >= 32) {
    if (routes) second.multiply(gated, met, shared);
    return;
  }
  if (rank > 0) return;
  if (!routes) {
    const auto rounded = [](float value) { return __bfloat162float(__float2bfloat16_rn(value)); };
    if (lane < 8) {
      const float low = rounded(total<S, U::SEGS>(lane)), high = rounded(total<S, U::SEGS>(lane + 8));
      gated[first + lane] = __float2bfloat16_rn(silu_times(low, high));
    }
    __syncwarp();
    if (lane == 0) ptx::add_release(met, 1);
    return;
  }
  if (lane < live) scores[first + lane] = 1.0f / (1.0f + expf(-total<S, 8>(lane)));
  __syncwarp();
  int last = 0;
  if (lane == 0) {
    last = ptx::add_acquire_release(arrived, 1) == U::BLOCKS - 1;
    if (last) *arrived = 0;
  }
  if (!__shfl_sync(0xffffffffu, last, 0)) return;
  // Lane 0 has acquired the other CTAs' scores; a shuffle alone orders no memory.
  __syncwarp();
  if (slot >= 0)
    route::choose<U>(scores, route::Stored{scores}, S::biases(), groups, top_groups, normalize != 0, scaling, S::space(), ids, weights);
  else if (lane < U::T)
    ids[lane] = -1, weights[lane] = 0.0f;
}

}  // namespace kd
