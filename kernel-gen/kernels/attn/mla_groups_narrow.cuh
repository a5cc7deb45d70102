// Narrow tiles of tree_mla by warpgroups: sm_90a only. A tile has 8 rows, on the n8 side of the products, so that eight heads of one
// node waste nothing, and blocks of 64 keys come as those of wide tiles: the rate of memory is what bounds it.
#pragma once

#include "attn/mla_groups.cuh"
#include "ptx/ldmatrix.cuh"
#include "ptx/vote.cuh"

namespace kd {
namespace mla {

// What both warpgroups know of a tile of 8 rows: a lane has rows 2t and 2t + 1.
template <class U, class S>
struct Eight {
  using B = Boxes<U, S>;

  // The greatest score of each row in a step.
  __device__ __forceinline__ static float2& top(int step, int t) { return reinterpret_cast<float2*>(S::keep() + step * U::ROWS)[t]; }
  // Bit k: a base rises at step k of a block.
  __device__ __forceinline__ static uint32_t& rising() { return *reinterpret_cast<uint32_t*>(S::changed()); }
  // Two neighbours of the weights of row `row` in a step: keys 2t and 2t + 1, or those eight further on.
  __device__ __forceinline__ static uint32_t& weights(int step, int row, int half, int t) {
    return *reinterpret_cast<uint32_t*>(B::weights() + B::vector(row, 2 * step + half) + 4 * t);
  }
  // Lets bases rise to a step's greatest scores; which did.
  __device__ __forceinline__ static uchar2 rise(float (&base)[2], const float2& top) {
    const bool low = top.x > base[0] + SLACK, high = top.y > base[1] + SLACK;
    if (low) base[0] = top.x;
    if (high) base[1] = top.y;
    return {low, high};
  }
  // The value that the lanes of row g have for it, of one for each row 2t and 2t + 1.
  __device__ __forceinline__ static float of_row(float even, float odd) {
    const int g = threadIdx.x % 32 / 4;
    even = __shfl_sync(0xffffffffu, even, g / 2), odd = __shfl_sync(0xffffffffu, odd, g / 2);
    return g % 2 == 0 ? even : odd;
  }
};

// Scores and weighs: a warp has a step, a lane keys g, g, g + 8 and g + 8 of it.
template <class U, class S>
struct EightScorer {
  using B = Boxes<U, S>;
  using E = Eight<U, S>;

  float base[2];

