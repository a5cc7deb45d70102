// What a cluster of four CTAs does with blocks of eight steps of 16 keys for a tile of 8 rows. As in a narrow tile these are the
// n8 side of the products.
//
// Each CTA has a quarter of every entry: the columns of one quarter of the scores, a fourth of which it also mixes. So four
// SMs share a leaf, and tell each other their quarters of the scores once a block. That is for passes of so few rows that most
// SMs would else have nothing to do.
#pragma once

#include "attn/mla_softmax.cuh"
#include "ptx/cluster.cuh"
#include "ptx/ldmatrix.cuh"
#include "ptx/mma.cuh"

namespace kd {
namespace mla {

constexpr int BLOCK_STEPS = 8;  // steps of a block: one a warp

// This CTA's quarter of entries, on their way into shared memory: two blocks of eight steps, each warp's copied by itself.
template <class U, class S>
struct Blocks {
  static constexpr int VECS = U::C / 32;  // vectors of 16 bytes in a quarter of a latent

  const __nv_bfloat16 *pages, *scratch;
  const int quarter;
  int turn = 0;   // the item that is being requested
  int step = 0;   // its first step of the next block
  int count = 0;  // blocks requested so far

  __device__ __forceinline__ static uint32_t at(int block, int step) {
    return ptx::shared_address(S::ring()) + ((block & 1) * BLOCK_STEPS + step) * (KEYS * U::KEY);
  }

  // 16 entries, entry i from from(i) on.
  template <class From>
  __device__ __forceinline__ void copy(uint32_t to, From from) const {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < VECS / 2; ++i) {
      const int entry = (32 * i + lane) / VECS, vec = lane % VECS;
      ptx::copy16_ahead(to + entry * U::KEY + 16 * vec, from(entry) + quarter * (U::C / 4) + 8 * vec);
    }
#pragma unroll
    for (int k = Quarter<U>::LATENT; k < Quarter<U>::STEPS; ++k)
      if (Quarter<U>::has(quarter, k))
        ptx::copy16_ahead(to + lane / 2 * U::KEY + 32 * k + lane % 2 * 16,
                          from(lane / 2) + Quarter<U>::at(quarter, k) / 2 + lane % 2 * 8);
  }

  // Requests the next block, of items up to number `last`. Whether there was one to request.
  __device__ __forceinline__ bool next(int last) {
    const Work* work = &work_of<S>(turn);
    if (work->steps >= 0 && step >= work->steps) {
      if (turn == last) return false;
      work = &work_of<S>(++turn);
      step = 0;
    }
    if (work->steps < 0) return false;
    const int warp = threadIdx.x / 32, number = step + warp;
    const uint32_t to = at(count, warp);
    if (number < work->trunk) {
      const int64_t page = pages_of<S>(turn)[number / (PAGE / KEYS)];
      const __nv_bfloat16* rows = pages + (page * PAGE + number % (PAGE / KEYS) * KEYS) * U::W;
      copy(to, [=](int entry) { return rows + entry * U::W; });
    } else if (number < work->steps) {
      Step own;
      const int place = gather<U, S>(*work, turn, number - work->trunk, own);
      copy(to, [=](int entry) {
        const int row = __shfl_sync(0xffffffffu, place, entry);
        return row < 0 ? scratch + int64_t(~row) * U::W : pages + int64_t(row) * U::W;
      });
      if (threadIdx.x % 32 == 0) gathered_step<S>((count & 1) * BLOCK_STEPS + warp) = own;
    }
    ptx::copy_commit();
    step += BLOCK_STEPS;
    ++count;
    return true;
  }
  // Requests what there is room for if the blocks before number `freed` are no longer needed.
  __device__ __forceinline__ void fill(int freed, int last) {
    while (count < freed + 2 && next(last)) {}
  }
  // Waits for this warp's step of block `number`.
  __device__ __forceinline__ void wait(int number) const {
    if (count == number + 1)
      ptx::copy_wait<0>();
    else
      ptx::copy_wait<1>();
    __syncwarp();
  }
};

// Each warp scores one step of a block and weighs it, and mixes 16 of the columns over all of them.
template <class U, class S>
struct Shared {
  static constexpr int STRIDE = KEYS + 4;       // of a row of scores
  static constexpr int EIGHT = 8 * STRIDE;      // scores of eight rows
  static constexpr int MIXING = U::C / 64;      // warps that mix
  static_assert(MIXING <= 8, "16 columns a warp");
  using Blocks = mla::Blocks<U, S>;

