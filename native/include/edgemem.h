/* edgemem: the C ABI of the retrieval kernels.
 *
 * Plain C without Python. The library allocates nothing: the caller owns every buffer.
 * Every function may be called from any number of threads at once, and none keeps state.
 * Concurrent calls may share inputs, but each needs its own outputs and workspace.
 * A function that returns an error has written to no buffer other than a workspace.
 * Buffers must not overlap, unless a function says that they may.
 * The order in which floats are summed depends on dim and isa only. Equal rows therefore get equal
 * scores from every function.
 * A changed signature or a changed constant below raises EDGEMEM_ABI_VERSION.
 *
 * m, n, k, q, ...  sizes; 0 is allowed only where the comment says so
 * isa              EDGEMEM_ISA_AUTO, or a particular instruction set, to compare them
 *
 * A matrix is stored row after row: "n * dim floats" are n rows of dim floats each.
 * A buffer of 0 elements may be NULL.
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

#define EDGEMEM_ABI_VERSION 6

/* Status codes: the return value of every function that does not say otherwise. */
#define EDGEMEM_OK 0
#define EDGEMEM_ERR_NULL 1  /* a required buffer is NULL */
#define EDGEMEM_ERR_SIZE 2  /* a size outside its limits, or an array beyond the address space */
#define EDGEMEM_ERR_ISA 3   /* an instruction set that this build or this processor lacks */
#define EDGEMEM_ERR_RANGE 4 /* a position outside its buffer, or a parameter outside its range */

/* Instruction sets. AUTO selects the best one that the processor has. */
#define EDGEMEM_ISA_AUTO 0
#define EDGEMEM_ISA_SCALAR 1
#define EDGEMEM_ISA_AVX2 2 /* x86-64 with AVX2 and FMA */
#define EDGEMEM_ISA_NEON 3 /* 64-bit ARM */

/* Largest dim of an int8 row: a sum of this many products still fits in 32 bits. */
#define EDGEMEM_MAX_DIM_I8 131071

