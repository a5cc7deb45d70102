// Products for more tokens than a few, by warpgroups: sm_90a only. Weights are the 64 rows of wgmma, tokens its columns, both in
// shared memory, where one thread asks for them in boxes of tensor maps. Segments and their order are those of gemm.cuh, and a
// chain of wgmma sums as one of mma does, so these are the same bits.
//
// As many CTAs as are resident go from tile to tile of ROWS weight rows, 64 for each warpgroup, and TOKENS tokens. A CTA has all
// segments of a tile in turn, or one, whose sums meet those of the other CTAs of a cluster in shared memory. SHARE CTAs of a
// cluster have the same weights and other tokens: each asks for a part of the weights, which all of them get.
#pragma once

#include "dense/split.cuh"
#include "kd/ring.cuh"
#include "ptx/cluster.cuh"
#include "ptx/pdl.cuh"
#include "ptx/wgmma_ss.cuh"

namespace kd {
namespace wgmma {

template <class U>
struct Tile {
  static constexpr int BLOCKS = (U::K + 63) / 64, ROW_BYTES = 128;
  static constexpr int WEIGHT_BYTES = U::ROWS * ROW_BYTES, SLOT_BYTES = WEIGHT_BYTES + U::TOKENS * ROW_BYTES;
  static constexpr int CONSUMERS = 128 * U::GROUPS;
  // The first block of a segment.
  __host__ __device__ static constexpr int first(int segment) { return segment * BLOCKS / U::SEGS; }
  // Of the CTAs of a cluster, the first of those that share weights with this one.
  __device__ __forceinline__ static int mates() { return blockIdx.x % U::CLUSTER / U::SHARE * U::SHARE; }
  static_assert(U::TAKEN == 0 || U::CLUSTER == 1, "all warps meet at the cluster's barriers");
  static_assert(U::ROWS % 8 == 0 && U::ROWS / U::SHARE % 8 == 0, "parts are whole groups of eight rows");
  static_assert(64 * U::GROUPS - U::ROWS <= U::TOKENS, "rows behind the last are read, but not behind the ring");
};

template <class U>
using Sums = float[U::NT][4];

template <class U>
using Place = Slot<U::SLOTS>;

// The tiles of this CTA's cluster, whose CTAs have segments of a tile, or tiles beside each other.
template <class U>
struct Work {
  int token_groups, tiles, tile;

