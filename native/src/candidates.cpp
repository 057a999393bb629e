// The candidates of a search: the proposals, their neighbours in the conversation, the lexical
// features of each, and one score from all its features.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "edgemem.h"
#include "topk.h"

namespace {

constexpr int64_t AROUND = 7;
constexpr int64_t FEATURES = 6;

// Calls visit(i) for every byte that is not 0, in order. visit may set later bytes too.
template <typename Visit>
void each_marked(const uint8_t *marks, int64_t n, Visit visit) {
    for (int64_t i = 0; i < n;) {
        uint64_t eight;
        if (i + 8 <= n && (std::memcpy(&eight, marks + i, 8), eight == 0)) {
            i += 8;
            continue;
        }
        for (const int64_t end = std::min(i + 8, n); i < end; ++i) {
            if (marks[i]) {
                visit(i);
            }
        }
    }
}

// Returns the position of the first of the ascending entries that is not below `value`. The search
// gallops from `at`, because successive values mostly ascend; otherwise it starts at 0.
int64_t advance(const int32_t *entries, int64_t size, int64_t at, int32_t value) {
    if (at > 0 && entries[at - 1] >= value) {
        at = 0;
    }
    int64_t end = at;
    for (int64_t step = 1; end < size && entries[end] < value; step *= 2) {
        at = end + 1;
        end += step;
    }
    return std::lower_bound(entries + at, entries + std::min(end, size), value) - entries;
}

}  // namespace

