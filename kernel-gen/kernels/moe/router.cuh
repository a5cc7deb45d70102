// Router: logits with K split over the CTAs of a cluster, then the choice, in one launch.
//
// A cluster makes the products of ROWS experts and TOKENS tokens. Each of its RANKS CTAs sums two segments of K, and then
// adds the segments of all, through distributed shared memory, for a share of the tokens. The last CTA of the expert blocks
// to finish a share chooses, one warp a token. Segments are fixed by H alone, so a row's bits depend neither on M nor on
// the variant.
#pragma once

#include "kd/arrive.cuh"
#include "kd/mma.cuh"
#include "moe/top_experts.cuh"
#include "ptx/await.cuh"
#include "ptx/cluster.cuh"
#include "ptx/exchange.cuh"
#include "ptx/sums.cuh"
#include "ptx/pdl.cuh"
#include "ptx/copy.cuh"

namespace kd {
namespace route {

// Where the products of this warp lie: 16 MT rows and 8 NT tokens of the CTA's, in one of its two segments.
template <class U>
struct Place {
  static constexpr bool EXACT = U::H == 2 * U::SEG * U::RANKS;

  int rank = blockIdx.x, expert = blockIdx.y * U::ROWS;
  int64_t token = int64_t(blockIdx.z) * U::TOKENS;
  int warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
  int segment = warp / (U::MWARPS * U::NWARPS);  // 2 and more: a warp without products
  int row = warp % U::MWARPS * 16 * U::MT, column = warp / U::MWARPS % U::NWARPS * 8 * U::NT;
};

// A step is 32 of k of each segment. Tiles have rows of 128 bytes: four pieces of 16 bytes of the first segment and four of
// the second, in pairs that are exchanged from row to row, so that a pair of four rows meets all banks. A thread copies the same
// piece of every STRIDE-th row. Rows that do not exist stay as they are: what is made of them is not read.
template <class U, int ROWS>
struct Copies {
  static constexpr int STRIDE = 4 * U::WARPS;

  const __nv_bfloat16* from;
  uint32_t to;
  int live, k;

  // `rows` rows at `operand`, for tiles at `tile`.
  __device__ __forceinline__ Copies(const __nv_bfloat16* operand, int64_t rows, int rank, uint32_t tile) {
    const int row = threadIdx.x / 8, piece = threadIdx.x % 8;
    k = (2 * rank + piece / 4) * U::SEG + piece % 4 * 8;
    from = operand + int64_t(row) * U::H + k;
    to = tile + 128 * row + 16 * (piece ^ 2 * (row & 3));
    live = int(rows < ROWS ? rows : ROWS) - row;
  }

