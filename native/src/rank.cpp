// One score from several features, and the k best.
#include "edgemem.h"
#include "topk.h"

extern "C" int32_t edgemem_rank(const float *features, int64_t m, int64_t f, const float *weights,
                                float bias, int64_t k, float *all_scores, int64_t *positions,
                                float *scores, int64_t *found) {
    if (m < 0 || f < 1 || k < 1 || !edgemem::fits(m, f, sizeof(float))) {
        return EDGEMEM_ERR_SIZE;
    }
    if (!found || !weights || (m > 0 && (!features || !all_scores || !positions || !scores))) {
        return EDGEMEM_ERR_NULL;
    }
    edgemem::TopK best{positions, scores, k};
    for (int64_t i = 0; i < m; ++i) {
        double sum = 0.0;
        for (int64_t j = 0; j < f; ++j) {
            sum += static_cast<double>(features[i * f + j]) * weights[j];
        }
        all_scores[i] = edgemem::ranked(static_cast<float>(sum + bias));
        best.offer(i, all_scores[i]);
    }
    best.finish();
    *found = best.size;
    return EDGEMEM_OK;
}
