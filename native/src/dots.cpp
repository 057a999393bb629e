// Inner products of scattered rows with a few queries, over float rows and over int8 rows.
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

template <typename Number>
int32_t dots(const Number *rows, const float *scales, int64_t n, int64_t dim,
             const int64_t *positions, int64_t m, const float *queries, int64_t q, int32_t isa,
             float *out) {
    if (n < 0 || dim < 1 || m < 0 || q < 1 || !edgemem::fits(n, dim, sizeof(Number)) ||
        !edgemem::fits(q, dim, sizeof(float)) || !edgemem::fits(m, q, sizeof(float))) {
        return EDGEMEM_ERR_SIZE;
    }
    if (!queries || (n > 0 && !rows) || (m > 0 && (!positions || !out))) {
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
    if (n < 0 || dim < 1 || memories < 0 || m < 0 || columns < 1 || width < columns ||
        !edgemem::fits(n, dim, sizeof(Number)) || !edgemem::fits(memories, 1, sizeof(int64_t)) ||
        !edgemem::fits(m, width, sizeof(int64_t))) {
        return EDGEMEM_ERR_SIZE;
    }
    if (!query || (n > 0 && (!rows || !next)) || (memories > 0 && !first) ||
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

}  // namespace

extern "C" {

int32_t edgemem_dots(const float *rows, int64_t n, int64_t dim, const int64_t *positions,
                     int64_t m, const float *queries, int64_t q, int32_t isa, float *out) {
    return dots(rows, nullptr, n, dim, positions, m, queries, q, isa, out);
}

int32_t edgemem_dots_i8(const int8_t *rows, const float *scales, int64_t n, int64_t dim,
                        const int64_t *positions, int64_t m, const float *queries, int64_t q,
                        int32_t isa, float *out) {
    if (dim > EDGEMEM_MAX_DIM_I8) {
        return EDGEMEM_ERR_SIZE;
    }
    const int32_t status = n > 0 && !scales ? EDGEMEM_ERR_NULL : EDGEMEM_OK;
    return status ? status : dots(rows, scales, n, dim, positions, m, queries, q, isa, out);
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
    if (dim > EDGEMEM_MAX_DIM_I8) {
        return EDGEMEM_ERR_SIZE;
    }
    const int32_t status = n > 0 && !scales ? EDGEMEM_ERR_NULL : EDGEMEM_OK;
    return status ? status
                  : similarities(rows, scales, n, dim, first, memories, next, wanted, m, width,
                                 columns, query, offset, scale, limit, isa, out);
}

}  // extern "C"
