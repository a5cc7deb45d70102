// Attention of query rows over tiles of keys with a running softmax (FlashAttention-2, arXiv 2307.08691, section 3.1).
//
// A warp has 16 * MT query rows and works through tiles of NB keys; GROUPS groups of WM warps have the same rows and every
// GROUPS-th tile, each at its own pace, and are merged in the end. Two warps on each scheduler hide each other's softmax
// behind products, and 32 rows a warp halve what a product reads from shared memory.
//
// U: KD and VD (widths of keys and values), MT, WM, GROUPS, NB, ROWS = 16 * MT * WM.
#pragma once

#include "kd/base.cuh"
#include "ptx/copy.cuh"
#include "ptx/ldmatrix.cuh"
#include "ptx/math.cuh"
#include "ptx/mma.cuh"

namespace kd {
namespace flash {

constexpr float NONE = -__builtin_inff();  // the score of a key that a row does not see

// Rows of WIDTH bf16 in shared memory. Vectors of 16 bytes trade places within a row so that the same vector of eight
// consecutive rows lies in different banks.
template <int WIDTH>
struct Rows {
  static constexpr int VECS = WIDTH / 8, BYTES = 2 * WIDTH, SPAN = min(8, VECS);

  __device__ __forceinline__ static int twist(int row) { return row / (8 / SPAN) % SPAN; }
  __device__ __forceinline__ static uint32_t place(int row, int vec) { return row * BYTES + ((vec ^ twist(row)) << 4); }
  // Where a lane that reads row `row` of a matrix finds vector 2 * `step`, or the next for an odd `odd`, is
  // `lane(row, odd)` changed by `at`: few registers and many constants.
  __device__ __forceinline__ static uint2 lane(int row, int odd) {
    return make_uint2(row * BYTES, (twist(row) ^ odd) << 4);
  }
  __device__ __forceinline__ static uint32_t at(uint2 lane, int step) {
    return lane.x + (2 * step / 8 * 128) + ((2 * step % 8 * 16) ^ lane.y);
  }
};

// A thread's place in its CTA and in the operands of mma: rows g and g + 8 of 16, columns 2t and 2t + 1 of 8.
template <class U>
struct Place {
  int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  int warp = threadIdx.x / 32 % U::WM, group = threadIdx.x / 32 / U::WM;
  int row = warp * 16 * U::MT;  // the warp's first

  // Of this thread within its group.
  __device__ __forceinline__ int thread() const { return int(threadIdx.x) % (32 * U::WM); }
  __device__ __forceinline__ void sync_group() const { ptx::named_barrier<32 * U::WM>(1 + group); }
};

template <class U>
using Scores = float[U::MT][U::NB / 8][4];

// What a warp knows of its rows: the largest score, and as if all weights were relative to it, their sum and the weighted
// sum of values. Each thread has its own part of the sum until `join_lanes`.
template <class U>
struct Running {
  float out[U::MT][U::VD / 8][4] = {}, top[U::MT][2], sum[U::MT][2] = {};

  __device__ __forceinline__ Running() {
#pragma unroll
    for (int m = 0; m < U::MT; ++m) top[m][0] = top[m][1] = NONE;
  }
};

// A warp's query rows: in registers where HOLD, else read from shared memory again for each tile of keys.
template <class U>
struct Queries {
  using Tile = Rows<U::KD>;
  static constexpr int STEPS = U::KD / 16;

  uint32_t rows, held[U::HOLD ? STEPS : 1][U::MT][4];
  uint2 lane;

