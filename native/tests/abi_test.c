/* Tests the C ABI from C: every error of every function that no other test here covers.
 * Exits 0 and prints "ok", or names the line that failed. */
#include "check.h"

struct scan {
    const float *rows;
    int64_t n, dim;
    const float *query;
    const uint8_t *mask;
    int64_t k;
    int32_t isa;
    int64_t *positions;
    float *scores;
    int64_t *found;
};

static int32_t call_scan(const struct scan *a) {
    return edgemem_scan_topk(a->rows, a->n, a->dim, a->query, a->mask, a->k, a->isa, a->positions,
                             a->scores, a->found);
}

static int scan_with(int32_t isa) {
    const float rows[5 * 3] = {1, 0, 0, 0, 2, 0, 3, 0, 0, NAN, 0, 0, 1, 0, 0};
    const float query[3] = {1, 1, 0};
    const uint8_t mask[5] = {1, 0, 1, 1, 1};
    int64_t positions[5] = {7, 7, 7, 7, 7}, found = 7;
    float scores[5] = {7};
    struct scan call = {rows, 5, 3, query, NULL, 3, isa, positions, scores, &found};

    REFUSED(ERR_SIZE, scan, call, n, -1);
    REFUSED(ERR_SIZE, scan, call, n, INT64_MAX);
    REFUSED(ERR_SIZE, scan, call, dim, 0);
    REFUSED(ERR_SIZE, scan, call, k, 0);
    REFUSED(ERR_NULL, scan, call, rows, NULL);
    REFUSED(ERR_NULL, scan, call, query, NULL);
    REFUSED(ERR_NULL, scan, call, positions, NULL);
    REFUSED(ERR_NULL, scan, call, scores, NULL);
    REFUSED(ERR_NULL, scan, call, found, NULL);
    REFUSED(ERR_ISA, scan, call, isa, 99);
    CHECK(positions[0] == 7 && scores[0] == 7 && found == 7);

    CHECK(call_scan(&call) == EDGEMEM_OK);
    CHECK(found == 3 && positions[0] == 2 && positions[1] == 1 && positions[2] == 0);
    CHECK(scores[0] == 3 && scores[1] == 2 && scores[2] == 1);
    CHECK(positions[3] == 7);

    call.mask = mask;
    call.k = 9;
    CHECK(call_scan(&call) == EDGEMEM_OK);
    CHECK(found == 4 && positions[0] == 2 && positions[1] == 0 && positions[2] == 4);
    CHECK(positions[3] == 3 && isinf(scores[3]) && scores[3] < 0);

    CHECK(edgemem_scan_topk(NULL, 0, 3, query, NULL, 1, isa, NULL, NULL, &found) == EDGEMEM_OK);
    CHECK(found == 0);
    return 0;
}

struct dots {
    const float *rows;
    int64_t n, dim;
    const int64_t *positions;
    int64_t m;
    const float *queries;
    int64_t q;
    int32_t isa;
    float *out;
};

static int32_t call_dots(const struct dots *a) {
    return edgemem_dots(a->rows, a->n, a->dim, a->positions, a->m, a->queries, a->q, a->isa,
                        a->out);
}

static int dots_with(int32_t isa) {
    const float rows[3 * 2] = {1, 2, 3, 4, 5, 6};
    const float queries[3 * 2] = {1, 0, 0, 1, 1, 1};
    const int64_t positions[3] = {2, 0, 2}, below[3] = {0, 0, -1}, beyond[3] = {0, 3, 0};
    const float expected[3 * 3] = {5, 6, 11, 1, 2, 3, 5, 6, 11};
    float out[9] = {7};
    const struct dots call = {rows, 3, 2, positions, 3, queries, 3, isa, out};

    REFUSED(ERR_SIZE, dots, call, n, -1);
    REFUSED(ERR_SIZE, dots, call, n, INT64_MAX);
    REFUSED(ERR_SIZE, dots, call, dim, 0);
    REFUSED(ERR_SIZE, dots, call, m, -1);
    REFUSED(ERR_SIZE, dots, call, m, INT64_MAX);
    REFUSED(ERR_SIZE, dots, call, q, 0);
    REFUSED(ERR_SIZE, dots, call, q, INT64_MAX);
    REFUSED(ERR_NULL, dots, call, rows, NULL);
    REFUSED(ERR_NULL, dots, call, positions, NULL);
    REFUSED(ERR_NULL, dots, call, queries, NULL);
    REFUSED(ERR_NULL, dots, call, out, NULL);
    REFUSED(ERR_ISA, dots, call, isa, 99);
    REFUSED(ERR_RANGE, dots, call, positions, below);
    REFUSED(ERR_RANGE, dots, call, positions, beyond);
    REFUSED(ERR_RANGE, dots, call, n, 0);
    CHECK(out[0] == 7);

    CHECK(call_dots(&call) == EDGEMEM_OK && memcmp(out, expected, sizeof out) == 0);
    CHECK(edgemem_dots(NULL, 0, 2, NULL, 0, queries, 3, isa, NULL) == EDGEMEM_OK);
    return 0;
}

