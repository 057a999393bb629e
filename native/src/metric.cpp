// The low-rank Mahalanobis metric: its fit, the transformed query, and the norms of rows.
//
// edgemem/retrieval/metric.py has the derivation, with the same letters.
#include <algorithm>
#include <cmath>

#include "edgemem.h"
#include "eigen.h"
#include "loops.h"
#include "topk.h"

namespace edgemem {
namespace {

// Unit rows whose mean squared distance to their mean is at most this count as identical.
constexpr double MIN_VARIANCE = 1e-10;

// A vector counts as equal to the mean if its norm is at most this times the largest element of
// D^-1/2. That is about ten rounding errors, so its direction would be noise.
constexpr double ZERO_LENGTH = 1e-6;

// Divides the caller's workspace into arrays.
struct Workspace {
    Workspace(double *start, int64_t dim)
        : covariance(start),
          vectors(covariance + dim * dim),
          block(vectors + dim * dim),
          mean(block + SCATTER_ROWS * dim),
          root(mean + dim),
          values(root + dim),
          work(values + dim),
          cholesky(work + dim) {}

    static int64_t size(int64_t dim, int64_t rank) {
        return (2 * dim + SCATTER_ROWS + 4) * dim + rank * rank;
    }

    double *covariance;  // (dim, dim)
    double *vectors;     // (dim, dim): U as rows, then B, then A
    double *block;       // (SCATTER_ROWS, dim): centred unit rows
    double *mean;        // (dim)
    double *root;        // (dim): D^-1/2
    double *values;      // (dim): M and the smaller eigenvalues
    double *work;        // (dim)
    double *cholesky;    // (rank, rank)
};

// Euclidean length of a row; 0 if the row has no direction because it is all zero or not finite.
double length_of(const float *row, int64_t dim) {
    double sums[4] = {};
    int64_t i = 0;
    for (; i + 4 <= dim; i += 4) {
        for (int lane = 0; lane < 4; ++lane) {
            sums[lane] += static_cast<double>(row[i + lane]) * row[i + lane];
        }
    }
    for (; i < dim; ++i) {
        sums[0] += static_cast<double>(row[i]) * row[i];
    }
    const double length = std::sqrt((sums[0] + sums[1]) + (sums[2] + sums[3]));
    return std::isfinite(length) ? length : 0.0;
}

int64_t take_mean(const float *rows, int64_t n, int64_t dim, double *mean) {
    std::fill(mean, mean + dim, 0.0);
    int64_t count = 0;
    for (const float *row = rows; row < rows + n * dim; row += dim) {
        const double length = length_of(row, dim);
        if (length > 0.0) {
            ++count;
            for (int64_t i = 0; i < dim; ++i) {
                mean[i] += row[i] / length;
            }
        }
    }
    for (int64_t i = 0; i < dim; ++i) {
        mean[i] /= static_cast<double>(std::max<int64_t>(count, 1));
    }
    return count;
}

void take_covariance(const float *rows, int64_t n, int64_t dim, int64_t count, const Loops *loops,
                     const Workspace &at) {
    const auto add_block = [&] {
        for (int64_t i = 0; i < dim; ++i) {
            double factors[SCATTER_ROWS];
            for (int row = 0; row < SCATTER_ROWS; ++row) {
                factors[row] = at.block[row * dim + i];
            }
            loops->add_scatter(at.covariance + i * dim + i, factors, at.block + i, dim, dim - i);
        }
    };
    std::fill(at.covariance, at.covariance + dim * dim, 0.0);
    int64_t held = 0;
    for (const float *row = rows; row < rows + n * dim; row += dim) {
        const double length = length_of(row, dim);
        if (!(length > 0.0)) {
            continue;
        }
        for (int64_t i = 0; i < dim; ++i) {
            at.block[held * dim + i] = row[i] / length - at.mean[i];
        }
        if (++held == SCATTER_ROWS) {
            add_block();
            held = 0;
        }
    }
    std::fill(at.block + held * dim, at.block + SCATTER_ROWS * dim, 0.0);
    add_block();
    for (int64_t i = 0; i < dim; ++i) {
        for (int64_t j = i; j < dim; ++j) {
            at.covariance[j * dim + i] = at.covariance[i * dim + j] /= static_cast<double>(count);
        }
    }
}

// Returns the smallest rank that explains a share tau of the variance, at most `most`.
int64_t choose_rank(const double *values, int64_t dim, double tau, int64_t most) {
    double total = 0.0, explained = 0.0;
    for (int64_t i = 0; i < dim; ++i) {
        total += std::max(0.0, values[i]);
    }
    for (int64_t rank = 0; rank < most; ++rank) {
        explained += std::max(0.0, values[rank]);
        if (explained / total >= tau) {
            return rank + 1;
        }
    }
    return most;
}

// Replaces U in `vectors` by A. With B = D^-1/2 U M^1/2, eq. 1 becomes
// D^-1/2 (1 - B (1 + B'B)^-1 B') D^-1/2, which never divides by a small M. With the Cholesky
// factorisation 1 + B'B = L L', A' = L^-1 B' D^-1/2.
void make_directions(int64_t dim, int64_t rank, const Workspace &at) {
    for (int64_t i = 0; i < rank; ++i) {
        double *b = at.vectors + i * dim, *l = at.cholesky + i * rank;
        const double length = std::sqrt(std::max(0.0, at.values[i]));
        for (int64_t k = 0; k < dim; ++k) {
            b[k] *= length * at.root[k];
        }
        for (int64_t j = 0; j <= i; ++j) {
            l[j] = i == j ? 1.0 : 0.0;
            for (int64_t k = 0; k < dim; ++k) {
                l[j] += b[k] * at.vectors[j * dim + k];
            }
        }
    }
    for (int64_t i = 0; i < rank; ++i) {
        double *l = at.cholesky + i * rank;
        for (int64_t j = 0; j <= i; ++j) {
            const double *other = at.cholesky + j * rank;
            for (int64_t k = 0; k < j; ++k) {
                l[j] -= l[k] * other[k];
            }
            l[j] = i == j ? std::sqrt(l[j]) : l[j] / other[j];
        }
    }
    for (int64_t i = 0; i < rank; ++i) {
        double *a = at.vectors + i * dim;
        const double *l = at.cholesky + i * rank;
        for (int64_t j = 0; j < i; ++j) {
            for (int64_t k = 0; k < dim; ++k) {
                a[k] -= l[j] * at.vectors[j * dim + k];
            }
        }
        for (int64_t k = 0; k < dim; ++k) {
            a[k] /= l[i];
        }
    }
    for (int64_t i = 0; i < rank * dim; ++i) {
        at.vectors[i] *= at.root[i % dim];
    }
}

// Rows processed together: few enough to stay in the L1 cache while A is read once for all of them.
constexpr int64_t NORM_ROWS = 8;

double weighted_square(const float *vector, const float *weights, int64_t dim) {
    float sums[8] = {};
    int64_t i = 0;
    for (; i + 8 <= dim; i += 8) {
        for (int lane = 0; lane < 8; ++lane) {
            sums[lane] += vector[i + lane] * vector[i + lane] * weights[i + lane];
        }
    }
    for (int lane = 0; i < dim; ++i, ++lane) {
        sums[lane] += vector[i] * vector[i] * weights[i];
    }
    double sum = 0.0;
    for (const float part : sums) {
        sum += part;
    }
    return sum;
}

float zero_norm(const float *inverse_diagonal, int64_t dim) {
    const float largest = *std::max_element(inverse_diagonal, inverse_diagonal + dim);
    return static_cast<float>(ZERO_LENGTH * std::sqrt(largest));
}

}  // namespace
}  // namespace edgemem

