/* Tests late interaction from C: every error, and numbers computed by hand.
 * Exits 0 and prints "ok", or names the line that failed. */
#include "check.h"

struct maxsim {
    const int8_t *rows;
    int64_t n, dim;
    const int64_t *offsets;
    int64_t m;
    const int8_t *query;
    int64_t q;
    int32_t isa;
    int32_t *out;
};

static int32_t call_maxsim(const struct maxsim *a) {
    return edgemem_maxsim_i8(a->rows, a->n, a->dim, a->offsets, a->m, a->query, a->q, a->isa,
                             a->out);
}

static int maxsim_with(int32_t isa) {
    /* Three texts, of two tokens, no token and one token. */
    const int8_t rows[3 * 2] = {1, 2, 3, -4, -127, -127}, query[2 * 2] = {1, 1, -127, 0};
    const int64_t offsets[4] = {0, 2, 2, 3}, beyond[4] = {0, 2, 2, 4}, down[4] = {0, 2, 1, 3};
    const int64_t before[4] = {-1, 2, 2, 3};
    int32_t out[6] = {7, 7, 7, 7, 7, 7};
    struct maxsim call = {rows, 3, 2, offsets, 3, query, 2, isa, out};

    REFUSED(ERR_SIZE, maxsim, call, n, -1);
    REFUSED(ERR_SIZE, maxsim, call, n, INT64_MAX);
    REFUSED(ERR_SIZE, maxsim, call, dim, 0);
    REFUSED(ERR_SIZE, maxsim, call, dim, EDGEMEM_MAX_DIM_I8 + 1);
    REFUSED(ERR_SIZE, maxsim, call, m, -1);
    REFUSED(ERR_SIZE, maxsim, call, m, INT64_MAX);
    REFUSED(ERR_SIZE, maxsim, call, q, 0);
    REFUSED(ERR_NULL, maxsim, call, rows, NULL);
    REFUSED(ERR_NULL, maxsim, call, offsets, NULL);
    REFUSED(ERR_NULL, maxsim, call, query, NULL);
    REFUSED(ERR_NULL, maxsim, call, out, NULL);
    REFUSED(ERR_ISA, maxsim, call, isa, 99);
    REFUSED(ERR_RANGE, maxsim, call, offsets, beyond);
    REFUSED(ERR_RANGE, maxsim, call, offsets, before);
    REFUSED(ERR_RANGE, maxsim, call, offsets, down);
    CHECK(out[0] == 7 && out[5] == 7);

    CHECK(call_maxsim(&call) == EDGEMEM_OK);
    CHECK(out[0] == 3 && out[1] == -127);
    CHECK(out[2] == INT32_MIN && out[3] == INT32_MIN);
    CHECK(out[4] == -254 && out[5] == 127 * 127);
    call.m = 0;
    CHECK(call_maxsim(&call) == EDGEMEM_OK);
    return 0;
}

int main(void) {
    const int32_t best = edgemem_best_isa();

    if (maxsim_with(EDGEMEM_ISA_AUTO) || maxsim_with(EDGEMEM_ISA_SCALAR) || maxsim_with(best)) {
        return 1;
    }
    printf("ok %s\n", edgemem_isa_name(best));
    return 0;
}
