// The partial results of a node's leaves, to its mixed latents. Leaves w, w + 8, ... of class w are added in order, then the sums
// of the eight classes in order, so that a row's bits depend on its own leaves alone. A warp adds a class of 128 columns for few
// rows, of a whole row for very many; between, a thread adds all classes of four columns.
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

// A node's partial results: the first row of them, the distance from a leaf's to the next one's, and how many leaves it has.
struct Parts {
  const float *o, *ml;
  int64_t rows;
  int leaves;

  // What leaf `leaf` of the node's head `head` is relative to, and four of its columns.
  __device__ __forceinline__ float base(int head, int leaf) const { return ptx::load4f(ml + (leaf * rows + head) * 2); }
  template <int C>
  __device__ __forceinline__ uint4 columns(int head, int leaf, int column) const {
    return ptx::load16(o + (leaf * rows + head) * C + column);
  }
};

__device__ __forceinline__ void add(float4& sum, float weight, const uint4& part) {
  sum.x = fmaf(weight, __uint_as_float(part.x), sum.x), sum.y = fmaf(weight, __uint_as_float(part.y), sum.y);
  sum.z = fmaf(weight, __uint_as_float(part.z), sum.z), sum.w = fmaf(weight, __uint_as_float(part.w), sum.w);
}

// Four of every 128 columns of the sums of leaves first, first + BY, ...: those of one class, or of all classes, one after the
// other. {greatest, sum} of the weights of all leaves.
template <class U, int CLASSES, int VECS>
__device__ __forceinline__ float2 add_leaves(const Parts& parts, int head, int column, int first, float4 (&sum)[CLASSES][VECS]) {
  constexpr int AHEAD = CLASSES > 1 ? CLASSES : VECS > 1 ? 2 : 4, BY = CLASSES > 1 ? 1 : U::CLASSES;
  uint4 part[AHEAD][VECS];
  float base[AHEAD];
  const auto load = [&](int leaf, int to) {
    if (leaf >= parts.leaves) return;
    base[to] = parts.base(head, leaf);
#pragma unroll
    for (int v = 0; v < VECS; ++v) part[to][v] = parts.template columns<U::C>(head, leaf, column + 128 * v);
  };
#pragma unroll
  for (int i = 0; i < AHEAD; ++i) load(first + i * BY, i);
  const float2 weights = weigh_leaves(parts.ml + head * 2, parts.rows, parts.leaves);
#pragma unroll
  for (int i = 0; i < CLASSES * VECS; ++i) sum[i / VECS][i % VECS] = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll 1
  for (int leaf = first; leaf < parts.leaves; leaf += AHEAD * BY) {
#pragma unroll
    for (int i = 0; i < AHEAD; ++i) {
      if (leaf + i * BY >= parts.leaves) continue;
      const float weight = ptx::exp2_fast(base[i] - weights.x);
#pragma unroll
      for (int v = 0; v < VECS; ++v) add(sum[i % CLASSES][v], weight, part[i][v]);
      load(leaf + (i + AHEAD) * BY, i);
    }
  }
  return weights;
}

__device__ __forceinline__ void store_mixed(__nv_bfloat16* to, const float4& all, float divisor) {
  const __nv_bfloat162 low = __floats2bfloat162_rn(all.x * divisor, all.y * divisor);
  const __nv_bfloat162 high = __floats2bfloat162_rn(all.z * divisor, all.w * divisor);
  *reinterpret_cast<uint2*>(to) = uint2{*reinterpret_cast<const uint32_t*>(&low), *reinterpret_cast<const uint32_t*>(&high)};
}

}  // namespace mla

template <class U, class S>
__device__ __forceinline__ void tree_mla_merge(const float* part_o, const float* part_ml, const int32_t* starts,
                                               const int32_t* committed, const uint64_t* ancestors, int32_t* queue,
                                               __nv_bfloat16* y, int Z, int B, int T) {
  using namespace mla;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, node = blockIdx.x;
  // What tree_mla was given is there before the wait: it waited for that itself before this kernel could start.
  static_assert(sizeof(Stream) * U::CLASSES <= S::STREAM_COUNT * sizeof(int32_t), "a stream for each warp");
  Stream& stream = reinterpret_cast<Stream*>(S::stream())[warp];
  const bool found = find_stream<U>(starts, committed, B, node, &stream);
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
  const Parts parts = {part_o + first * U::C, part_ml + first * 2, rows, there ? leaves : 0};
  y += int64_t(node) * U::H * U::C;
  for (int span = blockIdx.y; span * U::SPAN < U::H * U::C; span += gridDim.y) {
    // A padding row is zero.
    float2 weights = {0.0f, leaves == 0 ? 1.0f : __int_as_float(0x7fffffff)};
    if constexpr (U::SPAN > U::C) {
      const int at = span * U::SPAN + 4 * threadIdx.x, head = at / U::C, column = at % U::C;
      if (head >= U::H) return;
      float4 sum[U::CLASSES][1] = {};
      if (parts.leaves > 0) weights = add_leaves<U>(parts, head, column, 0, sum);
#pragma unroll
      for (int i = 1; i < U::CLASSES; ++i)
        sum[0][0].x += sum[i][0].x, sum[0][0].y += sum[i][0].y, sum[0][0].z += sum[i][0].z, sum[0][0].w += sum[i][0].w;
      store_mixed(y + at, sum[0][0], 1.0f / weights.y);
    } else {
      constexpr int VECS = U::SPAN / 128;
      const int at = span * U::SPAN, head = at / U::C;
      float4* sums = reinterpret_cast<float4*>(S::sums());
      float4 sum[1][VECS] = {};
      if (parts.leaves > 0) weights = add_leaves<U>(parts, head, at % U::C + 4 * lane, warp, sum);
#pragma unroll
      for (int v = 0; v < VECS; ++v) sums[(warp * VECS + v) * 32 + lane] = sum[0][v];
      __syncthreads();
      if (warp < VECS) {
        float4 all = sums[threadIdx.x];
#pragma unroll
        for (int other = 1; other < U::CLASSES; ++other) {
          const float4 next = sums[32 * VECS * other + threadIdx.x];
          all.x += next.x, all.y += next.y, all.z += next.z, all.w += next.w;
        }
        store_mixed(y + at + 4 * threadIdx.x, all, 1.0f / weights.y);
      }
      __syncthreads();
    }
  }
}

}  // namespace kd
