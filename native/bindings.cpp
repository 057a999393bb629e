// The Python module edgemem._native: the part of the C ABI that edgemem/kernels.py calls.
// The caller there allocates the outputs.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>

#include <algorithm>
#include <optional>
#include <type_traits>
#include <utility>

#include "edgemem.h"

namespace nb = nanobind;

template <typename T, int Dimensions>
using Array = nb::ndarray<T, nb::ndim<Dimensions>, nb::c_contig, nb::device::cpu>;

template <typename T>
static int64_t rows_of(const T &array) {
    return static_cast<int64_t>(array.shape(0));
}

template <typename T>
static int64_t columns_of(const T &array) {
    return static_cast<int64_t>(array.shape(1));
}

static void need(bool fits, const char *what) {
    if (!fits) {
        throw nb::value_error(what);
    }
}

// Runs a kernel without the GIL. Raises ValueError if its status is not EDGEMEM_OK.
template <typename Call>
static void run(Call call) {
    int32_t status;
    {
        nb::gil_scoped_release other_threads_may_run;
        status = call();
    }
    need(status == EDGEMEM_OK, edgemem_status_text(status));
}

using Mask = std::optional<Array<const bool, 1>>;

static const uint8_t *bytes_of(const Mask &mask) {
    return mask ? reinterpret_cast<const uint8_t *>(mask->data()) : nullptr;
}

static int64_t scan_topk(Array<const float, 2> rows, Array<const float, 1> query, Mask mask,
                         int64_t k, int32_t isa, Array<int64_t, 1> positions,
                         Array<float, 1> scores) {
    const int64_t n = rows_of(rows), dim = columns_of(rows), room = std::min(k, n);
    need(rows_of(query) == dim && (!mask || rows_of(*mask) == n) && rows_of(positions) >= room &&
             rows_of(scores) >= room,
         "query, mask, positions or scores do not fit rows and k");
    int64_t found = 0;
    run([&] {
        return edgemem_scan_topk(rows.data(), n, dim, query.data(), bytes_of(mask), k, isa,
                                 positions.data(), scores.data(), &found);
    });
    return found;
}

static void dots(Array<const float, 2> rows, Array<const int64_t, 1> positions,
                 Array<const float, 2> queries, int32_t isa, Array<float, 2> out) {
    const int64_t m = rows_of(positions), q = rows_of(queries);
    need(columns_of(queries) == columns_of(rows) && rows_of(out) == m && columns_of(out) == q,
         "queries or out do not fit rows and positions");
    run([&] {
        return edgemem_dots(rows.data(), rows_of(rows), columns_of(rows), positions.data(), m,
                            queries.data(), q, isa, out.data());
    });
}

static void quantize_i8(Array<const float, 2> rows, Array<int8_t, 2> out, Array<float, 1> scales) {
    const int64_t n = rows_of(rows), dim = columns_of(rows);
    need(rows_of(out) == n && columns_of(out) == dim && rows_of(scales) == n,
         "out or scales do not fit rows");
    run([&] { return edgemem_quantize_i8(rows.data(), n, dim, out.data(), scales.data()); });
}

static int64_t scan_topk_i8(Array<const int8_t, 2> rows, Array<const float, 1> scales,
                            Array<const float, 1> query, Array<const int8_t, 1> query_i8,
                            float query_scale, Mask mask, int64_t k, int32_t isa,
                            Array<int64_t, 1> survivor_positions, Array<float, 1> survivor_scores,
                            Array<int64_t, 1> positions, Array<float, 1> scores) {
    const int64_t n = rows_of(rows), dim = columns_of(rows), room = std::min(k, n);
    const int64_t survivors = rows_of(survivor_positions);
    need(rows_of(scales) == n && rows_of(query) == dim && rows_of(query_i8) == dim &&
             (!mask || rows_of(*mask) == n) && rows_of(survivor_scores) == survivors &&
             rows_of(positions) >= room && rows_of(scores) >= room,
         "scales, queries, mask, survivors, positions or scores do not fit rows and k");
    int64_t found = 0;
    run([&] {
        return edgemem_scan_topk_i8(rows.data(), scales.data(), n, dim, query.data(),
                                    query_i8.data(), query_scale, bytes_of(mask), k, survivors,
                                    isa, survivor_positions.data(), survivor_scores.data(),
                                    positions.data(), scores.data(), &found);
    });
    return found;
}

