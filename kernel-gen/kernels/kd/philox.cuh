// The noise of docs/sampling.md: Philox4x32-10 (Salmon et al., "Parallel Random Numbers: As Easy as 1, 2, 3", SC 2011) keyed
// by the seed, one counter for four token ids, and the Gumbel value of a word.
#pragma once

#include "kd/base.cuh"

namespace kd {

struct Noise {
  uint32_t key[2], position[2], choice;

  __device__ __forceinline__ Noise(uint64_t seed, uint32_t choice_index, uint64_t at)
      : key{uint32_t(seed), uint32_t(seed >> 32)}, position{uint32_t(at), uint32_t(at >> 32)}, choice(choice_index) {}

  // The words of the ids `id .. id + 4`; `id` is a multiple of 4.
  __device__ __forceinline__ void four(uint32_t id, uint32_t* word) const {
    uint32_t c0 = id / 4, c1 = position[0], c2 = choice, c3 = position[1], k0 = key[0], k1 = key[1];
#pragma unroll
    for (int round = 0; round < 10; ++round) {
      const uint64_t p0 = uint64_t(0xD2511F53u) * c0, p1 = uint64_t(0xCD9E8D57u) * c2;
      c0 = uint32_t(p1 >> 32) ^ c1 ^ k0;
      c2 = uint32_t(p0 >> 32) ^ c3 ^ k1;
      c1 = uint32_t(p1);
      c3 = uint32_t(p0);
      k0 += 0x9E3779B9u;
      k1 += 0xBB67AE85u;
    }
    word[0] = c0, word[1] = c1, word[2] = c2, word[3] = c3;
  }
};

// -ln(-ln u) with u = ((word >> 8) + 1/2) * 2^-24.
__device__ __forceinline__ double gumbel(uint32_t word) {
  const double u = (double(word >> 8) + 0.5) * (1.0 / (1 << 24));
  return -log(-log(u));
}

// Where the noise of a word lies, from its leading bit alone.
struct Span {
  float least = 0.0f, most = 0.0f;
};

// With 1 - u = odd * 2^-25 and z leading zeros of `odd`, 2^(6 - z) <= 1 - u < 2^(7 - z). From -ln u > 1 - u follows an upper
// bound, and for u >= 1/2 from -ln u < 2 (1 - u) a lower one; the least noise of all is -ln(25 ln 2) > -2.86.
__device__ __forceinline__ Span gumbel_span(uint32_t word) {
  const int zeros = __clz((1u << 25) - 1 - 2 * (word >> 8));
  const float ln2 = 0.69314718f;
  return {zeros > 7 ? float(zeros - 8) * ln2 : -2.86f, float(zeros - 6) * ln2};
}

// `gumbel` in f32. Both u below 1/2 and 1 - u from there on are odd multiples of 2^-25 below 1/2, so exact; u itself would
// round to 1 and the noise to infinity.
__device__ __forceinline__ float gumbel_f32(uint32_t word) {
  const uint32_t odd = 2 * (word >> 8) + 1;
  const bool low = odd < 1u << 24;
  const float part = float(low ? odd : (1u << 25) - odd) * (1.0f / (1 << 25));
  return -logf(low ? -logf(part) : -log1pf(-part));
}

}  // namespace kd
