/* Tests from C the functions that gather and match a search's candidates: every error of each.
 * Exits 0 and prints "ok", or names the line that failed. */
#include "check.h"

struct near {
    const float *rows;
    const int8_t *bytes;
    const float *scales;
    int64_t n, dim;
    const int64_t *first;
    int64_t memories;
    const int64_t *next, *wanted;
    int64_t m, width, columns;
    const float *query;
    float offset, scale, limit;
    int32_t isa;
    float *out;
};

static int32_t call_near(const struct near *a) {
    return edgemem_similarities(a->rows, a->n, a->dim, a->first, a->memories, a->next, a->wanted,
                                a->m, a->width, a->columns, a->query, a->offset, a->scale,
                                a->limit, a->isa, a->out);
}

struct near_i8 {
    struct near of;
};

static int32_t call_near_i8(const struct near_i8 *a) {
    const struct near *b = &a->of;
    return edgemem_similarities_i8(b->bytes, b->scales, b->n, b->dim, b->first, b->memories,
                                   b->next, b->wanted, b->m, b->width, b->columns, b->query,
                                   b->offset, b->scale, b->limit, b->isa, b->out);
}

static int near_with(int32_t isa) {
    const float rows[3 * 2] = {1, 2, 3, 4, -5, -6}, query[2] = {1, 1}, scales[3] = {1, 2, 1};
    const int8_t bytes[3 * 2] = {1, 2, 3, 4, -5, -6};
    const int64_t first[4] = {-1, 0, 2, 9}, next[3] = {1, 0, -1}, wanted[5] = {2, 1, 0, 3, 4};
    float out[5] = {7, 7, 7, 7, 7};
    const struct near call = {rows, bytes, scales, 3, 2,   first, 4,  next, wanted,
                              5,    1,     1,      query, 1, 0.5f,  6, isa,  out};
    const struct near_i8 call_i8 = {call};

    REFUSED(ERR_SIZE, near, call, n, -1);
    REFUSED(ERR_SIZE, near, call, n, INT64_MAX);
    REFUSED(ERR_SIZE, near, call, dim, 0);
    REFUSED(ERR_SIZE, near, call, memories, -1);
    REFUSED(ERR_SIZE, near, call, m, -1);
    REFUSED(ERR_SIZE, near, call, m, INT64_MAX);
    REFUSED(ERR_SIZE, near, call, width, 0);
    REFUSED(ERR_SIZE, near, call, columns, 0);
    REFUSED(ERR_SIZE, near, call, columns, 2);
    REFUSED(ERR_RANGE, near, call, scale, 0);
    REFUSED(ERR_RANGE, near, call, scale, NAN);
    REFUSED(ERR_RANGE, near, call, limit, -1);
    REFUSED(ERR_NULL, near, call, rows, NULL);
    REFUSED(ERR_NULL, near, call, first, NULL);
    REFUSED(ERR_NULL, near, call, next, NULL);
    REFUSED(ERR_NULL, near, call, wanted, NULL);
    REFUSED(ERR_NULL, near, call, query, NULL);
    REFUSED(ERR_NULL, near, call, out, NULL);
    REFUSED(ERR_ISA, near, call, isa, 99);
    REFUSED(ERR_SIZE, near_i8, call_i8, of.dim, EDGEMEM_MAX_DIM_I8 + 1);
    REFUSED(ERR_NULL, near_i8, call_i8, of.bytes, NULL);
    REFUSED(ERR_NULL, near_i8, call_i8, of.scales, NULL);
    REFUSED(ERR_ISA, near_i8, call_i8, of.isa, 99);
    CHECK(out[0] == 7 && out[4] == 7);

    CHECK(call_near(&call) == EDGEMEM_OK && out[0] == -5 && out[1] == 4);
    CHECK(out[2] == 0 && out[3] == 0 && out[4] == 0);
    CHECK(call_near_i8(&call_i8) == EDGEMEM_OK && out[0] == -5 && out[1] == 6);
    CHECK(edgemem_similarities(rows, 3, 2, first, 4, next, wanted, 2, 2, 1, query, 0, 1, 9, isa,
                               out) == EDGEMEM_OK);
    CHECK(out[0] == -9 && out[1] == 0 && out[2] == 0);
    CHECK(edgemem_similarities(NULL, 0, 2, NULL, 0, NULL, wanted, 1, 1, 1, query, 0, 1, 9, isa,
                               out) == EDGEMEM_OK);
    CHECK(out[0] == 0);
    return 0;
}

