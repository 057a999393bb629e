/* Tests the metric functions of the C ABI, as abi_test.c does for the others. */
#include "check.h"

struct fit {
    const float *rows;
    int64_t n, dim;
    double c, tau;
    int64_t max_rank;
    int32_t isa;
    double *workspace;
    float *mean, *inverse_diagonal, *directions;
    int64_t *rank, *count;
};

static int32_t call_fit(const struct fit *a) {
    return edgemem_metric_fit(a->rows, a->n, a->dim, a->c, a->tau, a->max_rank, a->isa,
                              a->workspace, a->mean, a->inverse_diagonal, a->directions, a->rank,
                              a->count);
}

/* The arguments that metric_query and metric_norms share. For metric_query, `rows` is the query. */
struct measure {
    const float *rows;
    int64_t n, dim;
    const float *mean, *inverse_diagonal, *directions;
    int64_t rank;
    int32_t isa;
    float *workspace, *out, *offset, *norm;
};

static int32_t call_measure(const struct measure *a) {
    return a->offset || a->norm
               ? edgemem_metric_query(a->rows, a->dim, a->mean, a->inverse_diagonal, a->directions,
                                      a->rank, a->isa, a->workspace, a->out, a->offset, a->norm)
               : edgemem_metric_norms(a->rows, a->n, a->dim, a->mean, a->inverse_diagonal,
                                      a->directions, a->rank, a->isa, a->workspace, a->out);
}

static int measure_refuses(struct measure call) {
    const float before = call.out[0];

    REFUSED(ERR_SIZE, measure, call, dim, 0);
    REFUSED(ERR_SIZE, measure, call, rank, -1);
    REFUSED(ERR_SIZE, measure, call, rank, INT64_MAX);
    REFUSED(ERR_NULL, measure, call, rows, NULL);
    REFUSED(ERR_NULL, measure, call, mean, NULL);
    REFUSED(ERR_NULL, measure, call, inverse_diagonal, NULL);
    REFUSED(ERR_NULL, measure, call, directions, NULL);
    REFUSED(ERR_NULL, measure, call, workspace, NULL);
    REFUSED(ERR_NULL, measure, call, out, NULL);
    REFUSED(ERR_ISA, measure, call, isa, 99);
    CHECK(call.out[0] == before);
    return 0;
}

/* Unit rows along one line, so that the metric can be computed by hand: mean 0, variance 1/2 in
 * both dimensions, U = (1, 1) / sqrt 2, M = 1; with c = 3, D = 1/2 + 3/2 = 2. Along U, S is
 * M + D = 3; across it, 2. */
