// The partial results of a node's leaves, to its mixed latents. A CTA takes blocks of 128 columns of the node's heads in turn.
// Its warp w adds leaves w, w + 8, ... in order, and the eight sums are added in order, so that a row's bits depend on its own
// leaves alone.
#pragma once

#include "attn/leaves.cuh"
#include "ptx/math.cuh"
#include "ptx/pdl.cuh"

namespace kd {
namespace mla {

// Columns `column` to `column + 4` of the sum of this warp's leaves, and the sum of all leaves' weights. `o` and `ml` are the
// row's results in leaf 0, `rows` the distance to those in the next.
template <class U>
__device__ __forceinline__ float4 add_leaves(const float* o, const float* ml, int64_t rows, int leaves, float& total) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  uint4 part[U::AHEAD];
  float weight[U::AHEAD];
  const auto load = [&](int i) {
    const int64_t leaf = ::min(warp + i * U::WARPS, leaves - 1);
    part[i % U::AHEAD] = ptx::load16(o + leaf * rows * U::C);
    weight[i % U::AHEAD] = ptx::load4f(ml + leaf * rows * 2);
  };
#pragma unroll
  for (int i = 0; i < U::AHEAD; ++i) load(i);
  float most = -INFINITY;
  for (int leaf = lane; leaf < leaves; leaf += 32) most = fmaxf(most, ptx::load4f(ml + leaf * rows * 2));
#pragma unroll
  for (int step = 16; step > 0; step /= 2) most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, step));
  total = 0.0f;
  for (int leaf = lane; leaf < leaves; leaf += 32)
    total += ptx::load4f(ml + leaf * rows * 2 + 1) * ptx::exp2_fast(ptx::load4f(ml + leaf * rows * 2) - most);
#pragma unroll
  for (int step = 16; step > 0; step /= 2) total += __shfl_xor_sync(0xffffffffu, total, step);
  float4 sum = {0.0f, 0.0f, 0.0f, 0.0f};
  for (int first = 0; warp + first * U::WARPS < leaves; first += U::AHEAD) {
#pragma unroll
    for (int i = 0; i < U::AHEAD; ++i) {
      if (warp + (first + i) * U::WARPS >= leaves) continue;
      const float w = ptx::exp2_fast(weight[i] - most);
      sum.x = fmaf(w, __uint_as_float(part[i].x), sum.x), sum.y = fmaf(w, __uint_as_float(part[i].y), sum.y);
      sum.z = fmaf(w, __uint_as_float(part[i].z), sum.z), sum.w = fmaf(w, __uint_as_float(part[i].w), sum.w);
      if (warp + (first + i + U::AHEAD) * U::WARPS >= leaves) continue;
      const int64_t leaf = warp + (first + i + U::AHEAD) * U::WARPS;
      part[i] = ptx::load16(o + leaf * rows * U::C);
      weight[i] = ptx::load4f(ml + leaf * rows * 2);
    }
  }
  return sum;
}

}  // namespace mla

template <class U, class S>
__device__ __forceinline__ void tree_mla_merge(const float* part_o, const float* part_ml, const int32_t* starts,
                                               const int32_t* committed, const uint64_t* ancestors, __nv_bfloat16* y, int Z,
                                               int B, int T) {
  using namespace mla;
  constexpr int BLOCKS = U::C / U::COLUMNS;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, node = blockIdx.x;
  ptx::grid_dependency_wait();
  static_assert(sizeof(Stream) * U::WARPS <= S::STREAM_COUNT * sizeof(int32_t), "a stream for each warp");
  Stream& stream = reinterpret_cast<Stream*>(S::stream())[warp];
  const bool found = find_stream<U>(starts, committed, B, &stream, [=](const Stream& own, int) {
    return node >= own.first && node < own.first + own.nodes;
  });
  __syncwarp();
  int leaves = 0;
  if (found) {
    const Path path = Path::load(ancestors, node, node == stream.first);
    leaves = ::min(stream.leaves, Leaf<U::BASE>::at(stream.committed + path.depth()) + 1);
  }
  const int64_t rows = int64_t(stream.nodes) * U::H, first = stream.part + int64_t(node - stream.first) * U::H;
  // Scratch that is too small must not look like a result.
  const bool there = first + (leaves - 1) * rows + U::H <= Z;
  for (int block = blockIdx.y, turn = 0; block < U::H * BLOCKS; block += gridDim.y, turn ^= 1) {
    const int head = block / BLOCKS, column = block % BLOCKS * U::COLUMNS + 4 * lane;
    __nv_bfloat162* to = reinterpret_cast<__nv_bfloat162*>(y + (int64_t(node) * U::H + head) * U::C + column);
    if (leaves == 0) {  // a padding row
      if (warp == 0) to[0] = to[1] = __floats2bfloat162_rn(0.0f, 0.0f);
      continue;
    }
    float total = __int_as_float(0x7fffffff);
    float4 sum = {0.0f, 0.0f, 0.0f, 0.0f};
    if (there)
      sum = add_leaves<U>(part_o + (first + head) * U::C + column, part_ml + (first + head) * 2, rows, leaves, total);
    float4* sums = reinterpret_cast<float4*>(S::sums()) + turn * (32 * U::WARPS);
    sums[threadIdx.x] = sum;
    __syncthreads();
    if (warp != 0) continue;
#pragma unroll
    for (int other = 1; other < U::WARPS; ++other) {
      const float4 next = sums[32 * other + lane];
      sum.x += next.x, sum.y += next.y, sum.z += next.z, sum.w += next.w;
    }
    const float divisor = 1.0f / total;
    to[0] = __floats2bfloat162_rn(sum.x * divisor, sum.y * divisor);
    to[1] = __floats2bfloat162_rn(sum.z * divisor, sum.w * divisor);
  }
}

}  // namespace kd