struct beside {
    const int64_t *proposals;
    int64_t m;
    const int64_t *place, *before, *after;
    const int32_t *speaker;
    const uint8_t *allowed;
    int64_t n;
    uint8_t *workspace;
    int64_t *out, *found;
};

static int32_t call_beside(const struct beside *a) {
    return edgemem_beside(a->proposals, a->m, a->place, a->before, a->after, a->speaker,
                          a->allowed, a->n, a->workspace, a->out, a->found);
}

static int beside_each_other(void) {
    /* Memories 1, 2 and 3 are turns of two people; memory 4 was extracted from turn 1. */
    const int64_t proposals[2] = {4, 4}, beyond[2] = {4, 5}, below[2] = {-1, 4};
    const int64_t place[5] = {0, 1, 2, 3, 1}, place_beyond[5] = {0, 1, 2, 3, 5};
    const int64_t before[5] = {0, 0, 1, 2, 0}, before_below[5] = {0, -1, 1, 2, 0};
    const int64_t after[5] = {0, 2, 3, 0, 0}, after_beyond[5] = {0, 2, 9, 0, 0};
    const int32_t speaker[5] = {0, 1, 2, 2, 1};
    const uint8_t allowed[5] = {0, 1, 1, 1, 1}, nobody[5] = {1, 1, 1, 1, 1};
    const int64_t expected[2 * 7] = {2, 1, 0, 1, 3, 0, 0, 4, 0, 2, 0, 2, 0, 3};
    uint8_t workspace[5];
    int64_t out[5 * 7] = {7}, found = 7;
    struct beside call = {proposals, 2, place,     before, after, speaker,
                          allowed,   5, workspace, out,    &found};

    REFUSED(ERR_SIZE, beside, call, m, -1);
    REFUSED(ERR_SIZE, beside, call, m, INT64_MAX);
    REFUSED(ERR_SIZE, beside, call, n, 0);
    REFUSED(ERR_SIZE, beside, call, n, INT64_MAX);
    REFUSED(ERR_NULL, beside, call, proposals, NULL);
    REFUSED(ERR_NULL, beside, call, place, NULL);
    REFUSED(ERR_NULL, beside, call, before, NULL);
    REFUSED(ERR_NULL, beside, call, after, NULL);
    REFUSED(ERR_NULL, beside, call, speaker, NULL);
    REFUSED(ERR_NULL, beside, call, allowed, NULL);
    REFUSED(ERR_NULL, beside, call, workspace, NULL);
    REFUSED(ERR_NULL, beside, call, out, NULL);
    REFUSED(ERR_NULL, beside, call, found, NULL);
    REFUSED(ERR_RANGE, beside, call, proposals, beyond);
    REFUSED(ERR_RANGE, beside, call, proposals, below);
    REFUSED(ERR_RANGE, beside, call, place, place_beyond);
    REFUSED(ERR_RANGE, beside, call, before, before_below);
    REFUSED(ERR_RANGE, beside, call, after, after_beyond);
    REFUSED(ERR_RANGE, beside, call, allowed, nobody);
    CHECK(out[0] == 7 && found == 7);

    CHECK(call_beside(&call) == EDGEMEM_OK && found == 2);
    CHECK(memcmp(out, expected, sizeof expected) == 0);
    call.m = 0;
    call.proposals = NULL;
    CHECK(call_beside(&call) == EDGEMEM_OK && found == 0);
    return 0;
}

struct words {
    const int64_t *around;
    int64_t m;
    const int64_t *session;
    int64_t n;
    const int32_t *slot;
    int64_t memories;
    const int32_t *docs;
    int64_t postings;
    const int64_t *starts, *sizes;
    int64_t terms;
    const double *idf;
    const float *scores;
    const int32_t *lengths;
    const uint8_t *timed;
    int64_t slots, max_length;
    int64_t *order;
    uint8_t *having;
    float *out;
};

static int32_t call_words(const struct words *a) {
    return edgemem_word_features(a->around, a->m, a->session, a->n, a->slot, a->memories, a->docs,
                                 a->postings, a->starts, a->sizes, a->terms, a->idf, a->scores,
                                 a->lengths, a->timed, a->slots, a->max_length, a->order,
                                 a->having, a->out);
}