  const int quarter;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  uint32_t query[Quarter<U>::STEPS][2];
  float sum[4];
  Softmax softmax;  // of row g

  __device__ __forceinline__ explicit Shared(int quarter) : quarter(quarter) {}

  __device__ __forceinline__ void take_queries(const __nv_bfloat16* q, const Work& work) {
    const int64_t first = int64_t(work.stream.first) * U::H + work.row;
    // Rows beyond the tile's repeat its last.
    const __nv_bfloat16* from = q + (first + ::min(g, work.rows - 1)) * U::W + 2 * t;
#pragma unroll
    for (int k = 0; k < Quarter<U>::STEPS; ++k)
#pragma unroll
      for (int i = 0; i < 2; ++i)
        if (Quarter<U>::has(quarter, k))
          query[k][i] = ptx::load4(reinterpret_cast<const int32_t*>(from + Quarter<U>::at(quarter, k) / 2 + 8 * i));
#pragma unroll
    for (int c = 0; c < 4; ++c) sum[c] = 0.0f;
    softmax.clear();
  }

  // Where the scores of a step lie. While a block's quarters are in one half, the other half is for the whole scores, and then
  // the weights, of each warp's step.
  __device__ __forceinline__ static float* place(int half, int step) {
    return S::scores() + ((half & 1) * BLOCK_STEPS + step) * EIGHT;
  }
  __device__ __forceinline__ static uint2* weights(int block, int step) {
    return reinterpret_cast<uint2*>(place(block + 1, step));
  }
  // What the weights of a step and row add up to, by lane.
  __device__ __forceinline__ static float* added(int block, int step) { return place(block + 1, step) + 64; }
  // The greatest score of each row.
  __device__ __forceinline__ static float* tops(int step) { return S::keep() + step * 8; }

  // This CTA's quarter of the scores of this warp's step of block `block`.
  __device__ __forceinline__ void score(int block) const {
    const uint32_t from = Blocks::at(block, warp) + lane % 16 * U::KEY + lane / 16 * 16;
    float part[4] = {};
    uint32_t a[Quarter<U>::STEPS][4];
#pragma unroll
    for (int k = 0; k < Quarter<U>::STEPS; ++k)
      if (Quarter<U>::has(quarter, k)) ptx::ldmatrix4(a[k], from + 32 * k);
#pragma unroll
    for (int k = 0; k < Quarter<U>::STEPS; ++k)
      if (Quarter<U>::has(quarter, k))
        ptx::mma_16816_bf16(part, a[k][0], a[k][1], a[k][2], a[k][3], query[k][0], query[k][1]);
    *reinterpret_cast<float4*>(place(block, warp) + 4 * lane) = float4{part[0], part[1], part[2], part[3]};
  }

  __device__ __forceinline__ bool serves(const Step& step) const { return g >= step.low && g < step.high; }

