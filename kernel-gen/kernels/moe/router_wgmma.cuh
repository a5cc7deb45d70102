// The router of many rows by warpgroups: sm_90a only. Segments, their order and what comes after them are those of router.cuh; both
// operands come in boxes of tensor maps and are multiplied from shared memory, as in dense/wgmma.cuh.
//
// A CTA has all pairs of segments of its tile in turn, or one of eight, whose sums meet in the cluster.
#pragma once

#include "dense/wgmma.cuh"
#include "moe/router_choices.cuh"

namespace kd {
namespace route {

// What dense/wgmma.cuh calls a tile: runs of the two segments of a pair.
template <class U>
struct Pairs : U {
  static constexpr int K = U::H, SEGS = 16, RUN = 2, SHARE = 1, CLUSTER = U::RANKS, TAKEN = 0, GROUPS = U::ROWS / 64;
  static constexpr int COUNT = 8 / U::RANKS, STEPS = K / 64 / U::RANKS;
  static_assert(K == 64 * STEPS * U::RANKS && K == 1024 * (K / 1024), "16 segments of whole steps");
  static_assert(U::E % U::ROWS == 0 && 8 * U::NT == U::TOKENS, "whole tiles");
};

// Asks for the blocks of this CTA's steps, weights of the first ones before the kernel in front has finished. By one thread.
template <class U, class S>
__device__ __forceinline__ void bring(const ptx::TensorMap& x, const ptx::TensorMap& w, int token, int expert) {
  using At = wgmma::Tile<Pairs<U>>;
  constexpr int STEPS = Pairs<U>::STEPS, AHEAD = STEPS < U::SLOTS ? STEPS : U::SLOTS;
  const int first = blockIdx.x * STEPS;
  const auto weights = [&](int step, int slot) {
    ptx::barrier_arrive_expect(S::full() + slot, At::SLOT_BYTES);
    ptx::tensor_load(S::ring() + slot * At::SLOT_BYTES, w, (first + step) * 64, expert, S::full() + slot);
  };
  const auto tokens = [&](int step, int slot) {
    ptx::tensor_load(S::ring() + slot * At::SLOT_BYTES + At::WEIGHT_BYTES, x, (first + step) * 64, token, S::full() + slot);
  };
#pragma unroll 1
  for (int i = 0; i < AHEAD; ++i) weights(i, i);
  ptx::grid_dependency_wait();
#pragma unroll 1
  for (int i = 0; i < AHEAD; ++i) tokens(i, i);
  wgmma::Place<U> at{0, 0};
#pragma unroll 1
  for (int step = U::SLOTS; step < STEPS; ++step, at.advance()) {
    ptx::barrier_wait(S::empty() + at.slot, at.parity);
    weights(step, at.slot);
    tokens(step, at.slot);
  }
}

// The sums of this CTA's pairs, added, in shared memory once all have multiplied. By the consumers.
template <class U, class S>
__device__ __forceinline__ void multiply_groups() {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  wgmma::Place<Pairs<U>> at{0, 0};
  wgmma::Sums<U> total;
#pragma unroll 1
  for (int pair = 0; pair < Pairs<U>::COUNT; ++pair) {
    wgmma::Sums<U> sum;
    wgmma::consume<Pairs<U>, S>(sum, 2 * pair, at);
#pragma unroll
    for (int n = 0; n < U::NT; ++n)
#pragma unroll
      for (int c = 0; c < 4; ++c) total[n][c] = pair == 0 ? sum[n][c] : total[n][c] + sum[n][c];
  }
  if constexpr (U::DIRECT) return Choices::push_held<U, S>(total, 16 * warp);
  ptx::named_barrier<128 * Pairs<U>::GROUPS>(1);  // the ring is free
  float* own = reinterpret_cast<float*>(S::ring()) + 2 * t * U::LINE + 16 * warp + g;
#pragma unroll
  for (int n = 0; n < U::NT; ++n)
#pragma unroll
    for (int c = 0; c < 4; ++c) own[(8 * n + c % 2) * U::LINE + c / 2 * 8] = total[n][c];
}

}  // namespace route

template <class U, class S>
__device__ __forceinline__ void router_wgmma(const ptx::TensorMap& x, const ptx::TensorMap& w, const float* bias, const int32_t* slots,
                                             int32_t groups, int32_t top_groups, int32_t normalize, float scaling, int32_t* arrived,
                                             float* scores, int32_t* ids, float* weights, int M) {
  constexpr int CONSUMERS = 128 * route::Pairs<U>::GROUPS;
  const int expert = blockIdx.y * U::ROWS, token = blockIdx.z * U::TOKENS;
  const route::Choices choices{bias, slots, groups, top_groups, normalize, scaling, arrived, scores, ids, weights};
  if (threadIdx.x == CONSUMERS) {
    ptx::tensor_map_ahead(w);
    ptx::tensor_map_ahead(x);
  }
  if (threadIdx.x < U::SLOTS) {
    ptx::barrier_init(S::full() + threadIdx.x, 1);
    ptx::barrier_init(S::empty() + threadIdx.x, CONSUMERS / 32);
    ptx::barriers_ready();
  }
  if constexpr (U::PUSH) choices.expect<U, S>(); else __syncthreads();
  choices.prepare<U, S>();
  ptx::copy_commit();
  const int warp = __shfl_sync(0xffffffffu, int(threadIdx.x) / 32, 0);  // for the compiler: one path for all of a warp
  if (warp < CONSUMERS / 32)
    route::multiply_groups<U, S>();
  else if (threadIdx.x == CONSUMERS)
    route::bring<U, S>(x, w, token, expert);
  __syncwarp();
  ptx::grid_dependency_launch();
  ptx::copy_wait<0>();
  ptx::grid_dependency_wait();  // nobody else may still read what is written now, or write the slots
  float* sums = reinterpret_cast<float*>(S::ring());
  choices.decide<U, S>(sums, sums + (U::RANKS > 1 ? 0 : U::TOKENS * U::LINE), token, expert, M);
}

}  // namespace kd
