/* Runs every kernel on thousands of odd inputs: NaN, infinities, the largest and the smallest
 * floats, repeated rows, sizes around the widths of the loops, unaligned buffers. Each buffer has
 * exactly the required size, so that the address sanitizer detects a read or write beyond it. The
 * checks here are properties that every result must have. Inputs are the same on every run:
 * fuzz [ROUNDS] [SEED].
 */
#include "edgemem.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(condition)                                                              \
    do {                                                                              \
        if (!(condition)) {                                                           \
            fprintf(stderr, "line %d, round %d: %s\n", __LINE__, round_number, #condition); \
            exit(1);                                                                  \
        }                                                                             \
    } while (0)

static int round_number;
static uint64_t state = 1;

static uint32_t below(uint32_t limit) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(state >> 33) % limit;
}

/* Buffers live for one round. Each starts up to seven elements behind the address from malloc. */
enum { MAX_BUFFERS = 96 };
static void *buffers[MAX_BUFFERS];
static int n_buffers;

static void *buffer(int64_t elements, size_t bytes) {
    const size_t shift = bytes * below(8), size = bytes * (size_t)elements;
    char *start;
    CHECK(n_buffers < MAX_BUFFERS);
    start = malloc(shift + size + (shift + size == 0));
    CHECK(start);
    buffers[n_buffers++] = start;
    memset(start, 0xa5, shift + size);
    return start + shift;
}

#define NEW(type, elements) ((type *)buffer(elements, sizeof(type)))

static float any_float(int wild) {
    static const float odd[] = {0,       -0.0f,        1,        -1,        NAN,      INFINITY,
                                FLT_MAX, -FLT_MAX,     FLT_MIN,  1e-45f,    -1e-45f,  -INFINITY,
                                1e19f,   -3.4028e38f,  1e-30f,   127.5f};
    if (wild && below(8) == 0) {
        return odd[below(sizeof odd / sizeof *odd)];
    }
    return ((float)below(20001) - 10000) / 4096;
}

static float *floats(int64_t elements, int wild) {
    float *numbers = NEW(float, elements);
    int64_t i;
    for (i = 0; i < elements; ++i) {
        numbers[i] = any_float(wild);
    }
    return numbers;
}

static float *rows_of(int64_t n, int64_t dim, int wild) {
    float *rows = floats(n * dim, wild);
    int64_t row;
    for (row = 1; row < n; ++row) {
        if (below(6) == 0) { /* equal scores */
            memcpy(rows + row * dim, rows + (row - 1) * dim, sizeof(float) * (size_t)dim);
        }
    }
    return rows;
}

static void check_best(const int64_t *positions, const float *scores, int64_t found, int64_t n,
                       const uint8_t *mask) {
    int64_t i;
    for (i = 0; i < found; ++i) {
        CHECK(positions[i] >= 0 && positions[i] < n && !isnan(scores[i]));
        CHECK(!mask || mask[positions[i]]);
        CHECK(i == 0 || scores[i] < scores[i - 1] ||
              (scores[i] == scores[i - 1] && positions[i] > positions[i - 1]));
    }
}

static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

static void fuzz_floats(int64_t n, int64_t dim, const uint8_t *mask, int64_t counted, int32_t isa,
                        int wild) {
    const int64_t k = 1 + below(12), m = n ? below(30) : 0, q = 1 + below(5);
    const float *rows = rows_of(n, dim, wild), *queries = floats(q * dim, wild);
    int64_t *positions = NEW(int64_t, least(k, n)), *gathered = NEW(int64_t, m), found = -1, i, j;
    float *scores = NEW(float, least(k, n)), *out = NEW(float, m * q), *again = NEW(float, n * q);

    CHECK(edgemem_scan_topk(rows, n, dim, queries, mask, k, isa, positions, scores, &found) ==
          EDGEMEM_OK);
    CHECK(found == least(k, counted));
    check_best(positions, scores, found, n, mask);

    /* A row gets the same score, bit for bit, from every function. */
    CHECK(edgemem_dots(rows, n, dim, positions, found, queries, q, isa, again) == EDGEMEM_OK);
    for (i = 0; i < found; ++i) {
        CHECK(scores[i] == (isnan(again[i * q]) ? -INFINITY : again[i * q]));
    }
    for (i = 0; i < m; ++i) {
        gathered[i] = below((uint32_t)n);
    }
    CHECK(edgemem_dots(rows, n, dim, gathered, m, queries, q, isa, out) == EDGEMEM_OK);
    for (i = 0; i < m; ++i) {
        for (j = 0; j < found; ++j) {
            if (gathered[i] == positions[j]) {
                CHECK(memcmp(out + i * q, again + j * q, sizeof(float) * (size_t)q) == 0);
            }
        }
    }
    if (m) {
        gathered[below((uint32_t)m)] = below(2) ? n : -1 - (int64_t)below(3);
        CHECK(edgemem_dots(rows, n, dim, gathered, m, queries, q, isa, out) == EDGEMEM_ERR_RANGE);
    }
}

