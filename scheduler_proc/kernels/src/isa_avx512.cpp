// The kernels at the avx512 level.
#include "simd_avx512.h"

#include "level.inl"
