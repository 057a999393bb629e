/* A search as an app would do it, with random vectors instead of an embedder and a store:
 *
 *   once, and again after many new memories:  fit the metric, store each memory's norm
 *   for each query:  scan for candidates -> re-rank them in the metric -> fuse the scores -> top k
 *
 * cc -std=c99 memory_search.c -ledgemem -lm
 */
#include <edgemem.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { TOPICS = 12, PER_TOPIC = 30, N = TOPICS * PER_TOPIC, DIM = 64, MAX_RANK = 20 };
enum { CANDIDATES = 100, SHOWN = 5 };

static void check(int32_t status) {
    if (status != EDGEMEM_OK) {
        fprintf(stderr, "edgemem: %s\n", edgemem_status_text(status));
        exit(1);
    }
}

/* Returns approximately normal noise, the same sequence on every machine. */
static float noise(void) {
    static uint32_t state = 1;
    float sum = 0;
    int i;
    for (i = 0; i < 12; ++i) {
        state = state * 1664525u + 1013904223u;
        sum += (float)(state >> 8) / 16777216.0f;
    }
    return sum - 6;
}

static void to_length_1(float *vector) {
    double squared = 0;
    int i;
    for (i = 0; i < DIM; ++i) {
        squared += (double)vector[i] * vector[i];
    }
    for (i = 0; i < DIM; ++i) {
        vector[i] = (float)(vector[i] / sqrt(squared));
    }
}

/* Imitates an embedding: a part that all texts share, one of the topic and one of the text. */
static void embed(const float *topic, float own_share, float *vector) {
    int i;
    for (i = 0; i < DIM; ++i) {
        vector[i] = 1 + topic[i] + own_share * noise();
    }
    to_length_1(vector);
}

int main(void) {
    static float topics[TOPICS * DIM], memories[N * DIM], norms[N], queries[2 * DIM];
    static float mean[DIM], inverse_diagonal[DIM], directions[MAX_RANK * DIM], workspace[8 * DIM];
    static float scores[CANDIDATES], dots[2 * CANDIDATES], features[2 * CANDIDATES];
    static float fused[CANDIDATES], best_scores[SHOWN];
    static int64_t candidates[CANDIDATES], best[SHOWN];
    const float weights[2] = {0.5f, 0.5f};
    const int asked_topic = 7;
    float *query = queries, *image = queries + DIM;
    float offset, query_norm;
    int64_t rank, count, found, shown, i;
    double *doubles;

    if (edgemem_abi_version() != EDGEMEM_ABI_VERSION) {
        fprintf(stderr, "edgemem.h and the library are of different versions\n");
        return 1;
    }
    for (i = 0; i < TOPICS * DIM; ++i) {
        topics[i] = noise();
    }
    for (i = 0; i < N; ++i) {
        embed(topics + i / PER_TOPIC * DIM, 0.8f, memories + i * DIM);
    }

    doubles = malloc(sizeof(double) * (size_t)edgemem_metric_workspace(DIM, MAX_RANK));
    if (!doubles) {
        fprintf(stderr, "no memory\n");
        return 1;
    }
    check(edgemem_metric_fit(memories, N, DIM, 3.0, 0.95, MAX_RANK, EDGEMEM_ISA_AUTO, doubles, mean,
                             inverse_diagonal, directions, &rank, &count));
    free(doubles);
    check(edgemem_metric_norms(memories, N, DIM, mean, inverse_diagonal, directions, rank,
                               EDGEMEM_ISA_AUTO, workspace, norms));
    printf("%d memories of %d numbers; a metric of rank %d; %s\n", (int)count, DIM, (int)rank,
           edgemem_isa_name(edgemem_best_isa()));

    /* The candidates: nearest by cosine, which is the inner product of unit vectors. */
    embed(topics + asked_topic * DIM, 1.0f, query);
    check(edgemem_scan_topk(memories, N, DIM, query, NULL, CANDIDATES, EDGEMEM_ISA_AUTO, candidates,
                            scores, &found));

    /* Each candidate's cosine and whitened cosine, computed in one read of its row. */
    check(edgemem_metric_query(query, DIM, mean, inverse_diagonal, directions, rank,
                               EDGEMEM_ISA_AUTO, workspace, image, &offset, &query_norm));
    check(edgemem_dots(memories, N, DIM, candidates, found, queries, 2, EDGEMEM_ISA_AUTO, dots));
    for (i = 0; i < found; ++i) {
        const float norm = query_norm * norms[candidates[i]];
        features[2 * i] = dots[2 * i];
        features[2 * i + 1] = norm > 0 ? (dots[2 * i + 1] + offset) / norm : 0;
    }

    check(edgemem_rank(features, found, 2, weights, 0, SHOWN, fused, best, best_scores, &shown));
    for (i = 0; i < shown; ++i) {
        const int64_t memory = candidates[best[i]];
        printf("memory %d of topic %d: score %.3f (cosine %.3f, whitened %.3f)\n", (int)memory,
               (int)(memory / PER_TOPIC), best_scores[i], features[2 * best[i]],
               features[2 * best[i] + 1]);
    }
    printf("asked about topic %d\n", asked_topic);
    return 0;
}