struct quantize {
    const float *rows;
    int64_t n, dim;
    int8_t *out;
    float *scales;
};

static int32_t call_quantize(const struct quantize *a) {
    return edgemem_quantize_i8(a->rows, a->n, a->dim, a->out, a->scales);
}

struct scan_i8 {
    const int8_t *rows;
    const float *scales;
    int64_t n, dim;
    const float *query;
    const int8_t *query_i8;
    const uint8_t *mask;
    int64_t k, survivors;
    int32_t isa;
    int64_t *kept;
    float *kept_scores;
    int64_t *positions;
    float *scores;
    int64_t *found;
};

static int32_t call_scan_i8(const struct scan_i8 *a) {
    return edgemem_scan_topk_i8(a->rows, a->scales, a->n, a->dim, a->query, a->query_i8, 1, a->mask,
                                a->k, a->survivors, a->isa, a->kept, a->kept_scores, a->positions,
                                a->scores, a->found);
}

struct dots_i8 {
    const int8_t *rows;
    const float *scales;
    int64_t n, dim;
    const int64_t *positions;
    int64_t m;
    const float *queries;
    int64_t q;
    int32_t isa;
    float *out;
};

static int32_t call_dots_i8(const struct dots_i8 *a) {
    return edgemem_dots_i8(a->rows, a->scales, a->n, a->dim, a->positions, a->m, a->queries, a->q,
                           a->isa, a->out);
}

