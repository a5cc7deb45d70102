// The first half of a gated MLP for few rows: a cluster makes eight columns of eight tokens, each of its CTAs, one warp, one segment
// of K.
//
// The m16 side of the tensor core has eight rows of the gate and the same eight of up, so that a lane ends with both for its column.
// Segments are those of `dense`, summed and added in the same order: the same bits. Weights are in shared memory before the kernel in
// front has ended. Where there are many columns (WIDE), a CTA has all segments of eight of them, a warp each, as `dense` has for as
// few tokens: its rings are half as large as those of its other variants, so that all CTAs are there at once.
#pragma once

#include "dense/gemm.cuh"
#include "mlp/silu_mul.cuh"
#include "ptx/bulk.cuh"
#include "ptx/cluster.cuh"
#include "ptx/ldmatrix.cuh"
#include "ptx/mma.cuh"
#include "ptx/push.cuh"

namespace kd {
namespace few_gate_parts {

// The sums of this CTA's segment.
template <class U, class S>
__device__ __forceinline__ void multiply(float (&sum)[4]) {
  constexpr int AHEAD = 4;
  const int lane = threadIdx.x;
  const uint32_t rows = ptx::shared_address(S::ring()) + lane % 16 * U::LINES + lane / 16 * 16;
  const uint32_t tokens = ptx::shared_address(S::tokens()) + lane % 8 * U::LINES + lane / 8 * 16;
#pragma unroll 2
  for (int k = 0; k < U::LENGTH; k += 32 * AHEAD) {
    uint32_t a[2 * AHEAD][4], b[AHEAD][4];
#pragma unroll
    for (int i = 0; i < AHEAD; ++i) {
      if (k + 32 * i >= U::LENGTH) continue;
      ptx::ldmatrix4(a[2 * i], rows + 2 * k + 64 * i);
      ptx::ldmatrix4(a[2 * i + 1], rows + 2 * k + 64 * i + 32);
      ptx::ldmatrix4(b[i], tokens + 2 * k + 64 * i);
    }
#pragma unroll
    for (int i = 0; i < 2 * AHEAD; ++i) {
      if (k + 16 * i >= U::LENGTH) continue;
      ptx::mma_16816_bf16(sum, a[i][0], a[i][1], a[i][2], a[i][3], b[i / 2][2 * (i % 2)], b[i / 2][2 * (i % 2) + 1]);
    }
  }
}

// Both products as they are stored, then the activation.
__device__ __forceinline__ float activated(float gate, float up) {
  const auto rounded = [](float value) { return __bfloat162float(__float2bfloat16_rn(value)); };
  return silu_times(rounded(gate), rounded(up));
}

// All segments of eight columns.
template <class U, class S>
__device__ __forceinline__ void wide(const __nv_bfloat16* x, const __nv_bfloat16* w, __nv_bfloat16* y, int M) {
  using At = gemm::Shape<U>;
  const uint32_t ring = ptx::shared_address(S::ring());
  const int column = blockIdx.z * 8, token = blockIdx.y * U::TOKENS, producer = int(threadIdx.x) - At::CONSUMERS;
  if (threadIdx.x < U::SLOTS) {
    ptx::barrier_init(S::full() + threadIdx.x, 32 * (U::FEEDERS + 1));
    ptx::barrier_init(S::empty() + threadIdx.x, ptx::warp_arrivals(U::GROUPS));
  }
  __syncthreads();
  ptx::grid_dependency_launch();
  if (producer < 0) {
    gemm::consume<U, S>(ring, [](const gemm::Sums<U>& sum, int group, int row, int token) {
      ptx::named_barrier<At::CONSUMERS>(1);  // the sums take the place of the ring
      gemm::keep<U, S>(sum, group, row, token);
    });
  } else if (producer < 32 * U::FEEDERS) {
    gemm::produce<U, S, U::ROWS, U::K, U::FEEDERS>(ring, w + int64_t(column) * U::K, U::ROWS, producer / 32, int64_t(U::I) * U::K);
  } else {
    ptx::grid_dependency_wait();
    gemm::produce<U, S, U::TOKENS, U::K, 1>(ring + At::WEIGHT_BYTES, x + int64_t(token) * U::K, M - token, 0);
  }
  __syncthreads();
  const int own = threadIdx.x / 2, quad = threadIdx.x % 2;
  if (own >= U::TOKENS || token + own >= M) return;
  const float4 gate = gemm::sum4<U, S>(own, quad), up = gemm::sum4<U, S>(own, quad + 2);
  gemm::store4(y + int64_t(token + own) * U::I + column + 4 * quad,
               make_float4(activated(gate.x, up.x), activated(gate.y, up.y), activated(gate.z, up.z), activated(gate.w, up.w)));
}

}  // namespace few_gate_parts

template <class U, class S>
__device__ __forceinline__ void few_gate(const __nv_bfloat16* x, const __nv_bfloat16* w, __nv_bfloat16* y, int M) {
  if constexpr (U::WIDE) return few_gate_parts::wide<U, S>(x, w, y, M);
  const int segment = blockIdx.x, column = blockIdx.z * 8, lane = threadIdx.x;
  const int64_t token = int64_t(blockIdx.y) * U::TOKENS;
  const int live = int(::min(int64_t(U::TOKENS), M - token));
  if (lane == 0) {
    ptx::barrier_init(S::full(), 1);
    ptx::barrier_init(S::full() + 1, 1);
    ptx::barriers_ready();
    ptx::barrier_arrive_expect(S::full(), 16 * 2 * U::LENGTH);
    ptx::barrier_arrive_expect(S::full() + 1, live * 2 * U::LENGTH);
  }
  __syncwarp();
  ptx::cluster_arrive();  // others may write to this CTA
  ptx::grid_dependency_launch();
  if (lane < 16) {
    const int row = (lane < 8 ? column : U::I + column - 8) + lane;
    ptx::bulk_load(S::ring() + lane * U::LINES, w + int64_t(row) * U::K + segment * U::LENGTH, 2 * U::LENGTH, S::full());
  }
  ptx::grid_dependency_wait();
  if (lane < live)
    ptx::bulk_load(S::tokens() + lane * U::LINES, x + (token + lane) * U::K + segment * U::LENGTH, 2 * U::LENGTH, S::full() + 1);
  float sum[4] = {};
  ptx::barrier_wait(S::full(), 0);
  ptx::barrier_wait(S::full() + 1, 0);
  few_gate_parts::multiply<U, S>(sum);
  ptx::cluster_wait();
  ptx::store_cluster16(S::sums() + segment * 128 + 4 * lane, 0,
                       make_uint4(__float_as_uint(sum[0]), __float_as_uint(sum[1]), __float_as_uint(sum[2]), __float_as_uint(sum[3])));
  ptx::cluster_sync();
  if (segment > 0) return;
#pragma unroll
  for (int i = 0; i < U::SEGS; ++i) {
    const float4 next = *reinterpret_cast<const float4*>(S::sums() + i * 128 + 4 * lane);
    if (i == 0)
      sum[0] = next.x, sum[1] = next.y, sum[2] = next.z, sum[3] = next.w;
    else
      sum[0] += next.x, sum[1] += next.y, sum[2] += next.z, sum[3] += next.w;
  }
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int own = lane % 4 * 2 + i;
    if (own < live)
      y[(token + own) * U::I + column + lane / 4] = __float2bfloat16_rn(few_gate_parts::activated(sum[i], sum[i + 2]));
  }
}

}  // namespace kd
