// Cache entries with e4m3 latents, as kd_attn::Fp8Entry has them: C codes, R bf16 values of the rotated key, a scale in f32, zeros up
// to 16 bytes.
#pragma once

#include "kd/vec.cuh"
#include "ptx/fp8.cuh"

namespace kd::fp8 {

// The scale of a latent, and what its values are multiplied with to be codes.
struct Scale {
  float value, inverse;

  // The least power of two that lets no value exceed 448 of it; NaN if one is no number, or too large. `most`: the greatest bits
  // of a value of the latent without its sign.
  __device__ __forceinline__ static Scale of(uint32_t most) {
    const int k = ::max(int((most + 0x1fffffu) >> 23) - 135, -117);
    const float nan = __int_as_float(0x7fc00000);
    return k < 8 ? Scale{__int_as_float((k + 127) << 23), __int_as_float((127 - k) << 23)} : Scale{nan, nan};
  }
};

__device__ __forceinline__ uint32_t magnitude(float value) { return __float_as_uint(value) & 0x7fffffffu; }

__device__ __forceinline__ uint2 encode8(const float (&v)[8], float inverse) {
  uint32_t pair[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) pair[i] = ptx::to_e4m3x2(v[2 * i] * inverse, v[2 * i + 1] * inverse);
  return make_uint2(pair[0] | pair[1] << 16, pair[2] | pair[3] << 16);
}

// What two codes are multiplied with to be values. The bits of a code, moved to where bf16 has its own, are 2^-120 of its value.
__device__ __forceinline__ __nv_bfloat162 factor(float scale) {
  return __float2bfloat162_rn(scale * __int_as_float((120 + 127) << 23));
}

// Eight values: exact, since a code has four significant bits.
__device__ __forceinline__ Bf16x8 decode8(const uint2& codes, const __nv_bfloat162& factor) {
  Bf16x8 to;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    // Codes 2i and 2i + 1, each in the upper byte of a half.
    const uint32_t pair = __byte_perm(i < 2 ? codes.x : codes.y, 0, i % 2 == 0 ? 0x1404 : 0x3424);
    const uint32_t bits = (pair & 0x80008000u) | (pair >> 4 & 0x07f007f0u);
    const __nv_bfloat162 value = __hmul2(*reinterpret_cast<const __nv_bfloat162*>(&bits), factor);
    to.word[i] = *reinterpret_cast<const uint32_t*>(&value);
  }
  return to;
}

}  // namespace kd::fp8
