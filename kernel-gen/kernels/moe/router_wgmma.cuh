// The router of many rows by warpgroups: sm_90a only. Segments, their order and what comes after them are those of router.cuh.
//
// A step is 64 of k. Weights are in registers in the order that mma_k32 gives k, so the tokens of a block of 32 have to lie in that
// order in shared memory: a thread that has the eight neighbouring values 8t .. 8t + 8 of a token in four words leaves word i with
// the i-th words of the three others, which is what stmatrix does.
//
// Half of the warps bring, half multiply: 64 experts for each warpgroup. A segment's sums go to shared memory, where the next of its
// pair is added to them, and pairs, where a CTA has several, to each other.
#pragma once

#include "moe/router.cuh"
#include "ptx/bulk.cuh"
#include "ptx/stmatrix.cuh"
#include "ptx/wgmma_ss.cuh"

namespace kd {
namespace route {

template <class U>
struct Groups {
  static constexpr int CONSUMERS = 2 * U::ROWS, PRODUCERS = 32 * U::WARPS - CONSUMERS, WEIGHT_BYTES = 128 * U::ROWS;
  static constexpr int SLOT_BYTES = WEIGHT_BYTES + 128 * U::TOKENS, STEPS = U::SEG / 64, PAIRS = 8 / U::RANKS, ALL = 2 * PAIRS * STEPS;
  static_assert(U::H == 1024 * STEPS && U::E % U::ROWS == 0 && U::ROWS % 64 == 0, "16 segments of whole steps, and whole tiles");
  static_assert(8 * U::NT == U::TOKENS, "products of all tokens");

