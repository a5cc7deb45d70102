// The choice of a row's experts from their scores, by one warp.
#pragma once

#include "kd/base.cuh"
#include "ptx/memory.cuh"
#include "ptx/store_if.cuh"

namespace kd {
namespace route {

// Larger for what is chosen first; NaN counts as -inf, and 0 is less than any value.
__device__ __forceinline__ uint32_t key(float value) {
  const uint32_t bits = __float_as_uint(fmaxf(value + 0.0f, -INFINITY));  // of -0 and +0, and of NaN and -inf, one
  return bits ^ (uint32_t(int32_t(bits) >> 31) | 0x80000000u);
}

// The sum of the two best of a group, in the order of choices, ties to the lower group; 0 for a group that does not exist.
__device__ __forceinline__ uint64_t group_key(const float* choice, int group, int groups, int size) {
  if (group >= groups) return 0;
  float first = -INFINITY, second = -INFINITY;
  for (int i = group * size; i < (group + 1) * size; ++i) {
    const float value = choice[i] == choice[i] ? choice[i] : -INFINITY;
    second = fmaxf(second, fminf(first, value));
    first = fmaxf(first, value);
  }
  return uint64_t(key(size > 1 ? first + second : first)) << 32 | uint32_t(~group);
}

// Sets the choice scores outside the allowed groups to -inf. A lane ranks every 32nd group against all others.
template <class U>
__device__ __forceinline__ void keep_groups(float* choice, int groups, int top_groups) {
  const int lane = threadIdx.x % 32, size = U::E / groups;
  uint32_t barred = 0;  // bit i: group lane + 32 i
  for (int mine = 0; mine < groups; mine += 32) {
    const uint64_t own = group_key(choice, mine + lane, groups, size);
    int better = 0;
    for (int base = 0; base < groups; base += 32) {
      const uint64_t other = base == mine ? own : group_key(choice, base + lane, groups, size);
#pragma unroll 8
      for (int i = 0; i < 32; ++i) better += __shfl_sync(0xffffffffu, other, i) > own;
    }
    if (better >= top_groups) barred |= 1u << (mine / 32);
  }
  __syncwarp();
  for (int group = lane; group < groups; group += 32)
    if (barred >> (group / 32) & 1)
      for (int i = group * size; i < (group + 1) * size; ++i) choice[i] = -INFINITY;
  __syncwarp();
}

// The number of set bits in the masks of the lanes before this one, and of all lanes; a mask has at most MOST.
template <int MOST>
__device__ __forceinline__ int2 count_bits(uint32_t mask) {
  const uint32_t below = (1u << threadIdx.x % 32) - 1, own = __popc(mask);
  int2 count = make_int2(0, 0);
#pragma unroll
  for (int bit = 0; MOST >> bit > 0; ++bit) {
    const uint32_t lanes = __ballot_sync(0xffffffffu, own >> bit & 1);
    count.x += __popc(lanes & below) << bit;
    count.y += __popc(lanes) << bit;
  }
  return count;
}

// What a lane knows: an expert and its rank, which is T or more if it is not chosen.
struct Choice {
  uint32_t id;
  int rank;
};

// The T best of `own`, one in each of the first T lanes; `id(i)` is the expert of `own[i]`, and ids of a lane ascend. For any keys, one
// after another.
template <class U, class Id>
__device__ __forceinline__ Choice take_each(uint32_t (&own)[4 * U::QUADS], Id id) {
  const int lane = threadIdx.x % 32;
  Choice mine = {0, lane};
#pragma unroll 1
  for (int rank = 0; rank < U::T; ++rank) {
    uint32_t lead = 0, first = 0;
#pragma unroll
    for (int i = 4 * U::QUADS - 1; i >= 0; --i) {
      first = own[i] >= lead ? i : first;
      lead = ::max(lead, own[i]);
    }
    const uint32_t best = __reduce_max_sync(0xffffffffu, lead);
    const uint32_t winner = __reduce_min_sync(0xffffffffu, lead == best ? uint32_t(id(int(first))) : 0xffffffffu);
    if (lane == rank) mine.id = winner;
#pragma unroll
    for (int i = 0; i < 4 * U::QUADS; ++i) own[i] = uint32_t(id(i)) == winner ? 0 : own[i];
  }
  return mine;
}

// The same in any lanes, where few come into question: the T-th best of the lanes' leads is a floor that at least T reach. Those that
// do are given a lane each and rank each other; `space` is for 32 of them. Without branches that part the warp: they cost more than
// what they would save.
template <class U, class Id>
__device__ __forceinline__ Choice take(uint32_t (&own)[4 * U::QUADS], Id id, uint64_t* space) {
  constexpr int AT_ONCE = 16;
  const int lane = threadIdx.x % 32;
  uint32_t lead = 0, mask = 0;
#pragma unroll
  for (int i = 0; i < 4 * U::QUADS; ++i) lead = ::max(lead, own[i]);
  int ahead = 0;  // leads before this one: all exchanges are on their way at once
#pragma unroll
  for (int other = 0; other < 32; ++other) ahead += __shfl_sync(0xffffffffu, lead, other) > lead;
  const uint32_t floor = ::max(1u, __reduce_min_sync(0xffffffffu, ahead < U::T ? lead : 0xffffffffu));
#pragma unroll
  for (int i = 0; i < 4 * U::QUADS; ++i) mask |= uint32_t(own[i] >= floor) << i;
  const int2 count = count_bits<4 * U::QUADS>(mask);
  if (count.y > 32) return take_each<U>(own, id);
  ptx::store_shared8_if(space + lane, 0, lane >= count.y && lane < AT_ONCE);
  uint64_t* place = space + count.x;
#pragma unroll
  for (int i = 0; i < 4 * U::QUADS; ++i) {
    const bool may = mask >> i & 1;
    // Larger for what is chosen first, ties to the lower id.
    ptx::store_shared8_if(place, uint64_t(own[i]) << 32 | uint32_t(~id(i)), may);
    place += may;
  }
  __syncwarp();
  const uint64_t mine = lane < count.y ? space[lane] : 0;
  int better = lane < count.y ? 0 : U::T;
#pragma unroll
  for (int other = 0; other < AT_ONCE; other += 2) {
    const ulonglong2 two = *reinterpret_cast<const ulonglong2*>(space + other);
    better += int(two.x > mine) + int(two.y > mine);
  }
#pragma unroll 1
  for (int other = AT_ONCE; other < count.y; ++other) better += space[other] > mine;
  __syncwarp();
  return {~uint32_t(mine), better};
}

// Four neighbouring scores from memory: of the lane's `i`-th four.
struct Stored {
  const float* scores;

