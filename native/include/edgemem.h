/* edgemem: the C ABI of the retrieval kernels.
 *
 * Plain C, no Python, no allocation: every buffer belongs to the caller, and so does its lifetime.
 * Every function may be called from any number of threads at once; none keeps state.
 * A function that returns an error has written nothing. Buffers must not overlap.
 * A sum of floats is added in an order that depends on dim and isa only, so that equal rows get
 * equal scores, from whichever function.
 * A change of a signature or of a number below raises EDGEMEM_ABI_VERSION.
 *
 * m, n, k, q, ...  may be 0 only where it is said; a buffer of 0 elements may be NULL
 * isa              EDGEMEM_ISA_AUTO, or one of the others to compare them
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

#define EDGEMEM_ABI_VERSION 5

/* What a call returns. */
#define EDGEMEM_OK 0
#define EDGEMEM_ERR_NULL 1  /* a buffer that is needed is NULL */
#define EDGEMEM_ERR_SIZE 2  /* a size below its least, or an array beyond the address space */
#define EDGEMEM_ERR_ISA 3   /* an instruction set that this build or this processor lacks */
#define EDGEMEM_ERR_RANGE 4 /* a position outside its buffer, or a parameter outside its range */

/* Instruction sets. AUTO is the best that the processor has. */
#define EDGEMEM_ISA_AUTO 0
#define EDGEMEM_ISA_SCALAR 1
#define EDGEMEM_ISA_AVX2 2 /* x86-64 with AVX2 and FMA */
#define EDGEMEM_ISA_NEON 3 /* 64-bit ARM */

/* The most numbers in an int8 row: the sum of so many products still fits in 32 bits. */
#define EDGEMEM_MAX_DIM_I8 131071

/* Activations of a gated unit; GELU is its tanh form. */
#define EDGEMEM_SILU 0
#define EDGEMEM_GELU 1

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
 * rows       n * dim floats, row after row; n may be 0
 * query      dim floats
 * mask       n bytes, a row counts where its byte is not 0; NULL: all rows count
 * k          how many are wanted, >= 1
 * positions  room for min(k, n) numbers; receives row numbers. Equal scores: lower number first
 * scores     room for min(k, n) floats; receives their inner products
 * found      receives how many were written: min(k, rows that count)
 *
 * A row whose inner product is NaN scores -infinity. Cost O(n * dim + n * log k).
 */
EDGEMEM_API int32_t edgemem_scan_topk(const float *rows, int64_t n, int64_t dim,
                                      const float *query, const uint8_t *mask, int64_t k,
                                      int32_t isa, int64_t *positions, float *scores,
                                      int64_t *found);

/* The inner products of some rows with some queries: what a re-ranker needs of its candidates.
 *
 * rows       n * dim floats
 * positions  m row numbers, each 0 <= position < n, in any order, repeated or not; m may be 0
 * queries    q * dim floats, q >= 1
 * out        m * q floats; receives at [i * q + j] row positions[i] times query j. A NaN stays one
 *
 * Each row is read once for two queries. Cost O(m * q * dim).
 */
EDGEMEM_API int32_t edgemem_dots(const float *rows, int64_t n, int64_t dim,
                                 const int64_t *positions, int64_t m, const float *queries,
                                 int64_t q, int32_t isa, float *out);

/* Rows as 8-bit whole numbers: number = scale * int8, symmetric, a scale for each row.
 *
 * rows       n * dim floats; n may be 0
 * out        n * dim numbers, -127 to 127: rows / scale, rounded, halves to even
 * scales     n floats: the largest magnitude of a row / 127
 *
 * A row of zeros, or one whose scale would be 0 in a float, gets scale 0 and zeros. A row that
 * holds a NaN or an infinity gets scale NaN and zeros: below it scores -infinity.
 * dim may be at most EDGEMEM_MAX_DIM_I8, here and in the two functions that follow.
 */
EDGEMEM_API int32_t edgemem_quantize_i8(const float *rows, int64_t n, int64_t dim, int8_t *out,
                                        float *scales);

/* edgemem_scan_topk over int8 rows: a scan in whole numbers, then its best again in floats.
 *
 * rows, scales        n * dim numbers and n floats, as edgemem_quantize_i8 writes them; n may be 0
 * query               dim floats
 * query_i8            the same, quantised: dim numbers
 * query_scale         and its scale
 * mask                n bytes, a row counts where its byte is not 0; NULL: all rows count
 * k                   how many are wanted, >= 1
 * survivors           how many the scan keeps, >= k: more cost little and lose fewer of the true k
 * survivor_positions  room for min(survivors, n) numbers; receives what the scan kept, best first
 * survivor_scores     room for as many floats; receives scale * query_scale * whole-number product
 * positions           room for min(k, n) numbers; receives row numbers. Equal: lower number first
 * scores              room for as many floats; receives scale * (query times int8 row)
 * found               receives how many of these were written: min(k, rows that count)
 *
 * What the scan keeps is the same under every isa, bit for bit. A NaN score is -infinity.
 * Cost O(n * dim + n * log survivors + survivors * dim).
 */
