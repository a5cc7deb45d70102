// One row: residual add, norm, router and the first half of the shared expert, which all need the same normed row.
//
// A cluster has 16 rows of weights, of the router or eight of the gate and the same eight of up, each of its CTAs a quarter of K.
// Weights are in shared memory before the kernel in front has ended; then each CTA makes the normed row for itself. Sums are pushed
// to the first CTA of a cluster: scores, of which the last cluster of the router chooses, or activated columns.
#pragma once

#include "mlp/silu_mul.cuh"
#include "moe/router.cuh"
#include "norm/row_norm.cuh"
#include "ptx/bulk.cuh"
#include "ptx/ldmatrix.cuh"
#include "ptx/push.cuh"

namespace kd {
namespace few_route_parts {

// What column 0 of a warp's sums holds: rows g and g + 8, in the lanes 4 g.
__device__ __forceinline__ uint2 pair_of(const float (&sum)[4]) { return {__float_as_uint(sum[0]), __float_as_uint(sum[2])}; }

// A segment of `router`, by each of four warps, then those of a pair added: to the first CTA.
template <class U, class S>
__device__ __forceinline__ void score(int rank) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const unsigned char* low = S::tile() + g * U::ROUTER_PITCH + warp * 2 * U::SEG + 16 * t;
  const unsigned char* own = S::x() + warp * 2 * U::SEG + 16 * t;
  const auto vector = [](const unsigned char* at) { return from_words(*reinterpret_cast<const uint4*>(at)); };
  float sum[4] = {};
#pragma unroll
  for (int step = 0; step < U::SEG / 32; ++step) {
    Bf16x8 x = {};
    if (g == 0) x = vector(own + 64 * step);
    mma_k32(sum, vector(low + 64 * step), vector(low + 8 * U::ROUTER_PITCH + 64 * step), x);
  }
  float2* odd = reinterpret_cast<float2*>(S::odd());
  if (warp % 2 == 1 && t == 0) odd[warp / 2 * 8 + g] = make_float2(sum[0], sum[2]);
  __syncthreads();
  ptx::cluster_wait();
  if (warp % 2 == 0 && t == 0) {
    const float2 other = odd[warp / 2 * 8 + g];
    sum[0] += other.x, sum[2] += other.y;
    ptx::store_cluster8(S::sums() + ((2 * rank + warp / 2) * 8 + g) * 2, 0, pair_of(sum));
  }
}

// A segment of `dense`, by one warp: to the first CTA.
template <class U, class S>
__device__ __forceinline__ void gate(int rank) {
  if (threadIdx.x / 32 == 0) {
    const int lane = threadIdx.x;
    const uint32_t rows = ptx::shared_address(S::tile()) + lane % 16 * U::GATE_PITCH + lane / 16 * 16;
    const bool own = lane % 8 == 0;  // other lanes give rows of tokens that do not exist
    const uint32_t x = ptx::shared_address(own ? S::x() + lane / 8 * 16 : reinterpret_cast<const unsigned char*>(S::zeros()));
    float sum[4] = {};
#pragma unroll 4
    for (int k = 0; k < U::LENGTH; k += 32) {
      uint32_t a[2][4], b[4];
      ptx::ldmatrix4(b, own ? x + 2 * k : x);
      ptx::ldmatrix4(a[0], rows + 2 * k);
      ptx::ldmatrix4(a[1], rows + 2 * k + 32);
      ptx::mma_16816_bf16(sum, a[0][0], a[0][1], a[0][2], a[0][3], b[0], b[1]);
      ptx::mma_16816_bf16(sum, a[1][0], a[1][1], a[1][2], a[1][3], b[2], b[3]);
    }
    ptx::cluster_wait();
    if (lane % 4 == 0) ptx::store_cluster8(S::sums() + (rank * 8 + lane / 4) * 2, 0, pair_of(sum));
  } else {
    ptx::cluster_wait();
  }
}

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
                                          int32_t* arrived, __nv_bfloat16* sum, __nv_bfloat16* y, float* scores, int32_t* ids,
                                          float* weights, __nv_bfloat16* gated, int M, int R) {
  using namespace few_route_parts;
  const int rank = blockIdx.x, unit = blockIdx.y, lane = threadIdx.x % 32;
  const int64_t token = blockIdx.z;
  const bool routes = unit < U::BLOCKS;
  const int first = (routes ? unit * 16 : (unit - U::BLOCKS) * 8), live = routes ? ::min(16, U::E - first) : 16;
  if (threadIdx.x == 0) {
    ptx::barrier_init(S::full(), 1);
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
  if (routes && rank == 0)
    for (int i = 4 * threadIdx.x; i < U::E; i += 4 * 32 * U::WARPS) ptx::copy16(ptx::shared_address(S::biases() + i), bias + i);
  ptx::copy_commit();
  norm::OwnRow<U> own;
  own.load_gain(gain);
  ptx::grid_dependency_wait();
  own.load(h + token * U::H, parts + token * U::H, int64_t(M) * (U::H / 8), R);
  const int slot = ptx::load4(slots + token);
  own.leave_squares(S::partial());
  ptx::copy_wait<0>();
  __syncthreads();
  own.normalise(S::partial(), eps, [&](int vec, const Bf16x8& residual, const Bf16x8& normed) {
    const int mine = vec - rank * (U::LENGTH / 8);
    if (mine < 0 || mine >= U::LENGTH / 8) return;
    *reinterpret_cast<uint4*>(S::x() + 16 * mine) = make_uint4(normed.word[0], normed.word[1], normed.word[2], normed.word[3]);
    if (unit > 0) return;
    store8(sum + token * U::H, vec, residual);
    store8(y + token * U::H, vec, normed);
  });
  __syncthreads();
  ptx::barrier_wait(S::full(), 0);
  if (routes)
    score<U, S>(rank);
  else
    gate<U, S>(rank);
  ptx::cluster_sync();
  if (rank > 0 || threadIdx.x >= 32) return;
  if (!routes) {
    if (lane >= 8) return;
    const auto rounded = [](float value) { return __bfloat162float(__float2bfloat16_rn(value)); };
    const float low = rounded(total<S, U::SEGS>(lane)), high = rounded(total<S, U::SEGS>(lane + 8));
    gated[token * U::I + first + lane] = __float2bfloat16_rn(silu_times(low, high));
    return;
  }
  if (lane < live) scores[token * U::E + first + lane] = 1.0f / (1.0f + expf(-total<S, 2 * U::SEGS>(lane)));
  __syncwarp();
  int last = 0;
  if (lane == 0) {
    last = ptx::add_acquire_release(arrived + token, 1) == U::BLOCKS - 1;
    if (last) arrived[token] = 0;
  }
  if (!__shfl_sync(0xffffffffu, last, 0)) return;
  if (slot >= 0)
    route::choose<U>(scores + token * U::E, S::biases(), groups, top_groups, normalize != 0, scaling, S::space(), ids + token * U::T,
                     weights + token * U::T);
  else if (lane < U::T)
    ids[token * U::T + lane] = -1, weights[token * U::T + lane] = 0.0f;
}

}  // namespace kd