static int i8_with(int32_t isa) {
    const float floats[4 * 2] = {127, -63.5f, 0, 0, NAN, 1, 254, 254};
    const float query[2] = {127, 0};
    const int8_t query_i8[2] = {127, 0};
    const int64_t gathered[2] = {3, 0}, beyond[2] = {0, 4};
    const uint8_t mask[4] = {1, 1, 1, 0};
    const int64_t wide = EDGEMEM_MAX_DIM_I8 + 1;
    int8_t rows[8] = {7};
    int64_t kept[4] = {7}, positions[2] = {7}, found = 7;
    float scales[4] = {7}, kept_scores[4] = {7}, scores[2] = {7}, out[2] = {7};
    const struct quantize quantize = {floats, 4, 2, rows, scales};
    struct scan_i8 scan = {rows, scales, 4,   2,    query,       query_i8,  NULL,  2,
                           9,    isa,    kept, kept_scores, positions, scores, &found};
    const struct dots_i8 dots = {rows, scales, 4, 2, gathered, 2, query, 1, isa, out};

    REFUSED(ERR_SIZE, quantize, quantize, n, -1);
    REFUSED(ERR_SIZE, quantize, quantize, n, INT64_MAX);
    REFUSED(ERR_SIZE, quantize, quantize, dim, 0);
    REFUSED(ERR_SIZE, quantize, quantize, dim, wide);
    REFUSED(ERR_NULL, quantize, quantize, rows, NULL);
    REFUSED(ERR_NULL, quantize, quantize, out, NULL);
    REFUSED(ERR_NULL, quantize, quantize, scales, NULL);
    CHECK(rows[0] == 7 && scales[0] == 7);

    CHECK(call_quantize(&quantize) == EDGEMEM_OK);
    CHECK(rows[0] == 127 && rows[1] == -64 && rows[2] == 0 && rows[4] == 0 && rows[6] == 127);
    CHECK(scales[0] == 1 && scales[1] == 0 && isnan(scales[2]) && scales[3] == 2);
    CHECK(edgemem_quantize_i8(NULL, 0, 2, NULL, NULL) == EDGEMEM_OK);

    REFUSED(ERR_SIZE, scan_i8, scan, n, -1);
    REFUSED(ERR_SIZE, scan_i8, scan, n, INT64_MAX);
    REFUSED(ERR_SIZE, scan_i8, scan, dim, 0);
    REFUSED(ERR_SIZE, scan_i8, scan, dim, wide);
    REFUSED(ERR_SIZE, scan_i8, scan, k, 0);
    REFUSED(ERR_SIZE, scan_i8, scan, survivors, 1);
    REFUSED(ERR_NULL, scan_i8, scan, rows, NULL);
    REFUSED(ERR_NULL, scan_i8, scan, scales, NULL);
    REFUSED(ERR_NULL, scan_i8, scan, query, NULL);
    REFUSED(ERR_NULL, scan_i8, scan, query_i8, NULL);
    REFUSED(ERR_NULL, scan_i8, scan, kept, NULL);
    REFUSED(ERR_NULL, scan_i8, scan, kept_scores, NULL);
    REFUSED(ERR_NULL, scan_i8, scan, positions, NULL);
    REFUSED(ERR_NULL, scan_i8, scan, scores, NULL);
    REFUSED(ERR_NULL, scan_i8, scan, found, NULL);
    REFUSED(ERR_ISA, scan_i8, scan, isa, 99);
    CHECK(kept[0] == 7 && kept_scores[0] == 7 && positions[0] == 7 && scores[0] == 7 && found == 7);

    CHECK(call_scan_i8(&scan) == EDGEMEM_OK);
    CHECK(found == 2 && positions[0] == 3 && positions[1] == 0);
    CHECK(scores[0] == 2 * 127 * 127 && scores[1] == 127 * 127);
    CHECK(kept[0] == 3 && kept[1] == 0 && kept[2] == 1 && kept[3] == 2);
    CHECK(kept_scores[0] == 2 * 127 * 127 && kept_scores[2] == 0);
    CHECK(isinf(kept_scores[3]) && kept_scores[3] < 0);
    scan.mask = mask;
    scan.k = scan.survivors = 1;
    CHECK(call_scan_i8(&scan) == EDGEMEM_OK && found == 1 && positions[0] == 0);
    scan.n = 0;
    scan.rows = NULL;
    scan.scales = scan.scores = scan.kept_scores = NULL;
    scan.kept = scan.positions = NULL;
    CHECK(call_scan_i8(&scan) == EDGEMEM_OK && found == 0);

    REFUSED(ERR_SIZE, dots_i8, dots, n, -1);
    REFUSED(ERR_SIZE, dots_i8, dots, dim, wide);
    REFUSED(ERR_SIZE, dots_i8, dots, m, -1);
    REFUSED(ERR_SIZE, dots_i8, dots, q, 0);
    REFUSED(ERR_NULL, dots_i8, dots, rows, NULL);
    REFUSED(ERR_NULL, dots_i8, dots, scales, NULL);
    REFUSED(ERR_NULL, dots_i8, dots, positions, NULL);
    REFUSED(ERR_NULL, dots_i8, dots, queries, NULL);
    REFUSED(ERR_NULL, dots_i8, dots, out, NULL);
    REFUSED(ERR_ISA, dots_i8, dots, isa, 99);
    REFUSED(ERR_RANGE, dots_i8, dots, positions, beyond);
    CHECK(out[0] == 7);
    CHECK(call_dots_i8(&dots) == EDGEMEM_OK && out[0] == 2 * 127 * 127 && out[1] == 127 * 127);
    return 0;
}

struct rank {
    const float *features;
    int64_t m, f;
    const float *weights;
    int64_t k;
    float *all;
    int64_t *positions;
    float *scores;
    int64_t *found;
};

static int32_t call_rank(const struct rank *a) {
    return edgemem_rank(a->features, a->m, a->f, a->weights, 0.5f, a->k, a->all, a->positions,
                        a->scores, a->found);
}

