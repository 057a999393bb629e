// Top-k selection in the caller's arrays, and the size check that all kernels share.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <utility>

namespace edgemem {

// Whether rows * columns elements can lie in memory. columns >= 1, rows >= 0.
inline bool fits(int64_t rows, int64_t columns, std::size_t element_bytes) {
    return rows == 0 || columns <= PTRDIFF_MAX / static_cast<int64_t>(element_bytes) / rows;
}

inline float ranked(float score) {
    return std::isnan(score) ? -std::numeric_limits<float>::infinity() : score;
}

// The k best of the scores offered: larger scores first, then lower positions. A score must not be
// NaN. Until `finish`, the arrays are a binary heap whose root is the worst of the best so far.
struct TopK {
    int64_t *positions;
    float *scores;
    int64_t k;
    int64_t size = 0;

    void offer(int64_t position, float score) {
        if (size < k) {
            scores[size] = score;
            positions[size] = position;
            sift_up(size++);
        } else if (score > scores[0] || (score == scores[0] && position < positions[0])) {
            scores[0] = score;
            positions[0] = position;
            sift_down(size);
        }
    }

    // Sorts the arrays, best first: heapsort, which moves the worst to the end in each step.
    void finish() {
        for (int64_t end = size - 1; end > 0; --end) {
            exchange(0, end);
            sift_down(end);
        }
    }

    bool worse(int64_t i, int64_t j) const {
        return scores[i] < scores[j] ||
               (scores[i] == scores[j] && positions[i] > positions[j]);
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

    void sift_down(int64_t end) {
        for (int64_t i = 0;;) {
            int64_t child = 2 * i + 1;
            if (child >= end) {
                return;
            }
            if (child + 1 < end && worse(child + 1, child)) {
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

}  // namespace edgemem
