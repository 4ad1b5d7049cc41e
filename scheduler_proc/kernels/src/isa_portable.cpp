// The kernels at the portable level.
#include "simd_portable.h"

#include "level.inl"
