// What prefill.cuh makes, by warpgroups: sm_90a only. Two warpgroups have 64 query rows each, of the same head, in registers; both
// go through the same tiles of keys and values, for which one thread asks in boxes of tensor maps. While a warpgroup makes weights
// of the scores of a tile, its tensor core works on the scores of the next (FlashAttention-3, arXiv 2407.08608, section 3.2). Tiles,
// their order and all arithmetic are those of prefill.cuh, and a chain of wgmma sums as one of mma does, so these are the same bits.
#pragma once

#include "attn/prefill.cuh"
#include "kd/ring.cuh"
#include "ptx/wgmma_rs.cuh"
#include "ptx/wgmma_ss.cuh"

namespace kd {
namespace flash {

// The work of CTAs: pairs of tiles of 64 rows of a head. As many CTAs as are resident go through it.
template <class U>
struct Work {
  int tiles, pairs, items, item, round = 0, ahead, M, H, T;
  bool whole, apart, single;

  __device__ __forceinline__ Work(int ahead, int M, int H, int T) : item(blockIdx.x), ahead(ahead), M(M), H(H), T(T) {
    const int ctas = gridDim.x;
    tiles = (M + 63) / 64;
    single = tiles * H <= ctas;  // a CTA each
    pairs = single ? tiles : (tiles + 1) / 2, items = pairs * H;
    // Where a CTA has one pair, it is one tile with many keys and one with few; else rows beside each other, whose keys are the same.
    apart = items <= ctas;
    // Where every row sees the whole block, the CTAs of a head share its keys in L2; else those with most keys go first.
    whole = ahead >= T - 1;
  }
  __device__ __forceinline__ bool more() const { return item < items; }
  // There and back again, so that who had much gets little.
  __device__ __forceinline__ void next() {
    const int ctas = gridDim.x, own = blockIdx.x;
    ++round;
    item = round * ctas + (round % 2 ? ctas - 1 - own : own);
  }
  __device__ __forceinline__ int head() const { return whole ? item / pairs : item % H; }
  // The first row of a warpgroup; M if it has none. The first warpgroup's rows see the most keys.
  __device__ __forceinline__ int row(int group) const {
    const int pair = whole ? item % pairs : item / H;
    const int first = single || apart ? tiles - 1 - pair : tiles - 1 - 2 * pair, other = apart ? pair : first - 1;
    if (group == 0) return first * 64;
    return single || other < 0 || other >= first ? M : other * 64;
  }
  // Keys that some row of 64 from `row` on sees, and tiles of them.
  __device__ __forceinline__ int count(int row) const { return row < M ? ::max(::min(T, ahead + ::min(row + 64, M)), 0) : 0; }
  __device__ __forceinline__ int steps(int row) const { return (count(row) + U::NB - 1) / U::NB; }
};

// Asks for all tiles of keys and values. By one thread.
template <class U, class S>
__device__ __forceinline__ void produce(const ptx::TensorMap& kv, const ptx::TensorMap& entries, Work<U> work) {
  Slot<U::KEYS> key{0, 1};
  Slot<U::VALUES> value{0, 1};
#pragma unroll 1
  for (; work.more(); work.next()) {
    const int steps = work.steps(work.row(0)), column = work.head() * (U::N + U::VD);
#pragma unroll 1
    for (int step = 0; step < steps; ++step) {
      uint64_t* barrier = S::keys_full() + key.slot;
      uint8_t* to = S::keys() + key.slot * U::KEY_BYTES;
      ptx::barrier_wait(S::keys_empty() + key.slot, key.parity);
      ptx::barrier_arrive_expect(barrier, U::KEY_BYTES);
#pragma unroll
      for (int i = 0; i < U::N; i += U::BOX) ptx::tensor_load(to + 2 * i * U::NB, kv, column + i, step * U::NB, barrier);
#pragma unroll
      for (int i = 0; i < U::R; i += U::BOX)
        ptx::tensor_load(to + 2 * (U::N + i) * U::NB, entries, U::C + i, step * U::NB, barrier);
      key.advance();
      barrier = S::values_full() + value.slot, to = S::values() + value.slot * U::VALUE_BYTES;
      ptx::barrier_wait(S::values_empty() + value.slot, value.parity);
      ptx::barrier_arrive_expect(barrier, U::VALUE_BYTES);
#pragma unroll
      for (int i = 0; i < U::VD; i += U::BOX) ptx::tensor_load(to + 2 * i * U::NB, kv, column + U::N + i, step * U::NB, barrier);
      value.advance();
    }
  }
}

// A warpgroup's way through the tiles.
template <class U, class S>
struct Consumer {
  using Score = float[U::NB / 8][4];
  using Weights = uint32_t[U::NB / 16][4];
  static constexpr int BOX = 2 * U::BOX * U::NB;  // bytes

