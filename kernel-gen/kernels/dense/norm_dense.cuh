// One row: residual add, norm and the product that reads it.
//
// A CTA has 16 rows of weights, a warp for each segment of K, as `dense` has, and producer warps that fill its ring of weights from
// the start. Its other warps, and HELPERS more, meanwhile make the whole normed row for themselves, which costs less than a launch in
// front. With those each thread has so little of the row that the kernel behind finds registers, and brings its weights early.
#pragma once

#include "dense/gemm.cuh"
#include "norm/row_norm.cuh"

namespace kd {
namespace norm_product {

// The weights as `dense` cuts and keeps them; tokens are not in the ring.
template <class U>
struct Cut {
  static constexpr int K = U::H, SEGS = U::SEGS, GROUPS = U::SEGS, RUN = 1, CTAS = 1, STEP = 64, ROWS = 16, TOKENS = 0, WR = 1,
                       WT = 1, SLOTS = U::SLOTS;
};

// The warps that norm the row: those that multiply, and HELPERS more.
template <class U>
struct Team : U {
  static constexpr int WARPS = U::WARPS + U::HELPERS;
};

// The sums of a warp's segment over the ring, for the token whose row begins at `x`: its first column holds them.
template <class U, class S>
__device__ __forceinline__ void consume(const __nv_bfloat16* x, float (&sum)[4]) {
  using At = gemm::Shape<Cut<U>>;
  const int lane = threadIdx.x % 32, group = threadIdx.x / 32;
  const uint32_t weights = ptx::shared_address(S::ring()) + group * At::GROUP_BYTES;
  // A lane's row of the second operand: the token for lanes 0, 8, .., zeros for the others.
  const bool own = lane % 8 == 0;
  const uint32_t row = ptx::shared_address(own ? reinterpret_cast<const unsigned char*>(x + group * U::LENGTH) + lane / 8 * 16
                                               : reinterpret_cast<const unsigned char*>(S::zeros()));
  int slot = 0, parity = 0;
#pragma unroll 1
  for (int step = 0; step < At::STEPS; ++step) {
    uint32_t b[2][4], a[4][4];
    const uint32_t from = own ? row + step * 128 : row;
    ptx::ldmatrix4(b[0], from);
    ptx::ldmatrix4(b[1], own ? from + 64 : from);
    ptx::barrier_wait(S::full() + slot, parity);
#pragma unroll
    for (int i = 0; i < 4; ++i)
      ptx::ldmatrix4(a[i], weights + slot * At::SLOT_BYTES + gemm::place<Cut<U>>(lane % 16, 2 * i + lane / 16));
#pragma unroll
    for (int i = 0; i < 4; ++i)
      ptx::mma_16816_bf16(sum, a[i][0], a[i][1], a[i][2], a[i][3], b[i / 2][2 * (i % 2)], b[i / 2][2 * (i % 2) + 1]);
    ptx::barrier_arrive_warp(S::empty() + slot, lane);
    if (++slot == U::SLOTS) slot = 0, parity ^= 1;
  }
}

}  // namespace norm_product

template <class U, class S>
__device__ __forceinline__ void norm_dense(const __nv_bfloat16* h, const __nv_bfloat16* parts, const __nv_bfloat16* gain, float eps,
                                           const __nv_bfloat16* w, __nv_bfloat16* sum, __nv_bfloat16* tap, __nv_bfloat16* y, int M, int R, int N,
                                           int T) {
  using Cut = norm_product::Cut<U>;
  using Team = norm_product::Team<U>;
  constexpr int CONSUMERS = 32 * U::WARPS, TEAM = 32 * Team::WARPS;
  const int row = blockIdx.z * 16, producer = int(threadIdx.x) - TEAM;
  const int64_t token = blockIdx.y;
  if (threadIdx.x < U::SLOTS) {
    ptx::barrier_init(S::full() + threadIdx.x, 32 * U::FEEDERS);
    ptx::barrier_init(S::empty() + threadIdx.x, ptx::warp_arrivals(U::WARPS));
  }
  if (threadIdx.x < 4) S::zeros()[threadIdx.x] = 0;
  __syncthreads();
  ptx::grid_dependency_launch();
  if (producer >= 0) {
    gemm::produce<Cut, S, 16, U::H, U::FEEDERS>(ptx::shared_address(S::ring()), w + int64_t(row) * U::H, N - row, producer / 32);
    return;
  }
  norm::OwnRow<Team> own;
  __nv_bfloat16* x = reinterpret_cast<__nv_bfloat16*>(S::x());
  own.ask_gain(gain, x);
  ptx::grid_dependency_wait();
  own.load(h + token * U::H, parts + token * U::H, int64_t(M) * (U::H / 8), R);
  own.leave_squares(S::partial());
  ptx::copy_wait<0>();
  ptx::named_barrier<TEAM>(1);
  own.normalise(S::partial(), eps, x, [&](int vec, const Bf16x8& residual) {
    if (row == 0) store8(sum + token * U::H, vec, residual);
    if (row == 0 && token < T) store8(tap + token * U::H, vec, residual);
  });
  ptx::named_barrier<TEAM>(1);
  if (int(threadIdx.x) >= CONSUMERS) return;
  float total[4] = {};
  norm_product::consume<U, S>(x, total);
  const int group = threadIdx.x / 32, lane = threadIdx.x % 32;
  if (lane % 4 == 0) {
    S::sums()[16 * group + lane / 4] = total[0];
    S::sums()[16 * group + 8 + lane / 4] = total[2];
  }
  ptx::named_barrier<CONSUMERS>(2);
  if (threadIdx.x >= 16 || row + int(threadIdx.x) >= N) return;
  float all = S::sums()[threadIdx.x];
#pragma unroll
  for (int i = 1; i < U::SEGS; ++i) all += S::sums()[16 * i + threadIdx.x];
  y[token * N + row + threadIdx.x] = __float2bfloat16_rn(all);
}

}  // namespace kd
