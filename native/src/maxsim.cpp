// Late interaction: how well each token of a query is matched by the tokens of a text.
#include <algorithm>
#include <limits>

#include "edgemem.h"
#include "loops.h"
#include "topk.h"

namespace {

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

extern "C" int32_t edgemem_maxsim_i8(const int8_t *rows, int64_t n, int64_t dim,
                                     const int64_t *offsets, int64_t m, const int8_t *query,
                                     int64_t q, int32_t isa, int32_t *out) {
    if (n < 0 || dim < 1 || dim > EDGEMEM_MAX_DIM_I8 || m < 0 || q < 1 ||
        !edgemem::fits(n, dim, sizeof(int8_t)) || !edgemem::fits(q, dim, sizeof(int8_t)) ||
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
