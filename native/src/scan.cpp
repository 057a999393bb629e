// The k best rows by inner product, over float rows and over int8 rows, and the int8 rows of float
// rows, with one scale for each.
#include <algorithm>
#include <cmath>
#include <limits>

#include "edgemem.h"
#include "loops.h"
#include "topk.h"

namespace {

// Rows scored in one call of a loop before top-k sees them: no branches, and the scores fit a stack
// buffer.
constexpr int64_t RUN = 64;

// Calls body(first, count) for each run of consecutive unmasked rows, at most RUN rows at a time.
template <typename Body>
void for_runs(int64_t n, const uint8_t *mask, Body body) {
    for (int64_t first = 0; first < n;) {
        if (mask && !mask[first]) {
            ++first;
            continue;
        }
        const int64_t limit = n - first < RUN ? n : first + RUN;
        int64_t end = first + 1;
        while (end < limit && (!mask || mask[end])) {
            ++end;
        }
        body(first, end - first);
        first = end;
    }
}

// Adding and subtracting 1.5 * 2^23 rounds to an integer, halves to even. Unlike a call of the C
// library, this can be vectorised.
inline float rounded(float number) {
    constexpr float shift = 12582912.0f;
    return (number + shift) - shift;
}

float scale_of(const float *row, int64_t dim) {
    float largest = 0.0f, nan_if_not_finite = 0.0f;
    for (int64_t i = 0; i < dim; ++i) {
        largest = std::max(largest, std::fabs(row[i]));
        nan_if_not_finite += row[i] * 0.0f;
    }
    return std::isnan(nan_if_not_finite) ? std::numeric_limits<float>::quiet_NaN()
                                         : largest / 127.0f;
}

}  // namespace

extern "C" {

int32_t edgemem_scan_topk(const float *rows, int64_t n, int64_t dim, const float *query,
                          const uint8_t *mask, int64_t k, int32_t isa, int64_t *positions,
                          float *scores, int64_t *found) {
    if (n < 0 || dim < 1 || k < 1 || !edgemem::fits(n, dim, sizeof(float))) {
        return EDGEMEM_ERR_SIZE;
    }
    if (!found || !query || (n > 0 && (!rows || !positions || !scores))) {
        return EDGEMEM_ERR_NULL;
    }
    const edgemem::Loops *loops = edgemem::loops_for(isa);
    if (!loops) {
        return EDGEMEM_ERR_ISA;
    }

    edgemem::TopK best{positions, scores, k};
    for_runs(n, mask, [&](int64_t first, int64_t count) {
        float products[RUN];
        loops->scan(rows + first * dim, count, query, dim, products);
        for (int64_t i = 0; i < count; ++i) {
            best.offer(first + i, edgemem::ranked(products[i]));
        }
    });
    best.finish();
    *found = best.size;
    return EDGEMEM_OK;
}

int32_t edgemem_quantize_i8(const float *rows, int64_t n, int64_t dim, int8_t *out,
                            float *scales) {
    if (n < 0 || dim < 1 || dim > EDGEMEM_MAX_DIM_I8 || !edgemem::fits(n, dim, sizeof(float))) {
        return EDGEMEM_ERR_SIZE;
    }
    if (n > 0 && (!rows || !out || !scales)) {
        return EDGEMEM_ERR_NULL;
    }
    for (int64_t row = 0; row < n; ++row) {
        const float *from = rows + row * dim;
        int8_t *to = out + row * dim;
        const float scale = scales[row] = scale_of(from, dim);
        if (!(scale > 0.0f)) {
            std::fill(to, to + dim, static_cast<int8_t>(0));
            continue;
        }
        for (int64_t i = 0; i < dim; ++i) {
            // A subnormal scale has a rounding error that can push a number beyond 127.
            const float number = rounded(from[i] / scale);
            to[i] = static_cast<int8_t>(std::min(127.0f, std::max(-127.0f, number)));
        }
    }
    return EDGEMEM_OK;
}

int32_t edgemem_scan_topk_i8(const int8_t *rows, const float *scales, int64_t n, int64_t dim,
                             const float *query, const int8_t *query_i8, float query_scale,
                             const uint8_t *mask, int64_t k, int64_t survivors, int32_t isa,
                             int64_t *survivor_positions, float *survivor_scores,
                             int64_t *positions, float *scores, int64_t *found) {
    if (n < 0 || dim < 1 || dim > EDGEMEM_MAX_DIM_I8 || k < 1 || survivors < k ||
        !edgemem::fits(n, dim, sizeof(int8_t))) {
        return EDGEMEM_ERR_SIZE;
    }
    if (!found || !query || !query_i8 ||
        (n > 0 && (!rows || !scales || !survivor_positions || !survivor_scores || !positions ||
                   !scores))) {
        return EDGEMEM_ERR_NULL;
    }
    const edgemem::Loops *loops = edgemem::loops_for(isa);
    if (!loops) {
        return EDGEMEM_ERR_ISA;
    }

    edgemem::TopK kept{survivor_positions, survivor_scores, survivors};
    for_runs(n, mask, [&](int64_t first, int64_t count) {
        int32_t products[RUN];
        loops->scan_bytes(rows + first * dim, count, query_i8, dim, products);
        for (int64_t i = 0; i < count; ++i) {
            const float scale = scales[first + i] * query_scale;
            kept.offer(first + i, edgemem::ranked(static_cast<float>(products[i]) * scale));
        }
    });
    kept.finish();

    edgemem::TopK best{positions, scores, k};
    for (int64_t i = 0; i < kept.size; ++i) {
        const int64_t row = survivor_positions[i];
        float score;
        loops->bytes.one(rows + row * dim, query, dim, &score);
        best.offer(row, edgemem::ranked(scales[row] * score));
    }
    best.finish();
    *found = best.size;
    return EDGEMEM_OK;
}

}  // extern "C"
