// Matrix products in bfloat16 with AVX-512, and the only file that uses it. AVX-512 is enabled per
// function, so that the rest of the library runs on any processor.
#include <algorithm>
#include <cstring>

#include "edgemem.h"
#include "topk.h"

#if defined(__x86_64__) && (defined(__clang__) || __GNUC__ >= 11)
#  define EDGEMEM_HAS_BF16 1
#endif

namespace {

constexpr int64_t LANES = 16;  // columns of a panel: the number of floats in a register

bool wrong_matrix(int64_t rows, int64_t columns) {
    return rows < 1 || columns < 1 || rows > INT64_MAX / 64 || columns > INT64_MAX / 64 ||
           !edgemem::fits(rows + 1, columns + LANES, sizeof(float));
}

}  // namespace

#if EDGEMEM_HAS_BF16

#include <immintrin.h>
#define EDGEMEM_TARGET_BF16 __attribute__((target("avx512f,avx512bw,avx512vl,avx512bf16")))

namespace {

constexpr int64_t DEPTH = 256;  // columns of x per block: three panels as deep fit the L1 cache
constexpr int64_t STRIP = 128;  // rows of x per block: the rounded block stays in the L2 cache

bool cpu_has_bf16() {
    static const bool has = [] {
        __builtin_cpu_init();
        return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
               __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512bf16");
    }();
    return has;
}

__mmask16 first_lanes(int64_t count) {
    return static_cast<__mmask16>((1u << std::clamp<int64_t>(count, 0, LANES)) - 1);
}

// Packs a pair of rows, panel after panel. If `second` is NULL, zeros replace it.
EDGEMEM_TARGET_BF16 void pack_pair(const float *first, const float *second, int64_t columns,
                                   int64_t panel_size, uint16_t *out) {
    const __m512i zip = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24,
                                         8, 23, 7, 22, 6, 21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
    for (int64_t at = 0; at < columns; at += LANES, out += panel_size) {
        const __mmask16 here = first_lanes(columns - at);
        const __m512 low = _mm512_maskz_loadu_ps(here, first + at);
        const __m512 high = second ? _mm512_maskz_loadu_ps(here, second + at) : _mm512_setzero_ps();
        const __m512bh both = _mm512_cvtne2ps_pbh(high, low);
        _mm512_storeu_si512(out, _mm512_permutexvar_epi16(zip, (__m512i)both));
    }
}

// Rounds a block of x, `rows` by `depth`. A row of `out` has DEPTH numbers; an odd depth is padded
// with zeros.
EDGEMEM_TARGET_BF16 void round_block(const float *x, int64_t rows, int64_t stride, int64_t depth,
                                     uint16_t *out) {
    for (int64_t row = 0; row < rows; ++row, x += stride, out += DEPTH) {
        for (int64_t i = 0; i < depth; i += 2 * LANES) {
            const __m512 low = _mm512_maskz_loadu_ps(first_lanes(depth - i), x + i);
            const __m512 high = depth - i <= LANES
                                    ? _mm512_setzero_ps()
                                    : _mm512_maskz_loadu_ps(first_lanes(depth - i - LANES),
                                                            x + i + LANES);
            _mm512_storeu_si512(out + i, (__m512i)_mm512_cvtne2ps_pbh(high, low));
        }
    }
}

// Multiplies Rows rows of the rounded block by Panels adjacent panels. The sums stay in registers,
// Rows * Panels of them: 24 of the 32 are enough to start two products in each cycle.
template <int Rows, int Panels>
EDGEMEM_TARGET_BF16 void tile(const uint16_t *x, const uint16_t *panels, int64_t panel_size,
                              int64_t pairs, bool add, __mmask16 last, float *out,
                              int64_t stride) {
    __m512 sums[Rows][Panels];
    for (int row = 0; row < Rows; ++row) {
        for (int panel = 0; panel < Panels; ++panel) {
            const __mmask16 here = panel == Panels - 1 ? last : 0xffff;
            sums[row][panel] = add ? _mm512_maskz_loadu_ps(here, out + row * stride + panel * LANES)
                                   : _mm512_setzero_ps();
        }
    }
    for (int64_t i = 0; i < pairs; ++i) {
        __m512bh columns[Panels];
        for (int panel = 0; panel < Panels; ++panel) {
            columns[panel] = (__m512bh)_mm512_loadu_si512(panels + panel * panel_size +
                                                          i * 2 * LANES);
        }
        for (int row = 0; row < Rows; ++row) {
            int32_t pair;
            std::memcpy(&pair, x + row * DEPTH + 2 * i, sizeof pair);
            const __m512bh numbers = (__m512bh)_mm512_set1_epi32(pair);
            for (int panel = 0; panel < Panels; ++panel) {
                sums[row][panel] = _mm512_dpbf16_ps(sums[row][panel], numbers, columns[panel]);
            }
        }
    }
    for (int row = 0; row < Rows; ++row) {
        for (int panel = 0; panel < Panels; ++panel) {
            const __mmask16 here = panel == Panels - 1 ? last : 0xffff;
            _mm512_mask_storeu_ps(out + row * stride + panel * LANES, here, sums[row][panel]);
        }
    }
}

// Multiplies all rows of the rounded block by Panels adjacent panels.
template <int Panels>
void tiles(const uint16_t *x, int64_t rows, const uint16_t *panels, int64_t panel_size,
           int64_t pairs, bool add, __mmask16 last, float *out, int64_t stride) {
    int64_t row = 0;
    for (; row + 8 <= rows; row += 8) {
        tile<8, Panels>(x + row * DEPTH, panels, panel_size, pairs, add, last, out + row * stride,
                        stride);
    }
    for (; row < rows; ++row) {
        tile<1, Panels>(x + row * DEPTH, panels, panel_size, pairs, add, last, out + row * stride,
                        stride);
    }
}

}  // namespace

