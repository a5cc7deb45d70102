// Products whose blocks come as boxes of tensor maps, asked for by one thread: no copy instructions beside the products, and
// rows outside of a matrix cost nothing, so that a tile may be larger than what is left of the tokens.
#pragma once

#include "dense/gemm.cuh"
#include "ptx/tensor.cuh"

namespace kd {
namespace boxes {

// Fills the ring with this CTA's blocks; the weights' first of them before the kernel in front has finished. By one warp.
template <class U, class S>
__device__ __forceinline__ void produce(const ptx::TensorMap& x, const ptx::TensorMap& w, int token, int row) {
  using At = gemm::Shape<U>;
  const int first = At::first(At::segment(0)), blocks = At::EVEN ? At::STEPS : At::blocks(0);
  const auto weights = [&](int step, int slot) {
    ptx::barrier_arrive_expect(S::full() + slot, At::SLOT_BYTES);
    ptx::tensor_load(S::ring() + slot * At::SLOT_BYTES, w, (first + step) * U::STEP, row, S::full() + slot);
  };
  const auto tokens = [&](int step, int slot) {
    uint8_t* to = S::ring() + slot * At::SLOT_BYTES + At::WEIGHT_BYTES;
    ptx::tensor_load(to, x, (first + step) * U::STEP, token, S::full() + slot);
  };
  const int ready = blocks < U::SLOTS ? blocks : U::SLOTS;
  if (!ptx::elect_one()) return;
#pragma unroll 1
  for (int step = 0; step < ready; ++step) weights(step, step);
  ptx::grid_dependency_wait();
#pragma unroll 1
  for (int step = 0; step < ready; ++step) tokens(step, step);
  int slot = ready % U::SLOTS, parity = ready == U::SLOTS ? 0 : 1;
#pragma unroll 1
  for (int step = ready; step < At::STEPS; ++step) {
    ptx::barrier_wait(S::empty() + slot, parity);
    if (At::EVEN || step < blocks) {
      ptx::copies_after_accesses();
      weights(step, slot);
      tokens(step, slot);
    } else {
      ptx::barrier_arrive(S::full() + slot);  // a segment may have one block less than another
    }
    if (++slot == U::SLOTS) slot = 0, parity ^= 1;
  }
}

// As gemm::share_sums, for tiles whose segments the ring does not hold at once: it takes those of AT_ONCE of a warp's tiles of
// 16 x 8 at a time.
template <class U, class S, class At>
__device__ __forceinline__ void share_sums(const gemm::Sums<U>& sum, const gemm::Parts& parts, int token, int row, int M, int N,
                                           At at) {
  constexpr int WARPS = U::WR * U::WT, TILES = U::MT * U::NT, AT_ONCE = (TILES + 1) / 2;
  static_assert(WARPS * AT_ONCE * U::SEGS * 512 <= S::RING_COUNT, "half of the tile's segments fit");
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, rows = (N + 15) / 16, place = token / 8 * rows + row / 16;
  const int64_t segment = int64_t(parts.blocks) * rows * 128;
  float* first = parts.sums + int64_t(place) * 128 + lane * 4;
  const auto live = [=](int tile) { return token + tile / U::MT * 8 < M && row + tile % U::MT * 16 < N; };
  const auto spot = [=](int tile) { return (tile / U::MT * rows + tile % U::MT) * 128; };
#pragma unroll
  for (int tile = 0; tile < TILES; ++tile) {
    const float(&own)[4] = sum[tile % U::MT][tile / U::MT];
    if (live(tile))
      *reinterpret_cast<float4*>(first + blockIdx.x * segment + spot(tile)) = make_float4(own[0], own[1], own[2], own[3]);
  }
  int last = 0;
  __syncwarp();
  if (lane == 0 && live(0)) {
    last = ptx::add_acquire_release(parts.arrived + place, 1) == U::SEGS - 1;
    if (last) parts.arrived[place] = 0;
  }
  ptx::named_barrier<32 * WARPS>(1);  // the ring is free
  if (!__shfl_sync(0xffffffffu, last, 0)) return;
  float4* room = reinterpret_cast<float4*>(S::ring()) + warp * AT_ONCE * U::SEGS * 32 + lane;
#pragma unroll
  for (int begin = 0; begin < TILES; begin += AT_ONCE) {
#pragma unroll
    for (int tile = begin; tile < begin + AT_ONCE && tile < TILES; ++tile)
#pragma unroll
      for (int i = 0; i < U::SEGS; ++i)
        if (live(tile))
          ptx::copy16(ptx::shared_address(room + ((tile - begin) * U::SEGS + i) * 32), first + i * segment + spot(tile));
    ptx::copy_commit();
    ptx::copy_wait<0>();
#pragma unroll
    for (int tile = begin; tile < begin + AT_ONCE && tile < TILES; ++tile) {
      if (!live(tile)) continue;
      const float4* part = room + (tile - begin) * U::SEGS * 32;
      float4 total = part[0];
#pragma unroll
      for (int i = 1; i < U::SEGS; ++i) {
        const float4 next = part[i * 32];
        total.x += next.x, total.y += next.y, total.z += next.z, total.w += next.w;
      }
      gemm::store_tile(total, token + tile / U::MT * 8, row + tile % U::MT * 16, at);
    }
  }
}

}  // namespace boxes

template <class U, class S>
__device__ __forceinline__ void dense_mid(const ptx::TensorMap& x, const ptx::TensorMap& w, __nv_bfloat16* y, float* parts,
                                          int32_t* arrived, int M, int N, int B) {
  using At = gemm::Shape<U>;
  const int row = blockIdx.z * U::ROWS, token = blockIdx.y * U::TOKENS;
  if (threadIdx.x < U::SLOTS) {
    ptx::barrier_init(S::full() + threadIdx.x, 1);
    ptx::barrier_init(S::empty() + threadIdx.x, ptx::warp_arrivals(At::CONSUMERS / 32));
    ptx::barriers_ready();
  }
  __syncthreads();
  ptx::grid_dependency_launch();
  if (threadIdx.x >= At::CONSUMERS) return boxes::produce<U, S>(x, w, token, row);
  const auto at = [=](int64_t token, int row) { return token < M && row < N ? y + token * N + row : nullptr; };
  gemm::consume<U, S>(ptx::shared_address(S::ring()), [&](const gemm::Sums<U>& sum, int, int own_row, int own_token) {
    ptx::grid_dependency_wait();  // nobody else may still read what is written now
    if constexpr (U::APART && U::CTAS > 1)
      boxes::share_sums<U, S>(sum, {parts, arrived, B}, token + own_token, row + own_row, M, N, at);
    else
      gemm::store_sums<U>(sum, token + own_token, row + own_row, at);
  });
}

}  // namespace kd
