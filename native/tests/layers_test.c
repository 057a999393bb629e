/* Tests the kernels of a transformer's layers from C: every error, and numbers computed by hand. */
#include "check.h"

struct softmax {
    float *scores;
    int64_t rows, keys, group, first, window;
    int32_t isa;
};

static int32_t call_softmax(const struct softmax *a) {
    return edgemem_softmax_causal(a->scores, a->rows, a->keys, a->group, a->first, a->window,
                                  a->isa);
}

struct softmax_back {
    const float *p;
    float *d;
    int64_t rows, keys;
    int32_t isa;
};

static int32_t call_softmax_back(const struct softmax_back *a) {
    return edgemem_softmax_backward(a->p, a->d, a->rows, a->keys, a->isa);
}

struct gated {
    const float *gate_up;
    int64_t rows, size;
    int32_t activation, isa;
    float *out;
    uint16_t *halves;
};

static int32_t call_gated(const struct gated *a) {
    return edgemem_gated(a->gate_up, a->rows, a->size, a->activation, a->isa, a->out, a->halves);
}

struct gated_back {
    const uint16_t *halves;
    const float *d_out;
    int64_t rows, size;
    int32_t activation, isa;
    float *d_gate_up;
};

static int32_t call_gated_back(const struct gated_back *a) {
    return edgemem_gated_backward(a->halves, a->d_out, a->rows, a->size, a->activation, a->isa,
                                  a->d_gate_up);
}

struct norm {
    const float *x, *weight;
    int64_t rows, size;
    int32_t isa;
    float *out, *inverse;
    uint16_t *halves;
};

static int32_t call_norm(const struct norm *a) {
    return edgemem_rms_norm(a->x, a->weight, a->rows, a->size, 1e-5f, a->isa, a->out, a->inverse,
                            a->halves);
}

struct norm_back {
    const float *d_out;
    const uint16_t *halves;
    const float *weight, *inverse;
    int64_t rows, size;
    int32_t isa;
    float *dx;
};

static int32_t call_norm_back(const struct norm_back *a) {
    return edgemem_rms_norm_backward(a->d_out, a->halves, a->weight, a->inverse, a->rows, a->size,
                                     a->isa, a->dx);
}

static int norms_with(int32_t isa) {
    const float x[2] = {3, 4}, weight[2] = {1, 2}, d_out[2] = {1, 0};
    float out[2] = {7, 7}, inverse[1] = {7}, dx[2] = {1, 1};
    uint16_t halves[2] = {7, 7};
    struct norm norm = {x, weight, 1, 2, isa, out, inverse, halves};
    const struct norm_back back = {d_out, halves, weight, inverse, 1, 2, isa, dx};

    REFUSED(ERR_SIZE, norm, norm, rows, -1);
    REFUSED(ERR_SIZE, norm, norm, size, 0);
    REFUSED(ERR_SIZE, norm, norm, rows, INT64_MAX);
    REFUSED(ERR_NULL, norm, norm, x, NULL);
    REFUSED(ERR_NULL, norm, norm, weight, NULL);
    REFUSED(ERR_NULL, norm, norm, out, NULL);
    REFUSED(ERR_NULL, norm, norm, inverse, NULL);
    REFUSED(ERR_NULL, norm, norm, halves, NULL);
    REFUSED(ERR_ISA, norm, norm, isa, 99);
    CHECK(out[0] == 7 && inverse[0] == 7 && halves[0] == 7);
    CHECK(call_norm(&norm) == EDGEMEM_OK); /* rms = sqrt(12.5) */
    CHECK(NEAR(out[0], 0.8485278) && NEAR(out[1], 2.2627408) && NEAR(inverse[0], 0.2828426));
    CHECK(halves[0] == 0x4040 && halves[1] == 0x4080);
    norm.rows = 0;
    norm.x = NULL;
    CHECK(call_norm(&norm) == EDGEMEM_OK);

    REFUSED(ERR_SIZE, norm_back, back, rows, -1);
    REFUSED(ERR_SIZE, norm_back, back, size, 0);
    REFUSED(ERR_NULL, norm_back, back, d_out, NULL);
    REFUSED(ERR_NULL, norm_back, back, halves, NULL);
    REFUSED(ERR_NULL, norm_back, back, weight, NULL);
    REFUSED(ERR_NULL, norm_back, back, inverse, NULL);
    REFUSED(ERR_NULL, norm_back, back, dx, NULL);
    REFUSED(ERR_ISA, norm_back, back, isa, 99);
    CHECK(dx[0] == 1);
    CHECK(call_norm_back(&back) == EDGEMEM_OK);
    /* 0.64 and -0.48 over rms; the midpoints of the halves are 0.4 % off. */
    CHECK(fabs(dx[0] - 1 - 0.1810193) < 2e-3 && fabs(dx[1] - 1 + 0.1357645) < 2e-3);
    return 0;
}