static void fuzz_i8(int64_t n, int64_t dim, const uint8_t *mask, int64_t counted, int32_t isa,
                    int wild) {
    const int64_t k = 1 + below(12), survivors = k + below(12), q = 1 + below(3);
    const int64_t room = least(k, n), kept_room = least(survivors, n);
    const float *queries = floats(q * dim, wild);
    int8_t *rows = NEW(int8_t, n * dim), *query_i8 = NEW(int8_t, dim);
    float *scales = NEW(float, n), *query_scale = NEW(float, 1), *out = NEW(float, room * q);
    int64_t *kept[2], *positions = NEW(int64_t, room), found = -1, i;
    float *kept_scores[2], *scores = NEW(float, room);
    int way;

    CHECK(edgemem_quantize_i8(rows_of(n, dim, wild), n, dim, rows, scales) == EDGEMEM_OK);
    for (i = 0; i < n * dim; ++i) {
        CHECK(rows[i] >= -127);
    }
    for (i = 0; i < n; ++i) {
        CHECK(isnan(scales[i]) || (scales[i] >= 0 && scales[i] <= FLT_MAX));
    }
    CHECK(edgemem_quantize_i8(queries, 1, dim, query_i8, query_scale) == EDGEMEM_OK);
    for (way = 0; way < 2; ++way) {
        kept[way] = NEW(int64_t, kept_room);
        kept_scores[way] = NEW(float, kept_room);
        CHECK(edgemem_scan_topk_i8(rows, scales, n, dim, queries, query_i8, *query_scale, mask, k,
                                   survivors, way ? EDGEMEM_ISA_SCALAR : isa, kept[way],
                                   kept_scores[way], positions, scores, &found) == EDGEMEM_OK);
        CHECK(found == least(k, counted));
        check_best(kept[way], kept_scores[way], least(survivors, counted), n, mask);
        check_best(positions, scores, found, n, mask);
    }
    for (i = 0; i < least(survivors, counted); ++i) {
        CHECK(kept[0][i] == kept[1][i] && kept_scores[0][i] == kept_scores[1][i]);
    }
    CHECK(edgemem_dots_i8(rows, scales, n, dim, positions, found, queries, q, EDGEMEM_ISA_SCALAR,
                          out) == EDGEMEM_OK);
    for (i = 0; i < found; ++i) {
        CHECK(scores[i] == (isnan(out[i * q]) ? -INFINITY : out[i * q]));
    }
}

/* Checks a fit that keeps every direction: the metric must be the inverse of
 * S = C + diag(C) + c * mean(diag(C)), where C is the covariance of the unit rows, and each norm
 * must be the row's length in this inverse. */
static void check_inverse(const float *rows, int64_t n, int64_t dim, double c, const float *mean,
                          const float *inverse_diagonal, const float *directions, int64_t rank,
                          const float *norms) {
    double *centred = NEW(double, n * dim), *S = NEW(double, dim * dim), ridge = 0;
    double *inverse = NEW(double, dim * dim);
    int64_t row, i, j, r;

    for (row = 0; row < n; ++row) {
        double squares = 0;
        for (i = 0; i < dim; ++i) {
            squares += (double)rows[row * dim + i] * rows[row * dim + i];
        }
        for (i = 0; i < dim; ++i) {
            centred[row * dim + i] = rows[row * dim + i] / sqrt(squares);
        }
    }
    for (i = 0; i < dim; ++i) {
        double sum = 0;
        for (row = 0; row < n; ++row) {
            sum += centred[row * dim + i];
        }
        CHECK(fabs(mean[i] - sum / (double)n) <= 1e-6);
        for (row = 0; row < n; ++row) {
            centred[row * dim + i] -= sum / (double)n;
        }
    }
    for (i = 0; i < dim; ++i) {
        for (j = 0; j < dim; ++j) {
            double product = 0, along = 0;
            for (row = 0; row < n; ++row) {
                product += centred[row * dim + i] * centred[row * dim + j];
            }
            for (r = 0; r < rank; ++r) {
                along += (double)directions[r * dim + i] * directions[r * dim + j];
            }
            S[i * dim + j] = product / (double)n;
            inverse[i * dim + j] = (i == j ? inverse_diagonal[i] : 0) - along;
        }
        ridge += c * S[i * dim + i] / (double)dim;
    }
    for (i = 0; i < dim; ++i) {
        S[i * dim + i] = 2 * S[i * dim + i] + ridge;
    }
    for (i = 0; i < dim; ++i) {
        for (j = 0; j < dim; ++j) {
            double product = 0;
            for (r = 0; r < dim; ++r) {
                product += inverse[i * dim + r] * S[r * dim + j];
            }
            CHECK(fabs(product - (i == j)) <= 1e-4);
        }
    }
    for (row = 0; row < n; ++row) {
        double squared = 0;
        for (i = 0; i < dim; ++i) {
            for (j = 0; j < dim; ++j) {
                squared += ((double)rows[row * dim + i] - mean[i]) * inverse[i * dim + j] *
                           ((double)rows[row * dim + j] - mean[j]);
            }
        }
        CHECK(fabs(norms[row] - sqrt(squared)) <= 1e-4 * sqrt(squared) + 1e-5);
    }
}