EDGEMEM_API int32_t edgemem_scan_topk_i8(const int8_t *rows, const float *scales, int64_t n,
                                         int64_t dim, const float *query, const int8_t *query_i8,
                                         float query_scale, const uint8_t *mask, int64_t k,
                                         int64_t survivors, int32_t isa,
                                         int64_t *survivor_positions, float *survivor_scores,
                                         int64_t *positions, float *scores, int64_t *found);

/* edgemem_dots over int8 rows: at [i * q + j], scale * (int8 row times query j). */
EDGEMEM_API int32_t edgemem_dots_i8(const int8_t *rows, const float *scales, int64_t n,
                                    int64_t dim, const int64_t *positions, int64_t m,
                                    const float *queries, int64_t q, int32_t isa, float *out);

/* The low-rank Mahalanobis metric of a set of rows (CoreMem, section 3.2, eq. 1):
 *
 *   S = U diag(M) U' + diag(D),   inverse of S = diag(1/D) - A A'   (Woodbury)
 *
 * with unit rows, their mean, their variance v per dimension, D = v + c * mean(v), U the top
 * directions of the centred rows and M their variances. edgemem/retrieval/metric.py has the
 * derivation and the departures from the paper. A metric is three arrays of the caller:
 *
 * mean              dim floats
 * inverse_diagonal  dim floats, 1/D
 * directions        rank * dim floats, the columns of A, one after another
 */

/* How many doubles edgemem_metric_fit works in; 0 if dim < 1, max_rank < 0 or there are too many
 * to count. max_rank above dim means dim. */
EDGEMEM_API int64_t edgemem_metric_workspace(int64_t dim, int64_t max_rank);

/* Fit a metric.
 *
 * rows        n * dim floats of any length; normalised here; n may be 0
 * c           ridge, 0.001 to 1000: beyond, floats may not hold the inverse; the paper has 10
 * tau         share of the variance that U is to explain, above 0, at most 1: the paper's 0.95
 * max_rank    directions at most, >= 0: the paper's 100
 * workspace   edgemem_metric_workspace(dim, max_rank) doubles
 * mean, inverse_diagonal  dim floats each
 * directions  room for min(max_rank, dim) * dim floats; receives rank * dim
 * rank        receives the number of directions, at most n - 1
 * count       receives the number of rows that took part
 *
 * Rows that hold a NaN or an infinity, or are all zero, take no part. No rows: the identity, mean
 * 0, inverse diagonal 1, rank 0. Rows that are all the same (mean squared distance to their mean
 * <= 1e-10): the identity around their mean. Cost O(n * dim^2 + dim^3).
 */
EDGEMEM_API int32_t edgemem_metric_fit(const float *rows, int64_t n, int64_t dim, double c,
                                       double tau, int64_t max_rank, int32_t isa,
                                       double *workspace, float *mean, float *inverse_diagonal,
                                       float *directions, int64_t *rank, int64_t *count);

/* Move a query through a metric, so that a row costs one dot product from then on:
 *
 *   (query - mean)' S^-1 (row - mean) = image . row + offset
 *   whitened cosine                   = (image . row + offset) / (norm * the row's norm)
 *
 * query      dim floats of any length; normalised here
 * rank       of the metric, >= 0
 * workspace  dim floats
 * image      dim floats; receives S^-1 (query - mean)
 * offset     receives -image . mean
 * norm       receives the query's length in the metric, sqrt((query - mean) . image), or 0 if it
 *            is within rounding (1e-6 of the metric's largest unit) of the mean
 *
 * A query that is all zero or not finite gets image 0, offset 0, norm 0. Where a norm is 0 the
 * whitened cosine is to be taken for 0. Cost O(dim * rank).
 */
EDGEMEM_API int32_t edgemem_metric_query(const float *query, int64_t dim, const float *mean,
                                         const float *inverse_diagonal, const float *directions,
                                         int64_t rank, int32_t isa, float *workspace, float *image,
                                         float *offset, float *norm);