#ifdef __cplusplus
extern "C" {
#endif

/* Returns the library's EDGEMEM_ABI_VERSION, to compare with that of the header. */
EDGEMEM_API int32_t edgemem_abi_version(void);

/* Returns the instruction set that AUTO selects on this processor, one of EDGEMEM_ISA_*. */
EDGEMEM_API int32_t edgemem_best_isa(void);

/* Returns "scalar", "avx2" or "neon", or "unknown" for any other number. Static storage. */
EDGEMEM_API const char *edgemem_isa_name(int32_t isa);

/* Returns an English description of a status. Static storage. */
EDGEMEM_API const char *edgemem_status_text(int32_t status);

/* Finds the k rows with the largest inner product with a query, best first.
 *
 * rows       n * dim floats; n may be 0
 * query      dim floats
 * mask       n bytes; a row is searched if its byte is not 0. NULL: all rows are searched
 * k          number of results wanted, >= 1
 * positions  room for min(k, n) numbers; receives row numbers. Ties: lower row number first
 * scores     room for min(k, n) floats; receives the inner products of these rows
 * found      receives the number of results written: min(k, number of rows searched)
 *
 * A row whose inner product is NaN scores -infinity. Cost O(n * dim + n * log k).
 */
EDGEMEM_API int32_t edgemem_scan_topk(const float *rows, int64_t n, int64_t dim,
                                      const float *query, const uint8_t *mask, int64_t k,
                                      int32_t isa, int64_t *positions, float *scores,
                                      int64_t *found);

/* Computes the inner products of selected rows with a few queries, for example to re-rank.
 *
 * rows       n * dim floats; n may be 0
 * positions  m row numbers, 0 <= position < n, in any order; repeats are allowed. m may be 0
 * queries    q * dim floats, q >= 1
 * out        m * q floats; out[i * q + j] receives row positions[i] times query j. NaN stays NaN
 *
 * Each row is read once for two queries. Cost O(m * q * dim).
 */
EDGEMEM_API int32_t edgemem_dots(const float *rows, int64_t n, int64_t dim,
                                 const int64_t *positions, int64_t m, const float *queries,
                                 int64_t q, int32_t isa, float *out);

/* Quantises rows to int8, symmetrically, with one scale for each row: float = scale * int8.
 *
 * rows       n * dim floats; n may be 0
 * dim        1 to EDGEMEM_MAX_DIM_I8, as in every function over int8 rows
 * out        n * dim numbers; receives row / scale, -127 to 127, halves rounded to even
 * scales     n floats; receives the largest magnitude of each row / 127
 *
 * A row gets scale 0 and zeros if it is all zero or its scale underflows to 0. A row that holds a
 * NaN or an infinity gets scale NaN and zeros: edgemem_scan_topk_i8 scores it -infinity, and its
 * edgemem_dots_i8 are NaN.
 */
EDGEMEM_API int32_t edgemem_quantize_i8(const float *rows, int64_t n, int64_t dim, int8_t *out,
                                        float *scales);

/* edgemem_scan_topk over int8 rows: scans in integers, then scores the best rows again in floats.
 *
 * rows, scales        n * dim numbers and n floats, as edgemem_quantize_i8 writes them; n may be 0
 * query               dim floats
 * query_i8            dim numbers: the quantised query
 * query_scale         the scale of query_i8
 * mask                n bytes; a row is searched if its byte is not 0. NULL: all rows are searched
 * k                   number of results wanted, >= 1
 * survivors           number of rows to score again, >= k: more cost little and improve recall
 * survivor_positions  room for min(survivors, n) numbers; receives the rows of the scan, best first
 * survivor_scores     room for as many floats; receives scale * query_scale * integer product
 * positions           room for min(k, n) numbers; receives row numbers. Ties: lower number first
 * scores              room for as many floats; receives scale * (query times int8 row)
 * found               receives the number of positions written: min(k, number of rows searched)
 *
 * The survivors are the same under every isa, bit for bit. A NaN score becomes -infinity.
 * Cost O(n * dim + n * log survivors + survivors * dim).
 */
EDGEMEM_API int32_t edgemem_scan_topk_i8(const int8_t *rows, const float *scales, int64_t n,
                                         int64_t dim, const float *query, const int8_t *query_i8,
                                         float query_scale, const uint8_t *mask, int64_t k,
                                         int64_t survivors, int32_t isa,
                                         int64_t *survivor_positions, float *survivor_scores,
                                         int64_t *positions, float *scores, int64_t *found);

/* edgemem_dots over int8 rows: out[i * q + j] receives scale * (int8 row times query j). */
EDGEMEM_API int32_t edgemem_dots_i8(const int8_t *rows, const float *scales, int64_t n,
                                    int64_t dim, const int64_t *positions, int64_t m,
                                    const float *queries, int64_t q, int32_t isa, float *out);

/* The low-rank Mahalanobis metric of a set of rows (CoreMem, section 3.2, eq. 1):
 *
 *   S = U diag(M) U' + diag(D),   inverse of S = diag(1/D) - A A'   (Woodbury)
 *
 * The rows are unit vectors with variance v in each dimension, and D = v + c * mean(v). U holds the
 * top principal directions of the centred rows, and M the variances along them.
 * edgemem/retrieval/metric.py has the derivation and the departures from the paper.
 * A metric consists of three arrays, which the caller owns:
 *
 * mean              dim floats: the mean of the unit rows
 * inverse_diagonal  dim floats: 1/D
 * directions        rank * dim floats: the columns of A, one after another
 */

/* Returns the number of doubles in the workspace of edgemem_metric_fit. A max_rank above dim counts
 * as dim. Returns 0 if dim is not 1 to 2^24 or max_rank < 0. */
EDGEMEM_API int64_t edgemem_metric_workspace(int64_t dim, int64_t max_rank);

/* Fits a metric.
 *
 * rows        n * dim floats; rows of any length, which this function normalises. n may be 0
 * c           ridge factor, 0.001 to 1000, beyond which floats may not hold the inverse. Paper: 10
 * tau         share of the variance that U must explain, above 0, at most 1. Paper: 0.95
 * max_rank    largest number of directions, >= 0. Paper: 100
 * workspace   edgemem_metric_workspace(dim, max_rank) doubles
 * mean, inverse_diagonal  dim floats each
 * directions  room for min(max_rank, dim) * dim floats; receives rank * dim
 * rank        receives the number of directions: 0, or less than count
 * count       receives the number of rows used
 *
 * Rows that are all zero or hold a NaN or an infinity are skipped. Without rows, the metric is the
 * identity: mean 0, inverse diagonal 1, rank 0. If all rows are the same (mean squared distance to
 * their mean <= 1e-10), it is the identity around their mean. Cost O(n * dim^2 + dim^3).
 */
EDGEMEM_API int32_t edgemem_metric_fit(const float *rows, int64_t n, int64_t dim, double c,
                                       double tau, int64_t max_rank, int32_t isa,
                                       double *workspace, float *mean, float *inverse_diagonal,
                                       float *directions, int64_t *rank, int64_t *count);

/* Transforms a query by a metric. After that, each row costs one inner product:
 *
 *   (query - mean)' S^-1 (row - mean) = image . row + offset
 *   whitened cosine                   = (image . row + offset) / (norm * the row's norm)
 *
 * query      dim floats of any length, which this function normalises
 * rank       number of the metric's directions, >= 0
 * workspace  dim floats
 * image      dim floats; receives S^-1 (query - mean)
 * offset     receives -image . mean
 * norm       receives the query's length in the metric, sqrt((query - mean) . image), or 0 if this
 *            is rounding error: at most 1e-6 * sqrt(the largest inverse_diagonal)
 *
 * A query that is all zero or not finite gets image 0, offset 0, norm 0. The caller must take the
 * whitened cosine as 0 where either norm is 0. Cost O(dim * rank).
 */
EDGEMEM_API int32_t edgemem_metric_query(const float *query, int64_t dim, const float *mean,
                                         const float *inverse_diagonal, const float *directions,
                                         int64_t rank, int32_t isa, float *workspace, float *image,
                                         float *offset, float *norm);

/* Computes each row's length in a metric, sqrt((row - mean)' S^-1 (row - mean)).
 *
 * rows       n * dim floats; unit rows, which this function does not normalise. n may be 0
 * workspace  8 * dim floats
 * norms      n floats >= 0; receives 0 for a row that is not finite, or that equals the mean up to
 *            rounding, as in edgemem_metric_query
 */
EDGEMEM_API int32_t edgemem_metric_norms(const float *rows, int64_t n, int64_t dim,
                                         const float *mean, const float *inverse_diagonal,
                                         const float *directions, int64_t rank, int32_t isa,
                                         float *workspace, float *norms);

/* Scores each candidate as features . weights + bias, and finds the k best.
 *
 * features    m * f floats, one row for each candidate; m may be 0, f >= 1
 * weights     f floats
 * k           number of results wanted, >= 1
 * all_scores  m floats; receives every score. NaN becomes -infinity
 * positions   room for min(k, m) numbers; receives the best candidates. Ties: lower number first
 * scores      room for as many floats; receives their scores
 * found       receives min(k, m)
 *
 * Sums are in double, in the order of the features. Cost O(m * f + m * log k).
 */
EDGEMEM_API int32_t edgemem_rank(const float *features, int64_t m, int64_t f, const float *weights,
                                 float bias, int64_t k, float *all_scores, int64_t *positions,
                                 float *scores, int64_t *found);

/* Scores every document for one query by BM25, and finds the k best.
 *
 * docs and counts hold the postings of all terms. The postings of query term t are the sizes[t]
 * entries from starts[t] on; no document may appear twice among them.
 *
 * docs            `postings` document numbers; those of the query's terms must be 0 to n - 1.
 *                 postings, terms and n may be 0
 * counts          `postings` numbers >= 1: how often the term occurs in that document
 * starts, sizes   `terms` numbers each; 0 <= start, start + size <= postings
 * lengths         n numbers >= 0: tokens of each document
 * allowed         n bytes; a document is searched if its byte is not 0. NULL: all are searched
 * n_allowed       N, the number of documents searched
 * average_length  mean tokens of the documents searched, 1e-9 to 2^31 - 1
 * k1, b           0 to 1000, and 0 to 1; 1.2 and 0.75 are usual
 * k               number of results wanted, >= 1
 * idf             `terms` doubles; receives ln(1 + (N - m + 0.5) / (m + 0.5)) for each term, where
 *                 m is the number of searched documents with the term. Documents that are not
 *                 searched have no influence. N - m counts as 0 if m > N
 * scores          n floats; receives every document's score, 0 if it is not searched or has no term
 * top_docs        room for min(k, n) numbers; receives the documents with a score above 0, best
 *                 first. Ties: lower number first
 * top_scores      room for min(k, n) floats; receives the scores of top_docs
 * found           receives the number of documents written to top_docs
 *
 * A term adds idf * count * (k1 + 1) / (count + k1 * (1 - b + b * length / average_length)). Terms
 * are added in the given order, in float32. Cost O(n + postings of the query's terms).
 */
EDGEMEM_API int32_t edgemem_bm25(const int32_t *docs, const uint16_t *counts, int64_t postings,
                                 const int64_t *starts, const int64_t *sizes, int64_t terms,
                                 const int32_t *lengths, const uint8_t *allowed, int64_t n,
                                 int64_t n_allowed, double average_length, double k1, double b,
                                 int64_t k, double *idf, float *scores, int64_t *top_docs,
                                 float *top_scores, int64_t *found);

/* Computes the similarity of memories to a query: (p + offset) * scale, clamped to +-limit, where p
 * is the largest inner product of the query with any of the memory's rows. A memory's rows form a
 * linked chain. The similarity of a memory without rows is 0.
 *
 * rows      n * dim floats; n may be 0
 * first     `memories` numbers: the first row of each memory's chain. memories may be 0
 * next      n numbers: the row that follows each row in its chain. Row numbers must ascend along a
 *           chain: the chain ends at a `next` that is not larger, such as -1, or is n or more
 * wanted    m * width memory numbers, in any order; repeats are allowed. m may be 0. A number not
 *           in 0 to memories - 1, or whose first row is not in 0 to n - 1, is a memory without rows
 * columns   1 to width: how many numbers to use of each row of wanted, from its start
 * query     dim floats
 * scale     above 0
 * limit     0 or more
 * out       m * columns floats; receives the similarities. Products that are NaN or -infinity are
 *           ignored
 *
 * Cosine: unit rows, a unit query, offset 0, scale 1, limit 1. Centred inner product under a
 * metric: the image and offset of edgemem_metric_query, with scale 1 / norm.
 * Cost O(rows of the wanted memories * dim).
 */
EDGEMEM_API int32_t edgemem_similarities(const float *rows, int64_t n, int64_t dim,
                                         const int64_t *first, int64_t memories,
                                         const int64_t *next, const int64_t *wanted, int64_t m,
                                         int64_t width, int64_t columns, const float *query,
                                         float offset, float scale, float limit, int32_t isa,
                                         float *out);

/* edgemem_similarities over int8 rows: each product is multiplied by the scale of its row. */
EDGEMEM_API int32_t edgemem_similarities_i8(const int8_t *rows, const float *scales, int64_t n,
                                            int64_t dim, const int64_t *first, int64_t memories,
                                            const int64_t *next, const int64_t *wanted, int64_t m,
                                            int64_t width, int64_t columns, const float *query,
                                            float offset, float scale, float limit, int32_t isa,
                                            float *out);

/* Late interaction: computes, for each text and each query token, the largest inner product of that
 * token with any token of the text. Integers, so every instruction set gives the same result.
 *
 * rows     n * dim numbers: the token vectors of all texts, one text after the other; n may be 0
 * dim      at most EDGEMEM_MAX_DIM_I8
 * offsets  m + 1 numbers, ascending, 0 to n: text i has the rows offsets[i] to offsets[i + 1] - 1.
 *          m may be 0
 * query    q * dim numbers: the token vectors of the query, q >= 1
 * out      m * q numbers; out[i * q + j] is of text i and query token j, INT32_MIN if the text has
 *          no tokens
 *
 * Cost O(rows of the texts * q * dim).
 */
EDGEMEM_API int32_t edgemem_maxsim_i8(const int8_t *rows, int64_t n, int64_t dim,
                                      const int64_t *offsets, int64_t m, const int8_t *query,
                                      int64_t q, int32_t isa, int32_t *out);

/* Gathers the candidates of a search: the proposals and their neighbours in the conversation.
 *
 * A memory's place is the turn that it was extracted from, or else the memory itself.
 * The candidates are the allowed proposals and the allowed memories before and after their places.
 *
 * proposals      m memory numbers, in any order; repeats are allowed. m may be 0
 * place          n memory numbers: the place of each memory; n >= 1
 * before, after  n memory numbers each: the turns just before and after each turn; 0: none
 * speaker        n numbers: the speaker of each memory
 * allowed        n bytes; a memory may be found if its byte is not 0. Memory 0 stands for "none":
 *                allowed[0] must be 0
 * workspace      n bytes
 * out            room for min(3 * m, n) * 7 memory numbers; receives one row for each candidate, in
 *                ascending order of candidates:
 *                  0     the candidate
 *                  1, 2  the turns before and after its place, if another person said them
 *                  3, 4  the same two turns, whoever said them
 *                  5, 6  the turn before column 3's, and the turn after column 4's
 *                A number is 0 if there is no such turn or it is not allowed
 * found          receives the number of candidates
 *
 * Cost O(n + m), where n stands for passes over bytes.
 */
EDGEMEM_API int32_t edgemem_beside(const int64_t *proposals, int64_t m, const int64_t *place,
                                   const int64_t *before, const int64_t *after,
                                   const int32_t *speaker, const uint8_t *allowed, int64_t n,
                                   uint8_t *workspace, int64_t *out, int64_t *found);

/* Computes the lexical features of each candidate: how the words of a query match it.
 *
 * around      m * 7 memory numbers, as edgemem_beside writes them: candidates ascend; m may be 0
 * session     n numbers: the session of each memory; n must exceed every candidate
 * slot        `memories` numbers, -1 to slots - 1: the document of each memory, or -1 for none.
 *             A memory number of `memories` or more has none either. slot[0] should be -1
 * docs, starts, sizes, terms, postings, lengths
 *             as for edgemem_bm25, with slots as its n. The documents of each term must ascend
 * idf, scores as edgemem_bm25 writes them. A document with score 0 is taken to contain no term
 * timed       slots bytes, not 0 for a document that mentions a time; NULL: none does
 * max_length  the length at which longer documents are capped, in tokens, >= 0
 * order       workspace, 2 * m numbers
 * having      workspace, (m + 2) * terms bytes
 * out         m * 6 floats; receives six features for each candidate:
 *               0  its BM25 score
 *               1  the sum of the scores of columns 3 to 6 of its row in around
 *               2  the share of the total idf whose terms occur in it or in columns 1 and 2
 *               3  the best score among the candidates of its session
 *               4  ln(1 + min(its length, max_length)), 0 without a document
 *               5  1 if it is timed, else 0
 *
 * Cost O(m * (log m + terms * log postings)).
 */
EDGEMEM_API int32_t edgemem_word_features(
    const int64_t *around, int64_t m, const int64_t *session, int64_t n, const int32_t *slot,
    int64_t memories, const int32_t *docs, int64_t postings, const int64_t *starts,
    const int64_t *sizes, int64_t terms, const double *idf, const float *scores,
    const int32_t *lengths, const uint8_t *timed, int64_t slots, int64_t max_length,
    int64_t *order, uint8_t *having, float *out);

#ifdef __cplusplus
}
#endif
#endif