  // The rows from shared address `from` on.
  __device__ __forceinline__ Queries(const Place<U>& at, uint32_t from)
      : rows(from), lane(Tile::lane(at.lane % 16, at.lane / 16)) {
    if (U::HOLD)
#pragma unroll
      for (int step = 0; step < STEPS; ++step)
#pragma unroll
        for (int m = 0; m < U::MT; ++m) load(step, m, held[step][m]);
  }
  __device__ __forceinline__ void load(int step, int m, uint32_t (&to)[4]) const {
    ptx::ldmatrix4(to, rows + m * 16 * Tile::BYTES + Tile::at(lane, step));
  }
};

// Query rows times NB keys from `k` on.
template <class U>
__device__ __forceinline__ void multiply_keys(const Place<U>& at, const Queries<U>& q, uint32_t k, Scores<U>& score) {
  using Tile = Rows<U::KD>;
  const uint2 key = Tile::lane(at.lane % 8 + at.lane / 16 * 8, at.lane / 8 % 2);
#pragma unroll
  for (int step = 0; step < U::KD / 16; ++step) {
    uint32_t a[U::MT][4];
#pragma unroll
    for (int m = 0; m < U::MT; ++m) {
      if (!U::HOLD) q.load(step, m, a[m]);
#pragma unroll
      for (int i = 0; U::HOLD && i < 4; ++i) a[m][i] = q.held[U::HOLD ? step : 0][m][i];
    }
#pragma unroll
    for (int n = 0; n < U::NB / 16; ++n) {
      uint32_t b[4];
      ptx::ldmatrix4(b, k + n * 16 * Tile::BYTES + Tile::at(key, step));
#pragma unroll
      for (int m = 0; m < U::MT; ++m) {
        ptx::mma_16816_bf16(score[m][2 * n], a[m][0], a[m][1], a[m][2], a[m][3], b[0], b[1]);
        ptx::mma_16816_bf16(score[m][2 * n + 1], a[m][0], a[m][1], a[m][2], a[m][3], b[2], b[3]);
      }
    }
  }
}

// Hides the keys outside `low .. high` of each row; `bounds(row)` gives both, counted from the tile's first key.
template <class U, class Bounds>
__device__ __forceinline__ void hide(const Place<U>& at, Scores<U>& score, Bounds bounds) {
#pragma unroll
  for (int m = 0; m < U::MT; ++m)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int2 seen = bounds(at.row + 16 * m + 8 * half + at.g);
#pragma unroll
      for (int n = 0; n < U::NB / 8; ++n)
#pragma unroll
        for (int c = 0; c < 2; ++c) {
          const int key = 8 * n + 2 * at.t + c;
          if (key < seen.x || key >= seen.y) score[m][n][2 * half + c] = NONE;
        }
    }
}

template <class U>
using Tops = float[U::MT][2];

// The tops of what is known and `score`.
template <class U>
__device__ __forceinline__ void tops(const Scores<U>& score, const Running<U>& known, Tops<U>& top) {
  // Step by step for all rows at once: each step waits long for its result.
#pragma unroll
  for (int m = 0; m < U::MT; ++m)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float even = known.top[m][half], odd = NONE;
#pragma unroll
      for (int n = 0; n < U::NB / 8; ++n) {
        even = fmaxf(even, score[m][n][2 * half]);
        odd = fmaxf(odd, score[m][n][2 * half + 1]);
      }
      top[m][half] = fmaxf(even, odd);
    }
#pragma unroll
  for (int step = 1; step < 3; ++step)
#pragma unroll
    for (int m = 0; m < U::MT; ++m)
#pragma unroll
      for (int half = 0; half < 2; ++half)
        top[m][half] = fmaxf(top[m][half], __shfl_xor_sync(0xffffffffu, top[m][half], step));
}

// Raises the tops to `top`, and makes what is known relative to them. `base` becomes the exponent that counts as zero; a row
// that has seen no key keeps sum 0.
template <class U>
__device__ __forceinline__ void raise(const Tops<U>& top, float factor, Tops<U>& base, Running<U>& known) {
  bool grown = false;
#pragma unroll
  for (int m = 0; m < U::MT; ++m)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      base[m][half] = top[m][half] == NONE ? 0.0f : top[m][half] * factor;
      grown |= top[m][half] != known.top[m][half];
    }
  if (__any_sync(0xffffffffu, grown)) {
#pragma unroll
    for (int m = 0; m < U::MT; ++m)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        // Exactly 1 where this row's top has not grown: its result must not depend on the warp's other rows.
        const bool same = top[m][half] == known.top[m][half];
        const float keep = same ? 1.0f : ptx::exp2_fast(fmaf(known.top[m][half], factor, -base[m][half]));
        known.top[m][half] = top[m][half];
        known.sum[m][half] *= keep;
#pragma unroll
        for (int n = 0; n < U::VD / 8; ++n) known.out[m][n][2 * half] *= keep, known.out[m][n][2 * half + 1] *= keep;
      }
  }
}

// The same to those of `score` as well.
template <class U>
__device__ __forceinline__ void raise(const Scores<U>& score, float factor, Tops<U>& base, Running<U>& known) {
  Tops<U> top;
  tops<U>(score, known, top);
  raise<U>(top, factor, base, known);
}

// Scores to weights.
template <class U>
__device__ __forceinline__ void weigh(Scores<U>& score, float factor, const Tops<U>& base, Running<U>& known) {
#pragma unroll
  for (int n = 0; n < U::NB / 8; ++n)
#pragma unroll
    for (int m = 0; m < U::MT; ++m)
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        score[m][n][c] = ptx::exp2_fast(fmaf(score[m][n][c], factor, -base[m][c / 2]));
        known.sum[m][c / 2] += score[m][n][c];
      }
}