/* The length in a metric of each row around the mean, sqrt((row - mean)' S^-1 (row - mean)).
 *
 * rows       n * dim floats of length 1, as they are stored: not normalised here; n may be 0
 * workspace  8 * dim floats
 * norms      n floats >= 0; 0 for a row that is not finite or is, within rounding, the mean
 */
EDGEMEM_API int32_t edgemem_metric_norms(const float *rows, int64_t n, int64_t dim,
                                         const float *mean, const float *inverse_diagonal,
                                         const float *directions, int64_t rank, int32_t isa,
                                         float *workspace, float *norms);

/* One score for each candidate, features . weights + bias, and the k best.
 *
 * features    m * f floats, one row for each candidate; m may be 0, f >= 1
 * weights     f floats
 * k           how many are wanted, >= 1
 * all_scores  m floats; receives every score. A NaN is -infinity
 * positions   room for min(k, m) numbers; receives the best candidates. Equal: lower number first
 * scores      room for as many floats; receives their scores
 * found       receives min(k, m)
 *
 * Sums are in double, in the order of the features. Cost O(m * f + m * log k).
 */
EDGEMEM_API int32_t edgemem_rank(const float *features, int64_t m, int64_t f, const float *weights,
                                 float bias, int64_t k, float *all_scores, int64_t *positions,
                                 float *scores, int64_t *found);

/* BM25 of every document for one query, and the k best.
 *
 * The postings of all terms lie in two arrays; those of query term t are the sizes[t] entries from
 * starts[t] on, each document at most once.
 *
 * docs            postings document numbers, 0 <= doc < n where a term of the query points;
 *                 postings, terms and n may be 0
 * counts          postings numbers >= 1: how often the term is in that document
 * starts, sizes   terms numbers each; 0 <= start, start + size <= postings
 * lengths         n numbers >= 0: how many tokens a document has
 * allowed         n bytes, a document counts where its byte is not 0; NULL: all count
 * n_allowed       N, how many documents count
 * average_length  of the documents that count, in tokens: 1e-9 to 2^31 - 1
 * k1, b           0 to 1000, and 0 to 1; 1.2 and 0.75 are usual
 * k               how many are wanted, >= 1
 * idf             room for terms numbers; receives ln(1 + (N - m + 0.5) / (m + 0.5)) of each term,
 *                 m = the documents with it that count: what no search may see has no influence.
 *                 An m beyond n_allowed is taken for n_allowed in N - m
 * scores          room for n floats; receives every document's score, 0 where no term is in it
 * top_docs        room for min(k, n) numbers; receives the documents with a score above 0, best
 *                 first. Equal scores: lower number first
 * top_scores      room for min(k, n) floats
 * found           receives how many were written to these two
 *
 * A term adds idf * count * (k1 + 1) / (count + k1 * (1 - b + b * length / average_length)); terms
 * are added in the order given, in float32. Cost O(n + postings of the query's terms).
 */
EDGEMEM_API int32_t edgemem_bm25(const int32_t *docs, const uint16_t *counts, int64_t postings,
                                 const int64_t *starts, const int64_t *sizes, int64_t terms,
                                 const int32_t *lengths, const uint8_t *allowed, int64_t n,
                                 int64_t n_allowed, double average_length, double k1, double b,
                                 int64_t k, double *idf, float *scores, int64_t *top_docs,
                                 float *top_scores, int64_t *found);

/* How near each memory is to a query: (p + offset) * scale, kept within +-limit, p the largest inner
 * product of its rows with the query; a memory may have several. 0 for a memory without rows.
 *
 * rows      n * dim floats; n may be 0
 * first     memories numbers: the row that a memory's chain begins with. memories may be 0
 * next      n numbers: the row after this one in its chain. A chain ascends, and ends before a number
 *           that does not or that is no row's, such as -1
 * wanted    m * width numbers of memories, in any order, repeated or not; m may be 0. One that is not
 *           0 to memories - 1, or whose first row is not 0 to n - 1, has no rows
 * columns   how many of the width numbers are wanted: the first ones, 1 to width
 * query     dim floats
 * scale     above 0
 * limit     0 or more
 * out       m * columns floats. A product that is NaN is passed over
 *
 * The cosine: unit rows and query, 0, 1, 1. The centred inner product under a metric: what
 * edgemem_metric_query gives, with 1 / norm for scale. Cost O(rows of the memories wanted * dim).
 */
EDGEMEM_API int32_t edgemem_similarities(const float *rows, int64_t n, int64_t dim,
                                         const int64_t *first, int64_t memories,
                                         const int64_t *next, const int64_t *wanted, int64_t m,
                                         int64_t width, int64_t columns, const float *query,
                                         float offset, float scale, float limit, int32_t isa,
                                         float *out);

