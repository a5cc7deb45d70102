// What every template may use: integer types, bf16, and the arithmetic of declarations as constexpr.
#pragma once

#include <cuda_bf16.h>
#include <stdint.h>

namespace kd {

// All shared memory of a kernel; its members are placed by the generated layout header. Aligned for any member.
extern __shared__ __align__(1024) unsigned char shared_memory[];

constexpr int min(int a, int b) { return a < b ? a : b; }
constexpr int max(int a, int b) { return a > b ? a : b; }
// For a >= 0 and b > 0.
constexpr int ceil_div(int a, int b) { return (a + (b - 1)) / b; }

}  // namespace kd