static std::pair<float, float> metric_query(Array<const float, 1> query, Array<const float, 1> mean,
                                            Array<const float, 1> inverse_diagonal,
                                            Array<const float, 2> directions, int32_t isa,
                                            Array<float, 1> workspace, Array<float, 1> image) {
    const int64_t dim = rows_of(query);
    need(rows_of(mean) == dim && rows_of(inverse_diagonal) == dim &&
             columns_of(directions) == dim && rows_of(workspace) >= dim && rows_of(image) == dim,
         "mean, inverse_diagonal, directions, workspace or image do not fit query");
    float offset = 0.0f, norm = 0.0f;
    run([&] {
        return edgemem_metric_query(query.data(), dim, mean.data(), inverse_diagonal.data(),
                                    directions.data(), rows_of(directions), isa, workspace.data(),
                                    image.data(), &offset, &norm);
    });
    return {offset, norm};
}

static int64_t rank(Array<const float, 2> features, Array<const float, 1> weights, float bias,
                    int64_t k, Array<float, 1> all_scores, Array<int64_t, 1> positions,
                    Array<float, 1> scores) {
    const int64_t m = rows_of(features), f = columns_of(features), room = std::min(k, m);
    need(rows_of(weights) == f && rows_of(all_scores) == m && rows_of(positions) >= room &&
             rows_of(scores) >= room,
         "weights, all_scores, positions or scores do not fit features and k");
    int64_t found = 0;
    run([&] {
        return edgemem_rank(features.data(), m, f, weights.data(), bias, k, all_scores.data(),
                            positions.data(), scores.data(), &found);
    });
    return found;
}

static int64_t bm25(Array<const int32_t, 1> docs, Array<const uint16_t, 1> counts,
                    Array<const int64_t, 1> starts, Array<const int64_t, 1> sizes,
                    Array<const int32_t, 1> lengths, Mask allowed, int64_t n_allowed,
                    double average_length, double k1, double b, int64_t k, Array<double, 1> idf,
                    Array<float, 1> scores, Array<int64_t, 1> top_docs,
                    Array<float, 1> top_scores) {
    const int64_t postings = rows_of(docs), terms = rows_of(starts), n = rows_of(lengths);
    const int64_t room = std::min(k, n);
    need(rows_of(counts) == postings && rows_of(sizes) == terms && rows_of(idf) == terms &&
             rows_of(scores) == n && (!allowed || rows_of(*allowed) == n) &&
             rows_of(top_docs) >= room && rows_of(top_scores) >= room,
         "counts, sizes, idf, scores, allowed, top_docs or top_scores do not fit docs, starts, "
         "lengths and k");
    int64_t found = 0;
    run([&] {
        return edgemem_bm25(docs.data(), counts.data(), postings, starts.data(), sizes.data(),
                            terms, lengths.data(), bytes_of(allowed), n, n_allowed,
                            average_length, k1, b, k, idf.data(), scores.data(), top_docs.data(),
                            top_scores.data(), &found);
    });
    return found;
}

// Checks the shapes that both similarity functions share. Returns the number of rows of wanted.
template <typename Number>
static int64_t wanted_of(const Array<const Number, 2> &rows, const Array<const int64_t, 1> &next,
                         const Array<const int64_t, 2> &wanted, const Array<const float, 1> &query,
                         const Array<float, 2> &out) {
    need(rows_of(next) == rows_of(rows) && rows_of(query) == columns_of(rows) &&
             rows_of(out) == rows_of(wanted) && columns_of(out) <= columns_of(wanted),
         "next, query or out do not fit rows and wanted");
    return rows_of(wanted);
}

static void similarities(Array<const float, 2> rows, Array<const int64_t, 1> first,
                         Array<const int64_t, 1> next, Array<const int64_t, 2> wanted,
                         Array<const float, 1> query, float offset, float scale, float limit,
                         int32_t isa, Array<float, 2> out) {
    const int64_t m = wanted_of(rows, next, wanted, query, out);
    run([&] {
        return edgemem_similarities(rows.data(), rows_of(rows), columns_of(rows), first.data(),
                                    rows_of(first), next.data(), wanted.data(), m,
                                    columns_of(wanted), columns_of(out), query.data(), offset,
                                    scale, limit, isa, out.data());
    });
}

static void similarities_i8(Array<const int8_t, 2> rows, Array<const float, 1> scales,
                            Array<const int64_t, 1> first, Array<const int64_t, 1> next,
                            Array<const int64_t, 2> wanted, Array<const float, 1> query,
                            float offset, float scale, float limit, int32_t isa,
                            Array<float, 2> out) {
    const int64_t m = wanted_of(rows, next, wanted, query, out);
    need(rows_of(scales) == rows_of(rows), "scales do not fit rows");
    run([&] {
        return edgemem_similarities_i8(rows.data(), scales.data(), rows_of(rows), columns_of(rows),
                                       first.data(), rows_of(first), next.data(), wanted.data(), m,
                                       columns_of(wanted), columns_of(out), query.data(), offset,
                                       scale, limit, isa, out.data());
    });
}

