// One row: a CTA an SM, whose warps wait for nothing but weights and activated values.
//
// Two warps have a segment of K, a tile of 16 rows of weights each, and a ring, which goes on into the second product while the first
// is summed; one more warp fills all rings. The row is lifted, and its groups' starts are made, once a CTA: it is asked for in front
// of the weights, behind which it would wait. Activated values travel with a mark of their launch, so whoever needs them reads until
// they are there: no count, no barrier of the grid. In the second product pair p has the p-th of the row's experts on this rank, in
// all units of its CTA, which then adds the experts up.
#pragma once

#include "moe/activate.cuh"
#include "moe/choice.cuh"
#include "moe/product.cuh"
#include "moe/weighted.cuh"
#include "ptx/await.cuh"
#include "ptx/pdl.cuh"

namespace kd {
namespace moe {
namespace one_row {

constexpr int STAGE_BYTES = 2 * BLOCK_BYTES;

// The experts of the row on this rank, in the order of its choices: lane i of each warp knows choice i.
template <class U>
struct Chosen {
  int expert;
  uint32_t own;

  __device__ __forceinline__ Chosen(const int32_t* ids, int first_expert)
      : expert(choice<U>(ids, threadIdx.x % 32, U::T, first_expert)), own(__ballot_sync(0xffffffffu, expert >= 0)) {}

  __device__ __forceinline__ int count() const { return __popc(own); }
  // Which choice is number `index` of them.
  __device__ __forceinline__ int slot(int index) const {
    int slot = 0;
#pragma unroll
    for (int i = 0; i < U::T; ++i)
      if ((own >> i & 1) != 0 && __popc(own & ((1u << i) - 1)) == index) slot = i;
    return slot;
  }
  // By whole warps.
  __device__ __forceinline__ int of(int slot) const { return __shfl_sync(0xffffffffu, expert, slot); }
};

// What a CTA has of the two products: items of the first, units of the second; and the stages of a pair in one of them.
template <class U>
struct Share {
  static constexpr int UNITS = U::I / 16, SEGS = segments(U::H), SECOND_UNITS = U::H / UNIT_ROWS, SECOND_SEGS = segments(U::I);
  static constexpr int BLOCKS = U::H / BLOCK_K, FIRST = BLOCKS / U::PAIRS / 2, SECOND = U::I / BLOCK_K / 2;
  int from, to, first_unit, end_unit;

  __device__ __forceinline__ explicit Share(int experts) {
    const int cta = blockIdx.x, ctas = gridDim.x;
    from = experts * UNITS * cta / ctas, to = experts * UNITS * (cta + 1) / ctas;
    first_unit = SECOND_UNITS * cta / ctas, end_unit = SECOND_UNITS * (cta + 1) / ctas;
  }
};

// Fills the rings, by one warp: lane p that of pair p.
template <class U, class S>
__device__ __forceinline__ void fill(Int4G32 gate_up, Int4G32 down, const Chosen<U>& chosen) {
  using Part = Share<U>;
  const Part share(chosen.count());
  const int pair = threadIdx.x % 32;
  int slot = 0, parity = 1;
  const auto stages = [&](bool live, const unsigned char* from, int count) {
    for (int i = 0; live && i < count; ++i, from += STAGE_BYTES) {
      uint64_t *full = S::full() + pair * U::STAGES + slot, *empty = S::empty() + pair * U::STAGES + slot;
      ptx::barrier_wait(empty, parity);
      ptx::copies_after_accesses();
      ptx::barrier_arrive_expect(full, STAGE_BYTES);
      ptx::bulk_load(S::ring() + (pair * U::STAGES + slot) * STAGE_BYTES, from, STAGE_BYTES, full, ptx::evict_first());
      if (++slot == U::STAGES) slot = 0, parity ^= 1;
    }
    __syncwarp();
  };
  for (int item = share.from; item < share.to; ++item) {
    const int64_t unit = chosen.of(chosen.slot(item / Part::UNITS)) * Part::UNITS + item % Part::UNITS;
    stages(pair < U::PAIRS, reinterpret_cast<const unsigned char*>(gate_up.blocks) + (unit * Part::BLOCKS + 2 * Part::FIRST * pair) * BLOCK_BYTES,
           Part::FIRST);
  }
  const int64_t unit = chosen.of(chosen.slot(pair)) * Part::SECOND_UNITS + share.first_unit;
  // A unit is as long as its K, and the next one lies behind it.
  stages(pair < chosen.count(), reinterpret_cast<const unsigned char*>(down.blocks) + unit * Part::SECOND * STAGE_BYTES,
         (share.end_unit - share.first_unit) * Part::SECOND);
}

// A pair's ring, as its warps read it.
template <class U, class S>
struct PairRing {
  int pair, slot = 0;
  uint32_t parity = 0;