static void fuzz_metric(int64_t n, int64_t dim, int32_t isa, int wild) {
    static const double cs[] = {0.001, 3, 1000}, taus[] = {1e-9, 0.5, 0.95, 1};
    const double c = cs[below(3)], tau = taus[below(4)];
    const int64_t max_rank = below(4) ? below(40) : 140, most = least(max_rank, dim);
    const float *rows = rows_of(n, dim, wild), *query = floats(dim, wild);
    float *mean = NEW(float, dim), *inverse_diagonal = NEW(float, dim);
    float *directions = NEW(float, most * dim), *workspace = NEW(float, dim);
    float *image = NEW(float, dim), *norms = NEW(float, n), *offset_norm = NEW(float, 2);
    float *eight_rows = NEW(float, 8 * dim);
    double *doubles = NEW(double, edgemem_metric_workspace(dim, max_rank));
    int64_t rank = -1, count = -1, i;

    CHECK(edgemem_metric_fit(rows, n, dim, c, tau, max_rank, isa, doubles, mean, inverse_diagonal,
                             directions, &rank, &count) == EDGEMEM_OK);
    CHECK(count >= 0 && count <= n && rank >= 0 && rank <= most && (!rank || rank < count));
    for (i = 0; i < dim; ++i) {
        CHECK(isfinite(mean[i]) && isfinite(inverse_diagonal[i]) && inverse_diagonal[i] > 0);
    }
    for (i = 0; i < rank * dim; ++i) {
        CHECK(isfinite(directions[i]));
    }
    CHECK(edgemem_metric_query(query, dim, mean, inverse_diagonal, directions, rank, isa, workspace,
                               image, offset_norm, offset_norm + 1) == EDGEMEM_OK);
    CHECK(isfinite(offset_norm[0]) && isfinite(offset_norm[1]) && offset_norm[1] >= 0);
    for (i = 0; i < dim; ++i) {
        CHECK(isfinite(image[i]));
    }
    CHECK(edgemem_metric_norms(rows, n, dim, mean, inverse_diagonal, directions, rank, isa,
                               eight_rows, norms) == EDGEMEM_OK);
    for (i = 0; i < n; ++i) {
        float alone = -1;
        CHECK(edgemem_metric_norms(rows + i * dim, 1, dim, mean, inverse_diagonal, directions, rank,
                                   isa, eight_rows, &alone) == EDGEMEM_OK);
        CHECK(isfinite(norms[i]) && norms[i] >= 0 && norms[i] == alone);
    }
    /* A smaller c leaves float32 too few digits for the comparison. */
    if (!wild && c >= 3 && tau == 1 && most == dim && count == n && rank > 0) {
        check_inverse(rows, n, dim, c, mean, inverse_diagonal, directions, rank, norms);
    }
}

static void fuzz_rank(int64_t m, int wild) {
    const int64_t f = 1 + below(9), k = 1 + below(12), room = least(k, m);
    const float *features = floats(m * f, wild), *weights = floats(f, wild);
    float *all = NEW(float, m), *scores = NEW(float, room);
    int64_t *positions = NEW(int64_t, room), found = -1, i;

    CHECK(edgemem_rank(features, m, f, weights, any_float(wild), k, all, positions, scores,
                       &found) == EDGEMEM_OK);
    CHECK(found == room);
    check_best(positions, scores, found, m, NULL);
    for (i = 0; i < found; ++i) {
        CHECK(scores[i] == all[positions[i]]);
    }
}

