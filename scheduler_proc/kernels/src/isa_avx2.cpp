// The kernels at the avx2 level.
#include "simd_avx2.h"

#include "level.inl"
