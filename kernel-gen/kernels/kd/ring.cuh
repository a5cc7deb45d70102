// Rings of slots in shared memory, with barriers that are waited for by parity.
#pragma once

namespace kd {

// A slot of COUNT, and the parity of the phase of its barrier to wait for.
template <int COUNT>
struct Slot {
  int slot = 0, parity = 0;

  __device__ __forceinline__ void advance() {
    if (++slot == COUNT) slot = 0, parity ^= 1;
  }
};

}  // namespace kd
