// The loops between a transformer's matrix products, written once and compiled for each instruction
// set: plain arithmetic without branches or calls, which compilers turn into vectors by themselves.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#ifdef _MSC_VER
#  define EDGEMEM_INLINE __forceinline
#else
#  define EDGEMEM_INLINE inline __attribute__((always_inline))
#endif

namespace edgemem {
namespace layer {

constexpr int LANES = 16;

EDGEMEM_INLINE uint32_t bits_of(float number) {
    uint32_t bits;
    std::memcpy(&bits, &number, sizeof bits);
    return bits;
}

EDGEMEM_INLINE float float_of(uint32_t bits) {
    float number;
    std::memcpy(&number, &bits, sizeof number);
    return number;
}

EDGEMEM_INLINE uint16_t half_of(float number) {
    return static_cast<uint16_t>(bits_of(number) >> 16);
}

// The midpoint of the floats that share these upper 16 bits.
EDGEMEM_INLINE float middle_of(uint16_t half) {
    return float_of((static_cast<uint32_t>(half) << 16) | 0x8000u);
}

// e^x within 2 units in the last place; x is clamped to -87.3 to 88, and NaN stays NaN.
// The polynomial is that of the Cephes library, after x = n ln 2 + r.
EDGEMEM_INLINE float exponential(float x) {
    x = x < -87.3f ? -87.3f : x;
    x = x > 88.0f ? 88.0f : x;
    // Adding 1.5 * 2^23 rounds to an integer and leaves it in the lowest bits.
    const float shifted = x * 1.44269504f + 12582912.0f;
    const float n = shifted - 12582912.0f;
    const float r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
    float p = 1.9875691500e-4f;
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1.0f;
    return p * float_of((bits_of(shifted) << 23) + 0x3f800000u);
}

EDGEMEM_INLINE float sum_of(const float *lanes) {
    float sum = 0.0f;
    for (int lane = 0; lane < LANES; ++lane) {
        sum += lanes[lane];
    }
    return sum;
}

EDGEMEM_INLINE float largest(const float *numbers, int64_t count) {
    float lanes[LANES];
    for (int lane = 0; lane < LANES; ++lane) {
        lanes[lane] = numbers[0];
    }
    int64_t i = 0;
    for (; i + LANES <= count; i += LANES) {
        for (int lane = 0; lane < LANES; ++lane) {
            lanes[lane] = numbers[i + lane] > lanes[lane] ? numbers[i + lane] : lanes[lane];
        }
    }
    for (; i < count; ++i) {
        lanes[0] = numbers[i] > lanes[0] ? numbers[i] : lanes[0];
    }
    for (int lane = 1; lane < LANES; ++lane) {
        lanes[0] = lanes[lane] > lanes[0] ? lanes[lane] : lanes[0];
    }
    return lanes[0];
}

EDGEMEM_INLINE float sum(const float *numbers, int64_t count) {
    float lanes[LANES] = {};
    int64_t i = 0;
    for (; i + LANES <= count; i += LANES) {
        for (int lane = 0; lane < LANES; ++lane) {
            lanes[lane] += numbers[i + lane];
        }
    }
    for (; i < count; ++i) {
        lanes[0] += numbers[i];
    }
    return sum_of(lanes);
}

EDGEMEM_INLINE float inner(const float *a, const float *b, int64_t count) {
    float lanes[LANES] = {};
    int64_t i = 0;
    for (; i + LANES <= count; i += LANES) {
        for (int lane = 0; lane < LANES; ++lane) {
            lanes[lane] += a[i + lane] * b[i + lane];
        }
    }
    for (; i < count; ++i) {
        lanes[0] += a[i] * b[i];
    }
    return sum_of(lanes);
}

// Softmax in place; count >= 1.
EDGEMEM_INLINE void softmax(float *numbers, int64_t count) {
    const float most = largest(numbers, count);
    for (int64_t i = 0; i < count; ++i) {
        numbers[i] = exponential(numbers[i] - most);
    }
    const float share = 1.0f / sum(numbers, count);
    for (int64_t i = 0; i < count; ++i) {
        numbers[i] *= share;
    }
}

// d becomes p * (d - p . d).
EDGEMEM_INLINE void softmax_backward(const float *p, float *d, int64_t count) {
    const float mean = inner(p, d, count);
    for (int64_t i = 0; i < count; ++i) {
        d[i] = p[i] * (d[i] - mean);
    }
}

// out becomes x / rms(x) * weight; x and out may be the same.
EDGEMEM_INLINE void rms_norm(const float *x, const float *weight, int64_t size, float eps,
                             float *out, float *inverse, uint16_t *halves) {
    const float r = 1.0f / std::sqrt(inner(x, x, size) / static_cast<float>(size) + eps);
    *inverse = r;
    for (int64_t i = 0; i < size; ++i) {
        halves[i] = half_of(x[i]);
    }
    for (int64_t i = 0; i < size; ++i) {
        out[i] = x[i] * r * weight[i];
    }
}

EDGEMEM_INLINE void rms_norm_backward(const float *d_out, const uint16_t *halves,
                                      const float *weight, int64_t size, float inverse,
                                      float *dx) {
    float lanes[LANES] = {};
    int64_t i = 0;
    for (; i + LANES <= size; i += LANES) {
        for (int lane = 0; lane < LANES; ++lane) {
            lanes[lane] += d_out[i + lane] * weight[i + lane] * middle_of(halves[i + lane]);
        }
    }
    for (; i < size; ++i) {
        lanes[0] += d_out[i] * weight[i] * middle_of(halves[i]);
    }
    const float along = sum_of(lanes) / static_cast<float>(size) * inverse * inverse;
    for (i = 0; i < size; ++i) {
        dx[i] += (d_out[i] * weight[i] - middle_of(halves[i]) * along) * inverse;
    }
}

// Both activations are gate * sigmoid(z). SiLU: z = gate. GELU: as edgemem_gated defines it.
template <bool Gelu>
EDGEMEM_INLINE float z_of(float gate) {
    return Gelu ? 1.5957691216f * gate * (1.0f + 0.044715f * gate * gate) : gate;
}

template <bool Gelu>
EDGEMEM_INLINE float slope_of(float gate) {
    return Gelu ? 1.5957691216f * (1.0f + 0.134145f * gate * gate) : 1.0f;
}

template <bool Gelu>
EDGEMEM_INLINE void gated(const float *gate, const float *up, int64_t size, float *out,
                          uint16_t *halves) {
    for (int64_t i = 0; i < size; ++i) {
        out[i] = gate[i] / (1.0f + exponential(-z_of<Gelu>(gate[i]))) * up[i];
    }
    for (int64_t i = 0; i < size; ++i) {
        halves[i] = half_of(gate[i]);
    }
    for (int64_t i = 0; i < size; ++i) {
        halves[size + i] = half_of(up[i]);
    }
}

template <bool Gelu>
EDGEMEM_INLINE void gated_backward(const uint16_t *halves, const float *d_out, int64_t size,
                                   float *d_gate_up) {
    for (int64_t i = 0; i < size; ++i) {
        const float gate = middle_of(halves[i]), up = middle_of(halves[size + i]);
        const float share = 1.0f / (1.0f + exponential(-z_of<Gelu>(gate)));
        d_gate_up[size + i] = d_out[i] * gate * share;
        d_gate_up[i] = d_out[i] * up * share *
                       (1.0f + gate * (1.0f - share) * slope_of<Gelu>(gate));
    }
}

}  // namespace layer
}  // namespace edgemem

