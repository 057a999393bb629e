// Quantises float rows to int8 rows, with one scale for each row.
#include <algorithm>
#include <cmath>
#include <limits>

#include "edgemem.h"
#include "topk.h"

namespace {

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

extern "C" int32_t edgemem_quantize_i8(const float *rows, int64_t n, int64_t dim, int8_t *out,
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