/* edgemem_similarities over int8 rows, each product times the scale of its row. */
EDGEMEM_API int32_t edgemem_similarities_i8(const int8_t *rows, const float *scales, int64_t n,
                                            int64_t dim, const int64_t *first, int64_t memories,
                                            const int64_t *next, const int64_t *wanted, int64_t m,
                                            int64_t width, int64_t columns, const float *query,
                                            float offset, float scale, float limit, int32_t isa,
                                            float *out);

/* Late interaction: for each text and each token of a query, the largest inner product of that token
 * with a token of the text. Whole numbers, so every instruction set gives the same.
 *
 * rows     n * dim numbers: the tokens of all texts, one text after the other; n may be 0
 * dim      at most EDGEMEM_MAX_DIM_I8
 * offsets  m + 1 numbers, ascending, 0 to n: text i has the rows from offsets[i] to before
 *          offsets[i + 1]; m may be 0
 * query    q * dim numbers: the query's tokens
 * out      m * q numbers; INT32_MIN for a text without tokens
 *
 * Cost O(rows of the texts * q * dim).
 */
EDGEMEM_API int32_t edgemem_maxsim_i8(const int8_t *rows, int64_t n, int64_t dim,
                                      const int64_t *offsets, int64_t m, const int8_t *query,
                                      int64_t q, int32_t isa, int32_t *out);

/* The candidates of a search: what was proposed and what was said beside it in the conversation.
 *
 * proposals      m numbers of memories, in any order, repeated or not; m may be 0
 * place          n numbers: the turn's memory that each was taken from, else itself. n >= 1
 * before, after  n numbers each: of a turn's memory, the turn said just before and after; 0: none
 * speaker        n numbers: who said it
 * allowed        n bytes, a memory may be found where its byte is not 0. Memory 0 is nobody: its byte
 *                must be 0
 * workspace      n bytes
 * out            room for min(3 * m, n) * 7 numbers; receives for each candidate, by ascending
 *                number: itself; the memories before and after its place if somebody else said them;
 *                these two whoever said them; the one before the one before, and after the one
 *                after. 0 where there is none or it is not allowed
 * found          receives how many candidates there are
 *
 * Candidates are the proposals and the memories before and after their places, as far as allowed.
 * Cost O(n + m); the n is one pass over bytes.
 */
EDGEMEM_API int32_t edgemem_beside(const int64_t *proposals, int64_t m, const int64_t *place,
                                   const int64_t *before, const int64_t *after,
                                   const int32_t *speaker, const uint8_t *allowed, int64_t n,
                                   uint8_t *workspace, int64_t *out, int64_t *found);

/* What the words of a query say of each candidate.
 *
 * around      m * 7 numbers, as edgemem_beside gives them: candidates ascend; m may be 0
 * session     n numbers: the session of each memory; n above every candidate
 * slot        memories numbers, -1 to slots - 1: the document of each memory; -1: it has none, as any
 *             memory beyond them
 * docs, starts, sizes, terms, postings, lengths
 *             as for edgemem_bm25, lengths and scores of `slots` documents; here the documents of a
 *             term must ascend
 * idf, scores as edgemem_bm25 gives them. A document with the score 0 has none of the terms
 * timed       slots bytes, not 0 for a document that says when; NULL: none does
 * max_length  of a document's tokens, how many count
 * order       workspace, 2 * m numbers
 * having      workspace, (m + 2) * terms bytes
 * out         m * 6 floats; receives for each candidate: its score; the sum of those of the last four
 *             around it; the share of the idf that it and the next two around it have; the best score
 *             of a candidate in its session; ln(1 + its length); 1 if it is timed, else 0
 *
 * Cost O(m * (log m + terms * log postings)).
 */
EDGEMEM_API int32_t edgemem_word_features(
    const int64_t *around, int64_t m, const int64_t *session, int64_t n, const int32_t *slot,
    int64_t memories, const int32_t *docs, int64_t postings, const int64_t *starts,
    const int64_t *sizes, int64_t terms, const double *idf, const float *scores,
    const int32_t *lengths, const uint8_t *timed, int64_t slots, int64_t max_length,
    int64_t *order, uint8_t *having, float *out);

/* Attention's scores become probabilities, each row by a softmax over the keys that it sees.
 *
 * scores  rows * keys floats, in place; rows may be 0
 * group   rows that stand for the same position, >= 1: row i is position first + i / group
 * first   0 <= first, and the last row's position < keys. A position sees itself, and
 * window  >= 1, of the keys before it so many that they are `window` with itself
 *
 * What a row does not see becomes 0. e^x is exact to 2 units of the last place; a probability below
 * e^-87.3 of a row's largest is taken for that.
 */