  __device__ __forceinline__ uint4 operator()(int i) const { return ptx::load16(scores + 128 * i + 4 * (threadIdx.x % 32)); }
};

// One warp, one token; `four(i)` are the scores of its lane's `i`-th four experts. A lane has QUADS times four neighbouring experts. `bias`
// and `space`, for E + 64 words, are shared memory.
template <class U, class Four>
__device__ __forceinline__ void choose(const float* scores, Four four, const float* bias, int groups, int top_groups, bool normalize,
                                       float scaling, float* space, int32_t* ids, float* weights) {
  const int lane = threadIdx.x % 32;
  const auto id = [&](int i) { return i / 4 * 128 + 4 * lane + i % 4; };
  float choice[4 * U::QUADS];
#pragma unroll
  for (int i = 0; i < 4 * U::QUADS; i += 4) {
    uint4 score = {}, more = {};
    if (id(i) < U::E) score = four(i / 4), more = *reinterpret_cast<const uint4*>(bias + id(i));
    // Kept at hand for the weights of the chosen, unless groups need the room.
    if (groups <= 1 && id(i) < U::E) *reinterpret_cast<uint4*>(space + id(i)) = score;
    choice[i] = __uint_as_float(score.x) + __uint_as_float(more.x);
    choice[i + 1] = __uint_as_float(score.y) + __uint_as_float(more.y);
    choice[i + 2] = __uint_as_float(score.z) + __uint_as_float(more.z);
    choice[i + 3] = __uint_as_float(score.w) + __uint_as_float(more.w);
  }
  if (groups > 1) {
#pragma unroll
    for (int i = 0; i < 4 * U::QUADS; ++i)
      if (id(i) < U::E) space[id(i)] = choice[i];
    __syncwarp();
    keep_groups<U>(space, groups, top_groups);
#pragma unroll
    for (int i = 0; i < 4 * U::QUADS; ++i)
      if (id(i) < U::E) choice[i] = space[id(i)];
  }
  uint32_t own[4 * U::QUADS];
#pragma unroll
  for (int i = 0; i < 4 * U::QUADS; ++i) own[i] = id(i) < U::E ? key(choice[i]) : 0;
  const Choice mine = take<U>(own, id, reinterpret_cast<uint64_t*>(space + U::E));
  const bool chosen = mine.rank < U::T;
  float score = 0.0f;
  if (groups <= 1) score = space[chosen ? mine.id : 0];
  else if (chosen) score = ptx::load4f(scores + mine.id);
  uint32_t* all = reinterpret_cast<uint32_t*>(space + U::E);
  ptx::store_shared4_if(all + mine.rank, mine.id, chosen);
  __syncwarp();
  int place = 0;
#pragma unroll
  for (int other = 0; other < U::T; ++other) place += all[other] < mine.id;
  float* value = space + U::E + 32;
  ptx::store_shared4_if(value + place, __float_as_uint(score), chosen);
  __syncwarp();
  float sum = 0.0f;
#pragma unroll
  for (int i = 0; i < U::T; ++i) sum += value[i];  // in order of id
  const float weight = score / (normalize ? sum + 1e-20f : 1.0f) * scaling;
  if (chosen) ids[place] = int32_t(mine.id), weights[place] = weight;
  __syncwarp();
}

}  // namespace route
}  // namespace kd