  __device__ __forceinline__ void operator()(int step, int tile) const {
#pragma unroll
    for (int row = 0; row < ROWS; row += STRIDE)
      if (row < live)
        ptx::copy16(to + tile * U::TILE + 128 * row, from + row * U::H + 32 * step,
                    Place<U>::EXACT || k + 32 * step < U::H);
  }
};

// This thread's values of row `row`, counted from its first, of a tile: four of each 16.
template <class U>
__device__ __forceinline__ Bf16x8 fragment(const Place<U>& place, const unsigned char* tile, int row) {
  const unsigned char* from = tile + 128 * (row + place.g) + 8 * place.t;
  const uint2 first = *reinterpret_cast<const uint2*>(from + 32 * (2 * place.segment ^ (place.g & 3)));
  const uint2 second = *reinterpret_cast<const uint2*>(from + 32 * ((2 * place.segment + 1) ^ (place.g & 3)));
  return from_words(make_uint4(first.x, first.y, second.x, second.y));
}

// sum += the products of one step; `tokens` is where the tile's rows of tokens begin. Without a branch for tokens that do not
// exist: the products hide each other's latency.
template <class U>
__device__ __forceinline__ void multiply(const Place<U>& place, const Bf16x8 (&low)[U::MT], const Bf16x8 (&high)[U::MT],
                                         const unsigned char* tokens, float (&sum)[U::MT][U::NT][4]) {
#pragma unroll
  for (int n = 0; n < U::NT; ++n) {
    const Bf16x8 own = fragment(place, tokens, place.column + 8 * n);
#pragma unroll
    for (int m = 0; m < U::MT; ++m) mma_k32(sum[m][n], low[m], high[m], own);
  }
}

// Few rows: each warp reads all its weights into registers while it waits for the kernel in front, and the tokens arrive in
// two groups.
template <class U, class S>
__device__ __forceinline__ void at_once(const Place<U>& place, const Copies<U, U::TOKENS>& inputs, const __nv_bfloat16* w,
                                        float (&sum)[U::MT][U::NT][4]) {
  static_assert(U::MT == 1, "registers for one tile of weights");
  constexpr int VECS = U::H / 8, HALF = (U::STEPS + 1) / 2;
  Bf16x8 low[U::STEPS][1] = {}, high[U::STEPS][1] = {};
  const int row = place.expert + place.row + place.g;
#pragma unroll
  for (int step = 0; step < U::STEPS; ++step) {
    const int vec = ((2 * place.rank + place.segment) * U::SEG + 32 * step) / 8 + dealt_piece(place.t);
    if (place.segment > 1 || (!Place<U>::EXACT && vec >= VECS)) continue;
    if (row < U::E) low[step][0] = load8_constant(w, int64_t(row) * VECS + vec);
    if (row + 8 < U::E) high[step][0] = load8_constant(w, int64_t(row + 8) * VECS + vec);
  }
#pragma unroll
  for (int step = 0; step < U::STEPS; ++step) deal(low[step][0]), deal(high[step][0]);
  ptx::grid_dependency_wait();
#pragma unroll
  for (int step = 0; step < U::STEPS; ++step) {
    inputs(step, step);
    if (step + 1 == HALF) ptx::copy_commit();
  }
  ptx::copy_commit();
#pragma unroll
  for (int step = 0; step < U::STEPS; ++step) {
    if (step == 0 || step == HALF) {
      if (step == 0) ptx::copy_wait<1>();
      if (step == HALF) ptx::copy_wait<0>();
      __syncthreads();
    }
    if (place.segment < 2) multiply<U>(place, low[step], high[step], S::tile() + step * U::TILE, sum);
  }
}

// Many rows: weights and tokens pass through STAGES tiles.
template <class U, class S>
__device__ __forceinline__ void staged(const Place<U>& place, const Copies<U, U::TOKENS>& inputs,
                                       const Copies<U, U::ROWS>& weights, float (&sum)[U::MT][U::NT][4]) {
  constexpr int AHEAD = U::STAGES - 1;
#pragma unroll
  for (int step = 0; step < AHEAD; ++step)
    if (step < U::STEPS) weights(step, step);
  ptx::grid_dependency_wait();
#pragma unroll
  for (int step = 0; step < AHEAD; ++step) {
    if (step < U::STEPS) inputs(step, step);
    ptx::copy_commit();
  }
#pragma unroll 1
  for (int step = 0; step < U::STEPS; ++step) {
    ptx::copy_wait<AHEAD - 1>();
    __syncthreads();  // this step has landed for all, and all have used the tile that is filled next
    if (step + AHEAD < U::STEPS) {
      weights(step + AHEAD, (step + AHEAD) % U::STAGES);
      inputs(step + AHEAD, (step + AHEAD) % U::STAGES);
    }
    ptx::copy_commit();
    const unsigned char* tile = S::tile() + step % U::STAGES * U::TILE;
    Bf16x8 low[U::MT], high[U::MT];
#pragma unroll
    for (int m = 0; m < U::MT; ++m) {
      low[m] = fragment(place, tile, place.row + 16 * m);
      high[m] = fragment(place, tile, place.row + 16 * m + 8);
    }
    multiply<U>(place, low, high, tile + 128 * U::ROWS, sum);
  }
}

// The sums of this CTA's two segments, added, in shared memory: `sums[token][row]`, LINE floats a token.
template <class U, class S>
__device__ __forceinline__ void products(const Place<U>& place, const __nv_bfloat16* x, const __nv_bfloat16* w, int M) {
  const int64_t tokens = M - place.token;
  const uint32_t tile = ptx::shared_address(S::tile());
  const Copies<U, U::TOKENS> inputs(x + place.token * U::H, tokens, place.rank,
                                    tile + 128 * (U::STAGES > 0 ? U::ROWS : 0));
  float sum[U::MT][U::NT][4] = {};
  if constexpr (U::STAGES == 0) {
    at_once<U, S>(place, inputs, w, sum);
  } else {
    const __nv_bfloat16* own = w + int64_t(place.expert) * U::H;
    staged<U, S>(place, inputs, Copies<U, U::ROWS>(own, U::E - place.expert, place.rank, tile), sum);
  }
  ptx::grid_dependency_launch();
  __syncthreads();  // the tiles become sums

  float* sums = reinterpret_cast<float*>(S::tile());
  const auto each = [&](auto apply) {
#pragma unroll
    for (int m = 0; m < U::MT; ++m)
#pragma unroll
      for (int n = 0; n < U::NT; ++n)
#pragma unroll
        for (int c = 0; c < 4; ++c) {
          const int token = place.column + 8 * n + 2 * place.t + c % 2, row = place.row + 16 * m + place.g + c / 2 * 8;
          apply(sums[token * U::LINE + row], sum[m][n][c]);
        }
  };
  if (place.segment == 1) each([](float& at, float own) { at = own; });
  __syncthreads();
  if (place.segment == 0) each([](float& at, float own) { at = own + at; });
}

// What is left once this CTA's sums are in shared memory, `sums[token][row]`: scores, and the choice for a share of the tokens by
// the last CTA of the expert blocks to finish them.
__device__ __forceinline__ float sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }

// Of a NaN too no other bit.
__device__ __forceinline__ float negated(float x) { return __uint_as_float(__float_as_uint(x) ^ 0x80000000u); }

struct Choices {
  const float* bias;
  const int32_t* slots;
  int32_t groups, top_groups, normalize;
  float scaling;
  int32_t* arrived;
  float* scores;
  int32_t* ids;
  float* weights;

