// Inner products of scattered rows with a few queries, over float rows and over int8 rows.
#include "edgemem.h"
#include "loops.h"
#include "topk.h"

namespace {

// Rows this far ahead are asked for early: scattered rows are not what a processor fetches alone.
constexpr int64_t AHEAD = 4;

inline void prefetch(const void *start, int64_t bytes) {
#if defined(__GNUC__)
    for (int64_t at = 0; at < bytes; at += 64) {
        // Into the second cache: it waits for more lines at once than the first does.
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

}  // extern "C"
