// Router: logits with K split over the CTAs of a cluster, then the choice, in one launch.
//
// A cluster makes the products of ROWS experts and TOKENS tokens. Each of its RANKS CTAs sums two segments of K, and then
// adds the segments of all, through distributed shared memory, for a share of the tokens. The last CTA of the expert blocks
// to finish a share chooses, one warp a token. Segments are fixed by H alone, so a row's bits depend neither on M nor on
// the variant.
#pragma once

#include "kd/arrive.cuh"
#include "kd/base.cuh"
#include "ptx/cluster.cuh"
#include "ptx/mma.cuh"
#include "ptx/pdl.cuh"
#include "ptx/stage.cuh"

namespace kd {
namespace route {

// Where the products of this CTA lie.
template <class U>
struct Place {
  int rank = blockIdx.x, expert = blockIdx.y * U::ROWS;
  int64_t token = int64_t(blockIdx.z) * U::TOKENS;
};

// Copies of one operand into tiles of 128-byte rows: each row has 32 values of k of either segment. 16-byte piece `piece` of
// row `row` lies at `piece ^ row % 8`, where a fragment's eight rows meet all banks. A thread copies the same piece of every
// STRIDE-th row, so that only the step changes its addresses. Rows that do not exist stay as they are: what is made of them
// is not read.
template <class U, int ROWS>
struct Copies {
  static constexpr int STRIDE = 4 * U::WARPS;
  static constexpr bool EXACT = U::H % (2 * U::SEG) == 0;

  const __nv_bfloat16* from;
  uint32_t to;
  int live, k;

  // `rows` rows at `operand`, for tiles at `tile`.
  __device__ __forceinline__ Copies(const __nv_bfloat16* operand, int64_t rows, int rank, uint32_t tile) {
    const int row = threadIdx.x / 8, piece = threadIdx.x % 8;
    k = rank * 2 * U::SEG + piece / 4 * U::SEG + piece % 4 * 8;
    from = operand + int64_t(row) * U::H + k;
    to = tile + 128 * row + 16 * (piece ^ (row & 7));
    live = int(rows < ROWS ? rows : ROWS) - row;
  }