  int expert = blockIdx.y * U::ROWS;
  int64_t token = int64_t(blockIdx.z) * U::TOKENS;
  // The first of this CTA's values of k.
  __device__ __forceinline__ static int first() { return int(blockIdx.x) * PAIRS * 2 * U::SEG; }
};

// Brings the steps of this CTA, weights of the first ones before the kernel in front has finished. By the producer warps.
template <class U, class S>
__device__ __forceinline__ void bring(const Groups<U>& place, const __nv_bfloat16* x, const __nv_bfloat16* w, int M) {
  using At = Groups<U>;
  constexpr int WARPS = At::PRODUCERS / 32, BLOCKS = U::TOKENS / 4, EACH = (BLOCKS + WARPS - 1) / WARPS, AHEAD = U::AHEAD;
  constexpr int ROWS = U::ROWS / WARPS;
  static_assert(ROWS % 4 == 0 && BLOCKS % 2 == 0 && AHEAD <= At::ALL, "whole warps");
  const int warp = (int(threadIdx.x) - At::CONSUMERS) / 32, lane = threadIdx.x % 32;
  const uint32_t ring = ptx::shared_address(S::ring());
  // Weights: rows of this warp, four at a time; the halves of odd rows are exchanged, so that fragments meet all banks.
  const int row = warp * ROWS + lane / 8, piece = lane % 8;
  const __nv_bfloat16* weights = w + int64_t(place.expert + row) * U::H + place.first() + piece * 8;
  const uint32_t to = ring + 128 * row + 16 * (piece ^ 4 * (row & 1));
  const auto bring_weights = [&](int step, int slot) {
#pragma unroll
    for (int i = 0; i < ROWS; i += 4) ptx::copy16(to + slot * At::SLOT_BYTES + 128 * i, weights + int64_t(i) * U::H + step * 64);
    ptx::barrier_arrive_copies(S::full() + slot);
  };
  // Tokens: every WARPS-th block of eight of them and 32 of k.
  Bf16x8 held[AHEAD][EACH] = {};
  const auto take = [&](int step, Bf16x8 (&into)[EACH]) {
#pragma unroll
    for (int i = 0; i < EACH; ++i) {
      const int block = warp + i * WARPS, own = block / 2 * 8 + lane / 4, k = place.first() + step * 64 + block % 2 * 32 + lane % 4 * 8;
      if (block < BLOCKS && place.token + own < M) into[i] = load8(x + (place.token + own) * U::H + k, 0);
    }
  };
  const auto leave = [&](int slot, const Bf16x8 (&from)[EACH]) {
#pragma unroll
    for (int i = 0; i < EACH; ++i) {
      const int block = warp + i * WARPS;
      const uint32_t at = ring + slot * At::SLOT_BYTES + At::WEIGHT_BYTES + (block / 2 * 8 + lane % 8) * 128;
      if (block < BLOCKS) ptx::stmatrix4(at + 16 * ((block % 2 * 4 + lane / 8) ^ lane % 8), from[i].word);
    }
    ptx::barrier_arrive_warp(S::full() + slot, lane);
  };
#pragma unroll
  for (int step = 0; step < U::SLOTS; ++step)
    if (step < At::ALL) bring_weights(step, step);
  ptx::grid_dependency_wait();
#pragma unroll
  for (int step = 0; step < AHEAD; ++step) take(step, held[step]);
  int slot = 0, parity = 1;
#pragma unroll 1
  for (int base = 0; base < At::ALL; base += AHEAD)
#pragma unroll
    for (int i = 0; i < AHEAD; ++i) {
      const int step = base + i;
      if (At::ALL % AHEAD != 0 && step >= At::ALL) break;
      ptx::barrier_wait(S::empty() + slot, parity);
      if (step >= U::SLOTS) bring_weights(step, slot);
      leave(slot, held[i]);
      if (step + AHEAD < At::ALL) take(step + AHEAD, held[i]);
      if (++slot == U::SLOTS) slot = 0, parity ^= 1;
    }
}

// The sums of all steps, in shared memory. By the consumer warps.
template <class U, class S>
__device__ __forceinline__ void multiply_groups() {
  using At = Groups<U>;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const unsigned char* weights = S::ring() + 128 * (16 * warp + g);
  const uint64_t tokens = ptx::block_operand(ptx::shared_address(S::ring()) + At::WEIGHT_BYTES);
  float sum[U::NT][4];
  // Adds to, or sets, this thread's sums in shared memory.
  const auto keep = [&](float* sums, bool add) {
    float* own = sums + 2 * t * U::LINE + 16 * warp + g;
#pragma unroll
    for (int n = 0; n < U::NT; ++n)
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        float& at = own[(8 * n + c % 2) * U::LINE + c / 2 * 8];
        at = sum[n][c] = add ? at + sum[n][c] : sum[n][c];
      }
  };
  int slot = 0, parity = 0;
#pragma unroll 1
  for (int segment = 0; segment < 2 * At::PAIRS; ++segment) {
    uint32_t a[2][4][4];
    int before = 0;
#pragma unroll
    for (int n = 0; n < U::NT; ++n) sum[n][0] = sum[n][1] = sum[n][2] = sum[n][3] = 0.0f;
    ptx::pin(sum);
#pragma unroll
    for (int step = 0; step < At::STEPS; ++step) {
      ptx::barrier_wait(S::full() + slot, parity);
      ptx::copies_after_accesses();  // here, for whoever brings would wait for all its copies
      uint32_t(&now)[4][4] = a[step % 2];
#pragma unroll
      for (int block = 0; block < 2; ++block) {
        const unsigned char* from = weights + slot * At::SLOT_BYTES + 16 * ((block * 4 + t) ^ 4 * (g & 1));
        const uint4 low = ptx::load_shared16(from), high = ptx::load_shared16(from + 8 * 128);
        now[2 * block][0] = low.x, now[2 * block][1] = high.x, now[2 * block][2] = low.y, now[2 * block][3] = high.y;
        now[2 * block + 1][0] = low.z, now[2 * block + 1][1] = high.z, now[2 * block + 1][2] = low.w, now[2 * block + 1][3] = high.w;
      }
      ptx::wgmma_fence();
      const uint64_t here = tokens + slot * (At::SLOT_BYTES / 16);
#pragma unroll
      for (int k16 = 0; k16 < 4; ++k16) ptx::group_multiply(sum, now[k16], here + 2 * k16);
      ptx::wgmma_commit();
      ptx::wgmma_wait<1>();
      if (step > 0) ptx::barrier_arrive_warp(S::empty() + before, lane);
      before = slot;
      if (++slot == U::SLOTS) slot = 0, parity ^= 1;
    }
    ptx::wgmma_wait<0>();
    ptx::pin(sum);
    ptx::barrier_arrive_warp(S::empty() + before, lane);
    if (segment % 2 == 0) {
      keep(S::half(), false);
    } else {
      keep(S::half(), true);
      if constexpr (At::PAIRS > 1) keep(S::total(), segment > 1);
    }
  }
}

}  // namespace route

template <class U, class S>
__device__ __forceinline__ void router_wgmma(const __nv_bfloat16* x, const __nv_bfloat16* w, const float* bias, const int32_t* slots,
                                             int32_t groups, int32_t top_groups, int32_t normalize, float scaling, int32_t* arrived,
                                             float* scores, int32_t* ids, float* weights, int M) {
  using At = route::Groups<U>;
  const At place;
  const route::Choices choices{bias, slots, groups, top_groups, normalize, scaling, arrived, scores, ids, weights};
  if (threadIdx.x < U::SLOTS) {
    ptx::barrier_init(S::full() + threadIdx.x, At::PRODUCERS + ptx::warp_arrivals(At::PRODUCERS / 32));
    ptx::barrier_init(S::empty() + threadIdx.x, ptx::warp_arrivals(At::CONSUMERS / 32));
  }
  __syncthreads();
  choices.prepare<U, S>();
  ptx::copy_commit();
  if (threadIdx.x >= At::CONSUMERS)
    route::bring<U, S>(place, x, w, M);
  else
    route::multiply_groups<U, S>();
  ptx::grid_dependency_launch();
  ptx::copy_wait<0>();
  ptx::grid_dependency_wait();  // nobody else may still read what is written now, or write the slots
  __syncthreads();
  choices.decide<U, S>(At::PAIRS > 1 ? S::total() : S::half(), reinterpret_cast<float*>(S::ring()), place.token, place.expert, M);
}

}  // namespace kd