  __device__ __forceinline__ static void pin(float (&s)[4]) {
    asm volatile("" : "+f"(s[0]), "+f"(s[1]), "+f"(s[2]), "+f"(s[3])::"memory");
  }
  // Quarters `first` and `first` + 1 of a block's scores.
  __device__ __forceinline__ static void quarters(float (&one)[4], float (&other)[4], int turn, int slot, int first, uint32_t parity) {
    const uint32_t queries = ptx::low_of_rows(ptx::shared_address(B::queries(turn)));
    const uint32_t keys = ptx::low_of_rows(ptx::shared_address(B::block(slot)));
    ptx::barrier_wait(B::full(slot, first), parity);
    ptx::barrier_wait(B::full(slot, first + 1), parity);
    pin(one), pin(other);
    ptx::wgmma_fence();
#pragma unroll
    for (int k = 0; k < Quarter<U>::STEPS; ++k)
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int column = Quarter<U>::at(first + i, k) / 32, box = column / 4, at = column % 4 * 2;
        const uint32_t a = keys + box * (B::BYTES / 16) + at, b = queries + box * (B::TILE / 16) + at;
        if (k == 0)
          ptx::wgmma_set_low(i == 0 ? one : other, a, b);
        else
          ptx::wgmma_add_low(i == 0 ? one : other, a, b);
      }
    ptx::wgmma_commit();
  }
  __device__ __forceinline__ static void score(float (&s)[4], int turn, int block) {
    float q[4][4] = {};
    const int slot = block & 1, parity = block / 2 & 1;
    quarters(q[0], q[1], turn, slot, 0, parity);
    quarters(q[2], q[3], turn, slot, 2, parity);
    ptx::wgmma_wait<0>();
#pragma unroll
    for (int i = 0; i < 4; ++i) pin(q[i]);
#pragma unroll
    for (int c = 0; c < 4; ++c) s[c] = (q[0][c] + q[1][c]) + (q[2][c] + q[3][c]);
  }
  __device__ __forceinline__ static bool serves(const Step& step, int row) { return row >= step.low && row < step.high; }
  __device__ __forceinline__ static void put_weights(const float (&s)[4], const float (&from)[2], const Step& step) {
    const int warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32, t = lane % 4;
    const uint32_t served = (serves(step, 2 * t) ? 0x0000ffffu : 0u) | (serves(step, 2 * t + 1) ? 0xffff0000u : 0u);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const __nv_bfloat162 pair =
          __floats2bfloat162_rn(ptx::exp2_fast(s[2 * i] - from[0]), ptx::exp2_fast(s[2 * i + 1] - from[1]));
      E::weights(warp, lane / 4, i, t) = ptx::transpose(*reinterpret_cast<const uint32_t*>(&pair) & served);
    }
  }
  // Scores to weights, once the block before is mixed.
  __device__ __forceinline__ void weigh(float (&s)[4], float factor, const Step& step, bool first) {
    const int warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    bool rises = first;
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      s[c] = __fmul_rn(s[c], factor);
      if (c / 2 * 8 + g >= step.keys) s[c] = -INFINITY;
      if (step.keys < 0) s[c] = __int_as_float(0x7fffffff);
      rises |= serves(step, 2 * t + c % 2) && s[c] > base[c % 2] + SLACK;
    }
    put_weights(s, base, step);
    const bool any = ptx::any_of<128>(2, rises);
    uint32_t rising = 0;
    if (any) {
      float most[2];
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        most[r] = fmaxf(s[r], s[2 + r]);
#pragma unroll
        for (int by = 4; by < 32; by *= 2) most[r] = fmaxf(most[r], __shfl_xor_sync(0xffffffffu, most[r], by));
        if (!serves(step, 2 * t + r)) most[r] = -INFINITY;
      }
      if (g == 0) E::top(warp, t) = float2{most[0], most[1]};
      ptx::named_barrier<128>(2);
      float from[2] = {};
#pragma unroll
      for (int k = 0; k < B::STEPS; ++k) {
        const uchar2 up = E::rise(base, E::top(k, t));
        rising |= uint32_t(up.x | up.y) << k;
        if (k == warp) from[0] = base[0], from[1] = base[1];
      }
      put_weights(s, from, step);
      rising = __reduce_or_sync(0xffffffffu, rising);
    }
    if (threadIdx.x % 128 == 0) E::rising() = rising;
  }

  __device__ __forceinline__ void run() {
    const int warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32;
#pragma unroll 1
    for (int turn = 0, block = 0;; ++turn) {
      ptx::barrier_wait(B::asked(turn), B::parity(turn));
      const Work& work = work_of<S>(turn);
      const int steps = B::same(work.steps), trunk = work.trunk;
      const float factor = work.factor;
      base[0] = base[1] = -INFINITY;
#pragma unroll 1
      for (int first = 0; first < steps; first += B::STEPS, ++block) {
        float s[4];
        score(s, turn, block);
        const bool last = first + B::STEPS >= steps;
        Step step = {0, U::ROWS, KEYS, 0};
        if (first + B::STEPS > trunk) step = first + warp < steps ? B::step_of(block & 1, warp) : Step{0, 0, KEYS, 0};
        if (last) ptx::barrier_arrive_warp(B::scored(turn), lane);
        ptx::barrier_wait(B::mixed(), block & 1 ^ 1);
        weigh(s, factor, step, first == 0);
        if (threadIdx.x % 128 == 0)
          *reinterpret_cast<Mix*>(S::base()) = Mix{::min(steps - first, B::STEPS), turn, first == 0, last};
        ptx::copies_after_accesses();
        ptx::barrier_arrive_warp(B::weighed(), lane);
      }
      if (steps < 0) {
        ptx::barrier_wait(B::mixed(), block & 1 ^ 1);
        if (threadIdx.x % 128 == 0) *reinterpret_cast<Mix*>(S::base()) = Mix{0, 0, 0, 0};
        ptx::barrier_arrive_warp(B::weighed(), lane);
        return;
      }
    }
  }
};

// Mixes: a lane has columns g and g + 8 of its warp's 16 of each 64.
template <class U, class S>
struct EightMixer {
  using B = Boxes<U, S>;
  using E = Eight<U, S>;

  float sum[B::LATENTS][4];
  float base[2];
  float total;  // of row g, in the first warp