  // The scores of this warp's step: the CTAs' quarters in order.
  __device__ __forceinline__ void add_quarters(int block, float factor, const Step& step, float (&s)[4]) const {
    float4 part[4];
#pragma unroll
    for (int from = 0; from < 4; ++from) part[from] = ptx::load_cluster16(place(block, warp) + 4 * lane, from);
    float* own = place(block + 1, warp);
    float* to = own + 2 * t * STRIDE + g;
    to[0] = ((part[0].x + part[1].x) + part[2].x) + part[3].x;
    to[STRIDE] = ((part[0].y + part[1].y) + part[2].y) + part[3].y;
    to[8] = ((part[0].z + part[1].z) + part[2].z) + part[3].z;
    to[STRIDE + 8] = ((part[0].w + part[1].w) + part[2].w) + part[3].w;
    __syncwarp();
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float2 pair = *reinterpret_cast<const float2*>(own + g * STRIDE + 2 * t + 8 * i);
      s[2 * i] = pair.x, s[2 * i + 1] = pair.y;
    }
    Softmax::scale<false>(s, factor, step);
    float top = fmaxf(fmaxf(s[0], s[1]), fmaxf(s[2], s[3]));
    top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 1));
    top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 2));
    if (t == 0) tops(warp)[g] = serves(step) ? top : -INFINITY;
  }

  // The weights of this warp's step, the block's first `steps` of which have scores. Bit k: a base rises at step k.
  __device__ __forceinline__ uint32_t weigh(int block, int steps, const Step& step, const float (&s)[4]) const {
    float top[BLOCK_STEPS];
#pragma unroll
    for (int k = 0; k < BLOCK_STEPS; ++k) top[k] = k < steps ? tops(k)[g] : -INFINITY;
    float base = softmax.base, own = base;
    uint32_t rises = 0;
#pragma unroll
    for (int k = 0; k < BLOCK_STEPS; ++k) {
      const bool rise = top[k] > base + SLACK;
      if (rise) base = top[k], rises |= 1 << k;
      if (k == warp) own = base;
    }
    if (warp < steps) weights(block, warp)[lane] = Softmax::round<false>(s, own, serves(step), added(block, warp)[lane]);
    return __reduce_or_sync(0xffffffffu, rises);
  }

  // The block's weights times the latents.
  __device__ __forceinline__ void mix(int block, int steps, uint32_t rises) {
    uint32_t values[BLOCK_STEPS][4];
    uint2 w[BLOCK_STEPS];
    const uint32_t latents =
        Blocks::at(block, 0) + (lane % 8 + lane / 16 * 8) * U::KEY + lane / 8 % 2 * 16 + 32 * warp;
#pragma unroll
    for (int k = 0; k < BLOCK_STEPS; ++k) {
      if (k >= steps) break;
      w[k] = weights(block, k)[lane];
      if (warp < MIXING) ptx::ldmatrix4_transposed(values[k], latents + k * (KEYS * U::KEY));
    }
#pragma unroll
    for (int k = 0; k < BLOCK_STEPS; ++k) {
      if (k >= steps) break;
      float keep = 1.0f;
      if (rises >> k & 1) {
        const float top = tops(k)[g];
        if (top > softmax.base + SLACK) {
          keep = ptx::exp2_fast(softmax.base - top);
          softmax.base = top;
        }
        // This lane's sums are those of rows 2t and 2t + 1.
        const float even = __shfl_sync(0xffffffffu, keep, 8 * t), odd = __shfl_sync(0xffffffffu, keep, 8 * t + 4);
        sum[0] *= even, sum[1] *= odd;
        sum[2] *= even, sum[3] *= odd;
      }
      if (warp == 0) softmax.total = softmax.total * keep + added(block, k)[lane];
      if (warp < MIXING)
        ptx::mma_16816_bf16(sum, values[k][0], values[k][1], values[k][2], values[k][3], w[k].x, w[k].y);
    }
  }

  // Partial results, as those of wide tiles.
  __device__ __forceinline__ void store(const Work& work, float* part_o, float* part_ml, int Z) const {
    const int64_t first = work.part, room = ::min(int64_t(work.rows), Z - work.part);
    const float total = softmax.all();
    if (quarter == 0 && warp == 0 && t == 0 && g < room)
      *reinterpret_cast<float2*>(part_ml + (first + g) * 2) = float2{softmax.base, total};
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int row = 2 * t + r;
      float* to = part_o + (first + row) * U::C + quarter * (U::C / 4) + 16 * warp + g;
      if (row < room && warp < MIXING) to[0] = sum[r], to[8] = sum[2 + r];
    }
  }
};

}  // namespace mla
}  // namespace kd
