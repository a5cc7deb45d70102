// Few rows: every CTA finds the experts' rows itself, from the choices, in shared memory.
//
// A row is one bit of each expert that it chose (its choices differ), so at most 64 rows. What a CTA finds is what moe_group
// would have listed; places hold the number of a choice, so that no two CTAs need to agree on an order.
#pragma once

#include "moe/choice.cuh"
#include "moe/product.cuh"

namespace kd {
namespace moe {

// The entries of the calling CTA.
template <class S>
struct OwnLists {
  // Of a cost (at most 4 * 512 * 4096) and a number of teams, at most 512.
  using Product = uint32_t;
  __device__ __forceinline__ int count() const { return S::plan()[0]; }
  __device__ __forceinline__ int cost() const { return S::plan()[1]; }
  __device__ __forceinline__ int cost_before(int index) const { return S::entries()[4 * index + 3]; }
  __device__ __forceinline__ Entry entry(int index) const {
    const int4 v = reinterpret_cast<const int4*>(S::entries())[index];
    return {v.x, v.y, v.z, v.w};
  }
};

// A walk like Walk, but unit by unit, expert by expert, slab by slab: the CTAs of a unit are few, and near each other.
template <class U, class L>
struct UnitWalk {
  using Lists = L;
  static constexpr int STEPS = U::UNITS;
  int cost, end, index, step, slab, slabs;
  Entry entry;

  __device__ __forceinline__ bool done() const { return cost >= end; }
  __device__ __forceinline__ int first() const { return entry.first + slab * U::SLAB; }
  __device__ __forceinline__ int rows() const { return ::min(U::SLAB, entry.rows - slab * U::SLAB); }

  __device__ __forceinline__ void enter(const L& entries, int to) {
    index = to;
    entry = entries.entry(to);
    slabs = (entry.rows + U::SLAB - 1) / U::SLAB;
    slab = 0;
  }

  // The share of team `team` of TEAMS of a CTA, found by a whole warp. Where a unit has fewer items than a CTA has teams to
  // spare, CTAs take whole units.
  template <int TEAMS>
  __device__ __forceinline__ void begin(const L& entries, int cta, int ctas, int team) {
    const int a_unit = entries.cost(), total = a_unit * STEPS;
    const auto start = [&](int cta) {
      return a_unit <= U::WHOLE_UNITS ? STEPS * cta / ctas * a_unit : int(uint32_t(total) * cta / ctas);
    };
    const int low = start(cta), high = start(cta + 1);
    const int from = low + (high - low) * team / TEAMS, to = low + (high - low) * (team + 1) / TEAMS;
    const int unit = from / ::max(a_unit, 1), within = from - unit * a_unit;
    const int at = entry_at(entries, entries.count(), within, 1);
    if (ptx::elect_one()) {
      cost = from, end = to;
      if (!done()) {
        step = unit;
        enter(entries, at);
        cost = unit * a_unit + entry.cost_before;
        while (cost < from) next(entries);
      }
    }
    __syncwarp();
  }

  __device__ __forceinline__ void next(const L& entries) {
    cost += SLAB_COST + (rows() + 7) / 8;
    if (++slab < slabs || done()) return;
    const bool turn = index + 1 == entries.count();
    step += turn;
    enter(entries, turn ? 0 : index + 1);
  }
};

// What group_few starts from.
template <class U, class S>
__device__ __forceinline__ void clear_few() {
  for (int i = threadIdx.x; i < 2 * U::E; i += U::THREADS) S::chosen()[i] = 0;
}

// Writes the lists of the calling CTA, after clear_few: S::plan and S::entries, and S::list, the choices by expert, ascending,
// which is there after one more __syncthreads.
template <class U, class S>
__device__ __forceinline__ void group_few(const int32_t* ids, int first_expert, int M) {
  static_assert(U::MOST_ROWS <= 64 && U::MOST_ROWS * U::T <= 512, "a row is a bit; the sums below have 10, 12 and 10");
  static_assert(U::SLAB == 8, "an expert costs at most 4 a row");
  constexpr int EACH = (U::MOST_ROWS * U::T + U::THREADS - 1) / U::THREADS, OWN = (U::E + U::THREADS - 1) / U::THREADS;
  const int thread = threadIdx.x, lane = thread % 32, warp = thread / 32, count = M * U::T;
  int expert[EACH];
#pragma unroll
  for (int i = 0; i < EACH; ++i) expert[i] = choice<U>(ids, thread + i * U::THREADS, count, first_expert);
  __syncthreads();
#pragma unroll
  for (int i = 0; i < EACH; ++i) {
    const int row = (thread + i * U::THREADS) / U::T;
    if (expert[i] >= 0) atomicOr(S::chosen() + 2 * expert[i] + row / 32, 1u << row % 32);
  }
  __syncthreads();
  // Of this thread's experts and, summed, of those before them: rows, cost, and those with rows.
  int rows[OWN];
  uint32_t own = 0;
#pragma unroll
  for (int i = 0; i < OWN; ++i) {
    const int e = thread * OWN + i;
    rows[i] = e < U::E ? __popc(S::chosen()[2 * e]) + __popc(S::chosen()[2 * e + 1]) : 0;
    own += rows[i] | entry_cost(rows[i], U::SLAB) << 10 | uint32_t(rows[i] > 0) << 22;
  }
  uint32_t before = own;
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    const uint32_t other = __shfl_up_sync(0xffffffffu, before, step);
    if (lane >= step) before += other;
  }
  if (lane == 31) S::warp_sums()[warp] = before;
  before -= own;
  __syncthreads();
  uint32_t all = 0;
#pragma unroll
  for (int w = 0; w < U::THREADS / 32; ++w) {
    const uint32_t sum = S::warp_sums()[w];
    before += w < warp ? sum : 0, all += sum;
  }
  if (thread == 0) S::plan()[0] = int(all >> 22), S::plan()[1] = int(all >> 10 & 0xfff);
#pragma unroll
  for (int i = 0; i < OWN; ++i) {
    if (rows[i] == 0) continue;
    const int e = thread * OWN + i, first = int(before & 0x3ff);
    reinterpret_cast<int4*>(S::entries())[before >> 22] = make_int4(e, first, rows[i], int(before >> 10 & 0xfff));
    S::firsts()[e] = first;
    before += rows[i] | entry_cost(rows[i], U::SLAB) << 10 | 1u << 22;
  }
  __syncthreads();
#pragma unroll
  for (int i = 0; i < EACH; ++i) {
    if (expert[i] < 0) continue;
    const int index = thread + i * U::THREADS, row = index / U::T;
    const uint32_t low = S::chosen()[2 * expert[i]], high = S::chosen()[2 * expert[i] + 1], below = (1u << row % 32) - 1;
    const int earlier = row < 32 ? __popc(low & below) : __popc(low) + __popc(high & below);
    S::list()[S::firsts()[expert[i]] + earlier] = index;
  }
}

}  // namespace moe
}  // namespace kd