  // What the choice needs besides scores is at hand when it begins; these copies are in the next group.
  template <class U, class S>
  __device__ __forceinline__ void prepare() const {
    for (int i = 4 * threadIdx.x; i < U::E; i += 128 * U::WARPS) ptx::copy16(ptx::shared_address(S::biases() + i), bias + i);
  }

  // With PUSH: where the sums of CTA `rank` for a token of this CTA's share arrive.
  template <class U, class S>
  __device__ __forceinline__ static float* place(int rank, int token) {
    return S::parts() + (rank * U::SHARE + token) * U::ROWS;
  }

  // Makes room for them. Between this and `push` all CTAs of the cluster have to start, while the products are made.
  template <class U, class S>
  __device__ __forceinline__ static void expect() {
    if (threadIdx.x == 0) {
      ptx::barrier_init(S::ready(), 1);
      ptx::barriers_ready();
    }
    // Racecheck holds the same thread's next access against it.
    if (ptx::EVERY_LANE_ARRIVES) __syncthreads();
    if (threadIdx.x == 0) ptx::barrier_arrive_expect(S::ready(), U::TOKENS * U::ROWS * 4);
    __syncthreads();
    ptx::cluster_arrive();
  }

  // With DIRECT: where the sums of CTA `rank` for a pair of tokens of this CTA's share arrive, as the threads hold them: for each
  // 16 experts eight times four, two tokens of one expert, then of the eighth behind it.
  template <class U, class S>
  __device__ __forceinline__ static float* unit(int rank, int pair, int of) {
    return S::parts() + ((rank * (U::SHARE / 2) + pair) * (U::ROWS / 2) + of) * 4;
  }