static int rank_candidates(void) {
    const float features[4 * 2] = {1, 0, 0, 1, NAN, 0, 1, 0}, weights[2] = {2, 3};
    float all[4] = {7}, scores[2] = {7};
    int64_t positions[2] = {7}, found = 7;
    const struct rank call = {features, 4, 2, weights, 2, all, positions, scores, &found};

    REFUSED(ERR_SIZE, rank, call, m, -1);
    REFUSED(ERR_SIZE, rank, call, m, INT64_MAX);
    REFUSED(ERR_SIZE, rank, call, f, 0);
    REFUSED(ERR_SIZE, rank, call, k, 0);
    REFUSED(ERR_NULL, rank, call, features, NULL);
    REFUSED(ERR_NULL, rank, call, weights, NULL);
    REFUSED(ERR_NULL, rank, call, all, NULL);
    REFUSED(ERR_NULL, rank, call, positions, NULL);
    REFUSED(ERR_NULL, rank, call, scores, NULL);
    REFUSED(ERR_NULL, rank, call, found, NULL);
    CHECK(all[0] == 7 && positions[0] == 7 && scores[0] == 7 && found == 7);

    CHECK(call_rank(&call) == EDGEMEM_OK);
    CHECK(all[0] == 2.5f && all[1] == 3.5f && isinf(all[2]) && all[2] < 0 && all[3] == 2.5f);
    CHECK(found == 2 && positions[0] == 1 && positions[1] == 0 && scores[1] == 2.5f);
    CHECK(edgemem_rank(NULL, 0, 2, weights, 0, 1, NULL, NULL, NULL, &found) == EDGEMEM_OK);
    CHECK(found == 0);
    return 0;
}

struct bm25 {
    const int32_t *docs;
    const uint16_t *counts;
    int64_t postings;
    const int64_t *starts, *sizes;
    int64_t terms;
    const int32_t *lengths;
    const uint8_t *allowed;
    int64_t n, n_allowed;
    double average_length, k1, b;
    int64_t k;
    double *idf;
    float *scores;
    int64_t *top_docs;
    float *top_scores;
    int64_t *found;
};

static int32_t call_bm25(const struct bm25 *a) {
    return edgemem_bm25(a->docs, a->counts, a->postings, a->starts, a->sizes, a->terms, a->lengths,
                        a->allowed, a->n, a->n_allowed, a->average_length, a->k1, a->b, a->k,
                        a->idf, a->scores, a->top_docs, a->top_scores, a->found);
}

