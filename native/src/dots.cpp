// Inner products of scattered rows with a few queries, over float rows and over int8 rows: of each
// row, and the largest of each memory's rows (`similarities`) or each text's tokens (`maxsim`).
#include <algorithm>
#include <limits>

#include "edgemem.h"
#include "loops.h"
#include "topk.h"

namespace {

// How many rows ahead to prefetch: the processor's own prefetcher does not follow scattered rows.
constexpr int64_t AHEAD = 4;

inline void prefetch(const void *start, int64_t bytes) {
#if defined(__GNUC__)
    for (int64_t at = 0; at < bytes; at += 64) {
        // Into the L2 cache, which can have more outstanding misses than the L1 cache.
        __builtin_prefetch(static_cast<const char *>(start) + at, 0, 2);
    }
#else
    (void)start, (void)bytes;
#endif
}

// Rows of floats have no scales; those of int8 have one each, and a limited length.
template <typename Number>
bool too_large(int64_t n, int64_t dim) {
    return n < 0 || dim < 1 || (sizeof(Number) == 1 && dim > EDGEMEM_MAX_DIM_I8) ||
           !edgemem::fits(n, dim, sizeof(Number));
}

template <typename Number>
bool is_missing(const Number *rows, const float *scales, int64_t n) {
    return n > 0 && (!rows || (sizeof(Number) == 1 && !scales));
}

template <typename Number>
int32_t dots(const Number *rows, const float *scales, int64_t n, int64_t dim,
             const int64_t *positions, int64_t m, const float *queries, int64_t q, int32_t isa,
             float *out) {
    if (too_large<Number>(n, dim) || m < 0 || q < 1 || !edgemem::fits(q, dim, sizeof(float)) ||
        !edgemem::fits(m, q, sizeof(float))) {
        return EDGEMEM_ERR_SIZE;
    }
    if (!queries || is_missing(rows, scales, n) || (m > 0 && (!positions || !out))) {
        return EDGEMEM_ERR_NULL;
    }
    const edgemem::Loops *loops = edgemem::loops_for(isa);
    if (!loops) {
        return EDGEMEM_ERR_ISA;
    }
    for (int64_t i = 0; i < m; ++i) {
        if (positions[i] < 0 || positions[i] >= n) {
            return EDGEMEM_ERR_RANGE;
        }
    }
    const edgemem::Dots<Number> &dot = loops->dots(rows);
    for (int64_t i = 0; i < m; ++i) {
        if (i + AHEAD < m) {
            prefetch(rows + positions[i + AHEAD] * dim, dim * static_cast<int64_t>(sizeof(Number)));
        }
        const Number *row = rows + positions[i] * dim;
        float *answers = out + i * q;
        int64_t j = 0;
        for (; j + 2 <= q; j += 2) {
            dot.two(row, queries + j * dim, dim, answers + j);
        }
        if (j < q) {
            dot.one(row, queries + j * dim, dim, answers + j);
        }
        for (j = 0; scales && j < q; ++j) {
            answers[j] *= scales[positions[i]];
        }
    }
    return EDGEMEM_OK;
}

template <typename Number>
int32_t similarities(const Number *rows, const float *scales, int64_t n, int64_t dim,
                     const int64_t *first, int64_t memories, const int64_t *next,
                     const int64_t *wanted, int64_t m, int64_t width, int64_t columns,
                     const float *query, float offset, float scale, float limit, int32_t isa,
                     float *out) {
    if (too_large<Number>(n, dim) || memories < 0 || m < 0 || columns < 1 || width < columns ||
        !edgemem::fits(memories, 1, sizeof(int64_t)) ||
        !edgemem::fits(m, width, sizeof(int64_t))) {
        return EDGEMEM_ERR_SIZE;
    }
    if (!query || is_missing(rows, scales, n) || (n > 0 && !next) || (memories > 0 && !first) ||
        (m > 0 && (!wanted || !out))) {
        return EDGEMEM_ERR_NULL;
    }
    const edgemem::Loops *loops = edgemem::loops_for(isa);
    if (!loops) {
        return EDGEMEM_ERR_ISA;
    }
    if (!(scale > 0 && limit >= 0)) {  // a NaN fails too
        return EDGEMEM_ERR_RANGE;
    }
    const auto dot = loops->dots(rows).one;
    const auto first_of = [&](int64_t i) {
        const int64_t memory = wanted[i / columns * width + i % columns];
        return memory >= 0 && memory < memories ? first[memory] : -1;
    };
    for (int64_t i = 0; i < m * columns; ++i) {
        if (i + AHEAD < m * columns) {
            const int64_t later = first_of(i + AHEAD);
            if (later >= 0 && later < n) {
                prefetch(rows + later * dim, dim * static_cast<int64_t>(sizeof(Number)));
            }
        }
        float best = -std::numeric_limits<float>::infinity();
        for (int64_t before = -1, row = first_of(i); row > before && row < n;
             before = row, row = next[row]) {
            float product;
            dot(rows + row * dim, query, dim, &product);
            product = scales ? scales[row] * product : product;
            best = product > best ? product : best;
        }
        const bool none = best == -std::numeric_limits<float>::infinity();
        out[i] = none ? 0 : std::min(std::max((best + offset) * scale, -limit), limit);
    }
    return EDGEMEM_OK;
}

constexpr int64_t AT_ONCE = 64;  // rows whose products fit the stack buffer

int32_t largest_product(const edgemem::Loops &loops, const int8_t *rows, int64_t count,
                        const int8_t *query, int64_t dim) {
    int32_t products[AT_ONCE];
    int32_t best = std::numeric_limits<int32_t>::min();
    for (int64_t row = 0; row < count; row += AT_ONCE) {
        const int64_t some = std::min(AT_ONCE, count - row);
        loops.scan_bytes(rows + row * dim, some, query, dim, products);
        best = std::max(best, *std::max_element(products, products + some));
    }
    return best;
}

}  // namespace