  // The next stage, once it is there.
  __device__ __forceinline__ const unsigned char* front() const {
    ptx::barrier_wait(S::full() + pair * U::STAGES + slot, parity);
    return S::ring() + (pair * U::STAGES + slot) * STAGE_BYTES;
  }
  __device__ __forceinline__ void pop() {
    ptx::barrier_arrive_warp(S::empty() + pair * U::STAGES + slot, threadIdx.x % 32);
    if (++slot == U::STAGES) slot = 0, parity ^= 1;
  }
};

// Lifts vectors `at` of eight groups, of which this lane has one of group lane / 4 if `live`, and leaves where the sums of these groups
// start: -8 times the sum of a group's values, each group as a token of its own.
template <bool LIFT>
__device__ __forceinline__ void prepare(Bf16x8 x, bool live, uint4* vector, float* starts) {
  const uint4 bias = make_uint4(INT4_BIAS, INT4_BIAS, INT4_BIAS_HIGH, INT4_BIAS_HIGH);
  if (LIFT)
#pragma unroll
    for (int i = 0; i < 4; ++i) x.word[i] = int4_lift_pair(x.word[i], i);
  float start[1][4];
  Tokens<1> tokens;
  tokens.tile[0] = x;
  start_of<1>(tokens, bias, start);
  if (live) *vector = make_uint4(x.word[0], x.word[1], x.word[2], x.word[3]);
  // Lane t of the first four has those of groups 2t and 2t + 1.
  if (threadIdx.x % 32 < 4) *reinterpret_cast<float2*>(starts + 2 * (threadIdx.x % 32)) = make_float2(start[0][0], start[0][1]);
}

// One stage of one tile of 16 rows: adds to the sums of rows g and g + 8, in every lane of a row. `x` and `starts` are those of its
// four groups.
__device__ __forceinline__ void multiply_stage(const unsigned char* at, int tile, const uint4* x, const float* starts, float& low,
                                               float& high) {
  const int lane = threadIdx.x % 32;
  const float4 first = *reinterpret_cast<const float4*>(starts);
  const float start[4] = {first.x, first.y, first.z, first.w};
#pragma unroll
  for (int b = 0; b < 2; ++b, at += BLOCK_BYTES) {
    const uint4 words = *reinterpret_cast<const uint4*>(at + 512 * tile + 16 * lane);
    const uint2 scales = *reinterpret_cast<const uint2*>(at + WORD_BYTES + 64 * tile + 8 * (lane / 4));
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      const uint4 own = x[4 * (2 * b + c) + lane % 4];
      const uint32_t both = c ? scales.y : scales.x;
      uint32_t a[4], d[4];
      int4_pairs(c ? words.z : words.x, a), int4_pairs(c ? words.w : words.y, d);
      const float from = start[2 * b + c], begin[4] = {from, from, from, from};
      float part[4];
      ptx::mma_16816_bf16(part, begin, a[0], d[0], a[1], d[1], own.x, own.y);
      ptx::mma_16816_bf16(part, part, a[2], d[2], a[3], d[3], own.z, own.w);
      low += __uint_as_float(both << 16) * part[0], high += __uint_as_float(both & 0xffff0000u) * part[2];
    }
  }
}

}  // namespace one_row
}  // namespace moe

