// The only file with AVX2 instructions. They are switched on per function, never for the whole
// build, so that the rest runs on any x86-64 processor.
#include "dot.h"

#if EDGEMEM_HAS_AVX2

#include <immintrin.h>
#ifdef _MSC_VER
#  include <intrin.h>
#  define EDGEMEM_TARGET_AVX2
#else
#  define EDGEMEM_TARGET_AVX2 __attribute__((target("avx2,fma")))
#endif

namespace edgemem {

bool cpu_has_avx2_fma() {
#ifdef _MSC_VER
    int info[4];
    __cpuid(info, 0);
    if (info[0] < 7) {
        return false;
    }
    __cpuid(info, 1);
    const bool fma = (info[2] & (1 << 12)) != 0;
    const bool osxsave = (info[2] & (1 << 27)) != 0;
    // The processor may have AVX while the operating system does not save its registers.
    if (!fma || !osxsave || (_xgetbv(0) & 6) != 6) {
        return false;
    }
    __cpuidex(info, 7, 0);
    return (info[1] & (1 << 5)) != 0;
#else
    __builtin_cpu_init();
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
#endif
}

EDGEMEM_TARGET_AVX2 float dot_avx2(const float *a, const float *b, int64_t dim) {
    // Four sums hide the four cycles that one fused multiply-add takes.
    __m256 s0 = _mm256_setzero_ps(), s1 = s0, s2 = s0, s3 = s0;
    int64_t i = 0;
    for (; i + 32 <= dim; i += 32) {
        s0 = _mm256_fmadd_ps(_mm256_loadu_ps(a + i), _mm256_loadu_ps(b + i), s0);
        s1 = _mm256_fmadd_ps(_mm256_loadu_ps(a + i + 8), _mm256_loadu_ps(b + i + 8), s1);
        s2 = _mm256_fmadd_ps(_mm256_loadu_ps(a + i + 16), _mm256_loadu_ps(b + i + 16), s2);
        s3 = _mm256_fmadd_ps(_mm256_loadu_ps(a + i + 24), _mm256_loadu_ps(b + i + 24), s3);
    }
    for (; i + 8 <= dim; i += 8) {
        s0 = _mm256_fmadd_ps(_mm256_loadu_ps(a + i), _mm256_loadu_ps(b + i), s0);
    }
    s0 = _mm256_add_ps(_mm256_add_ps(s0, s1), _mm256_add_ps(s2, s3));
    __m128 half = _mm_add_ps(_mm256_castps256_ps128(s0), _mm256_extractf128_ps(s0, 1));
    half = _mm_add_ps(half, _mm_movehl_ps(half, half));
    half = _mm_add_ss(half, _mm_movehdup_ps(half));
    float sum = _mm_cvtss_f32(half);
    for (; i < dim; ++i) {
        sum += a[i] * b[i];
    }
    return sum;
}

}  // namespace edgemem
#endif