struct pack {
    const float *rows;
    int64_t count, columns, start, k;
    uint16_t *packed;
};

static int32_t call_pack(const struct pack *a) {
    return edgemem_pack_bf16(a->rows, a->count, a->columns, a->start, a->k, a->packed);
}

struct product {
    const float *x;
    int64_t rows, k;
    const uint16_t *packed;
    int64_t columns;
    int32_t add;
    float *out;
};

static int32_t call_product(const struct product *a) {
    return edgemem_product_bf16(a->x, a->rows, a->k, a->packed, a->columns, a->add, a->out);
}

static int bf16_products(void) {
    const float matrix[3 * 2] = {1, 2, 3, 4, 5, 6}, x[2 * 3] = {1, 0, 1, 0, 2, 0};
    uint16_t packed[2 * 32] = {7};
    float out[2 * 2] = {7, 7, 7, 7};
    struct pack pack = {matrix, 3, 2, 0, 3, packed};
    struct product product = {x, 2, 3, packed, 2, 0, out};

    REFUSED(ERR_SIZE, pack, pack, count, -1);
    REFUSED(ERR_SIZE, pack, pack, columns, 0);
    REFUSED(ERR_SIZE, pack, pack, k, 0);
    REFUSED(ERR_SIZE, pack, pack, k, INT64_MAX);
    REFUSED(ERR_SIZE, product, product, rows, -1);
    REFUSED(ERR_SIZE, product, product, k, 0);
    REFUSED(ERR_SIZE, product, product, columns, 0);
    REFUSED(ERR_SIZE, product, product, columns, INT64_MAX);
    if (!edgemem_has_bf16()) {
        CHECK(call_pack(&pack) == EDGEMEM_ERR_ISA && call_product(&product) == EDGEMEM_ERR_ISA);
        CHECK(packed[0] == 7 && out[0] == 7);
        return 0;
    }
    REFUSED(ERR_NULL, pack, pack, rows, NULL);
    REFUSED(ERR_NULL, pack, pack, packed, NULL);
    REFUSED(ERR_RANGE, pack, pack, start, 1);
    REFUSED(ERR_RANGE, pack, pack, start, -2);
    REFUSED(ERR_RANGE, pack, pack, count, 4);
    REFUSED(ERR_RANGE, pack, pack, count, 1);
    CHECK(packed[0] == 7);
    CHECK(call_pack(&pack) == EDGEMEM_OK);
    /* Pairs of rows, column by column: 1 3, 2 4; then 5 and 6, each paired with 0. */
    CHECK(packed[0] == 0x3f80 && packed[1] == 0x4040 && packed[2] == 0x4000 && packed[4] == 0);
    CHECK(packed[32] == 0x40a0 && packed[33] == 0 && packed[34] == 0x40c0 && packed[63] == 0);

    REFUSED(ERR_SIZE, product, product, rows, INT64_MAX);
    REFUSED(ERR_NULL, product, product, x, NULL);
    REFUSED(ERR_NULL, product, product, packed, NULL);
    REFUSED(ERR_NULL, product, product, out, NULL);
    CHECK(out[0] == 7);
    CHECK(call_product(&product) == EDGEMEM_OK);
    CHECK(out[0] == 6 && out[1] == 8 && out[2] == 6 && out[3] == 8);
    product.add = 1;
    CHECK(call_product(&product) == EDGEMEM_OK);
    CHECK(out[0] == 12 && out[3] == 16);
    product.rows = 0;
    product.x = NULL;
    CHECK(call_product(&product) == EDGEMEM_OK);
    return 0;
}