  // To each CTA what this warp's lanes hold of its share, 16 experts from `row` on; tokens from eight times BEGIN on first.
  template <class U, class S, int BEGIN>
  __device__ __forceinline__ static void push_from(const float (&sum)[U::NT][4], int row) {
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
#pragma unroll
    for (int i = 0; i < U::NT; ++i) {
      const int n = (BEGIN + i) % U::NT, pair = 4 * n + t;
      ptx::send16(unit<U, S>(blockIdx.x, pair % (U::SHARE / 2), row / 2 + g),
                  make_float4(sum[n][0], sum[n][1], sum[n][2], sum[n][3]), S::ready(), pair / (U::SHARE / 2));
    }
  }

  // The same once all CTAs have started. Half of them begin in the middle, so that not all send to the same one.
  template <class U, class S>
  __device__ __forceinline__ static void push_held(const float (&sum)[U::NT][4], int row) {
    static_assert(U::SHARE % 2 == 0, "pairs of tokens");
    ptx::cluster_wait();
    if (blockIdx.x < U::RANKS / 2)
      push_from<U, S, 0>(sum, row);
    else
      push_from<U, S, U::NT / 2>(sum, row);
  }

  // Scores of the cluster's experts for this CTA's share of what was sent so, to where they are awaited: negative, so that none is
  // zero.
  template <class U, class S>
  __device__ __forceinline__ void score_held(int64_t token, int expert, int M) const {
    constexpr int UNITS = U::ROWS / 2;
    for (int i = threadIdx.x; i < U::SHARE / 2 * UNITS; i += 32 * U::WARPS) {
      const int pair = i / UNITS, of = i % UNITS, row = expert + of / 8 * 16 + of % 8;
      const int64_t first = token + blockIdx.x * U::SHARE + 2 * pair;
      float4 part[U::RANKS];
#pragma unroll
      for (int rank = 0; rank < U::RANKS; ++rank) part[rank] = *reinterpret_cast<const float4*>(unit<U, S>(rank, pair, of));
#pragma unroll
      for (int rank = 1; rank < U::RANKS; ++rank)
        part[0].x += part[rank].x, part[0].y += part[rank].y, part[0].z += part[rank].z, part[0].w += part[rank].w;
      float* to = reinterpret_cast<float*>(arrived) + first * U::E + row;
      if (first < M) ptx::store_device(to, negated(sigmoid(part[0].x))), ptx::store_device(to + 8, negated(sigmoid(part[0].z)));
      if (first + 1 < M) ptx::store_device(to + U::E, negated(sigmoid(part[0].y))), ptx::store_device(to + U::E + 8, negated(sigmoid(part[0].w)));
    }
  }

  // To each CTA this one's sums of its share, and waits for what the others send. Nobody leaves before all has come, so that the cluster
  // needs no barrier.
  template <class U, class S>
  __device__ __forceinline__ static void push(const float* sums) {
    constexpr int QUADS = U::ROWS / 4;
    __syncthreads();
    ptx::cluster_wait();
    for (int i = threadIdx.x; i < U::TOKENS * QUADS; i += 32 * U::WARPS) {
      // Each CTA begins with itself: if all began with the first, they would wait for what that one can take.
      const int token = (i / QUADS + int(blockIdx.x) * U::SHARE) % U::TOKENS, quad = i % QUADS;
      ptx::send16(place<U, S>(blockIdx.x, token % U::SHARE) + quad * 4,
                  *reinterpret_cast<const float4*>(sums + token * U::LINE + quad * 4), S::ready(), token / U::SHARE);
    }
    ptx::barrier_wait_cluster(S::ready(), 0);
  }

