// A transformer's layers between its matrix products: softmax, norms and gated units, forward and
// backward.
#include <algorithm>
#include <initializer_list>

#include "edgemem.h"
#include "loops.h"
#include "topk.h"

namespace {

// Checks the arguments that all functions here share, then calls body(loops, row) for each row.
// A row has up to `arrays` * `columns` numbers. in_range: whether the function's own arguments are.
template <typename Body>
int32_t each_row(int64_t rows, int64_t columns, int64_t arrays, int32_t isa,
                 std::initializer_list<const void *> buffers, bool in_range, Body body) {
    if (rows < 0 || columns < 1 || columns > INT64_MAX / (8 * arrays) ||
        !edgemem::fits(rows, columns * arrays, sizeof(float))) {
        return EDGEMEM_ERR_SIZE;
    }
    const edgemem::Loops *loops = edgemem::loops_for(isa);
    if (!loops) {
        return EDGEMEM_ERR_ISA;
    }
    if (rows > 0 && std::count(buffers.begin(), buffers.end(), nullptr)) {
        return EDGEMEM_ERR_NULL;
    }
    if (!in_range) {
        return EDGEMEM_ERR_RANGE;
    }
    for (int64_t row = 0; row < rows; ++row) {
        body(*loops, row);
    }
    return EDGEMEM_OK;
}

bool is_activation(int32_t activation) {
    return activation == EDGEMEM_SILU || activation == EDGEMEM_GELU;
}

}  // namespace

extern "C" {

int32_t edgemem_softmax_causal(float *scores, int64_t rows, int64_t keys, int64_t group,
                               int64_t first, int64_t window, int32_t isa) {
    if (keys < 1 || group < 1 || window < 1) {
        return EDGEMEM_ERR_SIZE;
    }
    const bool in_range = first >= 0 && (rows <= 0 || first < keys - (rows - 1) / group);
    return each_row(rows, keys, 1, isa, {scores}, in_range, [=](const auto &loops, int64_t row) {
        float *numbers = scores + row * keys;
        const int64_t position = first + row / group;
        const int64_t seen = std::max<int64_t>(0, position - window + 1);
        std::fill(numbers, numbers + seen, 0.0f);
        loops.softmax(numbers + seen, position + 1 - seen);
        std::fill(numbers + position + 1, numbers + keys, 0.0f);
    });
}

int32_t edgemem_softmax_backward(const float *p, float *d, int64_t rows, int64_t keys,
                                 int32_t isa) {
    return each_row(rows, keys, 1, isa, {p, d}, true, [=](const auto &loops, int64_t row) {
        loops.softmax_backward(p + row * keys, d + row * keys, keys);
    });
}

int32_t edgemem_rms_norm(const float *x, const float *weight, int64_t rows, int64_t size,
                         float eps, int32_t isa, float *out, float *inverse, uint16_t *halves) {
    return each_row(rows, size, 1, isa, {x, weight, out, inverse, halves}, true,
                    [=](const auto &loops, int64_t row) {
                        loops.rms_norm(x + row * size, weight, size, eps, out + row * size,
                                       inverse + row, halves + row * size);
                    });
}

int32_t edgemem_rms_norm_backward(const float *d_out, const uint16_t *halves, const float *weight,
                                  const float *inverse, int64_t rows, int64_t size, int32_t isa,
                                  float *dx) {
    return each_row(rows, size, 1, isa, {d_out, halves, weight, inverse, dx}, true,
                    [=](const auto &loops, int64_t row) {
                        loops.rms_norm_backward(d_out + row * size, halves + row * size, weight,
                                                size, inverse[row], dx + row * size);
                    });
}

int32_t edgemem_gated(const float *gate_up, int64_t rows, int64_t size, int32_t activation,
                      int32_t isa, float *out, uint16_t *halves) {
    return each_row(rows, size, 2, isa, {gate_up, out, halves}, is_activation(activation),
                    [=](const auto &loops, int64_t row) {
                        loops.gated(activation == EDGEMEM_GELU, gate_up + row * 2 * size, size,
                                    out + row * size, halves + row * 2 * size);
                    });
}

int32_t edgemem_gated_backward(const uint16_t *halves, const float *d_out, int64_t rows,
                               int64_t size, int32_t activation, int32_t isa, float *d_gate_up) {
    return each_row(rows, size, 2, isa, {halves, d_out, d_gate_up}, is_activation(activation),
                    [=](const auto &loops, int64_t row) {
                        loops.gated_backward(activation == EDGEMEM_GELU, halves + row * 2 * size,
                                             d_out + row * size, size, d_gate_up + row * 2 * size);
                    });
}

}  // extern "C"