extern "C" {

int32_t edgemem_beside(const int64_t *proposals, int64_t m, const int64_t *place,
                       const int64_t *before, const int64_t *after, const int32_t *speaker,
                       const uint8_t *allowed, int64_t n, uint8_t *workspace, int64_t *out,
                       int64_t *found) {
    if (m < 0 || n < 1 || !edgemem::fits(m, 3 * AROUND, sizeof(int64_t)) ||
        !edgemem::fits(n, AROUND, sizeof(int64_t))) {
        return EDGEMEM_ERR_SIZE;
    }
    if (!place || !before || !after || !speaker || !allowed || !workspace || !found ||
        (m > 0 && (!proposals || !out))) {
        return EDGEMEM_ERR_NULL;
    }
    const auto outside = [n](int64_t memory) { return memory < 0 || memory >= n; };
    if (allowed[0] || std::any_of(proposals, proposals + m, outside)) {
        return EDGEMEM_ERR_RANGE;
    }
    constexpr uint8_t proposed = 1, neighbour = 2;
    std::memset(workspace, 0, static_cast<std::size_t>(n));
    for (int64_t i = 0; i < m; ++i) {
        workspace[proposals[i]] = allowed[proposals[i]] ? proposed : 0;
    }
    bool fits = true;
    each_marked(workspace, n, [&](int64_t memory) {
        if (workspace[memory] != proposed) {
            return;
        }
        fits = fits && !outside(place[memory]);
        for (const int64_t *side : {before, after}) {
            fits = fits && !outside(side[place[memory]]);
            if (fits && allowed[side[place[memory]]] && !workspace[side[place[memory]]]) {
                workspace[side[place[memory]]] = neighbour;
            }
        }
    });
    each_marked(workspace, n, [&](int64_t memory) {
        fits = fits && !outside(place[memory]);
        for (const int64_t *side : {before, after}) {
            fits = fits && !outside(side[place[memory]]) && !outside(side[side[place[memory]]]);
        }
    });
    if (!fits) {
        return EDGEMEM_ERR_RANGE;
    }

    int64_t *next = out;
    each_marked(workspace, n, [&](int64_t memory) {
        const int64_t at = place[memory], left = before[at], right = after[at];
        const auto seen = [&](int64_t other) { return allowed[other] ? other : 0; };
        const auto replied = [&](int64_t other) {
            return speaker[at] != speaker[other] ? seen(other) : 0;
        };
        *next++ = memory;
        *next++ = replied(left);
        *next++ = replied(right);
        *next++ = seen(left);
        *next++ = seen(right);
        *next++ = seen(before[left]);
        *next++ = seen(after[right]);
    });
    *found = (next - out) / AROUND;
    return EDGEMEM_OK;
}

int32_t edgemem_word_features(const int64_t *around, int64_t m, const int64_t *session, int64_t n,
                              const int32_t *slot, int64_t memories, const int32_t *docs,
                              int64_t postings, const int64_t *starts, const int64_t *sizes,
                              int64_t terms, const double *idf, const float *scores,
                              const int32_t *lengths, const uint8_t *timed, int64_t slots,
                              int64_t max_length, int64_t *order, uint8_t *having, float *out) {
    if (m < 0 || n < 0 || memories < 0 || postings < 0 || terms < 0 || slots < 0 ||
        max_length < 0 || !edgemem::fits(m, AROUND, sizeof(int64_t)) ||
        !edgemem::fits(n, 1, sizeof(int64_t)) || !edgemem::fits(memories, 1, sizeof(int32_t)) ||
        !edgemem::fits(postings, 1, sizeof(int32_t)) ||
        !edgemem::fits(terms, 1, sizeof(int64_t)) || (terms > 0 && !edgemem::fits(m + 2, terms, 1)) ||
        !edgemem::fits(slots, 1, sizeof(int32_t))) {
        return EDGEMEM_ERR_SIZE;
    }
    if ((m > 0 && (!around || !order || !out || (terms > 0 && !having))) || (n > 0 && !session) ||
        (memories > 0 && !slot) || (postings > 0 && !docs) ||
        (terms > 0 && (!starts || !sizes || !idf)) || (slots > 0 && (!scores || !lengths))) {
        return EDGEMEM_ERR_NULL;
    }
    for (int64_t t = 0; t < terms; ++t) {
        if (starts[t] < 0 || sizes[t] < 0 || sizes[t] > postings ||
            starts[t] > postings - sizes[t]) {
            return EDGEMEM_ERR_RANGE;
        }
    }
    const auto slot_of = [&](int64_t memory) {
        return memory >= 0 && memory < memories ? slot[memory] : -1;
    };
    for (int64_t i = 0; i < m * AROUND; ++i) {
        const int32_t at = slot_of(around[i]);
        const bool candidate = i % AROUND == 0;
        if (at < -1 || at >= slots || (candidate && (around[i] < 0 || around[i] >= n))) {
            return EDGEMEM_ERR_RANGE;
        }
    }
    const auto score_of = [&](int64_t memory) {
        const int32_t at = slot_of(memory);
        return at < 0 ? 0.0f : scores[at];
    };
    // `at` is where the previous search in this term's postings stopped.
    const auto has = [&](int64_t memory, int64_t t, int64_t *at) {
        const int32_t *entries = docs + starts[t], wanted = slot_of(memory);
        if (!(score_of(memory) > 0)) {
            return false;
        }
        *at = advance(entries, sizes[t], *at, wanted);
        return *at < sizes[t] && entries[*at] == wanted;
    };

    // Rows 0 to m - 1 of `having`: the terms of each candidate. The two spare rows at the end: those
    // of a candidate's neighbours that are not candidates themselves.
    int64_t *own = order + m;
    for (int64_t i = 0; i < m; ++i) {
        own[i] = around[i * AROUND];
        order[i] = i;
    }
    for (int64_t t = 0; t < terms; ++t) {
        int64_t at = 0;
        for (int64_t i = 0; i < m; ++i) {
            having[i * terms + t] = has(own[i], t, &at);
        }
    }
    const auto having_of = [&](int64_t memory, int64_t near, int64_t spare) -> const uint8_t * {
        if (!(score_of(memory) > 0)) {
            return nullptr;
        }
        if (near < 0 || near >= m || own[near] != memory) {
            near = std::lower_bound(own, own + m, memory) - own;
        }
        if (near < m && own[near] == memory) {
            return having + near * terms;
        }
        for (int64_t t = 0; t < terms; ++t) {
            int64_t at = 0;
            having[spare * terms + t] = has(memory, t, &at);
        }
        return having + spare * terms;
    };
    double total = 0;
    for (int64_t t = 0; t < terms; ++t) {
        total += idf[t];
    }
    for (int64_t i = 0; i < m; ++i) {
        const int64_t *who = around + i * AROUND;
        const int32_t at = slot_of(who[0]);
        const uint8_t *mine = having + i * terms, *left = having_of(who[1], i - 1, m),
                      *right = having_of(who[2], i + 1, m + 1);
        double covered = 0;
        for (int64_t t = 0; t < terms; ++t) {
            covered += mine[t] || (left && left[t]) || (right && right[t]) ? idf[t] : 0;
        }
        float *features = out + i * FEATURES;
        features[0] = score_of(who[0]);
        features[1] = score_of(who[3]) + score_of(who[4]) + score_of(who[5]) + score_of(who[6]);
        features[2] = total > 0 ? static_cast<float>(covered / total) : 0.0f;
        features[4] = std::log1p(
            static_cast<float>(at < 0 ? 0 : std::min<int64_t>(lengths[at], max_length)));
        features[5] = timed && at >= 0 && timed[at] ? 1.0f : 0.0f;
    }
    const auto session_of = [&](int64_t i) { return session[around[i * AROUND]]; };
    std::sort(order, order + m,
              [&](int64_t i, int64_t j) { return session_of(i) < session_of(j); });
    for (int64_t from = 0, to; from < m; from = to) {
        float best = 0;
        for (to = from; to < m && session_of(order[to]) == session_of(order[from]); ++to) {
            best = std::max(best, out[order[to] * FEATURES]);
        }
        for (int64_t i = from; i < to; ++i) {
            out[order[i] * FEATURES + 3] = best;
        }
    }
    return EDGEMEM_OK;
}

int32_t edgemem_rank(const float *features, int64_t m, int64_t f, const float *weights, float bias,
                     int64_t k, float *all_scores, int64_t *positions, float *scores,
                     int64_t *found) {
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

}  // extern "C"
