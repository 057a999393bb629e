#include "loops.h"

namespace edgemem {
namespace {

template <typename Number>
float dot(const Number *row, const float *query, int64_t dim) {
    // Eight sums instead of one, for vectorisation: a compiler may not reorder float additions.
    float sums[8] = {};
    int64_t i = 0;
    for (; i + 8 <= dim; i += 8) {
        for (int lane = 0; lane < 8; ++lane) {
            sums[lane] += static_cast<float>(row[i + lane]) * query[i + lane];
        }
    }
    for (int lane = 0; i < dim; ++i, ++lane) {
        sums[lane] += static_cast<float>(row[i]) * query[i];
    }
    return ((sums[0] + sums[4]) + (sums[1] + sums[5])) +
           ((sums[2] + sums[6]) + (sums[3] + sums[7]));
}

template <typename Number, int Queries>
void dots(const Number *row, const float *queries, int64_t dim, float *out) {
    for (int q = 0; q < Queries; ++q) {
        out[q] = dot(row, queries + q * dim, dim);
    }
}

int32_t dot_bytes(const int8_t *a, const int8_t *b, int64_t dim) {
    int32_t sum = 0;
    for (int64_t i = 0; i < dim; ++i) {
        sum += a[i] * b[i];
    }
    return sum;
}

void scan(const float *rows, int64_t count, const float *query, int64_t dim, float *out) {
    for (int64_t row = 0; row < count; ++row) {
        out[row] = dot(rows + row * dim, query, dim);
    }
}

void scan_bytes(const int8_t *rows, int64_t count, const int8_t *query, int64_t dim, int32_t *out) {
    for (int64_t row = 0; row < count; ++row) {
        out[row] = dot_bytes(rows + row * dim, query, dim);
    }
}

}  // namespace

void add_scatter_plain(double *sums, const double *factors, const double *rows, int64_t stride,
                       int64_t count) {
    for (int64_t j = 0; j < count; ++j) {
        double sum = sums[j];
        for (int row = 0; row < SCATTER_ROWS; ++row) {
            sum += factors[row] * rows[row * stride + j];
        }
        sums[j] = sum;
    }
}

const Loops loops_scalar = {{dots<float, 1>, dots<float, 2>},
                            {dots<int8_t, 1>, dots<int8_t, 2>},
                            scan,
                            scan_bytes,
                            add_scatter_plain};

}  // namespace edgemem