static void maxsim_i8(Array<const int8_t, 2> rows, Array<const int64_t, 1> offsets,
                      Array<const int8_t, 2> query, int32_t isa, Array<int32_t, 2> out) {
    const int64_t m = rows_of(out), q = rows_of(query);
    need(rows_of(offsets) == m + 1 && columns_of(query) == columns_of(rows) && columns_of(out) == q,
         "offsets, query or out do not fit rows");
    run([&] {
        return edgemem_maxsim_i8(rows.data(), rows_of(rows), columns_of(rows), offsets.data(), m,
                                 query.data(), q, isa, out.data());
    });
}

static int64_t beside(Array<const int64_t, 1> proposals, Array<const int64_t, 1> place,
                      Array<const int64_t, 1> before, Array<const int64_t, 1> after,
                      Array<const int32_t, 1> speaker, Array<const bool, 1> allowed,
                      Array<uint8_t, 1> workspace, Array<int64_t, 2> out) {
    const int64_t m = rows_of(proposals), n = rows_of(place);
    need(rows_of(before) == n && rows_of(after) == n && rows_of(speaker) == n &&
             rows_of(allowed) == n && rows_of(workspace) >= n &&
             rows_of(out) >= std::min(3 * m, n) && columns_of(out) == 7,
         "before, after, speaker, allowed, workspace or out do not fit proposals and place");
    int64_t found = 0;
    run([&] {
        return edgemem_beside(proposals.data(), m, place.data(), before.data(), after.data(),
                              speaker.data(), reinterpret_cast<const uint8_t *>(allowed.data()), n,
                              workspace.data(), out.data(), &found);
    });
    return found;
}

static void word_features(Array<const int64_t, 2> around, Array<const int64_t, 1> session,
                          Array<const int32_t, 1> slot, Array<const int32_t, 1> docs,
                          Array<const int64_t, 1> starts, Array<const int64_t, 1> sizes,
                          Array<const double, 1> idf, Array<const float, 1> scores,
                          Array<const int32_t, 1> lengths, Mask timed, int64_t max_length,
                          Array<int64_t, 1> order, Array<uint8_t, 1> having,
                          Array<float, 2> out) {
    const int64_t m = rows_of(around), terms = rows_of(starts), slots = rows_of(scores);
    need(columns_of(around) == 7 && rows_of(sizes) == terms && rows_of(idf) == terms &&
             rows_of(lengths) == slots && (!timed || rows_of(*timed) == slots) &&
             rows_of(order) >= 2 * m && rows_of(having) >= (m + 2) * terms && rows_of(out) == m &&
             columns_of(out) == 6,
         "around, sizes, idf, lengths, timed, order, having or out do not fit");
    run([&] {
        return edgemem_word_features(around.data(), m, session.data(), rows_of(session),
                                     slot.data(), rows_of(slot), docs.data(), rows_of(docs),
                                     starts.data(), sizes.data(), terms, idf.data(),
                                     scores.data(), lengths.data(), bytes_of(timed), slots,
                                     max_length, order.data(), having.data(), out.data());
    });
}

// How an argument is read. No array is converted, because an output would then be written to a
// temporary copy and lost.
template <typename T>
static auto argument() {
    if constexpr (std::is_arithmetic_v<T>) {
        return nb::arg();
    } else if constexpr (std::is_same_v<T, Mask>) {
        return nb::arg().noconvert().none();
    } else {
        return nb::arg().noconvert();
    }
}

template <typename Result, typename... Arguments>
static void define(nb::module_ &m, const char *name, Result (*function)(Arguments...)) {
    m.def(name, function, argument<Arguments>()...);
}

NB_MODULE(_native, m) {
    m.attr("ABI_VERSION") = edgemem_abi_version();
    m.attr("BEST_ISA") = edgemem_best_isa();
    define(m, "isa_name", edgemem_isa_name);
    define(m, "scan_topk", scan_topk);
    define(m, "dots", dots);
    define(m, "quantize_i8", quantize_i8);
    define(m, "scan_topk_i8", scan_topk_i8);
    define(m, "metric_query", metric_query);
    define(m, "rank", rank);
    define(m, "bm25", bm25);
    define(m, "similarities", similarities);
    define(m, "similarities_i8", similarities_i8);
    define(m, "maxsim_i8", maxsim_i8);
    define(m, "beside", beside);
    define(m, "word_features", word_features);
}