extern "C" {

int64_t edgemem_metric_workspace(int64_t dim, int64_t max_rank) {
    // The limit rules out overflow. A covariance of 2^24 * 2^24 numbers fits in no memory anyway.
    if (dim < 1 || dim > (1 << 24) || max_rank < 0) {
        return 0;
    }
    return edgemem::Workspace::size(dim, std::min(dim, max_rank));
}

int32_t edgemem_metric_fit(const float *rows, int64_t n, int64_t dim, double c, double tau,
                           int64_t max_rank, int32_t isa, double *workspace, float *mean,
                           float *inverse_diagonal, float *directions, int64_t *rank,
                           int64_t *count) {
    if (n < 0 || edgemem_metric_workspace(dim, max_rank) == 0 ||
        !edgemem::fits(n, dim, sizeof(float))) {
        return EDGEMEM_ERR_SIZE;
    }
    if (!workspace || !mean || !inverse_diagonal || !rank || !count || (n > 0 && !rows) ||
        (max_rank > 0 && !directions)) {
        return EDGEMEM_ERR_NULL;
    }
    const edgemem::Loops *loops = edgemem::loops_for(isa);
    if (!loops) {
        return EDGEMEM_ERR_ISA;
    }
    if (!(c >= 0.001 && c <= 1000.0 && tau > 0.0 && tau <= 1.0)) {  // a NaN fails too
        return EDGEMEM_ERR_RANGE;
    }

    const edgemem::Workspace at(workspace, dim);
    *count = edgemem::take_mean(rows, n, dim, at.mean);
    double total = 0.0;
    if (*count > 0) {
        edgemem::take_covariance(rows, n, dim, *count, loops, at);
        for (int64_t i = 0; i < dim; ++i) {
            total += at.covariance[i * dim + i];
        }
    }
    if (total <= edgemem::MIN_VARIANCE) {
        *rank = 0;
        std::fill(at.root, at.root + dim, 1.0);
    } else {
        const double ridge = c * total / static_cast<double>(dim);
        for (int64_t i = 0; i < dim; ++i) {
            at.root[i] = 1.0 / std::sqrt(at.covariance[i * dim + i] + ridge);
        }
        const int64_t most = std::min({max_rank, dim, *count - 1});
        edgemem::symmetric_eigen(at.covariance, dim, most, at.vectors, at.values, at.work);
        *rank = edgemem::choose_rank(at.values, dim, tau, most);
        edgemem::make_directions(dim, *rank, at);
    }
    for (int64_t i = 0; i < dim; ++i) {
        mean[i] = static_cast<float>(at.mean[i]);
        inverse_diagonal[i] = static_cast<float>(at.root[i] * at.root[i]);
    }
    for (int64_t i = 0; i < *rank * dim; ++i) {
        directions[i] = static_cast<float>(at.vectors[i]);
    }
    return EDGEMEM_OK;
}

int32_t edgemem_metric_query(const float *query, int64_t dim, const float *mean,
                             const float *inverse_diagonal, const float *directions, int64_t rank,
                             int32_t isa, float *workspace, float *image, float *offset,
                             float *norm) {
    if (dim < 1 || rank < 0 || !edgemem::fits(rank, dim, sizeof(float))) {
        return EDGEMEM_ERR_SIZE;
    }
    if (!query || !mean || !inverse_diagonal || (rank > 0 && !directions) || !workspace ||
        !image || !offset || !norm) {
        return EDGEMEM_ERR_NULL;
    }
    const edgemem::Loops *loops = edgemem::loops_for(isa);
    if (!loops) {
        return EDGEMEM_ERR_ISA;
    }
    *offset = *norm = 0.0f;
    const double length = edgemem::length_of(query, dim);
    if (!(length > 0.0)) {
        std::fill(image, image + dim, 0.0f);
        return EDGEMEM_OK;
    }
    float *centred = workspace;
    for (int64_t i = 0; i < dim; ++i) {
        centred[i] = static_cast<float>(query[i] / length) - mean[i];
        image[i] = inverse_diagonal[i] * centred[i];
    }
    for (const float *a = directions; a < directions + rank * dim; a += dim) {
        float along;
        loops->floats.one(a, centred, dim, &along);
        for (int64_t i = 0; i < dim; ++i) {
            image[i] -= along * a[i];
        }
    }
    // In double, because the offset cancels most of image . row if the mean is long.
    double shift = 0.0, squared = 0.0;
    for (int64_t i = 0; i < dim; ++i) {
        shift -= static_cast<double>(image[i]) * mean[i];
        squared += static_cast<double>(image[i]) * centred[i];
    }
    *offset = static_cast<float>(shift);
    const float whitened = static_cast<float>(std::sqrt(std::max(0.0, squared)));
    if (whitened > edgemem::zero_norm(inverse_diagonal, dim)) {
        *norm = whitened;
    }
    return EDGEMEM_OK;
}

int32_t edgemem_metric_norms(const float *rows, int64_t n, int64_t dim, const float *mean,
                             const float *inverse_diagonal, const float *directions, int64_t rank,
                             int32_t isa, float *workspace, float *norms) {
    if (n < 0 || dim < 1 || rank < 0 || !edgemem::fits(n, dim, sizeof(float)) ||
        !edgemem::fits(rank, dim, sizeof(float))) {
        return EDGEMEM_ERR_SIZE;
    }
    if (!mean || !inverse_diagonal || (rank > 0 && !directions) || !workspace ||
        (n > 0 && (!rows || !norms))) {
        return EDGEMEM_ERR_NULL;
    }
    const edgemem::Loops *loops = edgemem::loops_for(isa);
    if (!loops) {
        return EDGEMEM_ERR_ISA;
    }
    const float zero = edgemem::zero_norm(inverse_diagonal, dim);
    for (int64_t start = 0; start < n; start += edgemem::NORM_ROWS) {
        const int64_t held = std::min(edgemem::NORM_ROWS, n - start);
        double squared[edgemem::NORM_ROWS];
        for (int64_t row = 0; row < held; ++row) {
            float *centred = workspace + row * dim;
            for (int64_t i = 0; i < dim; ++i) {
                centred[i] = rows[(start + row) * dim + i] - mean[i];
            }
            squared[row] = edgemem::weighted_square(centred, inverse_diagonal, dim);
        }
        for (const float *a = directions; a < directions + rank * dim; a += dim) {
            for (int64_t row = 0; row < held; row += 2) {
                const int64_t together = std::min<int64_t>(2, held - row);
                float along[2];
                (together == 2 ? loops->floats.two : loops->floats.one)(a, workspace + row * dim,
                                                                        dim, along);
                for (int64_t each = 0; each < together; ++each) {
                    squared[row + each] -= static_cast<double>(along[each]) * along[each];
                }
            }
        }
        for (int64_t row = 0; row < held; ++row) {
            const float norm = static_cast<float>(std::sqrt(std::max(0.0, squared[row])));
            norms[start + row] = std::isfinite(norm) && norm > zero ? norm : 0.0f;
        }
    }
    return EDGEMEM_OK;
}

}  // extern "C"
