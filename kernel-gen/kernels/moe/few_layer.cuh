// The experts for few rows in one launch: both products and the weighted sum.
//
// Every CTA goes from its share of the first product to its share of the second as soon as all have: it asks for the weights of
// the second before it waits. All CTAs of a cooperative launch run at once, so waiting for each other ends.
//
// Shares of the second go unit by unit: the parts of 32 columns are made by few CTAs, and the last of them adds them up. It is
// not waited for: whoever comes last, by a count of items, does it.
#pragma once

#include "moe/activate.cuh"
#include "moe/few.cuh"
#include "moe/weighted.cuh"
#include "ptx/pdl.cuh"

namespace kd {
namespace moe {

// One of the two products of U: K values, and UNITS units an expert.
template <class U, int K_, int UNITS_, bool RAW_ROWS_>
struct Half : U {
  static constexpr int K = K_, UNITS = UNITS_, SEGS = segments(K), SEG = K / SEGS, BLOCKS = SEG / BLOCK_K;
  static constexpr int PER_STAGE = 2 - BLOCKS % 2, EARLY = 1, TEAMS = U::WARPS / SEGS;
  static constexpr bool RAW_ROWS = RAW_ROWS_;
  static_assert(K % (BLOCK_K * SEGS) == 0 && U::WARPS % SEGS == 0 && BLOCKS % PER_STAGE == 0, "whole stages");
};

// Says that the calling CTA has written what others wait for.
__device__ __forceinline__ void arrive(int32_t* count) {
  __syncthreads();
  if (threadIdx.x == 0) ptx::add_release(count, 1);
}

// Returns when all CTAs of a cooperative launch have arrived, and sees what any wrote before.
__device__ __forceinline__ void wait_for_all(const int32_t* count) {
  if (threadIdx.x == 0)
    while (ptx::load_acquire(count) < int(gridDim.x)) {
    }
  __syncthreads();
}

// Columns of unit `unit` of all rows, by the calling CTA.
template <class U>
__device__ __forceinline__ void combine_unit(const float* parts, const float* weights, const int32_t* ids, int first_expert,
                                             __nv_bfloat16* y, int unit, int M) {
  for (int i = threadIdx.x; i < M * (UNIT_ROWS / 4); i += U::THREADS) {
    const int row = i / (UNIT_ROWS / 4), column = unit * UNIT_ROWS + i % (UNIT_ROWS / 4) * 4;
    float sum[4] = {};
    uint4 part[U::T];
    float weight[U::T];
    bool own[U::T];
#pragma unroll
    for (int slot = 0; slot < U::T; ++slot) {
      // A part that was not written is read, but not used.
      const int index = row * U::T + slot;
      part[slot] = ptx::load16(parts + int64_t(index) * U::H + column);
      weight[slot] = ptx::load4f(weights + index);
      own[slot] = choice<U>(ids, index, M * U::T, first_expert) >= 0;
    }
#pragma unroll
    for (int slot = 0; slot < U::T; ++slot)
      if (own[slot]) add_weighted(sum, weight[slot], part[slot]);
    const __nv_bfloat162 low = __floats2bfloat162_rn(sum[0], sum[1]), high = __floats2bfloat162_rn(sum[2], sum[3]);
    *reinterpret_cast<uint2*>(y + int64_t(row) * U::H + column) =
        make_uint2(reinterpret_cast<const uint32_t&>(low), reinterpret_cast<const uint32_t&>(high));
  }
}

}  // namespace moe

template <class U, class S>
__device__ __forceinline__ void moe_few(Int4G32 gate_up, Int4G32 down, const __nv_bfloat16* x, const int32_t* ids,
                                        const float* weights, int32_t first_expert, __nv_bfloat16* h, float* parts,
                                        int32_t* arrived, __nv_bfloat16* y, int N, int M) {
  using Lists = moe::OwnLists<S>;
  using First = moe::Half<U, U::H, U::I / 16, true>;
  using Second = moe::Half<U, U::I, U::H / 32, false>;
  using FirstWalk = moe::Walk<First, First::UNITS, Lists>;
  using SecondWalk = moe::UnitWalk<Second, Lists>;
  using FirstRing = moe::Ring<First, FirstWalk, First::BLOCKS>;
  using SecondRing = moe::Ring<Second, SecondWalk, Second::BLOCKS>;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4;
  uint64_t* bars = S::bars() + warp * U::STAGES;
  moe::ring_barriers<U>(bars), moe::joint_barriers<First>(S::joints());
  moe::joint_barriers<Second>(S::joints() + 2 * First::TEAMS);
  moe::write_bias(S::bias());
  if (lane == 0) ptx::barriers_ready();
  for (int unit = threadIdx.x; unit < Second::UNITS; unit += U::THREADS) S::items()[unit] = 0;
  if (threadIdx.x == 0) *S::complete() = 0;
  moe::clear_few<U, S>();
  ptx::grid_dependency_wait();
  moe::group_few<U, S>(ids, first_expert, M);
  const Lists lists;
  unsigned char* slots = S::ring() + warp * U::STAGES * U::STAGE_BYTES;

  const int segment = warp % First::SEGS, team = warp / First::SEGS, cta = moe::share_of_cta();
  FirstWalk& walk = reinterpret_cast<FirstWalk*>(S::walks())[2 * warp];
  FirstRing ring{slots, bars, reinterpret_cast<const unsigned char*>(gate_up.blocks), segment * First::BLOCKS, lists, &walk + 1};
  walk.begin(lists, cta * First::TEAMS + team, gridDim.x * First::TEAMS);
  if (ptx::elect_one()) {
    ring.ahead[0] = walk;
    ring.start();
  }
  __syncthreads();  // for the list
  moe::Joint<First> joint{reinterpret_cast<float4*>(S::sums()) + team * First::SEGS * 64, S::joints() + 2 * team,
                          S::joints() + 2 * team + 1};
  moe::products_of<First, S>(
      ring, walk, joint, segment, x, [](int place) { return int(S::list()[place]) / U::T; },
      [&](int unit, int m, int place, int valid, const float(&sum)[4]) {
#pragma unroll
        for (int i = 0; i < 2; ++i)
          // Rows g of a tile are gate, rows g + 8 up.
          if (i < valid)
            h[int64_t(S::list()[place + i]) * U::I + unit * 16 + m * 8 + g] = moe::activate(sum[i], sum[i + 2], g);
      });

  // The ring goes on where it is, with other weights.
  int32_t* met = arrived + Second::UNITS;
  moe::arrive(met);
  const int part = warp % Second::SEGS, group = warp / Second::SEGS;
  SecondWalk& onward = reinterpret_cast<SecondWalk*>(S::walks())[2 * warp];
  SecondRing more{slots, bars, reinterpret_cast<const unsigned char*>(down.blocks), part * Second::BLOCKS, lists, &onward + 1};
  more.slot = ring.slot, more.parity = ring.parity;
  onward.template begin<Second::TEAMS>(lists, cta, gridDim.x, group);
  if (ptx::elect_one()) {
    ptx::copies_after_accesses();
    more.ahead[0] = onward;
    more.start();
  }
  moe::wait_for_all(met);
  ptx::grid_dependency_launch();
  // The last to leave cleans up; who that is is not asked before the end.
  const int left = threadIdx.x == 0 ? atomicAdd(met + 1, 1) : 0;
  uint64_t* joints = S::joints() + 2 * First::TEAMS + 2 * group;
  moe::Joint<Second> sums{reinterpret_cast<float4*>(S::sums()) + group * Second::SEGS * 64, joints, joints + 1};
  moe::products_of<Second, S>(
      more, onward, sums, part, h, [](int place) { return int(S::list()[place]); },
      [&](int unit, int m, int place, int valid, const float(&sum)[4]) {
        if (m == 0 && lane == 0) atomicAdd(S::items() + unit, 1);
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          if (i >= valid) continue;
          float* to = parts + int64_t(S::list()[place + i]) * U::H + unit * 32 + m * 16 + g;
          to[0] = sum[i] * INT4_LOWER, to[8] = sum[i + 2] * INT4_LOWER;
        }
      });
  __syncthreads();
  // Every item of a slab of 8 costs the same.
  const int all = S::plan()[1] / (moe::SLAB_COST + 1);
  for (int unit = threadIdx.x; unit < Second::UNITS; unit += U::THREADS) {
    const int own = S::items()[unit];
    // Without any expert on this rank there is nothing to wait for, only zeros to write.
    bool last = all == 0 ? unit % gridDim.x == blockIdx.x : own == all;
    if (own > 0 && own < all) {
      last = ptx::add_acquire_release(arrived + unit, own) + own == all;
      if (last) arrived[unit] = 0;
    }
    if (last) S::completed()[atomicAdd(S::complete(), 1)] = unit;
  }
  __syncthreads();
  for (int i = 0; i < *S::complete(); ++i)
    moe::combine_unit<U>(parts, weights, ids, first_expert, y, S::completed()[i], M);
  if (threadIdx.x == 0 && left == int(gridDim.x) - 1) met[0] = met[1] = 0;
}

}  // namespace kd
