// BM25 of every document for one query, over postings that lie in the caller's memory.
#include <cmath>

#include "edgemem.h"
#include "topk.h"

namespace {

bool all_below(const int32_t *docs, int64_t size, int64_t n) {
    uint32_t largest = 0;  // a negative number becomes a very large one
    for (int64_t i = 0; i < size; ++i) {
        const uint32_t doc = static_cast<uint32_t>(docs[i]);
        largest = doc > largest ? doc : largest;
    }
    return size == 0 || static_cast<int64_t>(largest) < n;
}

int64_t count_allowed(const int32_t *docs, int64_t size, const uint8_t *allowed) {
    if (!allowed) {
        return size;
    }
    int64_t count = 0;
    for (int64_t i = 0; i < size; ++i) {
        count += allowed[docs[i]] != 0;
    }
    return count;
}

double idf_of(int64_t having, int64_t n_allowed) {
    const double missing = having < n_allowed ? static_cast<double>(n_allowed - having) : 0.0;
    return std::log1p((missing + 0.5) / (static_cast<double>(having) + 0.5));
}

// k1 * (1 - b + b * L / average_length) for a document of length L, as base + slope * L.
struct Saturation {
    float base;
    float slope;
};

// Adds one term to the scores. Works in blocks, so that the arithmetic between the scattered reads
// and writes is vectorised. A document that is not allowed gets +0.
void add_term(const int32_t *docs, const uint16_t *counts, int64_t size, const int32_t *lengths,
              const uint8_t *allowed, float weight, Saturation saturation, float *scores) {
    constexpr int64_t block = 128;
    float length[block];
    float part[block];
    for (int64_t from = 0; from < size; from += block) {
        const int64_t m = size - from < block ? size - from : block;
        const int32_t *doc = docs + from;
        const uint16_t *count = counts + from;
        for (int64_t i = 0; i < m; ++i) {
            length[i] = static_cast<float>(lengths[doc[i]]);
            part[i] = !allowed || allowed[doc[i]] ? weight : 0;
        }
        for (int64_t i = 0; i < m; ++i) {
            const float tf = static_cast<float>(count[i]);
            part[i] = part[i] * tf / (tf + (saturation.base + saturation.slope * length[i]));
        }
        for (int64_t i = 0; i < m; ++i) {
            scores[doc[i]] += part[i];
        }
    }
}

}  // namespace

extern "C" int32_t edgemem_bm25(const int32_t *docs, const uint16_t *counts, int64_t postings,
                                const int64_t *starts, const int64_t *sizes, int64_t terms,
                                const int32_t *lengths, const uint8_t *allowed, int64_t n,
                                int64_t n_allowed, double average_length, double k1, double b,
                                int64_t k, double *idf, float *scores, int64_t *top_docs,
                                float *top_scores, int64_t *found) {
    if (n < 0 || n_allowed < 0 || postings < 0 || terms < 0 || k < 1 ||
        !edgemem::fits(postings, 1, sizeof(int32_t)) ||
        !edgemem::fits(terms, 1, sizeof(int64_t)) || !edgemem::fits(n, 1, sizeof(int64_t))) {
        return EDGEMEM_ERR_SIZE;
    }
    if (!found || (postings > 0 && (!docs || !counts)) ||
        (terms > 0 && (!starts || !sizes || !idf)) ||
        (n > 0 && (!lengths || !scores || !top_docs || !top_scores))) {
        return EDGEMEM_ERR_NULL;
    }
    // Written so that a NaN fails. Within these bounds no float below overflows.
    if (!(average_length >= 1e-9 && average_length <= INT32_MAX && k1 >= 0 && k1 <= 1000 &&
          b >= 0 && b <= 1)) {
        return EDGEMEM_ERR_RANGE;
    }
    for (int64_t t = 0; t < terms; ++t) {
        if (starts[t] < 0 || sizes[t] < 0 || sizes[t] > postings ||
            starts[t] > postings - sizes[t] ||
            (sizes[t] > 0 && !all_below(docs + starts[t], sizes[t], n))) {
            return EDGEMEM_ERR_RANGE;
        }
    }

    for (int64_t doc = 0; doc < n; ++doc) {
        scores[doc] = 0;
    }
    const Saturation saturation{static_cast<float>(k1 * (1 - b)),
                                static_cast<float>(k1 * b / average_length)};
    for (int64_t t = 0; t < terms; ++t) {
        if (sizes[t] == 0) {
            idf[t] = idf_of(0, n_allowed);
            continue;
        }
        const int32_t *doc = docs + starts[t];
        idf[t] = idf_of(count_allowed(doc, sizes[t], allowed), n_allowed);
        add_term(doc, counts + starts[t], sizes[t], lengths, allowed,
                 static_cast<float>(idf[t] * (k1 + 1)), saturation, scores);
    }

    edgemem::TopK best{top_docs, top_scores, k};
    float to_beat = 0;
    for (int64_t doc = 0; doc < n; ++doc) {
        if (scores[doc] > to_beat) {
            best.offer(doc, scores[doc]);
            to_beat = best.size < k ? 0 : top_scores[0];
        }
    }
    best.finish();
    *found = best.size;
    return EDGEMEM_OK;
}
