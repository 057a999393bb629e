#include "dot.h"

namespace edgemem {

float dot_scalar(const float *a, const float *b, int64_t dim) {
    // Eight sums instead of one: a compiler may not reorder float additions by itself.
    float sums[8] = {};
    int64_t i = 0;
    for (; i + 8 <= dim; i += 8) {
        for (int lane = 0; lane < 8; ++lane) {
            sums[lane] += a[i + lane] * b[i + lane];
        }
    }
    for (int lane = 0; i < dim; ++i, ++lane) {
        sums[lane] += a[i] * b[i];
    }
    return ((sums[0] + sums[4]) + (sums[1] + sums[5])) +
           ((sums[2] + sums[6]) + (sums[3] + sums[7]));
}

}  // namespace edgemem