  __device__ __forceinline__ Work(int M, int N) {
    token_groups = (M + U::TOKENS * U::SHARE - 1) / (U::TOKENS * U::SHARE);
    tiles = token_groups * ((N + U::ROWS - 1) / U::ROWS), tile = blockIdx.x / U::CLUSTER;
  }
  __device__ __forceinline__ bool more() const { return tile < tiles; }
  __device__ __forceinline__ void next() { tile += gridDim.x / U::CLUSTER; }
  __device__ __forceinline__ int token() const { return (tile % token_groups * U::SHARE + blockIdx.x % U::SHARE) * U::TOKENS; }
  __device__ __forceinline__ int row() const { return tile / token_groups * U::ROWS; }
  __device__ __forceinline__ static int segment() { return blockIdx.x % U::CLUSTER / U::SHARE * U::RUN; }
};

// Fills the ring with the blocks of this CTA's tiles; its part of the weights' first before the kernel in front has finished. By
// one warp.
template <class U, class S>
__device__ __forceinline__ void produce(const ptx::TensorMap& x, const ptx::TensorMap& w, Work<U> work) {
  using At = Tile<U>;
  const int rank = blockIdx.x % U::SHARE, first = At::first(work.segment());
  const int blocks = At::first(work.segment() + U::RUN) - first;
  const bool one = ptx::elect_one();
  int token = work.token(), row = work.row() + rank * U::PART;
  // Weights that no other cluster reads leave L2 first, so that what others read stays.
  const uint64_t policy = work.token_groups == 1 ? ptx::evict_first() : ptx::evict_normal();
  const auto weights = [&](int step, int slot) {
    ptx::barrier_arrive_expect(S::full() + slot, At::SLOT_BYTES);
    uint8_t* to = S::ring() + slot * At::SLOT_BYTES + rank * U::PART * At::ROW_BYTES;
    const int column = (first + step) * 64;
    if (U::SHARE == 1)
      ptx::tensor_load(to, w, column, row, S::full() + slot, policy);
    else
      ptx::tensor_load_all(to, w, column, row, S::full() + slot, ((1 << U::SHARE) - 1) << At::mates());
  };
  const auto tokens = [&](int step, int slot) {
    uint8_t* to = S::ring() + slot * At::SLOT_BYTES + At::WEIGHT_BYTES;
    ptx::tensor_load(to, x, (first + step) * 64, token, S::full() + slot);
  };
  int step = !work.more() ? 0 : blocks < U::SLOTS ? blocks : U::SLOTS;
  if (one) {
#pragma unroll 1
    for (int i = 0; i < step; ++i) weights(i, i);
    ptx::grid_dependency_wait();
#pragma unroll 1
    for (int i = 0; i < step; ++i) tokens(i, i);
  }
  Place<U> at{step % U::SLOTS, step == U::SLOTS ? 0 : 1};
#pragma unroll 1
  for (; work.more(); work.next(), step = 0) {
    token = work.token(), row = work.row() + rank * U::PART;
    if (one) {
#pragma unroll 1
      for (; step < blocks; ++step, at.advance()) {
        ptx::barrier_wait(S::empty() + at.slot, at.parity);
        weights(step, at.slot);
        tokens(step, at.slot);
      }
    }
    __syncwarp();
    if (U::CTAS > 1) {
      ptx::cluster_sync();          // the sums are there,
      ptx::cluster_sync_relaxed();  // and the ring is free of them in all CTAs
      ptx::copies_after_accesses();
    }
  }
}

// The sums of RUN segments of a tile from `segment` on, of this warpgroup's 64 rows.
template <class U, class S>
__device__ __forceinline__ void consume(Sums<U>& total, int segment, Place<U>& at) {
  using At = Tile<U>;
  const uint32_t ring = ptx::shared_address(S::ring());
  // The same in all of a warp, and known to be, so that descriptors need no moves between products.
  const int group = U::GROUPS > 1 ? __shfl_sync(0xffffffffu, int(threadIdx.x) / 128, 0) : 0;
  const uint64_t a = ptx::wgmma_rows(ring + group * 64 * At::ROW_BYTES);
  const uint64_t b = ptx::wgmma_rows(ring + At::WEIGHT_BYTES);
  const auto release = [](int slot) {
    const int lane = threadIdx.x % 32;
    if (U::SHARE == 1) {
      if (lane == 0) ptx::barrier_arrive(S::empty() + slot);
    } else if (lane < U::SHARE) {
      ptx::barrier_arrive_at(S::empty() + slot, At::mates() + lane);
    }
  };
  Sums<U> sum;
#pragma unroll 1
  for (int run = 0; run < U::RUN; ++run) {
    const int blocks = At::first(segment + run + 1) - At::first(segment + run);
    int before = 0;
#pragma unroll
    for (int n = 0; n < U::NT; ++n) sum[n][0] = sum[n][1] = sum[n][2] = sum[n][3] = 0.0f;
#pragma unroll 1
    for (int step = 0; step < blocks; ++step) {
      ptx::barrier_wait(S::full() + at.slot, at.parity);
      ptx::wgmma_fence();
      const int here = at.slot * (At::SLOT_BYTES / 16);
#pragma unroll
      for (int k16 = 0; k16 < 4; ++k16) ptx::group_multiply(sum, a + here + 2 * k16, b + here + 2 * k16);
      ptx::wgmma_commit();
      ptx::wgmma_wait<1>();
      if (step > 0) release(before);
      before = at.slot;
      at.advance();
    }
    ptx::wgmma_wait<0>();
    ptx::pin(sum);
    release(before);
#pragma unroll
    for (int n = 0; n < U::NT; ++n)
#pragma unroll
      for (int c = 0; c < 4; ++c) total[n][c] = run == 0 ? sum[n][c] : total[n][c] + sum[n][c];
  }
}

// Makes the barriers; the next kernel may come.
template <class U, class S>
__device__ __forceinline__ void start(const ptx::TensorMap& x, const ptx::TensorMap& w) {
  using At = Tile<U>;
  if (threadIdx.x == At::CONSUMERS) {
    ptx::tensor_map_ahead(w);
    ptx::tensor_map_ahead(x);
  }
  if (threadIdx.x < U::SLOTS) {
    ptx::barrier_init(S::full() + threadIdx.x, 1);
    ptx::barrier_init(S::empty() + threadIdx.x, At::CONSUMERS / 32 * U::SHARE);
    ptx::barriers_ready();
  }
  if (U::CLUSTER > 1)
    ptx::cluster_sync_relaxed();
  else
    __syncthreads();
  ptx::grid_dependency_launch();
}

__device__ __forceinline__ float4 four(const float (&sum)[4]) { return make_float4(sum[0], sum[1], sum[2], sum[3]); }

// Adds the segments of a tile, which CTAs of a cluster leave in shared memory: each adds, in order, every SEGS-th eight tokens.
// By all consumers; the producer calls cluster_sync beside it.
template <class U, class S, class At>
__device__ __forceinline__ void meet(const Sums<U>& sum, int own, int token, int row, bool inside, int M, int N, At at) {
  constexpr int WARPS = 4 * U::GROUPS, OWN = (U::NT + U::SEGS - 1) / U::SEGS, AT_ONCE = OWN < 3 ? OWN : 3;
  static_assert(WARPS * U::NT * 512 <= S::RING_COUNT, "the ring holds the tile's sums");
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, rank = blockIdx.x % U::SHARE;
  float4* room = reinterpret_cast<float4*>(S::ring()) + warp * U::NT * 32 + lane;
  ptx::named_barrier<32 * WARPS>(1);  // the ring is free
#pragma unroll
  for (int n = 0; n < U::NT; ++n) room[n * 32] = four(sum[n]);
  ptx::cluster_sync();
  if (!inside) return;
#pragma unroll
  for (int begin = 0; begin < OWN; begin += AT_ONCE) {
    float4 part[AT_ONCE][U::SEGS];
#pragma unroll
    for (int i = 0; i < AT_ONCE; ++i) {
      const int n = (begin + i) * U::SEGS + own;
#pragma unroll
      for (int segment = 0; segment < U::SEGS; ++segment)
        if (n < U::NT) part[i][segment] = ptx::load_cluster16(reinterpret_cast<float*>(room + n * 32), segment * U::SHARE + rank);
    }
#pragma unroll
    for (int i = 0; i < AT_ONCE; ++i) {
      const int n = (begin + i) * U::SEGS + own;
      if (n >= U::NT) continue;
      float4 all = part[i][0];
#pragma unroll
      for (int segment = 1; segment < U::SEGS; ++segment) {
        const float4 next = part[i][segment];
        all.x += next.x, all.y += next.y, all.z += next.z, all.w += next.w;
      }
      gemm::store_tile(all, token + 8 * n, row, at);
    }
  }
}

}  // namespace wgmma

template <class U, class S>
__device__ __forceinline__ void dense_wgmma(const ptx::TensorMap& x, const ptx::TensorMap& w, __nv_bfloat16* y, int M, int N) {
  using At = wgmma::Tile<U>;
  wgmma::start<U, S>(x, w);
  wgmma::Work<U> work(M, N);
  if (threadIdx.x >= At::CONSUMERS) {
    if constexpr (U::TAKEN > 0) ptx::give_registers<24>();
    if (threadIdx.x < At::CONSUMERS + 32) wgmma::produce<U, S>(x, w, work);
  } else {
    if constexpr (U::TAKEN > 0) ptx::take_registers<U::TAKEN>();
    const int own = threadIdx.x / 32 * 16;
    const bool inside = U::ROWS % 64 == 0 || own < U::ROWS;
    wgmma::Place<U> place{0, 0};
#pragma unroll 1
    for (; work.more(); work.next()) {
      wgmma::Sums<U> sum;
      wgmma::consume<U, S>(sum, work.segment(), place);
      ptx::grid_dependency_wait();  // nobody else may still read what is written now
      const int token = work.token(), row = work.row() + own;
      const int end = U::ROWS % 16 == 0 || work.row() + U::ROWS > N ? N : work.row() + U::ROWS;
      const auto at = [=](int64_t token, int row) { return token < M && row < end ? y + token * N + row : nullptr; };
      if constexpr (U::CTAS > 1) {
        wgmma::meet<U, S>(sum, work.segment(), token, row, inside, M, N, at);
        __syncwarp();
        ptx::cluster_sync_relaxed();
      } else if (inside) {
#pragma unroll
        for (int n = 0; n < U::NT; ++n) gemm::store_tile(wgmma::four(sum[n]), token + 8 * n, row, at);
      }
    }
  }
  __syncwarp();
  if (U::CLUSTER > 1) ptx::cluster_sync_relaxed();  // nobody copies into, or arrives at, a CTA that has left
}

}  // namespace kd
