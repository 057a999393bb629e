// The only file with AVX2 instructions. They are enabled per function, never for the whole build,
// so that the rest runs on any x86-64 processor.
#include "loops.h"

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

namespace {

EDGEMEM_TARGET_AVX2 inline __m256 load8(const float *numbers) { return _mm256_loadu_ps(numbers); }

EDGEMEM_TARGET_AVX2 inline __m256 load8(const int8_t *numbers) {
    const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i *>(numbers));
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes));
}

EDGEMEM_TARGET_AVX2 inline float sum_of(__m256 lanes) {
    __m128 half = _mm_add_ps(_mm256_castps256_ps128(lanes), _mm256_extractf128_ps(lanes, 1));
    half = _mm_add_ps(half, _mm_movehl_ps(half, half));
    half = _mm_add_ss(half, _mm_movehdup_ps(half));
    return _mm_cvtss_f32(half);
}

template <typename Number, int Queries>
EDGEMEM_TARGET_AVX2 void dots(const Number *row, const float *queries, int64_t dim, float *out) {
    // Four independent sums hide the four-cycle latency of a fused multiply-add.
    __m256 sums[Queries][4];
    for (int q = 0; q < Queries; ++q) {
        sums[q][0] = sums[q][1] = sums[q][2] = sums[q][3] = _mm256_setzero_ps();
    }
    int64_t i = 0;
    for (; i + 32 <= dim; i += 32) {
        for (int part = 0; part < 4; ++part) {
            const __m256 numbers = load8(row + i + 8 * part);
            for (int q = 0; q < Queries; ++q) {
                const __m256 query = _mm256_loadu_ps(queries + q * dim + i + 8 * part);
                sums[q][part] = _mm256_fmadd_ps(numbers, query, sums[q][part]);
            }
        }
    }
    for (; i + 8 <= dim; i += 8) {
        for (int q = 0; q < Queries; ++q) {
            const __m256 query = _mm256_loadu_ps(queries + q * dim + i);
            sums[q][0] = _mm256_fmadd_ps(load8(row + i), query, sums[q][0]);
        }
    }
    for (int q = 0; q < Queries; ++q) {
        __m256 *s = sums[q];
        float sum =
            sum_of(_mm256_add_ps(_mm256_add_ps(s[0], s[1]), _mm256_add_ps(s[2], s[3])));
        for (int64_t rest = i; rest < dim; ++rest) {
            sum += static_cast<float>(row[rest]) * queries[q * dim + rest];
        }
        out[q] = sum;
    }
}

// Widens to 16 bits first, so that no sum of two products saturates; _mm256_maddubs_epi16 could.
EDGEMEM_TARGET_AVX2 inline __m256i products16(const int8_t *a, const int8_t *b) {
    const __m128i left = _mm_loadu_si128(reinterpret_cast<const __m128i *>(a));
    const __m128i right = _mm_loadu_si128(reinterpret_cast<const __m128i *>(b));
    return _mm256_madd_epi16(_mm256_cvtepi8_epi16(left), _mm256_cvtepi8_epi16(right));
}

EDGEMEM_TARGET_AVX2 int32_t dot_bytes(const int8_t *a, const int8_t *b, int64_t dim) {
    __m256i s0 = _mm256_setzero_si256(), s1 = s0;
    int64_t i = 0;
    for (; i + 32 <= dim; i += 32) {
        s0 = _mm256_add_epi32(s0, products16(a + i, b + i));
        s1 = _mm256_add_epi32(s1, products16(a + i + 16, b + i + 16));
    }
    if (i + 16 <= dim) {
        s0 = _mm256_add_epi32(s0, products16(a + i, b + i));
        i += 16;
    }
    s0 = _mm256_add_epi32(s0, s1);
    __m128i half = _mm_add_epi32(_mm256_castsi256_si128(s0), _mm256_extracti128_si256(s0, 1));
    half = _mm_add_epi32(half, _mm_shuffle_epi32(half, 0x4e));
    half = _mm_add_epi32(half, _mm_shuffle_epi32(half, 0xb1));
    int32_t sum = _mm_cvtsi128_si32(half);
    for (; i < dim; ++i) {
        sum += a[i] * b[i];
    }
    return sum;
}

EDGEMEM_TARGET_AVX2 void scan(const float *rows, int64_t count, const float *query, int64_t dim,
                              float *out) {
    for (int64_t row = 0; row < count; ++row) {
        dots<float, 1>(rows + row * dim, query, dim, out + row);
    }
}

EDGEMEM_TARGET_AVX2 void scan_bytes(const int8_t *rows, int64_t count, const int8_t *query,
                                    int64_t dim, int32_t *out) {
    for (int64_t row = 0; row < count; ++row) {
        out[row] = dot_bytes(rows + row * dim, query, dim);
    }
}

EDGEMEM_TARGET_AVX2 void add_scatter(double *sums, const double *factors, const double *rows,
                                     int64_t stride, int64_t count) {
    __m256d each[SCATTER_ROWS];
    for (int row = 0; row < SCATTER_ROWS; ++row) {
        each[row] = _mm256_set1_pd(factors[row]);
    }
    int64_t j = 0;
    for (; j + 4 <= count; j += 4) {
        __m256d sum = _mm256_loadu_pd(sums + j);
        for (int row = 0; row < SCATTER_ROWS; ++row) {
            sum = _mm256_fmadd_pd(each[row], _mm256_loadu_pd(rows + row * stride + j), sum);
        }
        _mm256_storeu_pd(sums + j, sum);
    }
    add_scatter_plain(sums + j, factors, rows + j, stride, count - j);
}

}  // namespace

const Loops loops_avx2 = {{dots<float, 1>, dots<float, 2>},
                          {dots<int8_t, 1>, dots<int8_t, 2>},
                          scan,
                          scan_bytes,
                          add_scatter};

}  // namespace edgemem
#endif