  // Scores of the cluster's experts for this CTA's share of its tokens, as few a thread as there are threads for.
  template <class U, class S>
  __device__ __forceinline__ void score(const float* sums, int64_t token, int expert, int M) const {
    constexpr int EACH = U::SHARE * U::ROWS, THREADS = 32 * U::WARPS, WIDE = !U::PUSH || EACH > 2 * THREADS ? 4 : EACH > THREADS ? 2 : 1;
    struct alignas(4 * WIDE) Few {
      float value[WIDE];
    };
    for (int i = threadIdx.x; i < EACH / WIDE; i += THREADS) {
      const int own = i / (U::ROWS / WIDE), row = i % (U::ROWS / WIDE) * WIDE, of = blockIdx.x * U::SHARE + own;
      if (token + of >= M || expert + row >= U::E) continue;
      Few part[U::RANKS];
#pragma unroll
      for (int rank = 0; rank < U::RANKS; ++rank) {
        const float* from = U::PUSH ? place<U, S>(rank, own) + row : sums + of * U::LINE + row;
        if constexpr (U::PUSH || U::RANKS == 1) {
          part[rank] = *reinterpret_cast<const Few*>(from);
        } else {
          const float4 four = ptx::load_cluster16(from, rank);
          part[rank] = {four.x, four.y, four.z, four.w};
        }
      }
#pragma unroll
      for (int rank = 1; rank < U::RANKS; ++rank)
#pragma unroll
        for (int c = 0; c < WIDE; ++c) part[0].value[c] += part[rank].value[c];
#pragma unroll
      for (int c = 0; c < WIDE; ++c) part[0].value[c] = sigmoid(part[0].value[c]);
      if constexpr (U::CHOOSERS > 0) {
        float* to = reinterpret_cast<float*>(arrived) + (token + of) * U::E + expert + row;
#pragma unroll
        for (int c = 0; c < WIDE; ++c) part[0].value[c] = negated(part[0].value[c]);
        ptx::store_device(to, part[0].value);
      } else {
        *reinterpret_cast<Few*>(scores + (token + of) * U::E + expert + row) = part[0];
      }
    }
  }

  // The same where the first CHOOSERS of the expert blocks choose, each for a part of the share. A chooser waits for each score of its
  // token, which needs neither a counter nor a fence, and leaves zeros behind; the other CTAs make room for the next launch. The host
  // launches this only where the device holds all clusters of the launch at once: CUDA promises no order in which CTAs start.
  template <class U, class S>
  __device__ __forceinline__ void decide_waiting(const float* sums, float* space, int64_t token, int expert, int M) const {
    constexpr int CHOOSERS = U::CHOOSERS < U::BLOCKS ? U::CHOOSERS : U::BLOCKS, OWN = (U::SHARE + CHOOSERS - 1) / CHOOSERS;
    static_assert(OWN <= U::WARPS, "a warp a token");
    const int warp = threadIdx.x / 32, of = blockIdx.y + warp * CHOOSERS;
    const int64_t row = token + blockIdx.x * U::SHARE + of;
    const bool mine = blockIdx.y < CHOOSERS && of < U::SHARE && row < M;
    const int32_t slot = mine ? ptx::load4(slots + row) : -1;
    if constexpr (U::DIRECT) {
      if (warp >= U::ROWS / 16) ptx::cluster_wait();  // others have, before they sent
      __syncthreads();  // the biases are there, and `space` is free once all of this CTA have multiplied
      ptx::barrier_wait_cluster(S::ready(), 0);
      score_held<U, S>(token, expert, M);
    } else {
      push<U, S>(sums);
      score<U, S>(sums, token, expert, M);
      __syncthreads();  // nobody reads `sums`, where `space` is
    }
    if (!mine) return;
    const int lane = threadIdx.x % 32;
    uint4 score[U::QUADS];
    bool missing;
    do {
      missing = false;
#pragma unroll
      for (int i = 0; i < U::QUADS; ++i) {
        const int id = 128 * i + 4 * lane;
        if (id < U::E) {
          const float4 v = ptx::load_device16f(reinterpret_cast<const float*>(arrived) + row * U::E + id);
          score[i] = make_uint4(__float_as_uint(v.x), __float_as_uint(v.y), __float_as_uint(v.z), __float_as_uint(v.w));
          missing |= score[i].x == 0 || score[i].y == 0 || score[i].z == 0 || score[i].w == 0;
        }
      }
    } while (__any_sync(0xffffffffu, missing));
#pragma unroll
    for (int i = 0; i < U::QUADS; ++i) {
      const int id = 128 * i + 4 * lane;
      score[i].x ^= 0x80000000u, score[i].y ^= 0x80000000u, score[i].z ^= 0x80000000u, score[i].w ^= 0x80000000u;
      if (id >= U::E) continue;
      *reinterpret_cast<uint4*>(arrived + row * U::E + id) = make_uint4(0, 0, 0, 0);
      *reinterpret_cast<uint4*>(scores + row * U::E + id) = score[i];
    }
    __syncwarp();
    if (slot >= 0)
      choose<U>(scores + row * U::E, [&](int i) { return score[i]; }, S::biases(), groups, top_groups, normalize != 0, scaling,
                space + warp * (U::E + 64), ids + row * U::T, weights + row * U::T);
    else if (lane < U::T)
      ids[row * U::T + lane] = -1, weights[row * U::T + lane] = 0.0f;
  }

