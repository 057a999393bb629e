// Inner products of two float arrays, one per instruction set. Knows nothing of top-k or masks.
#pragma once

#include <cstdint>

#if defined(__x86_64__) || defined(_M_X64)
#  define EDGEMEM_HAS_AVX2 1
#endif
#if defined(__aarch64__) || defined(_M_ARM64)
#  define EDGEMEM_HAS_NEON 1
#endif

namespace edgemem {

// Each sums in an order that depends on `dim` only, so that equal rows get equal scores.
using DotFn = float (*)(const float *a, const float *b, int64_t dim);

float dot_scalar(const float *a, const float *b, int64_t dim);
#if EDGEMEM_HAS_AVX2
float dot_avx2(const float *a, const float *b, int64_t dim);
bool cpu_has_avx2_fma();
#endif
#if EDGEMEM_HAS_NEON
float dot_neon(const float *a, const float *b, int64_t dim);
#endif

}  // namespace edgemem