// Defines a wrapper for each function above, with ATTRIBUTES before it, so that the compiler
// generates the function again for another instruction set.
#define EDGEMEM_LAYER_FUNCTIONS(ATTRIBUTES)                                                       \
    ATTRIBUTES void softmax(float *numbers, int64_t count) { layer::softmax(numbers, count); }    \
    ATTRIBUTES void softmax_backward(const float *p, float *d, int64_t count) {                   \
        layer::softmax_backward(p, d, count);                                                     \
    }                                                                                             \
    ATTRIBUTES void rms_norm(const float *x, const float *weight, int64_t size, float eps,        \
                             float *out, float *inverse, uint16_t *halves) {                      \
        layer::rms_norm(x, weight, size, eps, out, inverse, halves);                              \
    }                                                                                             \
    ATTRIBUTES void rms_norm_backward(const float *d_out, const uint16_t *halves,                 \
                                      const float *weight, int64_t size, float inverse,           \
                                      float *dx) {                                                \
        layer::rms_norm_backward(d_out, halves, weight, size, inverse, dx);                       \
    }                                                                                             \
    ATTRIBUTES void gated(bool gelu, const float *gate_up, int64_t size, float *out,              \
                          uint16_t *halves) {                                                     \
        if (gelu) {                                                                               \
            layer::gated<true>(gate_up, gate_up + size, size, out, halves);                       \
        } else {                                                                                  \
            layer::gated<false>(gate_up, gate_up + size, size, out, halves);                      \
        }                                                                                         \
    }                                                                                             \
    ATTRIBUTES void gated_backward(bool gelu, const uint16_t *halves, const float *d_out,         \
                                   int64_t size, float *d_gate_up) {                              \
        if (gelu) {                                                                               \
            layer::gated_backward<true>(halves, d_out, size, d_gate_up);                          \
        } else {                                                                                  \
            layer::gated_backward<false>(halves, d_out, size, d_gate_up);                         \
        }                                                                                         \
    }