  __device__ __forceinline__ void operator()(int step) const {
#pragma unroll
    for (int pack = 0; pack < U::PACK; ++pack) {
      const int beyond = 32 * (step * U::PACK + pack);
      const uint32_t stage = to + (step % U::STAGES * U::PACK + pack) * U::TILE;
#pragma unroll
      for (int row = 0; row < ROWS; row += STRIDE)
        if (row < live) ptx::copy16(stage + 128 * row, from + row * U::H + beyond, EXACT || k + beyond < U::H);
    }
  }
};

// The sums of this CTA's two segments, added, in shared memory: `sums[token][row]`, LINE floats a token. Half of the warps
// have one segment each.
template <class U, class S>
__device__ __forceinline__ void products(const Place<U>& place, const __nv_bfloat16* x, const __nv_bfloat16* w, int M) {
  constexpr int AHEAD = U::STAGES - 1;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const int segment = warp / (U::MWARPS * U::NWARPS);
  const int row = warp % U::MWARPS * 16 * U::MT, column = warp / U::MWARPS % U::NWARPS * 8 * U::NT;
  const int64_t tokens = M - place.token;
  const int live = int(tokens - column + 7) / 8;  // tiles with a token; may be negative
  const uint32_t tile = ptx::shared_address(S::tile());
  const Copies<U, U::ROWS> weights(w + int64_t(place.expert) * U::H, U::E - place.expert, place.rank, tile);
  const Copies<U, U::TOKENS> inputs(x + place.token * U::H, tokens, place.rank, tile + 128 * U::ROWS);
#pragma unroll
  for (int step = 0; step < AHEAD; ++step)
    if (step < U::STEPS) weights(step);
  ptx::grid_dependency_wait();
#pragma unroll
  for (int step = 0; step < AHEAD; ++step) {
    if (step < U::STEPS) inputs(step);
    ptx::copy_commit();
  }

  // This lane's rows of fragments: of weights, 16 rows and two pieces; of tokens, 8 rows and four pieces.
  const int swizzle = lane & 7;
  const uint32_t a_row = 128 * (row + lane % 16), b_row = 128 * (U::ROWS + column + lane % 8);
  const uint32_t a_piece[2] = {16u * ((4 * segment + lane / 16) ^ swizzle), 16u * ((4 * segment + 2 + lane / 16) ^ swizzle)};
  const uint32_t b_piece = 16 * ((4 * segment + lane / 8) ^ swizzle);
  float sum[U::MT][U::NT][4] = {};
#pragma unroll 1
  for (int step = 0; step < U::STEPS; ++step) {
    ptx::copy_wait<AHEAD - 1>();
    __syncthreads();  // this step has landed for all, and all have used the stage that is filled next
    if (step + AHEAD < U::STEPS) {
      weights(step + AHEAD);
      inputs(step + AHEAD);
    }
    ptx::copy_commit();
#pragma unroll
    for (int pack = 0; pack < U::PACK; ++pack) {
      const uint32_t stage = tile + (step % U::STAGES * U::PACK + pack) * U::TILE;
      uint32_t a[U::MT][2][4];
#pragma unroll
      for (int m = 0; m < U::MT; ++m)
#pragma unroll
        for (int half = 0; half < 2; ++half) ptx::load_tiles(a[m][half], stage + a_row + 2048 * m + a_piece[half]);
#pragma unroll
      for (int n = 0; n < U::NT; ++n) {
        if (n >= live) break;
        uint32_t b[4];
        ptx::load_tiles(b, stage + b_row + 1024 * n + b_piece);
#pragma unroll
        for (int half = 0; half < 2; ++half)
#pragma unroll
          for (int m = 0; m < U::MT; ++m)
            ptx::mma_16816_bf16(sum[m][n], a[m][half][0], a[m][half][1], a[m][half][2], a[m][half][3], b[2 * half],
                                b[2 * half + 1]);
      }
    }
  }
  ptx::grid_dependency_launch();
  __syncthreads();  // the stages become sums

  float* sums = reinterpret_cast<float*>(S::tile());
  const auto each = [&](auto apply) {
#pragma unroll
    for (int m = 0; m < U::MT; ++m)
#pragma unroll
      for (int n = 0; n < U::NT; ++n)
#pragma unroll
        for (int c = 0; c < 4; ++c)
          apply(sums[(column + 8 * n + 2 * t + c % 2) * U::LINE + row + 16 * m + g + c / 2 * 8], sum[m][n][c]);
  };
  if (segment == 1) each([](float& at, float own) { at = own; });
  __syncthreads();
  if (segment == 0) each([](float& at, float own) { at = own + at; });
}

// Scores of the cluster's experts for this CTA's share of its tokens; four experts a thread.
template <class U, class S>
__device__ __forceinline__ void scores(const Place<U>& place, float* scores, int M) {
  constexpr int QUADS = U::ROWS / 4;
  const float* sums = reinterpret_cast<const float*>(S::tile());
  for (int i = threadIdx.x; i < U::SHARE * QUADS; i += 32 * U::WARPS) {
    const int token = place.rank * U::SHARE + i / QUADS, expert = place.expert + i % QUADS * 4;
    if (place.token + token >= M || expert >= U::E) continue;
    float4 part[U::RANKS];
#pragma unroll
    for (int rank = 0; rank < U::RANKS; ++rank)
      part[rank] = ptx::load_cluster16(sums + token * U::LINE + i % QUADS * 4, rank);
    float4 sum = part[0];
#pragma unroll
    for (int rank = 1; rank < U::RANKS; ++rank)
      sum.x += part[rank].x, sum.y += part[rank].y, sum.z += part[rank].z, sum.w += part[rank].w;
    const float4 score = make_float4(1.0f / (1.0f + expf(-sum.x)), 1.0f / (1.0f + expf(-sum.y)),
                                     1.0f / (1.0f + expf(-sum.z)), 1.0f / (1.0f + expf(-sum.w)));
    *reinterpret_cast<float4*>(scores + (place.token + token) * U::E + expert) = score;
  }
}

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

// One warp, one token. A lane has PER_LANE neighbouring experts, so lanes and places in a lane are both in order of id.
// `space` is shared memory for E + 2 T words.
template <class U>
__device__ __forceinline__ void choose(const float* scores, const float* bias, int groups, int top_groups, bool normalize,
                                       float scaling, float* space, int32_t* ids, float* weights) {
  const int lane = threadIdx.x % 32, base = lane * U::PER_LANE;
  float score[U::PER_LANE], choice[U::PER_LANE];
  uint32_t own[U::PER_LANE], lead = 0, taken = 0;
#pragma unroll
  for (int i = 0; i < U::PER_LANE; ++i) {
    score[i] = base + i < U::E ? ptx::load4f(scores + base + i) : 0.0f;
    choice[i] = base + i < U::E ? score[i] + __ldg(bias + base + i) : 0.0f;
  }
  if (groups > 1) {
#pragma unroll
    for (int i = 0; i < U::PER_LANE; ++i)
      if (base + i < U::E) space[base + i] = choice[i];
    __syncwarp();
    keep_groups<U>(space, groups, top_groups);
#pragma unroll
    for (int i = 0; i < U::PER_LANE; ++i)
      if (base + i < U::E) choice[i] = space[base + i];
  }
#pragma unroll
  for (int i = 0; i < U::PER_LANE; ++i) {
    own[i] = base + i < U::E ? key(choice[i]) : 0;
    lead = ::max(lead, own[i]);
  }
#pragma unroll 1
  for (int rank = 0; rank < U::T; ++rank) {
    const uint32_t best = __reduce_max_sync(0xffffffffu, lead);
    const int holder = __ffs(__ballot_sync(0xffffffffu, lead == best)) - 1;
    bool open = lane == holder;  // the first of equals goes
    lead = lane == holder ? 0 : lead;
#pragma unroll
    for (int i = 0; i < U::PER_LANE; ++i) {
      const bool mine = open && own[i] == best;
      taken |= uint32_t(mine) << i;
      own[i] = mine ? 0 : own[i];
      open = open && !mine;
      lead = ::max(lead, own[i]);
    }
  }
  int place = 0;  // of this lane's first
#pragma unroll
  for (int bit = 0; bit < 6; ++bit)  // a lane has at most 32
    place += __popc(__ballot_sync(0xffffffffu, __popc(taken) >> bit & 1) & ((1u << lane) - 1)) << bit;
  int32_t* chosen = reinterpret_cast<int32_t*>(space + U::E);
  float* value = space + U::E + U::T;
#pragma unroll
  for (int i = 0; i < U::PER_LANE; ++i) {
    if (!(taken >> i & 1)) continue;
    chosen[place] = base + i;
    value[place] = score[i];
    ++place;
  }
  __syncwarp();
  float sum = 0.0f;
#pragma unroll
  for (int i = 0; i < U::T; ++i) sum += value[i];  // in order of id
  if (lane < U::T) {
    ids[lane] = chosen[lane];
    weights[lane] = value[lane] / (normalize ? sum + 1e-20f : 1.0f) * scaling;
  }
  __syncwarp();
}

}  // namespace route

template <class U, class S>
__device__ __forceinline__ void router(const __nv_bfloat16* x, const __nv_bfloat16* w, const float* bias, int32_t groups,
                                       int32_t top_groups, int32_t normalize, float scaling, int32_t* arrived,
                                       float* scores, int32_t* ids, float* weights, int M) {
  const route::Place<U> place;
  route::products<U, S>(place, x, w, M);
  ptx::cluster_sync();
  route::scores<U, S>(place, scores, M);
  ptx::cluster_arrive();
  const int64_t first = place.token + place.rank * U::SHARE;
  const bool last = first < M && arrive_last(arrived + first, U::BLOCKS, S::flag());
  ptx::cluster_wait();  // no CTA may leave, or use its shared memory anew, while its sums are read
  if (!last) return;
  const int warp = threadIdx.x / 32;
  float* space = reinterpret_cast<float*>(S::tile()) + warp * (U::E + 2 * U::T);
  for (int64_t row = first + warp; row < first + U::SHARE && row < M; row += U::WARPS)
    route::choose<U>(scores + row * U::E, bias, groups, top_groups, normalize != 0, scaling, space, ids + row * U::T,
                     weights + row * U::T);
}

}  // namespace kd