EDGEMEM_API int32_t edgemem_softmax_causal(float *scores, int64_t rows, int64_t keys,
                                           int64_t group, int64_t first, int64_t window,
                                           int32_t isa);

/* The way back through a softmax: d becomes p * (d - p . d), row by row.
 *
 * p     rows * keys floats: probabilities; rows may be 0
 * d     rows * keys floats: the gradient of p on entry, of the scores on return
 */
EDGEMEM_API int32_t edgemem_softmax_backward(const float *p, float *d, int64_t rows, int64_t keys,
                                             int32_t isa);

/* A norm: out = x / rms(x) * weight, row by row, where rms(x)^2 = mean(x^2) + eps.
 *
 * x        rows * size floats; rows may be 0
 * weight   size floats
 * out      rows * size floats; may be x
 * inverse  rows floats: receives 1 / rms(x)
 * halves   rows * size numbers: receives the upper 16 bits of x, for the way back
 */
EDGEMEM_API int32_t edgemem_rms_norm(const float *x, const float *weight, int64_t rows,
                                     int64_t size, float eps, int32_t isa, float *out,
                                     float *inverse, uint16_t *halves);

/* The way back through edgemem_rms_norm, added to what dx holds.
 *
 * d_out            rows * size floats: the gradient of out
 * halves, inverse  as edgemem_rms_norm wrote them; halves as in edgemem_gated_backward
 * dx               rows * size floats: the gradient of x is added
 */
EDGEMEM_API int32_t edgemem_rms_norm_backward(const float *d_out, const uint16_t *halves,
                                              const float *weight, const float *inverse,
                                              int64_t rows, int64_t size, int32_t isa, float *dx);

/* A gated unit: out = gate * sigmoid(z) * up, where z = gate (SILU), or the argument of GELU's tanh
 * form, 2 * sqrt(2 / pi) * (gate + 0.044715 * gate^3).
 *
 * gate_up     rows * 2 * size floats, of each row first all gates; rows may be 0
 * activation  EDGEMEM_SILU or EDGEMEM_GELU
 * out         rows * size floats
 * halves      rows * 2 * size numbers: receives the upper 16 bits of gate_up, for the way back
 */
EDGEMEM_API int32_t edgemem_gated(const float *gate_up, int64_t rows, int64_t size,
                                  int32_t activation, int32_t isa, float *out, uint16_t *halves);

/* The way back through edgemem_gated.
 *
 * halves     as edgemem_gated wrote them; each stands for the middle of the floats it was cut from
 * d_out      rows * size floats: the gradient of out
 * d_gate_up  rows * 2 * size floats: receives that of gate_up
 */
EDGEMEM_API int32_t edgemem_gated_backward(const uint16_t *halves, const float *d_out,
                                           int64_t rows, int64_t size, int32_t activation,
                                           int32_t isa, float *d_gate_up);

/* 1 if this build and this processor have the two functions below (AVX-512 with bfloat16), else 0:
 * they then return EDGEMEM_ERR_ISA.
 */
EDGEMEM_API int32_t edgemem_has_bf16(void);

/* Rows of a matrix of k * columns in bfloat16, rounded to even, in the order that
 * edgemem_product_bf16 wants: panels of 16 columns, in each panel pairs of rows, of each pair column
 * after column, the upper row's number first. Zeros stand for what a last panel or pair lacks.
 *
 * rows     count * columns floats, rows start to start + count of the matrix; count may be 0
 * start    even; start + count is even too, or k
 * packed   ceil(columns / 16) * ceil(k / 2) * 32 numbers, of the whole matrix; receives these rows'
 */
EDGEMEM_API int32_t edgemem_pack_bf16(const float *rows, int64_t count, int64_t columns,
                                      int64_t start, int64_t k, uint16_t *packed);

/* out = x * matrix, both rounded to bfloat16, sums in float32.
 *
 * x       rows * k floats; rows may be 0
 * packed  the matrix of k * columns, as edgemem_pack_bf16 writes it
 * add     not 0: out += x * matrix
 * out     rows * columns floats
 *
 * Numbers below 2^-126 count as 0. Half the time of a product of float32.
 */
EDGEMEM_API int32_t edgemem_product_bf16(const float *x, int64_t rows, int64_t k,
                                         const uint16_t *packed, int64_t columns, int32_t add,
                                         float *out);

#ifdef __cplusplus
}
#endif
#endif
