#include "eigen.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace edgemem {
namespace {

constexpr double EPSILON = std::numeric_limits<double>::epsilon();

// QL needs two or three sweeps for an eigenvalue. The bound keeps a bug from hanging the caller.
constexpr int MAX_SWEEPS = 60;

double dot(const double *a, const double *b, int64_t n) {
    double sum = 0.0;
    for (int64_t i = 0; i < n; ++i) {
        sum += a[i] * b[i];
    }
    return sum;
}

void add_multiple(double *to, double factor, const double *from, int64_t n) {
    for (int64_t i = 0; i < n; ++i) {
        to[i] += factor * from[i];
    }
}

double largest_magnitude(const double *numbers, int64_t n) {
    double largest = 0.0;
    for (int64_t i = 0; i < n; ++i) {
        largest = std::max(largest, std::fabs(numbers[i]));
    }
    return largest;
}

// Reduces the matrix to tridiagonal form by reflections H = 1 - u u' / h, from the last row up.
// `diagonal` receives its diagonal, and off[i] the element that couples diagonal[i] to
// diagonal[i + 1]. Row i of the matrix then holds the reflection's u in its first i places and its
// h on the diagonal (0: no reflection was needed).
void tridiagonalise(double *matrix, int64_t n, double *diagonal, double *off) {
    const double tiny = EPSILON * EPSILON * largest_magnitude(matrix, n * n);
    for (int64_t i = n - 1; i > 0; --i) {
        double *u = matrix + i * n, *last = u + i - 1;
        diagonal[i] = u[i];
        u[i] = 0.0;
        off[i - 1] = *last;
        const double rest = dot(u, u, i - 1);
        if (rest <= tiny * tiny) {
            continue;
        }
        const double length = std::sqrt(rest + *last * *last);
        off[i - 1] = *last > 0.0 ? -length : length;
        const double h = rest + *last * *last - *last * off[i - 1];
        *last -= off[i - 1];
        u[i] = h;

        // p = B u / h, q = p - (u'p / 2h) u, B -= u q' + q u', where B is the leading i * i block.
        double *q = off;  // its first i places are not used yet: this loop goes down
        const double kept = off[i - 1];
        std::fill(q, q + i, 0.0);
        for (int64_t row = 0; row < i; ++row) {
            add_multiple(q, u[row] / h, matrix + row * n, i);
        }
        add_multiple(q, -dot(u, q, i) / (2.0 * h), u, i);
        for (int64_t row = 0; row < i; ++row) {
            double *b = matrix + row * n;
            for (int64_t column = 0; column < i; ++column) {
                b[column] -= u[row] * q[column] + q[row] * u[column];
            }
        }
        off[i - 1] = kept;
    }
    diagonal[0] = matrix[0];
    matrix[0] = 0.0;
}

// Rotates rows i and i + 1 of `vectors` by the angle with this sine and cosine.
void rotate(double *vectors, int64_t n, int64_t i, double sine, double cosine) {
    double *upper = vectors + i * n, *lower = upper + n;
    for (int64_t k = 0; k < n; ++k) {
        const double u = upper[k], l = lower[k];
        upper[k] = cosine * u - sine * l;
        lower[k] = sine * u + cosine * l;
    }
}

// One implicit QL sweep over the unreduced block from `first` to `last`.
void ql_sweep(double *diagonal, double *off, double *vectors, int64_t n, int64_t first,
              int64_t last) {
    double g = (diagonal[first + 1] - diagonal[first]) / (2.0 * off[first]);
    g = diagonal[last] - diagonal[first] +
        off[first] / (g + std::copysign(std::hypot(g, 1.0), g));
    double sine = 1.0, cosine = 1.0, p = 0.0;
    for (int64_t i = last - 1; i >= first; --i) {
        const double f = sine * off[i], b = cosine * off[i], r = std::hypot(f, g);
        off[i + 1] = r;
        if (r == 0.0) {  // the block splits here
            diagonal[i + 1] -= p;
            off[last] = 0.0;
            return;
        }
        sine = f / r;
        cosine = g / r;
        g = diagonal[i + 1] - p;
        const double s = (diagonal[i] - g) * sine + 2.0 * cosine * b;
        p = sine * s;
        diagonal[i + 1] = g + p;
        g = cosine * s - b;
        rotate(vectors, n, i, sine, cosine);
    }
    diagonal[first] -= p;
    off[first] = g;
    off[last] = 0.0;
}

void diagonalise(double *diagonal, double *off, double *vectors, int64_t n) {
    off[n - 1] = 0.0;
    const double negligible =
        EPSILON * std::max(largest_magnitude(diagonal, n), largest_magnitude(off, n));
    for (int64_t first = 0; first < n; ++first) {
        for (int sweep = 0; sweep < MAX_SWEEPS; ++sweep) {
            int64_t last = first;
            while (last < n - 1 && std::fabs(off[last]) > negligible) {
                ++last;
            }
            if (last == first) {
                break;
            }
            ql_sweep(diagonal, off, vectors, n, first, last);
        }
    }
}

}  // namespace

void symmetric_eigen(double *matrix, int64_t n, int64_t wanted, double *vectors, double *values,
                     double *work) {
    tridiagonalise(matrix, n, values, work);
    std::fill(vectors, vectors + n * n, 0.0);
    for (int64_t i = 0; i < n; ++i) {
        vectors[i * n + i] = 1.0;
    }
    diagonalise(values, work, vectors, n);
    for (int64_t i = 0; i < n; ++i) {
        const int64_t largest = std::max_element(values + i, values + n) - values;
        if (largest != i) {
            std::swap(values[i], values[largest]);
            std::swap_ranges(vectors + i * n, vectors + (i + 1) * n, vectors + largest * n);
        }
    }
    // Transform the eigenvectors back to the original matrix, last reflection first.
    for (double *vector = vectors; vector < vectors + wanted * n; vector += n) {
        for (int64_t i = 1; i < n; ++i) {
            const double *u = matrix + i * n;
            if (u[i] > 0.0) {
                add_multiple(vector, -dot(u, vector, i) / u[i], u, i);
            }
        }
    }
}

}  // namespace edgemem
