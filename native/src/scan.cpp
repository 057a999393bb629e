// Top-k by inner product over the caller's buffers, and the choice of the instruction set.
#include "edgemem.h"

#include <cmath>
#include <cstddef>
#include <limits>
#include <utility>

#include "dot.h"

namespace edgemem {
namespace {

DotFn dot_for(int32_t isa) {
    if (isa == EDGEMEM_ISA_AUTO) {
        isa = edgemem_best_isa();
    }
    switch (isa) {
        case EDGEMEM_ISA_SCALAR:
            return dot_scalar;
#if EDGEMEM_HAS_AVX2
        case EDGEMEM_ISA_AVX2:
            return cpu_has_avx2_fma() ? dot_avx2 : nullptr;
#endif
#if EDGEMEM_HAS_NEON
        case EDGEMEM_ISA_NEON:
            return dot_neon;
#endif
        default:
            return nullptr;
    }
}

// The caller's output arrays, kept as a binary heap whose root is the worst of the best so far.
struct WorstFirst {
    int64_t *positions;
    float *scores;

    bool worse(int64_t i, int64_t j) const {
        return scores[i] < scores[j] || (scores[i] == scores[j] && positions[i] > positions[j]);
    }

    void exchange(int64_t i, int64_t j) {
        std::swap(scores[i], scores[j]);
        std::swap(positions[i], positions[j]);
    }

    void sift_up(int64_t i) {
        while (i > 0 && worse(i, (i - 1) / 2)) {
            exchange(i, (i - 1) / 2);
            i = (i - 1) / 2;
        }
    }

    void sift_down(int64_t size) {
        for (int64_t i = 0;;) {
            int64_t child = 2 * i + 1;
            if (child >= size) {
                return;
            }
            if (child + 1 < size && worse(child + 1, child)) {
                ++child;
            }
            if (!worse(child, i)) {
                return;
            }
            exchange(i, child);
            i = child;
        }
    }
};

}  // namespace
}  // namespace edgemem

extern "C" {

int32_t edgemem_abi_version(void) { return EDGEMEM_ABI_VERSION; }

int32_t edgemem_best_isa(void) {
#if EDGEMEM_HAS_AVX2
    // Asked once: the answer cannot change, and C++ makes the first call safe among threads.
    static const bool avx2 = edgemem::cpu_has_avx2_fma();
    return avx2 ? EDGEMEM_ISA_AVX2 : EDGEMEM_ISA_SCALAR;
#elif EDGEMEM_HAS_NEON
    return EDGEMEM_ISA_NEON;
#else
    return EDGEMEM_ISA_SCALAR;
#endif
}

const char *edgemem_isa_name(int32_t isa) {
    switch (isa) {
        case EDGEMEM_ISA_SCALAR: return "scalar";
        case EDGEMEM_ISA_AVX2: return "avx2";
        case EDGEMEM_ISA_NEON: return "neon";
        default: return "unknown";
    }
}

const char *edgemem_status_text(int32_t status) {
    switch (status) {
        case EDGEMEM_OK: return "done";
        case EDGEMEM_ERR_NULL: return "a buffer that is needed is NULL";
        case EDGEMEM_ERR_SIZE: return "n must be >= 0, dim >= 1, k >= 1, and n * dim floats must fit in memory";
        case EDGEMEM_ERR_ISA: return "this build or this processor lacks that instruction set";
        default: return "unknown status";
    }
}

int32_t edgemem_scan_topk(const float *rows, int64_t n, int64_t dim, const float *query,
                          const uint8_t *mask, int64_t k, int32_t isa, int64_t *positions,
                          float *scores, int64_t *found) {
    if (n < 0 || dim < 1 || k < 1 ||
        (n > 0 && dim > PTRDIFF_MAX / static_cast<int64_t>(sizeof(float)) / n)) {
        return EDGEMEM_ERR_SIZE;
    }
    if (!found || !query || (n > 0 && (!rows || !positions || !scores))) {
        return EDGEMEM_ERR_NULL;
    }
    const edgemem::DotFn dot = edgemem::dot_for(isa);
    if (!dot) {
        return EDGEMEM_ERR_ISA;
    }

    edgemem::WorstFirst best{positions, scores};
    int64_t size = 0;
    for (int64_t row = 0; row < n; ++row) {
        if (mask && !mask[row]) {
            continue;
        }
        float score = dot(rows + row * dim, query, dim);
        if (std::isnan(score)) {
            score = -std::numeric_limits<float>::infinity();
        }
        if (size < k) {
            scores[size] = score;
            positions[size] = row;
            best.sift_up(size++);
        } else if (score > scores[0]) {  // an equal one lies lower and stays
            scores[0] = score;
            positions[0] = row;
            best.sift_down(size);
        }
    }
    // Moving the worst to the end, again and again, leaves the best in front.
    for (int64_t end = size - 1; end > 0; --end) {
        best.exchange(0, end);
        best.sift_down(end);
    }
    *found = size;
    return EDGEMEM_OK;
}

}  // extern "C"