static int bm25_documents(void) {
    /* Term 0 is in documents 0 and 2, term 1 in 0, 1 and 2. Document 2 is not allowed. */
    const int32_t docs[5] = {0, 2, 0, 1, 2}, below[5] = {0, 2, 0, 1, -1}, past[5] = {0, 2, 0, 1, 4};
    const uint16_t counts[5] = {1, 9, 1, 1, 1};
    const int64_t starts[2] = {0, 2}, sizes[2] = {2, 3}, beyond[2] = {0, 3}, before[2] = {-1, 2};
    const int64_t negative[2] = {2, -1}, huge[2] = {2, INT64_MAX};
    const int32_t lengths[4] = {2, 2, 10, 2};
    const uint8_t allowed[4] = {1, 1, 0, 1};
    double idf[2] = {7, 7};
    float scores[4] = {7, 7, 7, 7}, best[4] = {7};
    int64_t top[4] = {7, 7, 7, 7}, found = 7;
    const struct bm25 call = {docs, counts, 5,    starts, sizes,  2,   lengths, allowed, 4,     3,
                              2,    1.2,    0.75, 4,      idf,    scores, top, best,    &found};
    struct bm25 empty = call;

    REFUSED(ERR_SIZE, bm25, call, postings, -1);
    REFUSED(ERR_SIZE, bm25, call, postings, INT64_MAX);
    REFUSED(ERR_SIZE, bm25, call, terms, -1);
    REFUSED(ERR_SIZE, bm25, call, terms, INT64_MAX);
    REFUSED(ERR_SIZE, bm25, call, n, -1);
    REFUSED(ERR_SIZE, bm25, call, n, INT64_MAX);
    REFUSED(ERR_SIZE, bm25, call, n_allowed, -1);
    REFUSED(ERR_SIZE, bm25, call, k, 0);
    REFUSED(ERR_NULL, bm25, call, docs, NULL);
    REFUSED(ERR_NULL, bm25, call, counts, NULL);
    REFUSED(ERR_NULL, bm25, call, starts, NULL);
    REFUSED(ERR_NULL, bm25, call, sizes, NULL);
    REFUSED(ERR_NULL, bm25, call, lengths, NULL);
    REFUSED(ERR_NULL, bm25, call, idf, NULL);
    REFUSED(ERR_NULL, bm25, call, scores, NULL);
    REFUSED(ERR_NULL, bm25, call, top_docs, NULL);
    REFUSED(ERR_NULL, bm25, call, top_scores, NULL);
    REFUSED(ERR_NULL, bm25, call, found, NULL);
    REFUSED(ERR_RANGE, bm25, call, starts, beyond);
    REFUSED(ERR_RANGE, bm25, call, starts, before);
    REFUSED(ERR_RANGE, bm25, call, sizes, negative);
    REFUSED(ERR_RANGE, bm25, call, sizes, huge);
    REFUSED(ERR_RANGE, bm25, call, docs, below);
    REFUSED(ERR_RANGE, bm25, call, docs, past);
    REFUSED(ERR_RANGE, bm25, call, average_length, 0);
    REFUSED(ERR_RANGE, bm25, call, average_length, NAN);
    REFUSED(ERR_RANGE, bm25, call, k1, NAN);
    REFUSED(ERR_RANGE, bm25, call, k1, 1001);
    REFUSED(ERR_RANGE, bm25, call, b, 1.1);
    CHECK(idf[0] == 7 && scores[0] == 7 && top[0] == 7 && best[0] == 7 && found == 7);

    CHECK(call_bm25(&call) == EDGEMEM_OK);
    /* ln(1 + 2.5 / 1.5) and ln(1 + 1.5 / 2.5); both documents have the average length. */
    CHECK(fabs(idf[0] - 0.9808292530) < 1e-9 && fabs(idf[1] - 0.4700036292) < 1e-9);
    CHECK(found == 2 && top[0] == 0 && top[1] == 1 && top[2] == 7);
    CHECK(NEAR(scores[0], idf[0] + idf[1]) && NEAR(scores[1], idf[1]));
    CHECK(scores[2] == 0 && scores[3] == 0 && best[0] == scores[0] && best[1] == scores[1]);

    empty.docs = empty.lengths = NULL;
    empty.counts = NULL;
    empty.starts = empty.sizes = empty.top_docs = NULL;
    empty.idf = NULL;
    empty.scores = empty.top_scores = NULL;
    empty.allowed = NULL;
    empty.postings = empty.terms = empty.n = 0;
    CHECK(call_bm25(&empty) == EDGEMEM_OK && found == 0);
    return 0;
}

static int texts(void) {
    const char *unknown = edgemem_status_text(-1);
    int32_t status;

    CHECK(edgemem_abi_version() == EDGEMEM_ABI_VERSION);
    CHECK(strcmp(edgemem_isa_name(EDGEMEM_ISA_SCALAR), "scalar") == 0);
    CHECK(strcmp(edgemem_isa_name(99), "unknown") == 0);
    for (status = EDGEMEM_OK; status <= EDGEMEM_ERR_RANGE; ++status) {
        CHECK(strcmp(edgemem_status_text(status), unknown) != 0);
    }
    CHECK(strcmp(edgemem_status_text(status), unknown) == 0);
    return 0;
}

int main(void) {
    const int32_t best = edgemem_best_isa();
    const int32_t isas[3] = {EDGEMEM_ISA_AUTO, EDGEMEM_ISA_SCALAR, best};
    int i;

    for (i = 0; i < 3; ++i) {
        if (scan_with(isas[i]) || dots_with(isas[i]) || i8_with(isas[i])) {
            return 1;
        }
    }
    if (rank_candidates() || bm25_documents() || texts()) {
        return 1;
    }
    printf("ok %s\n", edgemem_isa_name(best));
    return 0;
}