extern "C" {

int32_t edgemem_dots(const float *rows, int64_t n, int64_t dim, const int64_t *positions,
                     int64_t m, const float *queries, int64_t q, int32_t isa, float *out) {
    return dots(rows, nullptr, n, dim, positions, m, queries, q, isa, out);
}

int32_t edgemem_dots_i8(const int8_t *rows, const float *scales, int64_t n, int64_t dim,
                        const int64_t *positions, int64_t m, const float *queries, int64_t q,
                        int32_t isa, float *out) {
    return dots(rows, scales, n, dim, positions, m, queries, q, isa, out);
}

int32_t edgemem_similarities(const float *rows, int64_t n, int64_t dim, const int64_t *first,
                             int64_t memories, const int64_t *next, const int64_t *wanted,
                             int64_t m, int64_t width, int64_t columns, const float *query,
                             float offset, float scale, float limit, int32_t isa, float *out) {
    return similarities(rows, nullptr, n, dim, first, memories, next, wanted, m, width, columns,
                        query, offset, scale, limit, isa, out);
}

int32_t edgemem_similarities_i8(const int8_t *rows, const float *scales, int64_t n, int64_t dim,
                                const int64_t *first, int64_t memories, const int64_t *next,
                                const int64_t *wanted, int64_t m, int64_t width, int64_t columns,
                                const float *query, float offset, float scale, float limit,
                                int32_t isa, float *out) {
    return similarities(rows, scales, n, dim, first, memories, next, wanted, m, width, columns,
                        query, offset, scale, limit, isa, out);
}

int32_t edgemem_maxsim_i8(const int8_t *rows, int64_t n, int64_t dim, const int64_t *offsets,
                          int64_t m, const int8_t *query, int64_t q, int32_t isa, int32_t *out) {
    if (too_large<int8_t>(n, dim) || m < 0 || q < 1 || !edgemem::fits(q, dim, sizeof(int8_t)) ||
        !edgemem::fits(m, q, sizeof(int32_t))) {
        return EDGEMEM_ERR_SIZE;
    }
    if (!offsets || !query || (n > 0 && !rows) || (m > 0 && !out)) {
        return EDGEMEM_ERR_NULL;
    }
    const edgemem::Loops *loops = edgemem::loops_for(isa);
    if (!loops) {
        return EDGEMEM_ERR_ISA;
    }
    if (offsets[0] < 0 || offsets[m] > n || !std::is_sorted(offsets, offsets + m + 1)) {
        return EDGEMEM_ERR_RANGE;
    }
    for (int64_t i = 0; i < m; ++i) {
        const int8_t *text = rows + offsets[i] * dim;
        for (int64_t j = 0; j < q; ++j) {
            out[i * q + j] = largest_product(*loops, text, offsets[i + 1] - offsets[i],
                                             query + j * dim, dim);
        }
    }
    return EDGEMEM_OK;
}

}  // extern "C"