__device__ __forceinline__ uint32_t pack(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return uint32_t(__bfloat16_as_ushort(pair.y)) << 16 | __bfloat16_as_ushort(pair.x);
}

// Weights of sixteen keys, from tile 2 * `k` of 8 on, as an operand.
__device__ __forceinline__ void weights_of(const float (*weight)[4], int k, uint32_t (&a)[4]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) a[i] = pack(weight[2 * k + i / 2][i % 2 * 2], weight[2 * k + i / 2][i % 2 * 2 + 1]);
}

// Adds the weighted values of NB keys from `v` on.
template <class U>
__device__ __forceinline__ void multiply_values(const Place<U>& at, const Scores<U>& weight, uint32_t v,
                                                Running<U>& known) {
  using Tile = Rows<U::VD>;
  const uint2 value = Tile::lane(at.lane % 16, at.lane / 16);
#pragma unroll
  for (int k = 0; k < U::NB / 16; ++k) {
    uint32_t a[U::MT][4];
#pragma unroll
    for (int m = 0; m < U::MT; ++m) weights_of(weight[m], k, a[m]);
#pragma unroll
    for (int n = 0; n < U::VD / 16; ++n) {
      uint32_t b[4];
      ptx::ldmatrix4_transposed(b, v + k * 16 * Tile::BYTES + Tile::at(value, n));
#pragma unroll
      for (int m = 0; m < U::MT; ++m) {
        ptx::mma_16816_bf16(known.out[m][2 * n], a[m][0], a[m][1], a[m][2], a[m][3], b[0], b[1]);
        ptx::mma_16816_bf16(known.out[m][2 * n + 1], a[m][0], a[m][1], a[m][2], a[m][3], b[2], b[3]);
      }
    }
  }
}

// Each row's whole sum in all four threads that share the row.
template <class U>
__device__ __forceinline__ void join_lanes(Running<U>& known) {
#pragma unroll
  for (int m = 0; m < U::MT; ++m)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      known.sum[m][half] += __shfl_xor_sync(0xffffffffu, known.sum[m][half], 1);
      known.sum[m][half] += __shfl_xor_sync(0xffffffffu, known.sum[m][half], 2);
    }
}

// Bytes of shared memory that `join_groups` uses: the rows of one group.
template <class U>
constexpr int JOIN_BYTES = U::ROWS * (U::VD + 2) * 4;

// The groups' rows to those of group 0, in order, through `memory`. All threads call it.
template <class U>
__device__ __forceinline__ void join_groups(const Place<U>& at, float* memory, float factor, Running<U>& known) {
  float2* stats = reinterpret_cast<float2*>(memory + U::ROWS * U::VD);
#pragma unroll 1
  for (int group = 1; group < U::GROUPS; ++group) {
    __syncthreads();
    if (at.group == group) {
#pragma unroll
      for (int m = 0; m < U::MT; ++m)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int row = at.row + 16 * m + 8 * half + at.g;
          if (at.t == 0) stats[row] = make_float2(known.top[m][half], known.sum[m][half]);
#pragma unroll
          for (int n = 0; n < U::VD / 8; ++n)
            *reinterpret_cast<float2*>(memory + row * U::VD + (8 * (n ^ (at.g & 3)) + 2 * at.t)) =
                make_float2(known.out[m][n][2 * half], known.out[m][n][2 * half + 1]);
        }
    }
    __syncthreads();
    if (at.group != 0) continue;
#pragma unroll
    for (int m = 0; m < U::MT; ++m)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = at.row + 16 * m + 8 * half + at.g;
        const float2 other = stats[row];
        const float top = fmaxf(known.top[m][half], other.x), base = top == NONE ? 0.0f : top * factor;
        const float mine = ptx::exp2_fast(fmaf(known.top[m][half], factor, -base));
        const float its = ptx::exp2_fast(fmaf(other.x, factor, -base));
        known.top[m][half] = top;
        known.sum[m][half] = known.sum[m][half] * mine + other.y * its;
#pragma unroll
        for (int n = 0; n < U::VD / 8; ++n) {
          const float2 from =
              *reinterpret_cast<const float2*>(memory + row * U::VD + (8 * (n ^ (at.g & 3)) + 2 * at.t));
          known.out[m][n][2 * half] = known.out[m][n][2 * half] * mine + from.x * its;
          known.out[m][n][2 * half + 1] = known.out[m][n][2 * half + 1] * mine + from.y * its;
        }
      }
  }
}

}  // namespace flash
}  // namespace kd
