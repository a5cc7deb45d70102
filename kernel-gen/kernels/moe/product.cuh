// Products of 32 rows of INT4 weights and the rows of one slab, 8 a tile, over one segment of K; sums over the segments.
//
// Codes enter the tensor core as they are (kd/int4.cuh), 8 too large. The sums of a group of 32 therefore start at -8 times
// the sum of the row's values, which two mma with a constant operand make; then come two mma with the codes, and the group's
// scale on the f32 result. A row's sums depend on nothing but that row: segments are fixed by K and added in order.
#pragma once

#include "kd/int4.cuh"
#include "kd/vec.cuh"
#include "moe/draw.cuh"
#include "ptx/mma.cuh"

namespace kd {
namespace moe {

template <int N>
struct Tiles {
  static constexpr int value = N;
};

// The values of one group of 32 of each tile's row g.
template <int NT>
struct Tokens {
  Bf16x8 tile[NT] = {};
};

// Row g of each tile, where there is one. The others stay 0: they cost no traffic and little power.
template <int NT>
struct Rows {
  const __nv_bfloat16* at[NT];
  bool real[NT];
};

template <int NT>
__device__ __forceinline__ void load(const Rows<NT>& rows, int group, Tokens<NT>& to) {
#pragma unroll
  for (int j = 0; j < NT; ++j)
    if (rows.real[j]) to.tile[j] = load8(rows.at[j], 4 * group);
}

// The values as the tensor core takes them beside raw codes, if they come as they are: powers of two change no digit.
template <class U, int NT>
__device__ __forceinline__ Tokens<NT> lifted(Tokens<NT> tokens) {
  if constexpr (U::RAW_ROWS) {
#pragma unroll
    for (int j = 0; j < NT; ++j)
#pragma unroll
      for (int i = 0; i < 4; ++i) tokens.tile[j].word[i] = int4_lift_pair(tokens.tile[j].word[i], i);
  }
  return tokens;
}

// Where the sums of a group start: -8 times the sum of its values, which takes the offset off the codes.
template <int NT>
__device__ __forceinline__ void start_of(const Tokens<NT>& tokens, const uint4& bias, float (&start)[NT][4]) {
  const float zero[4] = {};
#pragma unroll
  for (int j = 0; j < NT; ++j) {
    const Bf16x8& x = tokens.tile[j];
    ptx::mma_16816_bf16(start[j], zero, bias.x, bias.y, bias.z, bias.w, x.word[0], x.word[1]);
    ptx::mma_16816_bf16(start[j], start[j], bias.x, bias.y, bias.z, bias.w, x.word[2], x.word[3]);
  }
}

// One group: the words and scales of rows g and g + 8 of each tile of 16.
template <int NT>
__device__ __forceinline__ void multiply(const uint32_t (&low)[2], const uint32_t (&high)[2], const uint32_t (&scales)[2],
                                         const Tokens<NT>& tokens, const float (&start)[NT][4], float (&sum)[2][NT][4]) {
#pragma unroll
  for (int m = 0; m < 2; ++m) {
    const float low_scale = __uint_as_float(scales[m] << 16), high_scale = __uint_as_float(scales[m] & 0xffff0000u);
    uint32_t a[4], b[4];
    int4_pairs(low[m], a), int4_pairs(high[m], b);
#pragma unroll
    for (int j = 0; j < NT; ++j) {
      const Bf16x8& x = tokens.tile[j];
      float part[4];
      ptx::mma_16816_bf16(part, start[j], a[0], b[0], a[1], b[1], x.word[0], x.word[1]);
      ptx::mma_16816_bf16(part, part, a[2], b[2], a[3], b[3], x.word[2], x.word[3]);
      sum[m][j][0] += low_scale * part[0], sum[m][j][1] += low_scale * part[1];
      sum[m][j][2] += high_scale * part[2], sum[m][j][3] += high_scale * part[3];
    }
  }
}

// What the warps of a team add their segments through: room for one tile of 8 tokens, SEGS warps x 2 x 32 lanes x 4.
template <class U>
struct Joint {
  float4* sums;
  uint64_t *full, *empty;
  uint32_t parity = 0;
  int turn = 0;
};

// Sums of one item, handed to `store(m, j, sums)` for tile m of 16 rows and tile j of 8 tokens, each by one warp.
template <class U, class S, int NT, class R, class Store>
__device__ __forceinline__ void product(R& ring, Joint<U>& joint, Rows<NT>& rows, int segment, Store store) {
  const int lane = threadIdx.x % 32;
  float sum[2][NT][4] = {};
  // From memory, since the compiler would make a known constant anew for each use.
  const uint4 bias = ptx::load_shared16(S::bias());
  // Few tokens are read a stage ahead, more would take too many registers.
  constexpr bool EARLY = NT <= U::EARLY;
  constexpr int KEPT = EARLY ? U::PER_STAGE : 1;
  Tokens<NT> tokens[KEPT][2];
  if (EARLY)
#pragma unroll
    for (int b = 0; b < KEPT; ++b) load<NT>(rows, 2 * b, tokens[b][0]), load<NT>(rows, 2 * b + 1, tokens[b][1]);
#pragma unroll 1
  for (int left = U::BLOCKS / U::PER_STAGE; left > 0; --left) {
    const unsigned char* at = ring.front();
    ring.renew();
#pragma unroll(KEPT)
    for (int b = 0; b < U::PER_STAGE; ++b, at += BLOCK_BYTES) {
      uint4 words[2];
      uint2 scales[2];
#pragma unroll
      for (int m = 0; m < 2; ++m) {
        words[m] = *reinterpret_cast<const uint4*>(at + 512 * m + 16 * lane);
        scales[m] = *reinterpret_cast<const uint2*>(at + WORD_BYTES + 64 * m + 8 * (lane / 4));
      }
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        Tokens<NT>& own = tokens[b % KEPT][c];
        if (!EARLY) load<NT>(rows, 2 * b + c, own);
        own = lifted<U, NT>(own);
        float start[NT][4];
        start_of<NT>(own, bias, start);
        multiply<NT>({c ? words[0].z : words[0].x, c ? words[1].z : words[1].x},
                     {c ? words[0].w : words[0].y, c ? words[1].w : words[1].y},
                     {c ? scales[0].y : scales[0].x, c ? scales[1].y : scales[1].x}, own, start, sum);
        if (EARLY && left > 1) load<NT>(rows, 2 * (b + U::PER_STAGE) + c, own);
      }
    }
#pragma unroll
    for (int j = 0; j < NT; ++j) rows.at[j] += U::PER_STAGE * BLOCK_K;
    ring.pop();
  }
  if constexpr (U::SEGS == 1) {
#pragma unroll
    for (int m = 0; m < 2; ++m)
#pragma unroll
      for (int j = 0; j < NT; ++j) store(m, j, sum[m][j]);
  } else {
#pragma unroll
    for (int j = 0; j < NT; ++j) {
      ptx::barrier_wait(joint.empty, joint.parity ^ 1);
#pragma unroll
      for (int m = 0; m < 2; ++m)
        joint.sums[(segment * 2 + m) * 32 + lane] = make_float4(sum[m][j][0], sum[m][j][1], sum[m][j][2], sum[m][j][3]);
      ptx::barrier_arrive_warp(joint.full, lane);
      // Two warps of the team in turn.
      const int m = (segment - joint.turn + U::SEGS) % U::SEGS;
      if (m < 2) {
        ptx::barrier_wait(joint.full, joint.parity);
        float4 total = joint.sums[m * 32 + lane];
#pragma unroll
        for (int s = 1; s < U::SEGS; ++s) {
          const float4 next = joint.sums[(s * 2 + m) * 32 + lane];
          total.x += next.x, total.y += next.y, total.z += next.z, total.w += next.w;
        }
        const float out[4] = {total.x, total.y, total.z, total.w};
        store(m, j, out);
        __syncwarp();
      }
      ptx::barrier_arrive_met(joint.empty, lane);
      joint.parity ^= 1;
      joint.turn = (joint.turn + 2) % U::SEGS;
    }
  }
}

// Calls `run` with the number of tiles as a constant.
template <int NT, class Run>
__device__ __forceinline__ void with_tiles(int tiles, Run run) {
  if constexpr (NT == 1)
    run(Tiles<1>{});
  else if (tiles == NT)
    run(Tiles<NT>{});
  else
    with_tiles<NT - 1>(tiles, run);
}

// All items from `walk` on of the calling warp's team, whose segment is `segment`. `row(place)` is where the values of a place in
// the list of rows begin; `store(unit, m, place, valid, sums)` takes the sums of rows g and g + 8 of tile m for two places from
// `place`, of which `valid` exist.
template <class U, class S, class R, class W, class Row, class Store>
__device__ __forceinline__ void products_of(R& ring, W& walk, Joint<U>& joint, int segment, const __nv_bfloat16* values, Row row,
                                            Store store) {
  const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  while (!walk.done()) {
    const int first = walk.first(), rows = walk.rows(), unit = walk.step;
    __syncwarp();
    if (lane == 0) walk.next(ring.entries);
    __syncwarp();
    with_tiles<U::SLAB / 8>((rows + 7) / 8, [&](auto tiles) {
      constexpr int NT = decltype(tiles)::value;
      Rows<NT> from;
#pragma unroll
      for (int j = 0; j < NT; ++j) {
        from.real[j] = 8 * j + g < rows;
        from.at[j] = values + int64_t(row(first + (from.real[j] ? 8 * j + g : 0))) * U::K + segment * U::SEG + 8 * t;
      }
      product<U, S, NT>(ring, joint, from, segment, [&](int m, int j, const float(&sums)[4]) {
        store(unit, m, first + 8 * j + 2 * t, rows - (8 * j + 2 * t), sums);
      });
    });
  }
}

// The place of the calling CTA among all shares: the two CTAs of an SM are given neighbouring ones, since their rows are the
// same, and are cached once.
__device__ __forceinline__ int share_of_cta() {
  const int half = gridDim.x / 2;
  return gridDim.x % 2 ? blockIdx.x : blockIdx.x % half * 2 + blockIdx.x / half;
}

// Barriers of a warp's ring, and those of a team for its joint sums: the calling warp's, before a __syncthreads.
template <class U>
__device__ __forceinline__ void joint_barriers(uint64_t* joints) {
  if (threadIdx.x % (32 * U::SEGS) != 0) return;
  ptx::barrier_init(joints + threadIdx.x / (32 * U::SEGS) * 2, ptx::warp_arrivals(U::SEGS));
  ptx::barrier_init(joints + threadIdx.x / (32 * U::SEGS) * 2 + 1, ptx::warp_arrivals(U::SEGS));
}

template <class U>
__device__ __forceinline__ void ring_barriers(uint64_t* bars) {
  if (threadIdx.x % 32 != 0) return;
  for (int i = 0; i < U::STAGES; ++i) ptx::barrier_init(bars + i, 1);
}

// The operand of the tensor core that takes off the offset of the codes.
__device__ __forceinline__ void write_bias(uint32_t* to) {
  if (threadIdx.x == 0) *reinterpret_cast<uint4*>(to) = make_uint4(INT4_BIAS, INT4_BIAS, INT4_BIAS_HIGH, INT4_BIAS_HIGH);
}

// Sums of the items of a warp whose K is so short that a slab's values, and where its sums start, stay in registers over all of
// an expert's units: the bits of product.
template <class U, class S, class R, class Row, class Store>
__device__ __forceinline__ void kept_products(R& ring, Feed<U>* feed, const __nv_bfloat16* values, Row row, Store store) {
  const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  // With the starts of a fourth block there are not enough registers.
  constexpr int STARTS = U::BLOCKS < 4 ? U::BLOCKS : 3;
  Tokens<1> tokens[U::BLOCKS][2];
  float start[STARTS][2][1][4];
  int held = -1;
#pragma unroll 1
  for (int begun = 0;; ++begun) {
    __syncwarp();
    const Item item = feed->items[begun % Feed<U>::DEPTH];
    if (item.rows == 0) return;
    if (item.first != held) {
      held = item.first;
      Rows<1> from;
      from.real[0] = g < item.rows;
      from.at[0] = values + int64_t(row(held + (g < item.rows ? g : 0))) * U::K + 8 * t;
#pragma unroll
      for (int i = 0; i < 2 * U::BLOCKS; ++i) tokens[i / 2][i % 2] = {}, load<1>(from, i, tokens[i / 2][i % 2]);
      const uint4 bias = ptx::load_shared16(S::bias());
#pragma unroll
      for (int i = 0; i < 2 * STARTS; ++i) start_of<1>(tokens[i / 2][i % 2], bias, start[i / 2][i % 2]);
    }
    float sum[2][1][4] = {};
#pragma unroll
    for (int stage = 0; stage < U::BLOCKS / U::PER_STAGE; ++stage) {
      const unsigned char* at = ring.front();
      ring.renew();
#pragma unroll
      for (int b = stage * U::PER_STAGE; b < (stage + 1) * U::PER_STAGE; ++b, at += BLOCK_BYTES) {
        uint4 words[2];
        uint2 scales[2];
#pragma unroll
        for (int m = 0; m < 2; ++m) {
          words[m] = *reinterpret_cast<const uint4*>(at + 512 * m + 16 * lane);
          scales[m] = *reinterpret_cast<const uint2*>(at + WORD_BYTES + 64 * m + 8 * g);
        }
#pragma unroll
        for (int c = 0; c < 2; ++c) {
          float own[1][4];
          if (b >= STARTS) start_of<1>(tokens[b][c], ptx::load_shared16(S::bias()), own);
          multiply<1>({c ? words[0].z : words[0].x, c ? words[1].z : words[1].x},
                      {c ? words[0].w : words[0].y, c ? words[1].w : words[1].y},
                      {c ? scales[0].y : scales[0].x, c ? scales[1].y : scales[1].x}, tokens[b][c],
                      b < STARTS ? start[b < STARTS ? b : 0][c] : own, sum);
        }
      }
      ring.pop();
    }
#pragma unroll
    for (int m = 0; m < 2; ++m) store(item.unit, m, item.first + 2 * t, item.rows - 2 * t, sum[m][0]);
  }
}

// All items of the calling warp's team, as products_of; teams draw from `drawn`, 0 at first.
template <class U, class S, class Row, class Store>
__device__ __forceinline__ void products(const void* weights, const Lists& lists, int32_t* drawn, const __nv_bfloat16* values,
                                         Row row, Store store, void (*ready)()) {
  constexpr int TEAMS = U::WARPS / U::SEGS;
  const int warp = threadIdx.x / 32, team = warp / U::SEGS, segment = warp % U::SEGS, lane = threadIdx.x % 32;
  const int g = lane / 4, t = lane % 4, count = lists.count(), total = lists.cost() * U::UNITS;
  const Pool pool{drawn, S::costs(), count, total - total / U::POOL, total};
  for (int i = threadIdx.x; i < count; i += 32 * U::WARPS) S::costs()[i] = lists.cost_before(i);
  uint64_t *bars = S::bars() + warp * U::STAGES, *told = S::told() + team * DRAWS;
  ring_barriers<U>(bars), joint_barriers<U>(S::joints()), write_bias(S::bias());
  if (segment == 0 && lane < DRAWS) ptx::barrier_init(told + lane, 1);
  ptx::barriers_ready();
  __syncthreads();
  Feed<U>* feed = reinterpret_cast<Feed<U>*>(S::feeds()) + warp;
  feed->walk.begin(lists, pool.from, share_of_cta() * TEAMS + team, gridDim.x * TEAMS);
  DrawnRing<U> ring{S::ring() + warp * U::STAGES * DrawnRing<U>::STAGE_BYTES,
                    bars,
                    static_cast<const unsigned char*>(weights),
                    segment,
                    lists,
                    feed,
                    pool,
                    told,
                    S::numbers() + team * DRAWS};
  if (ptx::elect_one()) ring.start();
  __syncwarp();
  ready();
  if constexpr (U::SEGS == 1 && U::SLAB == 8 && U::BLOCKS <= 4) return kept_products<U, S>(ring, feed, values, row, store);
  Joint<U> joint{reinterpret_cast<float4*>(S::sums()) + team * U::SEGS * 64, S::joints() + 2 * team, S::joints() + 2 * team + 1};
#pragma unroll 1
  for (int begun = 0;; ++begun) {
    __syncwarp();
    const Item item = feed->items[begun % Feed<U>::DEPTH];
    if (item.rows == 0) return;
    with_tiles<U::SLAB / 8>((item.rows + 7) / 8, [&](auto tiles) {
      constexpr int NT = decltype(tiles)::value;
      Rows<NT> from;
#pragma unroll
      for (int j = 0; j < NT; ++j) {
        from.real[j] = 8 * j + g < item.rows;
        from.at[j] = values + int64_t(row(item.first + (from.real[j] ? 8 * j + g : 0))) * U::K + segment * U::SEG + 8 * t;
      }
      product<U, S, NT>(ring, joint, from, segment, [&](int m, int j, const float(&sums)[4]) {
        store(item.unit, m, item.first + 8 * j + 2 * t, item.rows - (8 * j + 2 * t), sums);
      });
    });
  }
}

}  // namespace moe
}  // namespace kd