  __device__ __forceinline__ void pin() {
#pragma unroll
    for (int i = 0; i < B::LATENTS; ++i) EightScorer<U, S>::pin(sum[i]);
  }
  // Lets sums be relative to the greatest scores of step `step`; what the row g's total is to be multiplied with.
  __device__ __forceinline__ float scale(int step) {
    const float2 old = {base[0], base[1]};
    const uchar2 up = E::rise(base, E::top(step, threadIdx.x % 4));
    const float by[2] = {up.x ? ptx::exp2_fast(old.x - base[0]) : 1.0f, up.y ? ptx::exp2_fast(old.y - base[1]) : 1.0f};
#pragma unroll
    for (int i = 0; i < B::LATENTS; ++i)
      sum[i][0] *= by[0], sum[i][1] *= by[1], sum[i][2] *= by[0], sum[i][3] *= by[1];
    return E::of_row(by[0], by[1]);
  }
  // Weights of step k of a block, times the latents, and to the row's total, of which `keep` is what its base leaves.
  __device__ __forceinline__ void multiply(uint32_t latents, uint32_t weights, int k) {
#pragma unroll
    for (int i = 0; i < B::LATENTS; ++i)
      ptx::wgmma_add_low_columns(sum[i], latents + i * (B::BYTES / 16) + k * (KEYS * 128 / 16), weights + 2 * k);
  }
  __device__ __forceinline__ void add(int k, float keep) {
    const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    total = total * keep + Softmax::added(uint2{E::weights(k, g, 0, t), E::weights(k, g, 1, t)});
  }
  __device__ __forceinline__ void run(float* part_o, float* part_ml, int Z) {
    const int warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32;
#pragma unroll 1
    for (int block = 0;; ++block) {
      ptx::barrier_wait(B::weighed(), block & 1);
      Mix mix = *reinterpret_cast<const Mix*>(S::base());
      mix.steps = B::same(mix.steps);
      if (mix.steps == 0) return;
      const int slot = block & 1;
      const uint32_t rising = B::same(E::rising());
      if (mix.first) {
#pragma unroll
        for (int i = 0; i < B::LATENTS; ++i) sum[i][0] = sum[i][1] = sum[i][2] = sum[i][3] = 0.0f;
        base[0] = base[1] = -INFINITY, total = 0.0f;
      }
      const uint32_t weights = ptx::low_of_rows(ptx::shared_address(B::weights()));
      const uint32_t latents = ptx::low_of_columns(ptx::shared_address(B::block(slot)), B::BYTES);
      if (mix.steps == B::STEPS && rising >> 1 == 0) {
        // As a rule no base rises but at an item's first step.
        const float keep = rising ? scale(0) : 1.0f;
        if (warp == 0) {
#pragma unroll
          for (int k = 0; k < B::STEPS; ++k) add(k, k == 0 ? keep : 1.0f);
        }
        pin();
        ptx::wgmma_fence();
#pragma unroll
        for (int k = 0; k < B::STEPS; ++k) multiply(latents, weights, k);
        ptx::wgmma_commit();
        ptx::wgmma_wait<0>();
        pin();
      } else {
#pragma unroll 1
        for (int k = 0; k < mix.steps; ++k) {
          const float keep = rising >> k & 1 ? scale(k) : 1.0f;
          if (warp == 0) add(k, keep);
          pin();
          ptx::wgmma_fence();
          multiply(latents, weights, k);
          ptx::wgmma_commit();
          ptx::wgmma_wait<0>();
          pin();
        }
      }
      // Read before the slots are given back: behind that the item's own place may be taken by one that is looked up.
      int64_t part = 0, room = 0;
      if (mix.last) part = work_of<S>(mix.turn).part, room = ::min(int64_t(work_of<S>(mix.turn).rows), Z - part);
#pragma unroll
      for (int i = 0; i < B::PARTS; ++i) ptx::barrier_arrive_warp(B::empty(slot, i), lane);
      ptx::barrier_arrive_warp(B::mixed(), lane);
      if (mix.last) store(part, room, part_o, part_ml);
    }
  }
  // Partial results: each store fills whole sectors.
  __device__ __forceinline__ void store(int64_t part, int64_t room, float* part_o, float* part_ml) const {
    const int warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const float relative = E::of_row(base[0], base[1]), all = Softmax{0.0f, total}.all();
    if (warp == 0 && t == 0 && g < room) *reinterpret_cast<float2*>(part_ml + (part + g) * 2) = float2{relative, all};
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      if (2 * t + c >= room) continue;
      float* to = part_o + (part + 2 * t + c) * U::C + 16 * warp + g;
#pragma unroll
      for (int i = 0; i < B::LATENTS; ++i) to[64 * i] = sum[i][c], to[64 * i + 8] = sum[i][2 + c];
    }
  }
};

// The items of a CTA.
template <class U, class S, class Next>
__device__ __forceinline__ void group_items(const Supply<U, S>& supply, Next set_up, float* part_o, float* part_ml, int Z) {
  static_assert(U::BLOCK == 128 * U::GROUPS, "warpgroups");
  if (threadIdx.x == 0) Boxes<U, S>::prepare();
  __syncthreads();
  const int group = __shfl_sync(0xffffffffu, int(threadIdx.x) / 128, 0);
  if constexpr (U::MT == 0) {
    if (group == 0) {
      supply.run(set_up);
    } else if (group == 1) {
      EightScorer<U, S> scorer;
      scorer.run();
    } else {
      EightMixer<U, S> mixer;
      mixer.run(part_o, part_ml, Z);
    }
  } else if (group == 0) {
    ptx::give_registers<32>();
    supply.run(set_up);
  } else if (group == 1) {
    ptx::take_registers<160>();
    Scorer<U, S> scorer;
    scorer.run(part_ml, Z);
  } else {
    ptx::take_registers<160>();
    Mixer<U, S> mixer;
    mixer.mixer = group - 2;
    mixer.run(part_o, Z);
  }
}

}  // namespace mla
}  // namespace kd
