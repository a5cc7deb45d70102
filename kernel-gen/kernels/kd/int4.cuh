// INT4 weights with one bf16 scale for each group of 32 along the last axis (the composite operand int4g32).
#pragma once

#include "kd/base.cuh"

namespace kd {

// The order of words and scales is the affair of the template that reads them and of the code that packs them: eight
// values a word, and as many scales as groups.
struct Int4G32 {
  static constexpr int GROUP = 32;
  const uint32_t* words;
  const __nv_bfloat16* scales;
};

}  // namespace kd