extern "C" {

int32_t edgemem_has_bf16(void) { return cpu_has_bf16(); }

int32_t edgemem_pack_bf16(const float *rows, int64_t count, int64_t columns, int64_t start,
                          int64_t k, uint16_t *packed) {
    if (count < 0 || wrong_matrix(k, columns)) {
        return EDGEMEM_ERR_SIZE;
    }
    if (!cpu_has_bf16()) {
        return EDGEMEM_ERR_ISA;
    }
    if (count > 0 && (!rows || !packed)) {
        return EDGEMEM_ERR_NULL;
    }
    if (start < 0 || start % 2 || count > k - start || (count % 2 && start + count < k)) {
        return EDGEMEM_ERR_RANGE;
    }
    const int64_t panel_size = (k + 1) / 2 * 2 * LANES;
    for (int64_t row = 0; row < count; row += 2) {
        const float *first = rows + row * columns;
        pack_pair(first, row + 1 < count ? first + columns : nullptr, columns, panel_size,
                  packed + (start + row) * LANES);
    }
    return EDGEMEM_OK;
}

int32_t edgemem_product_bf16(const float *x, int64_t rows, int64_t k, const uint16_t *packed,
                             int64_t columns, int32_t add, float *out) {
    if (rows < 0 || wrong_matrix(k, columns) ||
        (rows > 0 && (wrong_matrix(rows, k) || wrong_matrix(rows, columns)))) {
        return EDGEMEM_ERR_SIZE;
    }
    if (!cpu_has_bf16()) {
        return EDGEMEM_ERR_ISA;
    }
    if (rows > 0 && (!x || !packed || !out)) {
        return EDGEMEM_ERR_NULL;
    }
    alignas(64) uint16_t rounded[STRIP * DEPTH];
    const int64_t panel_size = (k + 1) / 2 * 2 * LANES;
    for (int64_t top = 0; top < rows; top += STRIP) {
        const int64_t strip = std::min(STRIP, rows - top);
        for (int64_t start = 0; start < k; start += DEPTH) {
            const int64_t depth = std::min(DEPTH, k - start), pairs = (depth + 1) / 2;
            const bool sums = add || start > 0;
            round_block(x + top * k + start, strip, k, depth, rounded);
            int64_t at = 0;
            for (; at + 3 * LANES <= columns; at += 3 * LANES) {
                tiles<3>(rounded, strip, packed + at / LANES * panel_size + start * LANES,
                         panel_size, pairs, sums, 0xffff, out + top * columns + at, columns);
            }
            for (; at < columns; at += LANES) {
                tiles<1>(rounded, strip, packed + at / LANES * panel_size + start * LANES,
                         panel_size, pairs, sums, first_lanes(columns - at),
                         out + top * columns + at, columns);
            }
        }
    }
    return EDGEMEM_OK;
}

}  // extern "C"

#else

extern "C" {

int32_t edgemem_has_bf16(void) { return 0; }

int32_t edgemem_pack_bf16(const float *, int64_t count, int64_t columns, int64_t, int64_t k,
                          uint16_t *) {
    return count < 0 || wrong_matrix(k, columns) ? EDGEMEM_ERR_SIZE : EDGEMEM_ERR_ISA;
}

int32_t edgemem_product_bf16(const float *, int64_t rows, int64_t k, const uint16_t *,
                             int64_t columns, int32_t, float *) {
    return rows < 0 || wrong_matrix(k, columns) ? EDGEMEM_ERR_SIZE : EDGEMEM_ERR_ISA;
}

}  // extern "C"

#endif
