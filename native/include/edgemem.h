/* edgemem: the C ABI of the retrieval kernels.
 *
 * Plain C, no Python, no allocation: every buffer belongs to the caller, and so does its lifetime.
 * Every function may be called from any number of threads at once; none keeps state.
 * A change of a signature or of a number below raises EDGEMEM_ABI_VERSION.
 */
#ifndef EDGEMEM_H
#define EDGEMEM_H

#include <stdint.h>

#if defined(EDGEMEM_SHARED) && defined(_WIN32)
#  ifdef EDGEMEM_BUILDING
#    define EDGEMEM_API __declspec(dllexport)
#  else
#    define EDGEMEM_API __declspec(dllimport)
#  endif
#elif defined(__GNUC__)
#  define EDGEMEM_API __attribute__((visibility("default")))
#else
#  define EDGEMEM_API
#endif

#define EDGEMEM_ABI_VERSION 1

/* What a call returns. */
#define EDGEMEM_OK 0
#define EDGEMEM_ERR_NULL 1 /* a buffer that is needed is NULL */
#define EDGEMEM_ERR_SIZE 2 /* n < 0, dim < 1, k < 1, or n * dim floats exceed the address space */
#define EDGEMEM_ERR_ISA 3  /* an instruction set that this build or this processor lacks */

/* Instruction sets. AUTO is the best that the processor has. */
#define EDGEMEM_ISA_AUTO 0
#define EDGEMEM_ISA_SCALAR 1
#define EDGEMEM_ISA_AVX2 2 /* x86-64 with AVX2 and FMA */
#define EDGEMEM_ISA_NEON 3 /* 64-bit ARM */

#ifdef __cplusplus
extern "C" {
#endif

/* EDGEMEM_ABI_VERSION of the library, to compare with the header's. */
EDGEMEM_API int32_t edgemem_abi_version(void);

/* The instruction set that AUTO means on this processor, one of EDGEMEM_ISA_*. */
EDGEMEM_API int32_t edgemem_best_isa(void);

/* "scalar", "avx2" or "neon"; "unknown" for any other number. Static storage. */
EDGEMEM_API const char *edgemem_isa_name(int32_t isa);

/* One English sentence for a status. Static storage. */
EDGEMEM_API const char *edgemem_status_text(int32_t status);

/* The k rows with the largest inner product with a query, best first.
 *
 * rows       n * dim floats, row after row; may be NULL only if n == 0
 * query      dim floats
 * mask       n bytes, a row counts where its byte is not 0; NULL: all rows count
 * k          how many are wanted, >= 1
 * isa        EDGEMEM_ISA_AUTO, or one of the others to compare them
 * positions  room for min(k, n) numbers; receives row numbers. Equal scores: lower number first
 * scores     room for min(k, n) floats; receives their inner products
 * found      receives how many were written: min(k, rows that count)
 *
 * A row whose inner product is NaN scores -infinity. Cost O(n * dim + n * log k), no memory.
 * Returns EDGEMEM_OK, or an error and then writes nothing.
 */
EDGEMEM_API int32_t edgemem_scan_topk(const float *rows, int64_t n, int64_t dim,
                                      const float *query, const uint8_t *mask, int64_t k,
                                      int32_t isa, int64_t *positions, float *scores,
                                      int64_t *found);

#ifdef __cplusplus
}
#endif
#endif