  // Of tokens from `token` and experts from `expert` on. `space`, shared memory, has E + 64 floats for each warp. By all threads, whose
  // sums need not be visible to each other yet.
  template <class U, class S>
  __device__ __forceinline__ void decide(const float* sums, float* space, int64_t token, int expert, int M) const {
    if constexpr (U::CHOOSERS > 0) return decide_waiting<U, S>(sums, space, token, expert, M);
    constexpr int ROUNDS = (U::SHARE + U::WARPS - 1) / U::WARPS;
    const int warp = threadIdx.x / 32;
    const int64_t first = token + blockIdx.x * U::SHARE;
    int32_t slot[ROUNDS];
#pragma unroll
    for (int round = 0; round < ROUNDS; ++round) {
      const int64_t row = first + warp + round * U::WARPS;
      slot[round] = row < M ? ptx::load4(slots + row) : -1;
    }
    if constexpr (U::PUSH)
      push<U, S>(sums);
    else if (U::RANKS > 1)
      ptx::cluster_sync();
    else
      __syncthreads();
    score<U, S>(sums, token, expert, M);
    if (U::RANKS > 1 && !U::PUSH) ptx::cluster_arrive();
    const bool last = first < M && arrive_last(arrived + first, U::BLOCKS, S::flag());
    if (U::RANKS > 1 && !U::PUSH) ptx::cluster_wait();  // no CTA may leave, or use its shared memory anew, while its sums are read
    if (!last) return;
    space += warp * (U::E + 64);
#pragma unroll 1
    for (int round = 0; round < ROUNDS; ++round) {
      const int64_t row = first + warp + round * U::WARPS;
      if (row >= first + U::SHARE || row >= M) break;
      if (slot[round] >= 0)
        choose<U>(scores + row * U::E, Stored{scores + row * U::E}, S::biases(), groups, top_groups, normalize != 0, scaling, space,
                  ids + row * U::T, weights + row * U::T);
      else if (threadIdx.x % 32 < U::T)
        ids[row * U::T + threadIdx.x % 32] = -1, weights[row * U::T + threadIdx.x % 32] = 0.0f;
    }
  }
};

}  // namespace route

template <class U, class S>
__device__ __forceinline__ void router(const __nv_bfloat16* x, const __nv_bfloat16* w, const float* bias,
                                       const int32_t* slots, int32_t groups, int32_t top_groups, int32_t normalize,
                                       float scaling, int32_t* arrived, float* scores, int32_t* ids, float* weights,
                                       int M) {
  const route::Place<U> place;
  const route::Choices choices{bias, slots, groups, top_groups, normalize, scaling, arrived, scores, ids, weights};
  if constexpr (U::PUSH) choices.expect<U, S>();
  choices.prepare<U, S>();
  route::products<U, S>(place, x, w, M);
  float* tile = reinterpret_cast<float*>(S::tile());
  choices.decide<U, S>(tile, tile, place.token, place.expert, M);
}

}  // namespace kd
