// The choice of the instruction set at run time, and the library's version and status texts.
#include "edgemem.h"
#include "loops.h"

const edgemem::Loops *edgemem::loops_for(int32_t isa) {
    const int32_t best = edgemem_best_isa();
    if (isa == EDGEMEM_ISA_AUTO) {
        isa = best;
    }
    switch (isa) {
        case EDGEMEM_ISA_SCALAR:
            return &loops_scalar;
#if EDGEMEM_HAS_AVX2
        case EDGEMEM_ISA_AVX2:
            return best == EDGEMEM_ISA_AVX2 ? &loops_avx2 : nullptr;
#endif
#if EDGEMEM_HAS_NEON
        case EDGEMEM_ISA_NEON:
            return &loops_neon;
#endif
        default:
            return nullptr;
    }
}

extern "C" {

int32_t edgemem_abi_version(void) { return EDGEMEM_ABI_VERSION; }

int32_t edgemem_best_isa(void) {
#if EDGEMEM_HAS_AVX2
    // Detected once. C++ makes the initialisation of a static thread-safe.
    static const bool avx2 = edgemem::cpu_has_avx2_fma();
    return avx2 ? EDGEMEM_ISA_AVX2 : EDGEMEM_ISA_SCALAR;
#elif EDGEMEM_HAS_NEON
    return EDGEMEM_ISA_NEON;
#else
    return EDGEMEM_ISA_SCALAR;
#endif
}

const char *edgemem_isa_name(int32_t isa) {
    switch (isa) {
        case EDGEMEM_ISA_SCALAR: return "scalar";
        case EDGEMEM_ISA_AVX2: return "avx2";
        case EDGEMEM_ISA_NEON: return "neon";
        default: return "unknown";
    }
}

const char *edgemem_status_text(int32_t status) {
    switch (status) {
        case EDGEMEM_OK: return "done";
        case EDGEMEM_ERR_NULL: return "a buffer that is needed is NULL";
        case EDGEMEM_ERR_SIZE: return "a size is outside its limits, or an array does not fit in memory";
        case EDGEMEM_ERR_ISA: return "this build or this processor lacks that instruction set";
        case EDGEMEM_ERR_RANGE: return "a position lies outside its buffer, or a parameter outside its range";
        default: return "unknown status";
    }
}

}  // extern "C"
