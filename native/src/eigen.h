// Eigenvalues and eigenvectors of a symmetric matrix. Knows nothing of metrics.
#pragma once

#include <cstdint>

namespace edgemem {

// Computes all eigenvalues of a symmetric matrix and the eigenvectors of the largest ones.
//
// matrix   n * n numbers, both triangles filled; squares of entries must neither overflow nor
//          underflow; overwritten
// vectors  n * n numbers; its first `wanted` rows receive the eigenvectors, of length 1; the other
//          rows are overwritten
// values   n numbers; receives the eigenvalues, largest first
// work     n numbers
//
// Householder's reduction to a tridiagonal matrix, then implicit QL with Wilkinson's shift (as in
// EISPACK's tred2 and imtql2). Errors are absolute: about 1e-16 of the largest eigenvalue.
// Cost about 4 n^3 + 2 n^2 wanted multiplications. n >= 1, wanted <= n; finite numbers only.
void symmetric_eigen(double *matrix, int64_t n, int64_t wanted, double *vectors, double *values,
                     double *work);

}  // namespace edgemem
