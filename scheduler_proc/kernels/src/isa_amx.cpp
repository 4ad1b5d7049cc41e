// The kernels at the amx level: AVX-512, and AMX tiles for many rows of quantised linear layers.
#define SRT_ISA_NS amx
#define SRT_ISA_NAME "amx"
#define SRT_MANY_ROWS "amx_rows.inl"
#include "simd_avx512.h"

#include "level.inl"

#include <cpuid.h>
#ifdef __linux__
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace srt::amx {

bool permitted();

// Whether the CPU has int8 tiles and the system lets this process use them: Linux wants to be asked
// before it saves eight kilobytes more per thread.
bool permitted() {
#ifdef __linux__
  constexpr int kRequestPermission = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM, XTILEDATA
  constexpr unsigned kTileInt8 = 3u << 24;                    // leaf 7: amx-tile and amx-int8
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || (d & kTileInt8) != kTileInt8) return false;
  static const bool granted = syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
  return granted;
#else
  return false;
#endif
}

}  // namespace srt::amx
