// For which instruction sets this folder is compiled. Before Highway's headers.
#pragma once

// Length-agnostic vectors can't be members of a Quad: those machines use NEON or scalars.
// Processors with SSSE3 and no SSE4 are too old to be worth the code.
#define RUEDA_NO_TARGETS (HWY_SSSE3 | HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128 | HWY_RVV)

// A sanitizer's build takes minutes for each.
#if defined(RUEDA_FEW_TARGETS)
#define HWY_DISABLED_TARGETS (RUEDA_NO_TARGETS | HWY_SSE4 | HWY_AVX3 | HWY_AVX3_DL)
#else
#define HWY_DISABLED_TARGETS RUEDA_NO_TARGETS
#endif
