// The partial results of a node's leaves, to its mixed latents. A CTA takes blocks of 128 * VECS columns of the node's heads in
// turn. Its warp w adds leaves w, w + 8, ... in order, and the eight sums are added in order, so that a row's bits depend on its
// own leaves alone.
#pragma once

#include "attn/leaves.cuh"
#include "ptx/math.cuh"
#include "ptx/pdl.cuh"

namespace kd {
namespace mla {

// The greatest score that the weights of any leaf are relative to, and the sum of all weights relative to it. `ml` is the
// row's in leaf 0, `rows` the distance to that in the next. By a warp.
__device__ __forceinline__ float2 weigh_leaves(const float* ml, int64_t rows, int leaves) {
  const int lane = threadIdx.x % 32;
  float2 first = {-INFINITY, 0.0f};
  if (lane < leaves) first = ptx::load8f(ml + lane * rows * 2);
  float most = first.x;
  for (int leaf = lane + 32; leaf < leaves; leaf += 32) most = fmaxf(most, ptx::load8f(ml + leaf * rows * 2).x);
#pragma unroll
  for (int step = 16; step > 0; step /= 2) most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, step));
  float total = lane < leaves ? first.y * ptx::exp2_fast(first.x - most) : 0.0f;
  for (int leaf = lane + 32; leaf < leaves; leaf += 32) {
    const float2 next = ptx::load8f(ml + leaf * rows * 2);
    total += next.y * ptx::exp2_fast(next.x - most);
  }
#pragma unroll
  for (int step = 16; step > 0; step /= 2) total += __shfl_xor_sync(0xffffffffu, total, step);
  return {most, total};
}

// Each lane's columns of the sum of this warp's leaves, four of every 128, and {greatest, sum} of the weights of all leaves.
// `o` is the row's in leaf 0.
template <class U>
__device__ __forceinline__ float2 add_leaves(const float* o, const float* ml, int64_t rows, int leaves, float4 (&sum)[U::VECS]) {
  const int warp = threadIdx.x / 32;
  uint4 part[U::AHEAD][U::VECS];
  float base[U::AHEAD];
  const auto load = [&](int leaf, int to) {
    if (leaf >= leaves) return;
    base[to] = ptx::load4f(ml + leaf * rows * 2);
#pragma unroll
    for (int v = 0; v < U::VECS; ++v) part[to][v] = ptx::load16(o + leaf * rows * U::C + 128 * v);
  };
#pragma unroll
  for (int i = 0; i < U::AHEAD; ++i) load(warp + i * U::WARPS, i);
  const float2 weights = weigh_leaves(ml, rows, leaves);
#pragma unroll
  for (int v = 0; v < U::VECS; ++v) sum[v] = {0.0f, 0.0f, 0.0f, 0.0f};
  for (int first = warp; first < leaves; first += U::AHEAD * U::WARPS) {
#pragma unroll
    for (int i = 0; i < U::AHEAD; ++i) {
      if (first + i * U::WARPS >= leaves) continue;
      const float w = ptx::exp2_fast(base[i] - weights.x);
#pragma unroll
      for (int v = 0; v < U::VECS; ++v) {
        const uint4& own = part[i][v];
        sum[v].x = fmaf(w, __uint_as_float(own.x), sum[v].x), sum[v].y = fmaf(w, __uint_as_float(own.y), sum[v].y);
        sum[v].z = fmaf(w, __uint_as_float(own.z), sum[v].z), sum[v].w = fmaf(w, __uint_as_float(own.w), sum[v].w);
      }
      load(first + (i + U::AHEAD) * U::WARPS, i);
    }
  }
  return weights;
}

}  // namespace mla

template <class U, class S>
__device__ __forceinline__ void tree_mla_merge(const float* part_o, const float* part_ml, const int32_t* starts,
                                               const int32_t* committed, const uint64_t* ancestors, int32_t* queue,
                                               __nv_bfloat16* y, int Z, int B, int T) {
  using namespace mla;
  constexpr int COLUMNS = 128 * U::VECS, BLOCKS = U::C / COLUMNS;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, node = blockIdx.x;
  // What tree_mla was given is there before the wait: it waited for that itself before this kernel could start.
  static_assert(sizeof(Stream) * U::WARPS <= S::STREAM_COUNT * sizeof(int32_t), "a stream for each warp");
  Stream& stream = reinterpret_cast<Stream*>(S::stream())[warp];
  const bool found = find_stream<U>(starts, committed, B, &stream, [=](const Stream& own, int) {
    return node >= own.first && node < own.first + own.nodes;
  });
  __syncwarp();
  int leaves = 0;
  if (found) {
    const Path path = Path::load(ancestors, node, node == stream.first);
    leaves = ::min(stream.leaves, Leaf<U::BASE, U::SHORT>::at(stream.committed + path.depth()) + 1);
  }
  const int64_t rows = int64_t(stream.nodes) * U::H, first = stream.part + int64_t(node - stream.first) * U::H;
  // Scratch that is too small must not look like a result.
  const bool there = first + (leaves - 1) * rows + U::H <= Z;
  ptx::grid_dependency_wait();
  ptx::grid_dependency_launch();
  if (node == 0 && blockIdx.y == 0 && threadIdx.x == 0) *queue = 0;
  float* sums = S::sums();
  for (int block = blockIdx.y; block < U::H * BLOCKS; block += gridDim.y) {
    const int head = block / BLOCKS, column = block % BLOCKS * COLUMNS;
    __nv_bfloat16* to = y + (int64_t(node) * U::H + head) * U::C + column;
    float2 weights = {0.0f, __int_as_float(0x7fffffff)};
    float4 sum[U::VECS] = {};
    if (there && leaves > 0)
      weights = add_leaves<U>(part_o + (first + head) * U::C + column + 4 * lane, part_ml + (first + head) * 2, rows, leaves, sum);
#pragma unroll
    for (int v = 0; v < U::VECS; ++v) *reinterpret_cast<float4*>(sums + warp * COLUMNS + 128 * v + 4 * lane) = sum[v];
    __syncthreads();
    const float divisor = 1.0f / weights.y;
    for (int at = 2 * threadIdx.x; at < COLUMNS; at += 2 * U::BLOCK) {
      float2 all = *reinterpret_cast<const float2*>(sums + at);
#pragma unroll
      for (int other = 1; other < U::WARPS; ++other) {
        const float2 next = *reinterpret_cast<const float2*>(sums + other * COLUMNS + at);
        all.x += next.x, all.y += next.y;
      }
      // A padding row is zero.
      *reinterpret_cast<__nv_bfloat162*>(to + at) =
          leaves == 0 ? __floats2bfloat162_rn(0.0f, 0.0f) : __floats2bfloat162_rn(all.x * divisor, all.y * divisor);
    }
    __syncthreads();
  }
}

}  // namespace kd