static int layers_with(int32_t isa) {
    float scores[2 * 3] = {5, 5, 5, 1, 1, 1}, d[2 * 3] = {1, 2, 9, 3, 5, 9}, out[1] = {7};
    const float p[2 * 3] = {0.5f, 0.5f, 0, 0, 1, 0}, gate_up[2] = {1, 3}, d_out[1] = {2};
    uint16_t halves[2] = {7};
    float d_gate_up[2] = {7};
    struct softmax softmax = {scores, 2, 3, 1, 1, 2, isa};
    const struct softmax_back back = {p, d, 2, 3, isa};
    struct gated gated = {gate_up, 1, 1, EDGEMEM_SILU, isa, out, halves};
    const struct gated_back gated_back = {halves, d_out, 1, 1, EDGEMEM_SILU, isa, d_gate_up};

    REFUSED(ERR_SIZE, softmax, softmax, rows, -1);
    REFUSED(ERR_SIZE, softmax, softmax, rows, INT64_MAX);
    REFUSED(ERR_SIZE, softmax, softmax, keys, 0);
    REFUSED(ERR_SIZE, softmax, softmax, keys, INT64_MAX);
    REFUSED(ERR_SIZE, softmax, softmax, group, 0);
    REFUSED(ERR_SIZE, softmax, softmax, window, 0);
    REFUSED(ERR_NULL, softmax, softmax, scores, NULL);
    REFUSED(ERR_ISA, softmax, softmax, isa, 99);
    REFUSED(ERR_RANGE, softmax, softmax, first, -1);
    REFUSED(ERR_RANGE, softmax, softmax, first, 2);
    CHECK(scores[0] == 5);
    CHECK(call_softmax(&softmax) == EDGEMEM_OK);
    CHECK(NEAR(scores[0], 0.5) && NEAR(scores[1], 0.5) && scores[2] == 0);
    CHECK(scores[3] == 0 && NEAR(scores[4], 0.5) && NEAR(scores[5], 0.5));
    softmax.rows = 0;
    softmax.scores = NULL;
    CHECK(call_softmax(&softmax) == EDGEMEM_OK);

    REFUSED(ERR_SIZE, softmax_back, back, rows, -1);
    REFUSED(ERR_SIZE, softmax_back, back, keys, 0);
    REFUSED(ERR_NULL, softmax_back, back, p, NULL);
    REFUSED(ERR_NULL, softmax_back, back, d, NULL);
    REFUSED(ERR_ISA, softmax_back, back, isa, 99);
    CHECK(call_softmax_back(&back) == EDGEMEM_OK);
    CHECK(NEAR(d[0], -0.25) && NEAR(d[1], 0.25) && d[2] == 0);
    CHECK(d[3] == 0 && NEAR(d[4], 0) && d[5] == 0);

    REFUSED(ERR_SIZE, gated, gated, rows, -1);
    REFUSED(ERR_SIZE, gated, gated, size, 0);
    REFUSED(ERR_SIZE, gated, gated, size, INT64_MAX);
    REFUSED(ERR_NULL, gated, gated, gate_up, NULL);
    REFUSED(ERR_NULL, gated, gated, out, NULL);
    REFUSED(ERR_NULL, gated, gated, halves, NULL);
    REFUSED(ERR_ISA, gated, gated, isa, 99);
    REFUSED(ERR_RANGE, gated, gated, activation, 2);
    CHECK(out[0] == 7 && halves[0] == 7);
    gated.activation = EDGEMEM_GELU;
    CHECK(call_gated(&gated) == EDGEMEM_OK && NEAR(out[0], 3 * 0.8411920));
    gated.activation = EDGEMEM_SILU;
    CHECK(call_gated(&gated) == EDGEMEM_OK && NEAR(out[0], 3 * 0.7310586));
    CHECK(halves[0] == 0x3f80 && halves[1] == 0x4040);

    REFUSED(ERR_SIZE, gated_back, gated_back, rows, -1);
    REFUSED(ERR_SIZE, gated_back, gated_back, size, 0);
    REFUSED(ERR_NULL, gated_back, gated_back, halves, NULL);
    REFUSED(ERR_NULL, gated_back, gated_back, d_out, NULL);
    REFUSED(ERR_NULL, gated_back, gated_back, d_gate_up, NULL);
    REFUSED(ERR_ISA, gated_back, gated_back, isa, 99);
    REFUSED(ERR_RANGE, gated_back, gated_back, activation, -1);
    CHECK(d_gate_up[0] == 7);
    CHECK(call_gated_back(&gated_back) == EDGEMEM_OK);
    /* At gate 1 and up 3: silu' = 0.9276705, silu = 0.7310586. The halves are 0.4 % off. */
    CHECK(fabs(d_gate_up[0] - 2 * 3 * 0.9276705) < 0.03);
    CHECK(fabs(d_gate_up[1] - 2 * 0.7310586) < 0.01);
    return 0;
}

int main(void) {
    const int32_t best = edgemem_best_isa();
    const int32_t isas[3] = {EDGEMEM_ISA_AUTO, EDGEMEM_ISA_SCALAR, best};
    int i;

    for (i = 0; i < 3; ++i) {
        if (layers_with(isas[i]) || norms_with(isas[i])) {
            return 1;
        }
    }
    if (bf16_products()) {
        return 1;
    }
    printf("ok %s, bfloat16 %s\n", edgemem_isa_name(best), edgemem_has_bf16() ? "yes" : "no");
    return 0;
}