  Slot<U::KEYS> asked, multiplied;  // the next keys to multiply; the next to give back
  Slot<U::VALUES> value, weighed;

  __device__ __forceinline__ static void give_back(uint64_t* barrier) {
    if (threadIdx.x % 32 == 0) ptx::barrier_arrive(barrier);
  }
  __device__ __forceinline__ void give_keys_back() {
    give_back(S::keys_empty() + multiplied.slot);
    multiplied.advance();
  }
  __device__ __forceinline__ void give_values_back() {
    give_back(S::values_empty() + weighed.slot);
    weighed.advance();
  }

  // One group of products: query rows times the next keys.
  __device__ __forceinline__ void ask_scores(const uint32_t (&queries)[U::KD / 16][4], Score& score) {
    ptx::barrier_wait(S::keys_full() + asked.slot, asked.parity);
    const uint64_t keys = ptx::wgmma_rows(ptx::shared_address(S::keys()) + asked.slot * U::KEY_BYTES);
    asked.advance();
    ptx::wgmma_fence();
    ptx::wgmma_set(score, queries[0], keys);
#pragma unroll
    for (int k = 1; k < U::KD / 16; ++k) ptx::wgmma_add(score, queries[k], keys + k / 4 * (BOX / 16) + k % 4 * 2);
    ptx::wgmma_commit();
  }

  // Another: the next values by their weights.
  __device__ __forceinline__ void ask_values(Weights& weights, float (&out)[U::VD / 8][4]) {
    ptx::barrier_wait(S::values_full() + value.slot, value.parity);
    const uint64_t values = ptx::wgmma_columns(ptx::shared_address(S::values()) + value.slot * U::VALUE_BYTES, BOX);
    value.advance();
    ptx::pin(out);
#pragma unroll
    for (int k = 0; k < U::NB / 16; ++k) ptx::pin(weights[k]);
    ptx::wgmma_fence();
#pragma unroll
    for (int k = 0; k < U::NB / 16; ++k) ptx::wgmma_add_columns(out, weights[k], values + k * 128);
    ptx::wgmma_commit();
  }

  // All `steps` tiles of the first `count` keys; row r of the warpgroup sees `seen + r` of them.
  __device__ __forceinline__ void attend(const Place<U>& at, int steps, int count, int seen, float factor,
                                         uint32_t (&queries)[U::KD / 16][4], Running<U>& known) {
    if (steps == 0) return;
    Scores<U> even, odd;
#pragma unroll
    for (int k = 0; k < U::KD / 16; ++k) ptx::pin(queries[k]);
    ask_scores(queries, even[0]);
    ptx::wgmma_wait<0>();
    const auto take = [&](int step, bool start, bool last, Scores<U>& score, Scores<U>& next) {
      ptx::pin(score[0]);
      give_keys_back();
      if (!last) ask_scores(queries, next[0]);
      const int first = step * U::NB;
      if (first + U::NB > ::min(count, seen + at.row))
        hide<U>(at, score, [=](int row) { return make_int2(0, ::min(count, seen + row) - first); });
      Tops<U> top, base;
      tops<U>(score, known, top);
      if (!start) {
        if (last)
          ptx::wgmma_wait<0>();
        else
          ptx::wgmma_wait<1>();
        ptx::pin(known.out[0]);
        give_values_back();
      }
      raise<U>(top, factor, base, known);
      weigh<U>(score, factor, base, known);
      Weights weights;
#pragma unroll
      for (int k = 0; k < U::NB / 16; ++k) weights_of(score[0], k, weights[k]);
      ask_values(weights, known.out[0]);
      if (last)
        ptx::wgmma_wait<0>();
      else
        ptx::wgmma_wait<1>();
    };
    if (steps == 1) {
      take(0, true, true, even, odd);
    } else {
      take(0, true, false, even, odd);
      int step = 1;
#pragma unroll 1
      for (; step + 2 < steps; step += 2) {
        take(step, false, false, odd, even);
        take(step + 1, false, false, even, odd);
      }
      if (step + 2 == steps) {
        take(step, false, false, odd, even);
        take(step + 1, false, true, even, odd);
      } else {
        take(step, false, true, odd, even);
      }
    }
    ptx::pin(known.out[0]);
    give_values_back();
  }

