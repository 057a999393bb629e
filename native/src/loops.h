// The inner loops, one set for each instruction set. Knows nothing of top-k or masks.
#pragma once

#include <cstdint>

#if defined(__x86_64__) || defined(_M_X64)
#  define EDGEMEM_HAS_AVX2 1
#endif
#if defined(__aarch64__) || defined(_M_ARM64)
#  define EDGEMEM_HAS_NEON 1
#endif

namespace edgemem {

// Writes to `out` the inner products of one row with one query, or with two queries that are stored
// one after the other. The order of summation depends on `dim` only and is the same in both.
template <typename Number>
using DotFn = void (*)(const Number *row, const float *queries, int64_t dim, float *out);

template <typename Number>
struct Dots {
    DotFn<Number> one, two;
};

// Number of rows that `add_scatter` adds in one call.
constexpr int SCATTER_ROWS = 8;

struct Loops {
    Dots<float> floats;
    Dots<int8_t> bytes;
    // `scan` gives the result of `floats.one` for each of `count` consecutive rows. `scan_bytes`
    // gives the exact integer inner products; its dim is at most EDGEMEM_MAX_DIM_I8.
    void (*scan)(const float *rows, int64_t count, const float *query, int64_t dim, float *out);
    void (*scan_bytes)(const int8_t *rows, int64_t count, const int8_t *query, int64_t dim,
                       int32_t *out);
    // sums[j] += factors[0] * rows[j] + … + factors[7] * rows[7 * stride + j], for j < count.
    void (*add_scatter)(double *sums, const double *factors, const double *rows, int64_t stride,
                        int64_t count);

    const Dots<float> &dots(const float *) const { return floats; }
    const Dots<int8_t> &dots(const int8_t *) const { return bytes; }
};

extern const Loops loops_scalar;
#if EDGEMEM_HAS_AVX2
extern const Loops loops_avx2;
bool cpu_has_avx2_fma();
#endif
#if EDGEMEM_HAS_NEON
extern const Loops loops_neon;
#endif

// Returns the loops for one of EDGEMEM_ISA_*, or nullptr if this build or this processor lacks it.
const Loops *loops_for(int32_t isa);

// `add_scatter` in plain C++, which compilers vectorise for NEON and SSE2. AVX2 has its own.
void add_scatter_plain(double *sums, const double *factors, const double *rows, int64_t stride,
                       int64_t count);

}  // namespace edgemem
