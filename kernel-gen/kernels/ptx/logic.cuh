// Bitwise operations of three operands (PTX ISA: lop3).
#pragma once

#include <stdint.h>

namespace kd::ptx {

// (a & b) | c in one instruction; from the operators and two constants the compiler makes two.
__device__ __forceinline__ uint32_t and_or(uint32_t a, uint32_t b, uint32_t c) {
  uint32_t d;
  asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
  return d;
}

// A constant that the compiler keeps in a register.
__device__ __forceinline__ uint32_t opaque(uint32_t value) {
  uint32_t same;
  asm volatile("mov.b32 %0, %1;" : "=r"(same) : "r"(value));
  return same;
}

}  // namespace kd::ptx