static int words_said(void) {
    /* Memories 1 and 2 are documents 1 and 0. Term 0 is in document 0, term 1 in both. */
    const int64_t around[2 * 7] = {1, 0, 2, 0, 2, 0, 0, 2, 0, 0, 1, 0, 0, 0};
    const int64_t beyond[2 * 7] = {1, 0, 2, 0, 2, 0, 0, 3}, below[2 * 7] = {-1};
    const int64_t session[3] = {0, 1, 1};
    const int32_t slot[3] = {-1, 1, 0}, slot_beyond[3] = {-1, 1, 2}, slot_below[3] = {-2, 1, 0};
    const int32_t docs[3] = {0, 0, 1}, lengths[2] = {9, 3};
    const int64_t starts[2] = {0, 1}, sizes[2] = {1, 2}, too_far[2] = {0, 2}, before[2] = {-1, 1};
    const int64_t negative[2] = {1, -1};
    const double idf[2] = {3, 1};
    const float scores[2] = {4, 1};
    const uint8_t timed[2] = {0, 1};
    int64_t order[4];
    uint8_t having[8];
    float out[12] = {7};
    struct words call = {around, 2,   session, 3,       slot,  3, docs, 3,     starts, sizes,
                         2,      idf, scores,  lengths, timed, 2, 5,    order, having, out};

    REFUSED(ERR_SIZE, words, call, m, -1);
    REFUSED(ERR_SIZE, words, call, m, INT64_MAX);
    REFUSED(ERR_SIZE, words, call, n, -1);
    REFUSED(ERR_SIZE, words, call, memories, -1);
    REFUSED(ERR_SIZE, words, call, postings, -1);
    REFUSED(ERR_SIZE, words, call, terms, -1);
    REFUSED(ERR_SIZE, words, call, terms, INT64_MAX);
    REFUSED(ERR_SIZE, words, call, slots, -1);
    REFUSED(ERR_SIZE, words, call, max_length, -1);
    REFUSED(ERR_NULL, words, call, around, NULL);
    REFUSED(ERR_NULL, words, call, session, NULL);
    REFUSED(ERR_NULL, words, call, slot, NULL);
    REFUSED(ERR_NULL, words, call, docs, NULL);
    REFUSED(ERR_NULL, words, call, starts, NULL);
    REFUSED(ERR_NULL, words, call, sizes, NULL);
    REFUSED(ERR_NULL, words, call, idf, NULL);
    REFUSED(ERR_NULL, words, call, scores, NULL);
    REFUSED(ERR_NULL, words, call, lengths, NULL);
    REFUSED(ERR_NULL, words, call, order, NULL);
    REFUSED(ERR_NULL, words, call, having, NULL);
    REFUSED(ERR_NULL, words, call, out, NULL);
    REFUSED(ERR_RANGE, words, call, around, beyond);
    REFUSED(ERR_RANGE, words, call, around, below);
    REFUSED(ERR_RANGE, words, call, slot, slot_beyond);
    REFUSED(ERR_RANGE, words, call, slot, slot_below);
    REFUSED(ERR_RANGE, words, call, starts, too_far);
    REFUSED(ERR_RANGE, words, call, starts, before);
    REFUSED(ERR_RANGE, words, call, sizes, negative);
    CHECK(out[0] == 7);

    CHECK(call_words(&call) == EDGEMEM_OK);
    CHECK(out[0] == 1 && out[1] == 4 && out[2] == 1 && out[3] == 4);
    CHECK(NEAR(out[4], 1.3862944) && out[5] == 1);
    CHECK(out[6] == 4 && out[7] == 1 && out[8] == 1 && out[9] == 4);
    CHECK(NEAR(out[10], 1.7917595) && out[11] == 0);
    call.terms = 0;
    call.timed = NULL;
    CHECK(call_words(&call) == EDGEMEM_OK && out[2] == 0 && out[5] == 0);
    call.m = 0;
    CHECK(call_words(&call) == EDGEMEM_OK);
    return 0;
}

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
    const int32_t isas[3] = {EDGEMEM_ISA_AUTO, EDGEMEM_ISA_SCALAR, best};
    int i;

    for (i = 0; i < 3; ++i) {
        if (near_with(isas[i]) || maxsim_with(isas[i])) {
            return 1;
        }
    }
    if (beside_each_other() || words_said()) {
        return 1;
    }
    printf("ok %s\n", edgemem_isa_name(best));
    return 0;
}