static int metric_with(int32_t isa) {
    const float s = 0.70710678f;
    const float rows[4 * 2] = {s, s, -s, -s, 5, 5, -2, -2}, zeros[2] = {0, 0};
    const float along[2] = {3, 3}, across[2] = {s, -s}, no_direction[2] = {NAN, 1};
    double workspace[64];
    float mean[2] = {7}, inverse_diagonal[2] = {7}, directions[4] = {7};
    float image[2] = {7}, norms[3] = {7}, scratch[16], offset = 7, norm = 7;
    int64_t rank = 7, count = 7;
    struct fit fit = {rows,      4,    2,                3.0,        0.95,  2,     isa,
                      workspace, mean, inverse_diagonal, directions, &rank, &count};
    struct measure query = {along, 0,   2,       mean,  inverse_diagonal, directions,
                            1,     isa, scratch, image, &offset,          &norm};
    struct measure rows_in = {rows, 2,   2,       mean,  inverse_diagonal, directions,
                              1,    isa, scratch, norms, NULL,             NULL};

    CHECK(edgemem_metric_workspace(2, 9) == edgemem_metric_workspace(2, 2));
    CHECK(edgemem_metric_workspace(2, 2) > 0 && edgemem_metric_workspace(2, 2) <= 64);
    CHECK(edgemem_metric_workspace(0, 2) == 0 && edgemem_metric_workspace(2, -1) == 0);
    CHECK(edgemem_metric_workspace(INT64_MAX, 2) == 0);

    REFUSED(ERR_SIZE, fit, fit, n, -1);
    REFUSED(ERR_SIZE, fit, fit, n, INT64_MAX);
    REFUSED(ERR_SIZE, fit, fit, dim, 0);
    REFUSED(ERR_SIZE, fit, fit, max_rank, -1);
    REFUSED(ERR_NULL, fit, fit, rows, NULL);
    REFUSED(ERR_NULL, fit, fit, workspace, NULL);
    REFUSED(ERR_NULL, fit, fit, mean, NULL);
    REFUSED(ERR_NULL, fit, fit, inverse_diagonal, NULL);
    REFUSED(ERR_NULL, fit, fit, directions, NULL);
    REFUSED(ERR_NULL, fit, fit, rank, NULL);
    REFUSED(ERR_NULL, fit, fit, count, NULL);
    REFUSED(ERR_ISA, fit, fit, isa, 99);
    REFUSED(ERR_RANGE, fit, fit, c, 0);
    REFUSED(ERR_RANGE, fit, fit, c, INFINITY);
    REFUSED(ERR_RANGE, fit, fit, c, NAN);
    REFUSED(ERR_RANGE, fit, fit, tau, 0);
    REFUSED(ERR_RANGE, fit, fit, tau, 1.5);
    REFUSED(ERR_RANGE, fit, fit, tau, NAN);
    CHECK(mean[0] == 7 && inverse_diagonal[0] == 7 && directions[0] == 7);
    CHECK(rank == 7 && count == 7);

    fit.n = 0;
    CHECK(call_fit(&fit) == EDGEMEM_OK && rank == 0 && count == 0);
    CHECK(mean[0] == 0 && inverse_diagonal[1] == 1);
    fit.n = 1;
    CHECK(call_fit(&fit) == EDGEMEM_OK && rank == 0 && count == 1 && NEAR(mean[0], s));
    fit.rows = zeros;
    CHECK(call_fit(&fit) == EDGEMEM_OK && rank == 0 && count == 0);
    fit.rows = rows;
    fit.n = 4;
    fit.max_rank = 0;
    CHECK(call_fit(&fit) == EDGEMEM_OK && rank == 0 && NEAR(inverse_diagonal[0], 0.5));
    fit.max_rank = 2;
    CHECK(call_fit(&fit) == EDGEMEM_OK && rank == 1 && count == 4);
    CHECK(NEAR(mean[0], 0) && NEAR(inverse_diagonal[0], 0.5));

    if (measure_refuses(query) || measure_refuses(rows_in)) {
        return 1;
    }
    REFUSED(ERR_NULL, measure, query, offset, NULL);
    REFUSED(ERR_NULL, measure, query, norm, NULL);
    REFUSED(ERR_SIZE, measure, rows_in, n, -1);
    REFUSED(ERR_SIZE, measure, rows_in, n, INT64_MAX);
    CHECK(offset == 7 && norm == 7 && norms[0] == 7);

    CHECK(call_measure(&query) == EDGEMEM_OK && NEAR(offset, 0) && NEAR(norm, sqrt(1.0 / 3)));
    CHECK(NEAR(image[0], s / 3) && NEAR(image[1], s / 3));
    query.rows = across;
    CHECK(call_measure(&query) == EDGEMEM_OK && NEAR(norm, sqrt(1.0 / 2)));
    CHECK(NEAR(image[0], s / 2) && NEAR(image[1], -s / 2));
    query.rows = no_direction;
    CHECK(call_measure(&query) == EDGEMEM_OK && offset == 0 && norm == 0);
    CHECK(image[0] == 0 && image[1] == 0);

    CHECK(call_measure(&rows_in) == EDGEMEM_OK);
    CHECK(NEAR(norms[0], sqrt(1.0 / 3)) && NEAR(norms[1], sqrt(1.0 / 3)));
    rows_in.n = 1;
    rows_in.rows = across;
    CHECK(call_measure(&rows_in) == EDGEMEM_OK && NEAR(norms[0], sqrt(1.0 / 2)));
    rows_in.rows = zeros;
    CHECK(call_measure(&rows_in) == EDGEMEM_OK && norms[0] == 0);
    norms[0] = 7;
    rows_in.rows = no_direction;
    CHECK(call_measure(&rows_in) == EDGEMEM_OK && norms[0] == 0);
    CHECK(edgemem_metric_norms(NULL, 0, 2, mean, inverse_diagonal, directions, 1, isa, scratch,
                               NULL) == EDGEMEM_OK);
    return 0;
}

int main(void) {
    const int32_t best = edgemem_best_isa();

    if (metric_with(EDGEMEM_ISA_AUTO) || metric_with(EDGEMEM_ISA_SCALAR) || metric_with(best)) {
        return 1;
    }
    printf("ok %s\n", edgemem_isa_name(best));
    return 0;
}
