// Scores of a step of 16 keys to weights: the online softmax of tree_mla, for both orientations alike.
#pragma once

#include "attn/mla_work.cuh"
#include "ptx/math.cuh"

namespace kd {
namespace mla {

// A quarter of a score: a fourth of the latent, then every fourth 16 of the rotated part, as one chain of products.
template <class U>
struct Quarter {
  static constexpr int LATENT = U::C / 64, ROTATED = U::R / 16;  // products of 16 in a quarter's latent; of all rotated parts
  static constexpr int STEPS = LATENT + ceil_div(ROTATED, 4);

  __device__ __forceinline__ static bool has(int quarter, int k) {
    return k < STEPS && (k < LATENT || ROTATED % 4 == 0 || quarter + 4 * (k - LATENT) < ROTATED);
  }
  // Where product k lies in an entry, in bytes.
  __device__ __forceinline__ static int at(int quarter, int k) {
    return k < LATENT ? quarter * U::C / 2 + 32 * k : 2 * U::C + 32 * (quarter + 4 * (k - LATENT));
  }
};

// A row's weights are relative to the greatest score at the last step that rose by more than this, in powers of two: sums
// are scaled seldom, and stay far from overflow.
constexpr float SLACK = 8.0f;

// The part that this lane keeps of row lane / 4: keys 2t, 2t + 1, 2t + 8 and 2t + 9 of each step, t = lane % 4.
struct Softmax {
  float base, total;

  __device__ __forceinline__ void clear() { base = -INFINITY, total = 0.0f; }

  // Products of a step to scores; those of keys that no row sees are minus infinity.
  template <bool ALL>
  __device__ __forceinline__ static void scale(float (&s)[4], float factor, const Step& step) {
    const int t = threadIdx.x % 4;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      s[i] *= factor;
      if (ALL) continue;
      if (i / 2 * 8 + 2 * t + i % 2 >= step.keys) s[i] = -INFINITY;
      if (step.keys < 0) s[i] = __int_as_float(0x7fffffff);
    }
  }
  // Weights of the four keys in pairs, in bf16; `keep` is what the row's earlier sums are to be multiplied with, `changed`
  // whether it is 1 for all eight rows. ALL: every row is served and sees every key.
  template <bool ALL>
  __device__ __forceinline__ uint2 weigh(float (&s)[4], float factor, const Step& step, bool served, float& keep,
                                         bool& changed) {
    scale<ALL>(s, factor, step);
    float best = fmaxf(fmaxf(s[0], s[1]), fmaxf(s[2], s[3]));
    keep = 1.0f;
    changed = __any_sync(0xffffffffu, (ALL || served) && best > base + SLACK);
    if (changed) {
      best = fmaxf(best, __shfl_xor_sync(0xffffffffu, best, 1));
      best = fmaxf(best, __shfl_xor_sync(0xffffffffu, best, 2));
      if ((ALL || served) && best > base + SLACK) {
        keep = ptx::exp2_fast(base - best);
        base = best;
      }
    }
    return take<ALL>(s, served, keep);
  }

  // The same for a step that serves every row, without a branch.
  __device__ __forceinline__ uint2 weigh_straight(float (&s)[4], float factor, float& keep, bool& changed) {
    scale<true>(s, factor, Step{});
    float best = fmaxf(fmaxf(s[0], s[1]), fmaxf(s[2], s[3]));
    best = fmaxf(best, __shfl_xor_sync(0xffffffffu, best, 1));
    best = fmaxf(best, __shfl_xor_sync(0xffffffffu, best, 2));
    const bool rises = best > base + SLACK;
    keep = rises ? ptx::exp2_fast(base - best) : 1.0f;
    base = rises ? best : base;
    changed = __any_sync(0xffffffffu, rises);
    return take<true>(s, true, keep);
  }

  // The weights of scores that are relative to `base` from here on.
  template <bool ALL>
  __device__ __forceinline__ uint2 take(const float (&s)[4], bool served, float keep) {
    float added;
    const uint2 weights = round<ALL>(s, base, served, added);
    total = total * keep + added;
    return weights;
  }
  // The weights of scores relative to `base`, and their sum.
  template <bool ALL>
  __device__ __forceinline__ static uint2 round(const float (&s)[4], float base, bool served, float& sum) {
    uint2 weights;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const __nv_bfloat162 pair =
          __floats2bfloat162_rn(ptx::exp2_fast(s[2 * i] - base), ptx::exp2_fast(s[2 * i + 1] - base));
      uint32_t bits = *reinterpret_cast<const uint32_t*>(&pair);
      if (!ALL && !served) bits = 0;
      (i == 0 ? weights.x : weights.y) = bits;
    }
    sum = added(weights);
    return weights;
  }
  // What weights add up to: the rounded ones, so that equal values mix to themselves.
  __device__ __forceinline__ static float added(const uint2& weights) {
    const float low = __uint_as_float(weights.x << 16) + __uint_as_float(weights.x & 0xffff0000u);
    const float high = __uint_as_float(weights.y << 16) + __uint_as_float(weights.y & 0xffff0000u);
    return low + high;
  }

  // The sum of the row's weights, in all four lanes.
  __device__ __forceinline__ float all() const {
    const float pair = total + __shfl_xor_sync(0xffffffffu, total, 1);
    return pair + __shfl_xor_sync(0xffffffffu, pair, 2);
  }
};

}  // namespace mla
}  // namespace kd