static void fuzz_bm25(int64_t n) {
    static const double averages[] = {1e-9, 1, 7.5, INT32_MAX}, k1s[] = {0, 1.2, 1000};
    static const double bs[] = {0, 0.75, 1};
    const int64_t terms = below(5), postings = terms * (n + 2), k = 1 + below(12);
    const double average = averages[below(4)], k1 = k1s[below(3)], b = bs[below(3)];
    int32_t *docs = NEW(int32_t, postings), *lengths = NEW(int32_t, n);
    uint16_t *counts = NEW(uint16_t, postings);
    uint8_t *allowed = below(2) ? NEW(uint8_t, n) : NULL;
    int64_t *starts = NEW(int64_t, terms), *sizes = NEW(int64_t, terms), n_allowed = n, t, doc;
    int64_t *top = NEW(int64_t, least(k, n)), end = 0, above = 0, found = -1, i;
    float *scores = NEW(float, n), *best = NEW(float, least(k, n));
    double *idf = NEW(double, terms);

    for (doc = 0; doc < n; ++doc) {
        lengths[doc] = below(6) ? (int32_t)below(50) : INT32_MAX;
        if (allowed) {
            allowed[doc] = (uint8_t)(below(3) ? below(255) + 1 : 0);
            n_allowed -= !allowed[doc];
        }
    }
    for (t = 0; t < terms; ++t) { /* between two terms lie entries that belong to neither */
        starts[t] = end += below(3);
        for (doc = 0; doc < n; ++doc) {
            if (below(3)) {
                docs[end] = (int32_t)doc;
                counts[end++] = (uint16_t)(below(4) ? 1 + below(3) : UINT16_MAX);
            }
        }
        sizes[t] = end - starts[t];
    }
    CHECK(edgemem_bm25(docs, counts, postings, starts, sizes, terms, lengths, allowed, n, n_allowed,
                       average, k1, b, k, idf, scores, top, best, &found) == EDGEMEM_OK);
    for (t = 0; t < terms; ++t) {
        CHECK(isfinite(idf[t]) && idf[t] > 0);
    }
    for (doc = 0; doc < n; ++doc) {
        CHECK(isfinite(scores[doc]) && scores[doc] >= 0);
        CHECK(scores[doc] == 0 || !allowed || allowed[doc]);
        above += scores[doc] > 0;
    }
    CHECK(found == least(k, above));
    check_best(top, best, found, n, allowed);
    for (i = 0; i < found; ++i) {
        CHECK(best[i] > 0 && best[i] == scores[top[i]]);
    }
    if (terms && sizes[0]) {
        docs[starts[0] + below((uint32_t)sizes[0])] = below(2) ? (int32_t)n : -1;
        CHECK(edgemem_bm25(docs, counts, postings, starts, sizes, terms, lengths, allowed, n,
                           n_allowed, average, k1, b, k, idf, scores, top, best,
                           &found) == EDGEMEM_ERR_RANGE);
    }
}

static int64_t *numbers_below(int64_t elements, int64_t limit) {
    int64_t *numbers = NEW(int64_t, elements), i;
    for (i = 0; i < elements; ++i) {
        numbers[i] = below((uint32_t)limit);
    }
    return numbers;
}

