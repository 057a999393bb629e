// The Python module edgemem._native: the C ABI as it stands, and nothing else. Output buffers come
// from the caller (edgemem/kernels.py), which also checks shapes and words the errors.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>

#include <optional>

#include "edgemem.h"

namespace nb = nanobind;
using namespace nb::literals;

template <typename T, int Dimensions>
using Array = nb::ndarray<T, nb::ndim<Dimensions>, nb::c_contig, nb::device::cpu>;

static int64_t scan_topk(Array<const float, 2> rows, Array<const float, 1> query,
                         std::optional<Array<const bool, 1>> mask, int64_t k, int32_t isa,
                         Array<int64_t, 1> positions, Array<float, 1> scores) {
    const int64_t n = static_cast<int64_t>(rows.shape(0));
    const int64_t dim = static_cast<int64_t>(rows.shape(1));
    const int64_t room = k < n ? k : n;
    if (static_cast<int64_t>(query.shape(0)) != dim ||
        (mask && static_cast<int64_t>(mask->shape(0)) != n) ||
        static_cast<int64_t>(positions.shape(0)) < room ||
        static_cast<int64_t>(scores.shape(0)) < room) {
        throw nb::value_error("query, mask, positions or scores do not fit rows and k");
    }
    const auto *bytes = mask ? reinterpret_cast<const uint8_t *>(mask->data()) : nullptr;
    int64_t found = 0;
    int32_t status;
    {
        nb::gil_scoped_release other_threads_may_run;
        status = edgemem_scan_topk(rows.data(), n, dim, query.data(), bytes, k, isa,
                                   positions.data(), scores.data(), &found);
    }
    if (status != EDGEMEM_OK) {
        throw nb::value_error(edgemem_status_text(status));
    }
    return found;
}

NB_MODULE(_native, m) {
    m.attr("ABI_VERSION") = edgemem_abi_version();
    m.attr("BEST_ISA") = edgemem_best_isa();
    m.def("isa_name", &edgemem_isa_name, "isa"_a);
    m.def("scan_topk", &scan_topk, "rows"_a.noconvert(), "query"_a.noconvert(),
          "mask"_a.noconvert().none(), "k"_a, "isa"_a, "positions"_a.noconvert(),
          "scores"_a.noconvert());
}