// `told` belongs to these launches: activated values, two words for each pair, then the number of this launch among all and a count.
// A choice's pairs lie so that neighbouring lanes read neighbours: the first two of each vector of eight, then the others.
template <class U, class S>
__device__ __forceinline__ void moe_one(Int4G32 gate_up, Int4G32 down, const __nv_bfloat16* row, const int32_t* ids,
                                        const float* weights, int32_t first_expert, int32_t* told, __nv_bfloat16* y, int, int) {
  using namespace moe;
  using namespace moe::one_row;
  using Part = Share<U>;
  constexpr int GROUPS = U::H / 32, VECS = U::I / 8, EIGHTS = (GROUPS / 8 + U::WARPS - 1) / U::WARPS, THREADS = 32 * U::WARPS;
  static_assert(U::WARPS == 2 * U::PAIRS && Part::SEGS == U::PAIRS && Part::SECOND_SEGS == 1 && GROUPS % 8 == 0, "two warps a segment");
  static_assert(8 * U::I <= U::H && U::T <= U::PAIRS && U::I % 128 == 0, "activated values take the place of the row");
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, pair = warp / 2, tile = warp % 2;
  if (threadIdx.x < U::PAIRS * U::STAGES) {
    ptx::barrier_init(S::full() + threadIdx.x, 1);
    ptx::barrier_init(S::empty() + threadIdx.x, ptx::warp_arrivals(2));
    ptx::barriers_ready();
  }
  __syncthreads();
  ptx::grid_dependency_wait();
  if (warp == U::WARPS) return fill<U, S>(gate_up, down, Chosen<U>(ids, first_expert));
  Bf16x8 values[EIGHTS] = {};
#pragma unroll
  for (int i = 0; i < EIGHTS; ++i)
    if (warp + i * U::WARPS < GROUPS / 8) values[i] = load8(row, 32 * (warp + i * U::WARPS) + lane);
  int32_t* launches = told + U::T * U::I;
  const Chosen<U> chosen(ids, first_expert);
  const uint32_t mark = uint32_t(ptx::load4(launches)) | 0x80000000u;
  const Part share(chosen.count());
  uint4* x = reinterpret_cast<uint4*>(S::row());
  if (threadIdx.x < U::T) S::weight()[threadIdx.x] = ptx::load4f(weights + threadIdx.x);
#pragma unroll
  for (int i = 0; i < EIGHTS; ++i) {
    const int eight = warp + i * U::WARPS;
    if (eight < GROUPS / 8) prepare<true>(values[i], true, x + 32 * eight + lane, S::starts() + 8 * eight);
  }
  ptx::named_barrier<THREADS>(9);

  PairRing<U, S> ring{pair};
  float* sums = S::sums();
#pragma unroll 1
  for (int item = share.from; item < share.to; ++item) {
    float low = 0.0f, high = 0.0f;
#pragma unroll 1
    for (int i = 0; i < Part::FIRST; ++i) {
      const int group = 4 * (pair * Part::FIRST + i);
      multiply_stage(ring.front(), tile, x + 4 * group, S::starts() + group, low, high);
      ring.pop();
    }
    if (lane % 4 == 0) sums[32 * pair + 16 * tile + g] = low, sums[32 * pair + 16 * tile + 8 + g] = high;
    ptx::named_barrier<THREADS>(9);
    if (warp == 0) {
      const int own = lane % 16, at = own / 8 * 16 + own % 8;  // its gate, and eight further its up
      float gate = sums[at], up = sums[at + 8];
#pragma unroll
      for (int i = 1; i < U::PAIRS; ++i) gate += sums[32 * i + at], up += sums[32 * i + at + 8];
      const uint32_t value = __bfloat16_as_ushort(activate(gate, up, own % 8));
      const uint32_t both = value | __shfl_down_sync(0xffffffffu, value, 1) << 16;
      const int vec = item % Part::UNITS * 2 + own / 8, k = own % 8 / 2;
      int32_t* to = told + chosen.slot(item / Part::UNITS) * U::I + k / 2 * (4 * VECS) + vec * 4 + k % 2 * 2;
      if (lane < 16 && lane % 2 == 0) ptx::store_device8(to, make_uint2(both, mark));
    }
    if (item + 1 < share.to) ptx::named_barrier<THREADS>(9);  // before the sums are written again
  }
  ptx::grid_dependency_launch();

  // Behind a barrier since the last reading of the row, if there was one.
  const bool has = pair < chosen.count();
  const int slot = chosen.slot(pair);
  uint4* own = x + pair * VECS;
  float* starts = S::own_starts() + pair * U::OWN_STARTS;
  if (has && tile == 0) {
#pragma unroll
    for (int i = 0; i < (VECS + 31) / 32; ++i) {
      const int at = 32 * i + lane;
      Bf16x8 values = {};
      if (at < VECS) {
        const int32_t* from = told + slot * U::I + 4 * at;
        uint4 first, second;
        do
          first = ptx::load_device16(from), second = ptx::load_device16(from + 4 * VECS);
        while (((first.y ^ mark) | (first.w ^ mark) | (second.y ^ mark) | (second.w ^ mark)) != 0);
        values = Bf16x8{{first.x, first.z, second.x, second.z}};
      }
      __syncwarp();
      prepare<false>(values, at < VECS, own + at, starts + 8 * i);
    }
  }
  if (has) ptx::named_barrier<64>(1 + pair);
  float* parts = S::parts();
#pragma unroll 1
  for (int first = share.first_unit; first < share.end_unit; first += 2) {
    const int units = ::min(2, share.end_unit - first);
    if (has)
#pragma unroll 1
      for (int i = 0; i < units; ++i) {
        float low = 0.0f, high = 0.0f;
#pragma unroll
        for (int stage = 0; stage < Part::SECOND; ++stage) {
          multiply_stage(ring.front(), tile, own + 16 * stage, starts + 4 * stage, low, high);
          ring.pop();
        }
        float* to = parts + 64 * slot + 32 * i + 16 * tile + g;
        if (lane % 4 == 0) to[0] = low * INT4_LOWER, to[8] = high * INT4_LOWER;
      }
    ptx::named_barrier<THREADS>(9);
    if (int(threadIdx.x) < 16 * units) {
      const int column = 2 * threadIdx.x;
      float sum[2] = {};
#pragma unroll
      for (int i = 0; i < U::T; ++i) {
        if (!(chosen.own >> i & 1)) continue;
        const float2 part = *reinterpret_cast<const float2*>(parts + 64 * i + column);
        sum[0] = fmaf(S::weight()[i], part.x, sum[0]), sum[1] = fmaf(S::weight()[i], part.y, sum[1]);
      }
      *reinterpret_cast<__nv_bfloat162*>(y + first * UNIT_ROWS + column) = __floats2bfloat162_rn(sum[0], sum[1]);
    }
    if (first + 2 < share.end_unit) ptx::named_barrier<THREADS>(9);
  }
  // All have read the number once the last one leaves.
  if (threadIdx.x == 0 && atomicAdd(launches + 1, 1) == int(gridDim.x) - 1) launches[0] = launches[0] + 1, launches[1] = 0;
}

}  // namespace kd
