// The only file with NEON instructions. Every 64-bit ARM processor has them.
#include "loops.h"

#if EDGEMEM_HAS_NEON

#include <arm_neon.h>

namespace edgemem {
namespace {

inline float32x4x4_t load16(const float *numbers) {
    return {{vld1q_f32(numbers), vld1q_f32(numbers + 4), vld1q_f32(numbers + 8),
             vld1q_f32(numbers + 12)}};
}

inline float32x4x4_t load16(const int8_t *numbers) {
    const int8x16_t bytes = vld1q_s8(numbers);
    const int16x8_t low = vmovl_s8(vget_low_s8(bytes)), high = vmovl_high_s8(bytes);
    return {{vcvtq_f32_s32(vmovl_s16(vget_low_s16(low))), vcvtq_f32_s32(vmovl_high_s16(low)),
             vcvtq_f32_s32(vmovl_s16(vget_low_s16(high))), vcvtq_f32_s32(vmovl_high_s16(high))}};
}

template <typename Number, int Queries>
void dots(const Number *row, const float *queries, int64_t dim, float *out) {
    float32x4_t sums[Queries][4];
    for (int q = 0; q < Queries; ++q) {
        sums[q][0] = sums[q][1] = sums[q][2] = sums[q][3] = vdupq_n_f32(0.0f);
    }
    int64_t i = 0;
    for (; i + 16 <= dim; i += 16) {
        const float32x4x4_t numbers = load16(row + i);
        for (int q = 0; q < Queries; ++q) {
            const float *query = queries + q * dim + i;
            for (int part = 0; part < 4; ++part) {
                sums[q][part] =
                    vfmaq_f32(sums[q][part], numbers.val[part], vld1q_f32(query + 4 * part));
            }
        }
    }
    for (int q = 0; q < Queries; ++q) {
        const float32x4_t *s = sums[q];
        float sum = vaddvq_f32(vaddq_f32(vaddq_f32(s[0], s[1]), vaddq_f32(s[2], s[3])));
        for (int64_t rest = i; rest < dim; ++rest) {
            sum += static_cast<float>(row[rest]) * queries[q * dim + rest];
        }
        out[q] = sum;
    }
}

int32_t dot_bytes(const int8_t *a, const int8_t *b, int64_t dim) {
    int32x4_t s0 = vdupq_n_s32(0), s1 = s0;
    int64_t i = 0;
    for (; i + 16 <= dim; i += 16) {
        const int8x16_t left = vld1q_s8(a + i), right = vld1q_s8(b + i);
        s0 = vpadalq_s16(s0, vmull_s8(vget_low_s8(left), vget_low_s8(right)));
        s1 = vpadalq_s16(s1, vmull_high_s8(left, right));
    }
    int32_t sum = vaddvq_s32(vaddq_s32(s0, s1));
    for (; i < dim; ++i) {
        sum += a[i] * b[i];
    }
    return sum;
}

void scan(const float *rows, int64_t count, const float *query, int64_t dim, float *out) {
    for (int64_t row = 0; row < count; ++row) {
        dots<float, 1>(rows + row * dim, query, dim, out + row);
    }
}

void scan_bytes(const int8_t *rows, int64_t count, const int8_t *query, int64_t dim, int32_t *out) {
    for (int64_t row = 0; row < count; ++row) {
        out[row] = dot_bytes(rows + row * dim, query, dim);
    }
}

}  // namespace

const Loops loops_neon = {{dots<float, 1>, dots<float, 2>},
                          {dots<int8_t, 1>, dots<int8_t, 2>},
                          scan,
                          scan_bytes,
                          add_scatter_plain};

}  // namespace edgemem
#endif
