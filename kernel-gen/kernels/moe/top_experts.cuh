// The choice of a row's experts from their scores, by one warp.
#pragma once

#include "kd/base.cuh"
#include "ptx/memory.cuh"

namespace kd {
namespace route {

// Larger for what is chosen first; NaN counts as -inf, and 0 is less than any value.
__device__ __forceinline__ uint32_t key(float value) {
  const uint32_t bits = __float_as_uint(value == value ? value + 0.0f : -INFINITY);
  return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
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

// An expert that may be chosen.
struct Candidate {
  uint32_t key, id;

  __device__ __forceinline__ bool before(const Candidate& other) const {
    return key > other.key || (key == other.key && id < other.id);
  }
};

// The number of set bits in the masks of the lanes before this one, and of all lanes; a mask has at most 32.
__device__ __forceinline__ int2 count_bits(uint32_t mask) {
  const uint32_t below = (1u << threadIdx.x % 32) - 1;
  int2 count = make_int2(0, 0);
#pragma unroll
  for (int bit = 0; bit < 6; ++bit) {
    const uint32_t lanes = __ballot_sync(0xffffffffu, __popc(mask) >> bit & 1);
    count.x += __popc(lanes & below) << bit;
    count.y += __popc(lanes) << bit;
  }
  return count;
}

// The T best of `own`, one in each of the first T lanes, in any order; `id(i)` is the expert of `own[i]`, and ids of a lane
// ascend. For any keys, one after another.
template <class U, class Id>
__device__ __forceinline__ Candidate take_each(uint32_t (&own)[4 * U::QUADS], Id id) {
  const int lane = threadIdx.x % 32;
  Candidate mine = {};
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
    if (lane == rank) mine = {best, winner};
#pragma unroll
    for (int i = 0; i < 4 * U::QUADS; ++i) own[i] = uint32_t(id(i)) == winner ? 0 : own[i];
  }
  return mine;
}

// The same, where few come into question: the T-th best of the lanes' leads is a floor that at least T reach. Those that do
// are given a lane each and rank each other; `space` is for 32 candidates.
template <class U, class Id>
__device__ __forceinline__ Candidate take(uint32_t (&own)[4 * U::QUADS], Id id, Candidate* space) {
  const int lane = threadIdx.x % 32;
  uint32_t lead = 0, mask = 0;
#pragma unroll
  for (int i = 0; i < 4 * U::QUADS; ++i) lead = ::max(lead, own[i]);
  int ahead = 0;  // leads before this one, equal ones in order of lane: all exchanges are on their way at once
#pragma unroll
  for (int other = 0; other < 32; ++other) {
    const uint32_t theirs = __shfl_sync(0xffffffffu, lead, other);
    ahead += theirs > lead || (theirs == lead && other < lane);
  }
  const uint32_t floor = __shfl_sync(0xffffffffu, lead, __ffs(__ballot_sync(0xffffffffu, ahead == U::T - 1)) - 1);
#pragma unroll
  for (int i = 0; i < 4 * U::QUADS; ++i) mask |= uint32_t(own[i] >= ::max(floor, 1u)) << i;
  const int2 count = count_bits(mask);
  if (count.y > 32) return take_each<U>(own, id);
  int place = count.x;
#pragma unroll
  for (int i = 0; i < 4 * U::QUADS; ++i)
    if (mask >> i & 1) space[place++] = {own[i], uint32_t(id(i))};
  __syncwarp();
  const Candidate mine = space[lane < count.y ? lane : 0];
  int better = 0;
#pragma unroll 4
  for (int other = 0; other < count.y; ++other) better += space[other].before(mine);
  __syncwarp();
  if (lane < count.y && better < U::T) space[better] = mine;
  __syncwarp();
  return space[lane < U::T ? lane : 0];
}

// One warp, one token. A lane has QUADS times four neighbouring experts. `bias` and `space`, for E + 64 words, are shared memory.
template <class U>
__device__ __forceinline__ void choose(const float* scores, const float* bias, int groups, int top_groups, bool normalize,
                                       float scaling, float* space, int32_t* ids, float* weights) {
  const int lane = threadIdx.x % 32;
  const auto id = [&](int i) { return i / 4 * 128 + 4 * lane + i % 4; };
  float choice[4 * U::QUADS];
#pragma unroll
  for (int i = 0; i < 4 * U::QUADS; i += 4) {
    uint4 score = {}, more = {};
    if (id(i) < U::E) score = ptx::load16(scores + id(i)), more = *reinterpret_cast<const uint4*>(bias + id(i));
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
  const Candidate mine = take<U>(own, id, reinterpret_cast<Candidate*>(space + U::E));
  float score = 0.0f;
  if (lane < U::T) score = groups > 1 ? ptx::load4f(scores + mine.id) : space[mine.id];
  int place = 0;
#pragma unroll
  for (int other = 0; other < U::T; ++other) place += __shfl_sync(0xffffffffu, mine.id, other) < mine.id;
  __syncwarp();
  float* value = space + U::E;
  if (lane < U::T) value[place] = score;
  __syncwarp();
  float sum = 0.0f;
#pragma unroll
  for (int i = 0; i < U::T; ++i) sum += value[i];  // in order of id
  if (lane < U::T) {
    ids[place] = int32_t(mine.id);
    weights[place] = score / (normalize ? sum + 1e-20f : 1.0f) * scaling;
  }
  __syncwarp();
}

}  // namespace route
}  // namespace kd
