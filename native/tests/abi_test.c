/* The C ABI as a C program sees it. Exits 0 and prints "ok", or names the line that failed. */
#include "edgemem.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define CHECK(condition)                                            \
    do {                                                            \
        if (!(condition)) {                                         \
            fprintf(stderr, "line %d: %s\n", __LINE__, #condition); \
            return 1;                                               \
        }                                                           \
    } while (0)

static int scan_with(int32_t isa) {
    const float rows[5 * 3] = {1, 0, 0, 0, 2, 0, 3, 0, 0, NAN, 0, 0, 1, 0, 0};
    const float query[3] = {1, 1, 0};
    const uint8_t mask[5] = {1, 0, 1, 1, 1};
    int64_t positions[5] = {-1, -1, -1, -1, -1}, found = -1;
    float scores[5];

    CHECK(edgemem_scan_topk(rows, 5, 3, query, NULL, 3, isa, positions, scores, &found) ==
          EDGEMEM_OK);
    CHECK(found == 3 && positions[0] == 2 && positions[1] == 1 && positions[2] == 0);
    CHECK(scores[0] == 3.0f && scores[1] == 2.0f && scores[2] == 1.0f);
    CHECK(positions[3] == -1);

    CHECK(edgemem_scan_topk(rows, 5, 3, query, mask, 9, isa, positions, scores, &found) ==
          EDGEMEM_OK);
    CHECK(found == 4 && positions[0] == 2 && positions[1] == 0 && positions[2] == 4);
    CHECK(positions[3] == 3 && isinf(scores[3]) && scores[3] < 0);

    CHECK(edgemem_scan_topk(NULL, 0, 3, query, NULL, 1, isa, NULL, NULL, &found) == EDGEMEM_OK);
    CHECK(found == 0);
    return 0;
}

int main(void) {
    const float row[1] = {1};
    int64_t position = 7, found = 7;
    float score;
    const int32_t best = edgemem_best_isa();

    CHECK(edgemem_abi_version() == EDGEMEM_ABI_VERSION);
    CHECK(strcmp(edgemem_isa_name(EDGEMEM_ISA_SCALAR), "scalar") == 0);
    if (scan_with(EDGEMEM_ISA_AUTO) || scan_with(EDGEMEM_ISA_SCALAR) || scan_with(best)) {
        return 1;
    }
    CHECK(edgemem_scan_topk(row, 1, 0, row, NULL, 1, 0, &position, &score, &found) ==
          EDGEMEM_ERR_SIZE);
    CHECK(edgemem_scan_topk(row, 1, 1, row, NULL, 0, 0, &position, &score, &found) ==
          EDGEMEM_ERR_SIZE);
    CHECK(edgemem_scan_topk(row, INT64_MAX, 2, row, NULL, 1, 0, &position, &score, &found) ==
          EDGEMEM_ERR_SIZE);
    CHECK(edgemem_scan_topk(NULL, 1, 1, row, NULL, 1, 0, &position, &score, &found) ==
          EDGEMEM_ERR_NULL);
    CHECK(edgemem_scan_topk(row, 1, 1, row, NULL, 1, 99, &position, &score, &found) ==
          EDGEMEM_ERR_ISA);
    CHECK(position == 7 && found == 7);
    CHECK(strlen(edgemem_status_text(EDGEMEM_ERR_ISA)) > 0);
    printf("ok %s\n", edgemem_isa_name(best));
    return 0;
}
