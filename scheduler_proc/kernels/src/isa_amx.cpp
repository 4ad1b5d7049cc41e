// The kernels at the amx level: AVX-512's, for now.
#define SRT_ISA_NS amx
#define SRT_ISA_NAME "amx"
#include "simd_avx512.h"

#include "level.inl"

namespace srt::amx {
bool permitted();
bool permitted() { return false; }
}  // namespace srt::amx
