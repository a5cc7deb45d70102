// Turns and items of tree_mla's wide tiles.
//
// The ring's places take an item's queries, 16 rows each, then its steps in order, so that a step of 16 keys lies where it does
// in its page. All warps copy, two rows of each 16.
#pragma once

#include "attn/mla_wide.cuh"

namespace kd {
namespace mla {

template <class U, class S>
struct Ring {
  using Feed = mla::Feed<U, S>;
  static_assert(U::ST == PAGE / KEYS && U::ST == U::MT, "a place for each step of a page, and each tile of queries");

  const Stored<U>* pages;
  const __nv_bfloat16 *scratch, *q;

  // Waits for ring entry `number`, which lies in place `number % ST`.
  __device__ __forceinline__ static void wait(uint32_t number) {
    ptx::barrier_wait(S::arrived() + number % U::ST, number / U::ST % 2);
  }
  // A warp's first row of step `number` of those that serve all rows, among the pages' rows.
  __device__ __forceinline__ static int row_of(int turn, int number, int warp) {
    return (pages_of<S>(turn)[uint32_t(number) / U::ST] * U::ST + uint32_t(number) % U::ST) * KEYS + warp * 2;
  }
  // This warp's two rows of a place.
  __device__ __forceinline__ static uint8_t* rows_at(int place, int warp) {
    return S::ring() + (place * KEYS + warp * 2) * U::KEY;
  }
  // Requests the warp's two rows of a step.
  __device__ __forceinline__ void ask(int row, int place, int warp) const {
    if constexpr (U::FP8) {
      ask_entries<U>(rows_at(place, warp), pages + int64_t(row) * U::ENTRY, S::arrived() + place);
    } else {
      const __nv_bfloat16* from = pages + int64_t(row) * U::W;
      Feed::copy(from, from + U::W, place, warp);
    }
  }
  // Requests steps `first` up to `end` of an item, as far as they serve all rows.
  __device__ __forceinline__ void ask_steps(int turn, int first, int end) const {
    const int warp = threadIdx.x / 32;
    end = ::min(end, work_of<S>(turn).trunk);
#pragma unroll 1
    for (int i = first; i < end; ++i) ask(row_of(turn, i, warp), i, warp);
  }
  // Requests tiles `first` up to `end` of an item's queries. Rows beyond the tile's repeat its last.
  __device__ __forceinline__ void ask_queries(int turn, int first, int end) const {
    const Work& work = work_of<S>(turn);
    const int64_t row = int64_t(work.stream.first) * U::H + work.row;
    const int warp = threadIdx.x / 32;
#pragma unroll 1
    for (int i = first; i < end; ++i)
      Feed::copy(q + (row + ::min(KEYS * i + 2 * warp, work.rows - 1)) * U::W,
                 q + (row + ::min(KEYS * i + 2 * warp + 1, work.rows - 1)) * U::W, i, warp);
  }
  // Requests a step whose rows are at `place` (see `gather`).
  __device__ __forceinline__ void ask_gathered(int place, int to) const {
    if constexpr (U::FP8) {
      const int warp = threadIdx.x / 32, even = __shfl_sync(0xffffffffu, place, 2 * warp);
      ask_two<U>(rows_at(to, warp), pages, scratch, even, __shfl_sync(0xffffffffu, place, 2 * warp + 1), S::arrived() + to);
    } else {
      const auto row = [&](int at) { return at < 0 ? scratch + int64_t(~at) * U::W : pages + int64_t(at) * U::W; };
      const int warp = threadIdx.x / 32;
      Feed::copy(row(__shfl_sync(0xffffffffu, place, 2 * warp)), row(__shfl_sync(0xffffffffu, place, 2 * warp + 1)), to, warp);
    }
  }
  // FP8: which of this warp's two rows of a gathered step hold codes.
  __device__ __forceinline__ static uint32_t stored(int place) {
    const uint32_t rows = __ballot_sync(0xffffffffu, place >= 0);
    return rows >> threadIdx.x / 32 * 2 & 3;
  }
  // Passes the places from that of entry `number` to the last.
  __device__ __forceinline__ static void skip(uint32_t number) {
    if (!ptx::elect_one()) return;
    for (; number % U::ST != 0; ++number) ptx::barrier_arrive(S::arrived() + number % U::ST);
  }
};

// One turn of the steps that serve all rows: the step in ring place `place` is scored, if there is `any`; the one before it is
// weighed, and then mixed. What other warps must have done for that was done before this warp's own products, so that waits are
// seldom long. `phase` is that of the barrier of `place`. FEW: a tile of up to 16 rows, which half of the warps score and the other
// half weigh.
template <bool FEW, bool MIX, class U, class S, class Ask>
__device__ __forceinline__ void trunk_turn(Wide<U, S>& rows, uint32_t place, uint32_t phase, bool any, Ask ask) {
  using Rows = Wide<U, S>;
  constexpr int SCORED = FEW ? 1 : Rows::TILES, MIXED = FEW ? 1 : U::MT;
  rows.renew(FEW);
  const int last = (place + U::ST - 1) % U::ST, before = last % 2;
  if constexpr (U::FP8) {
    // The places of codes are those of the step's values: any warp may read them once all are done.
    if (any) {
      ptx::barrier_wait(S::arrived() + place, phase);
      expand_two<U>(Ring<U, S>::rows_at(place, rows.warp), 3);
      rows.tell(Rows::expanded());
    }
  }
  const bool scores = any && (!FEW || rows.half == 0), weighs = !FEW || (rows.half == 1 && rows.eight < 2 * MIXED);
  if (MIX) {
    if (weighs) {
      ptx::barrier_wait(Rows::scored(FEW ? 0 : rows.half), before);
      rows.template weigh<true>(Step{}, before);
    }
    rows.tell(Rows::weighed());
  }
  if constexpr (U::FP8) {
    if (any) ptx::barrier_wait(Rows::expanded(), place % 2);
  }
  if (scores) {
    typename Rows::Part part;
    if constexpr (!U::FP8) ptx::barrier_wait(S::arrived() + place, phase);
    rows.template score<SCORED>(part, place);
    if (MIX) ptx::barrier_wait(Rows::weighed(), before);
    rows.template put<true, SCORED>(part, Step{});
    rows.tell(Rows::scored(rows.half));
  } else if (MIX) {
    ptx::barrier_wait(Rows::weighed(), before);
  }
  if (MIX) {
    // All warps have mixed the step before the one that is mixed now.
    ask();
    rows.renew(FEW);
    const uint2 rises = rows.rises(before);
    if (!U::FP8 && FEW && rows.half == 1) ptx::barrier_wait(S::arrived() + last, place == 0 ? phase ^ 1 : phase);
    rows.template mix<true, MIXED>(Step{}, last, before, rises);
  }
}

// The steps that serve all rows. `ask_next` requests what may lie in place i
// from three turns before the end on.
template <bool FEW, class U, class S, class Ask>
__device__ __forceinline__ void trunk_turns(const Ring<U, S>& ring, Wide<U, S>& rows, int turn, Ask ask_next) {
  using Rows = Wide<U, S>;
  uint32_t now = work_of<S>(turn).entry;
  const uint32_t end = now + work_of<S>(turn).trunk;
  trunk_turn<FEW, false>(rows, 0, now / U::ST % 2, true, [] {});
  ++now;
  int row = Ring<U, S>::row_of(turn, 0, rows.warp) + 2 * KEYS;
#pragma unroll 1
  for (; now <= end; ++now)
    trunk_turn<FEW, true>(rows, now % U::ST, now / U::ST % 2, now < end, [&] {
      if (now + 2 >= end) return ask_next(now + 2 - end);
      row += KEYS;
      if ((now + 2) % U::ST == 0) row = Ring<U, S>::row_of(turn, now + 2 - work_of<S>(turn).entry, rows.warp);
      ring.ask(row, (now + 2) % U::ST, rows.warp);
    });
  // The barriers' phase is that of the entry; the next item's first is even.
  if (end % 2 == 0) return;
  if (!FEW || rows.half == 0) rows.tell(Rows::scored(rows.half));
  rows.tell(Rows::weighed());
  if constexpr (U::FP8) {
    rows.tell(Rows::expanded());
    ptx::barrier_wait(Rows::expanded(), 1);
  }
  ptx::barrier_wait(Rows::scored(FEW ? 0 : rows.half), 1);
  ptx::barrier_wait(Rows::weighed(), 1);
}

// The nodes' own steps: as many at once as the ring holds and serve different rows.
template <class U, class S>
__device__ __forceinline__ void own_turns(const Ring<U, S>& ring, Wide<U, S>& rows, const Work& work, int turn) {
  const int first = work.entry;
  int now = work.trunk;
#pragma unroll 1
  while (now < work.steps) {
    int end = now, round = 0;
    uint32_t stored = 0;
#pragma unroll 1
    for (; end < work.steps && end < now + U::ST; ++end) {
      Step step;
      const int place = gather<U, S>(work, turn, end - work.trunk, step);
      if (end == now) round = step.round;
      if (step.round != round) break;
      if (threadIdx.x == 0) gathered_step<S>(first + end) = step;
      ring.ask_gathered(place, uint32_t(first + end) % U::ST);
      if constexpr (U::FP8) stored |= Ring<U, S>::stored(place) << 2 * (end - now);
    }
    if constexpr (U::FP8) {
#pragma unroll 1
      for (int i = now; i < end; ++i) {
        ring.wait(first + i);
        const uint32_t place = uint32_t(first + i) % U::ST;
        expand_two<U>(Ring<U, S>::rows_at(place, threadIdx.x / 32), stored >> 2 * (i - now));
      }
    }
    __syncthreads();
    rows.renew(rows.few(work));
    Step mine = {0, 0, 0, 0};
#pragma unroll 1
    for (int i = now; i < end; ++i) {
      const Step& step = gathered_step<S>(first + i);
      ring.wait(first + i);
      if (rows.scores(step)) {
        typename Wide<U, S>::Part part;
        rows.template score<Wide<U, S>::TILES>(part, uint32_t(first + i) % U::ST);
        rows.template put<false, Wide<U, S>::TILES>(part, step);
      }
      if (rows.serves_row(step, 8 * rows.eight + rows.g)) mine = step;
    }
    __syncthreads();
    rows.template weigh<false>(mine, 0);
    __syncthreads();
    rows.template scale<U::MT>(0, rows.rises(0));
#pragma unroll 1
    for (int i = now; i < end; ++i)
      rows.template mix<false, U::MT>(gathered_step<S>(first + i), uint32_t(first + i) % U::ST, 0, uint2{});
    __syncthreads();
    now = end;
  }
}

// The items of a CTA of wide tiles.
template <class U, class S, class Next>
__device__ __forceinline__ void wide_items(Ring<U, S> ring, Next set_up, float* part_o, float* part_ml, int Z) {
  constexpr int TILES = Wide<U, S>::TILES;
  if (threadIdx.x == 0) Feed<U, S>::prepare();
  if (threadIdx.x / 32 == 7) set_up(0);
  __syncthreads();
  if (work_of<S>(0).steps < 0) return;
  Wide<U, S> rows;
  const auto take = [&](int turn) {
    const int first = work_of<S>(turn).entry - U::MT;
#pragma unroll
    for (int i = 0; i < TILES; ++i) {
      const uint32_t tile = TILES * rows.half + i;
      ring.wait(first + tile);
      rows.take_queries(i, tile);
    }
  };
  rows.renew();
  ring.ask_queries(0, 0, U::MT);
  take(0);
  __syncthreads();
  ring.ask_steps(0, 0, U::ST - 1);
#pragma unroll 1
  for (int turn = 0;; ++turn) {
    if (threadIdx.x / 32 == 7) set_up(turn + 1);
    const Work& work = work_of<S>(turn);
    rows.clear();
    if (threadIdx.x == 0) *S::factor() = work.factor;
    __syncthreads();
    // The next item's queries are requested before this one's last steps are mixed, if places are where they must be.
    const auto early = [=] {
      const Work& now = work_of<S>(turn);
      return work_of<S>(turn + 1).steps >= 0 && now.trunk > 1 && now.steps == now.trunk && now.steps % U::ST == 0;
    };
    const auto ask_next = [&](int i) {
      if (early()) ring.ask_queries(turn + 1, i, i + 1);
    };
    if (work.trunk > 0) {
      if (rows.few(work))
        trunk_turns<true>(ring, rows, turn, ask_next);
      else
        trunk_turns<false>(ring, rows, turn, ask_next);
    }
    __syncthreads();
    own_turns(ring, rows, work, turn);
    ring.skip(work.entry + work.steps);
    // A barrier does not tell a warp's arrival for the next phase from another's for this one: all have passed these places before
    // any asks for them again.
    if ((work.entry + work.steps) % U::ST != 0) __syncthreads();
    // Half of the warps take the next item's queries before results leave, so that its first keys can be on their way.
    const bool more = work_of<S>(turn + 1).steps >= 0;
    if (more) {
      rows.renew();
      ring.ask_queries(turn + 1, early() ? U::MT - 1 : 0, U::MT);
      if (rows.half == 0) take(turn + 1);
      __syncthreads();
      ring.ask_steps(turn + 1, 0, TILES);
    }
    rows.store(work, part_o, part_ml, Z);
    if (!more) break;
    rows.renew();
    if (rows.half == 1) take(turn + 1);
    __syncthreads();
    ring.ask_steps(turn + 1, TILES, U::ST - 1);
  }
}

}  // namespace mla
}  // namespace kd