  // Tiles that the other warpgroup has and this one does not see.
  __device__ __forceinline__ void pass(int steps) {
#pragma unroll 1
    for (int step = 0; step < steps; ++step) {
      ptx::barrier_wait(S::keys_full() + asked.slot, asked.parity);
      asked.advance();
      give_keys_back();
      ptx::barrier_wait(S::values_full() + value.slot, value.parity);
      value.advance();
      give_values_back();
    }
  }
};

}  // namespace flash

template <class U, class S>
__device__ __forceinline__ void prefill_wgmma(const __nv_bfloat16* q, const ptx::TensorMap& kv, const ptx::TensorMap& entries,
                                              int ahead, float scale, int resumed, int finished, float* part_o, float* part_ml,
                                              __nv_bfloat16* y, int M, int H, int T) {
  constexpr int CONSUMERS = 128 * U::GROUPS;
  if (threadIdx.x == CONSUMERS) {
    ptx::tensor_map_ahead(kv);
    ptx::tensor_map_ahead(entries);
  }
  if (threadIdx.x < U::KEYS + U::VALUES) {
    const int key = threadIdx.x, value = key - U::KEYS;
    ptx::barrier_init(value < 0 ? S::keys_full() + key : S::values_full() + value, 1);
    ptx::barrier_init(value < 0 ? S::keys_empty() + key : S::values_empty() + value, CONSUMERS / 32);
    ptx::barriers_ready();
  }
  __syncthreads();
  ptx::grid_dependency_wait();
  ptx::grid_dependency_launch();
  flash::Work<U> work(ahead, M, H, T);
  if (threadIdx.x >= CONSUMERS) {
    ptx::give_registers<24>();
    if (threadIdx.x == CONSUMERS) flash::produce<U, S>(kv, entries, work);
    return;
  }
  ptx::take_registers<240>();
  const flash::Place<U> at;
  const int group = __shfl_sync(0xffffffffu, at.group, 0);
  const float factor = scale * 1.44269504f;  // log2 e
  flash::Consumer<U, S> consumer;
#pragma unroll 1
  for (; work.more(); work.next()) {
    const int row = work.row(group), steps = work.steps(row), all = work.steps(work.row(0)), head = work.head();
    uint32_t queries[U::KD / 16][4];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int mine = row + at.row + 8 * half + at.g;
      const __nv_bfloat16* from = q + (int64_t(mine) * H + head) * U::KD + 2 * at.t;
#pragma unroll
      for (int k = 0; k < U::KD / 8; ++k)
        queries[k / 2][k % 2 * 2 + half] = mine < M ? ptx::load4(reinterpret_cast<const int32_t*>(from + 8 * k)) : 0;
    }
    flash::Running<U> known;
    const flash::State<U> state = {at, part_o, part_ml, row, head, M, H};
    if (resumed) state.load(known);
    consumer.attend(at, steps, work.count(row), ahead + row + 1, factor, queries, known);
    consumer.pass(all - steps);
    if (finished)
      state.finish(known, y);
    else
      state.store(known);
  }
}

}  // namespace kd
