/* Macros that the C tests share. */
#ifndef CHECK_H
#define CHECK_H

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

/* Checks that a call with the arguments `right`, one of them changed, returns `error`. */
#define REFUSED(error, Call, right, argument, wrong)     \
    do {                                                 \
        struct Call changed = right;                     \
        changed.argument = wrong;                        \
        CHECK(call_##Call(&changed) == EDGEMEM_##error); \
    } while (0)

/* Equal up to the rounding errors of floats of magnitude 1. */
#define NEAR(a, b) (fabs((double)(a) - (double)(b)) < 1e-5)

#endif