static void fuzz_candidates(int64_t n, int64_t dim, int32_t isa) {
    const int64_t m = below(30), memories = 1 + below(60), slots = below(60), terms = below(4);
    const float *rows = floats(n * dim, 1), *query = floats(dim, 1);
    int64_t *first = numbers_below(memories, n + 3), *next = numbers_below(n, n + 3);
    int64_t *proposals = numbers_below(m, memories), *out, *sizes, found = -1, i;
    int64_t *place = numbers_below(memories, memories), *before, *after, *session, *starts;
    int32_t *speaker = NEW(int32_t, memories), *slot = NEW(int32_t, memories), *docs, *lengths;
    uint8_t *allowed = NEW(uint8_t, memories);
    float *near = NEW(float, m), *scores = floats(slots, 0), *said;
    double *idf = NEW(double, terms);

    CHECK(edgemem_similarities(rows, n, dim, first, memories, next, proposals, m, 1, 1, query, 0.5f,
                               2, 9, isa, near) == EDGEMEM_OK);
    for (i = 0; i < m; ++i) {
        CHECK(near[i] >= -9 && near[i] <= 9 && (first[proposals[i]] < n || near[i] == 0));
    }
    before = numbers_below(memories, memories);
    after = numbers_below(memories, memories);
    for (i = 0; i < memories; ++i) {
        speaker[i] = (int32_t)below(3);
        allowed[i] = (uint8_t)(i && below(3) ? 1 + below(255) : 0);
        slot[i] = (int32_t)below((uint32_t)slots + 1) - 1;
    }
    out = NEW(int64_t, least(3 * m, memories) * 7);
    CHECK(edgemem_beside(proposals, m, place, before, after, speaker, allowed, memories,
                         NEW(uint8_t, memories), out, &found) == EDGEMEM_OK);
    CHECK(found >= 0 && found <= least(3 * m, memories));
    for (i = 0; i < found * 7; ++i) {
        CHECK(out[i] >= 0 && out[i] < memories && (!out[i] || allowed[out[i]]));
        CHECK(i % 7 || (out[i] && (!i || out[i] > out[i - 7])));
    }

    session = numbers_below(memories, 5);
    docs = NEW(int32_t, terms * slots);
    lengths = NEW(int32_t, slots);
    starts = NEW(int64_t, terms);
    sizes = NEW(int64_t, terms);
    for (i = 0; i < slots; ++i) {
        lengths[i] = (int32_t)below(100);
    }
    for (i = 0; i < terms; ++i) {
        int64_t end = starts[i] = i * slots;
        int32_t doc;
        for (doc = 0; doc < slots; ++doc) {
            if (below(3)) {
                docs[end++] = doc;
            }
        }
        sizes[i] = end - starts[i];
        idf[i] = 1 + below(3);
    }
    said = NEW(float, found * 6);
    CHECK(edgemem_word_features(out, found, session, memories, slot, memories, docs, terms * slots,
                                starts, sizes, terms, idf, scores, lengths, NULL, slots, 64,
                                NEW(int64_t, 2 * found), NEW(uint8_t, (found + 2) * terms),
                                said) == EDGEMEM_OK);
    for (i = 0; i < found; ++i) {
        CHECK(said[i * 6 + 2] >= 0 && said[i * 6 + 2] <= 1 && said[i * 6 + 5] == 0);
        CHECK(said[i * 6 + 3] >= said[i * 6] && said[i * 6 + 4] >= 0);
    }
}

static int8_t *bytes_of(int64_t elements) {
    int8_t *numbers = NEW(int8_t, elements);
    int64_t i;

    for (i = 0; i < elements; ++i) {
        numbers[i] = (int8_t)((int)below(256) - 128);
    }
    return numbers;
}

static void fuzz_maxsim(int64_t n, int64_t dim, int32_t isa) {
    const int64_t m = below(6), q = 1 + below(4);
    const int8_t *rows = bytes_of(n * dim), *query = bytes_of(q * dim);
    int64_t *offsets = NEW(int64_t, m + 1), i, j, row, k;
    int32_t *out = NEW(int32_t, m * q);

    for (i = 0; i <= m; ++i) {
        offsets[i] = i ? offsets[i - 1] + below((uint32_t)(n - offsets[i - 1]) + 1) : 0;
    }
    CHECK(edgemem_maxsim_i8(rows, n, dim, offsets, m, query, q, isa, out) == EDGEMEM_OK);
    for (i = 0; i < m; ++i) {
        for (j = 0; j < q; ++j) {
            int32_t best = INT32_MIN;
            for (row = offsets[i]; row < offsets[i + 1]; ++row) {
                int32_t sum = 0;
                for (k = 0; k < dim; ++k) {
                    sum += rows[row * dim + k] * query[j * dim + k];
                }
                best = sum > best ? sum : best;
            }
            CHECK(out[i * q + j] == best);
        }
    }
}

int main(int argc, char **argv) {
    const int rounds = argc > 1 ? atoi(argv[1]) : 3000;
    if (argc > 2) {
        state = (uint64_t)atoi(argv[2]);
    }
    for (round_number = 0; round_number < rounds; ++round_number) {
        const int64_t n = below(40), dim = 1 + below(below(10) ? 40 : 140);
        const int32_t isa = below(2) ? EDGEMEM_ISA_AUTO : EDGEMEM_ISA_SCALAR;
        const int wild = below(2);
        uint8_t *mask = below(2) ? NEW(uint8_t, n) : NULL;
        int64_t counted = n, i;

        for (i = 0; mask && i < n; ++i) {
            mask[i] = (uint8_t)(below(3) ? below(255) + 1 : 0);
            counted -= !mask[i];
        }
        fuzz_floats(n, dim, mask, counted, isa, wild);
        fuzz_i8(n, dim, mask, counted, isa, wild);
        fuzz_metric(n, dim, isa, wild);
        fuzz_rank(n, wild);
        fuzz_candidates(n, dim, isa);
        fuzz_maxsim(n, dim, isa);
        fuzz_bm25(below(10) ? n : below(300));
        while (n_buffers) {
            free(buffers[--n_buffers]);
        }
    }
    printf("ok %d rounds\n", rounds);
    return 0;
}
