// Chooses the instruction-set level at run time: the best that the CPU has, or SRT_ISA.
#include <cstdlib>
#include <cstring>

#if !defined(SRT_NO_X86) && !defined(SRT_NO_AMX)
#include <cpuid.h>
#ifdef __linux__
#include <sys/syscall.h>
#include <unistd.h>
#endif
#endif

#include "error.h"
#include "kernels.h"

namespace srt {

namespace portable {
extern const Kernels table;
}
#ifndef SRT_NO_X86
namespace avx2 {
extern const Kernels table;
}
namespace avx512 {
extern const Kernels table;
}
#ifndef SRT_NO_AMX
namespace amx {
const Kernels &table();
}
#endif
#endif

namespace {

#ifndef SRT_NO_X86
bool has_avx2() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
         __builtin_cpu_supports("f16c");
}

bool has_avx512() {
  return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
         __builtin_cpu_supports("avx512vnni");
}

#ifndef SRT_NO_AMX
// Linux saves and restores tiles only for processes that have asked for them.
bool tiles_permitted() {
#if defined(__linux__) && defined(__x86_64__)
  constexpr int kRequestPermission = 0x1023, kTileData = 18;
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
#else
  return false;
#endif
}

bool has_amx() {
  unsigned a, b, c, d;
  if (!has_avx512() || !__get_cpuid_count(7, 0, &a, &b, &c, &d)) return false;
  const bool tiles = d & (1u << 24), products = d & (1u << 22);
  if (!tiles || !products || !__get_cpuid_count(7, 1, &a, &b, &c, &d)) return false;
  const bool bf16_vectors = a & (1u << 5);
  return bf16_vectors && tiles_permitted();
}
#endif
#endif

struct Level {
  const char *name;
  const Kernels &(*kernels)();  // only if available
  bool (*available)();
};

template <const Kernels &table>
const Kernels &kept() {
  return table;
}

// Best first.
const Level kLevels[] = {
#ifndef SRT_NO_X86
#ifndef SRT_NO_AMX
    {"amx", amx::table, has_amx},
#endif
    {"avx512", kept<avx512::table>, has_avx512},
    {"avx2", kept<avx2::table>, has_avx2},
#endif
    {"portable", kept<portable::table>, [] { return true; }},
};

}  // namespace

const Kernels *find_kernels(const char *name) {
  if (name == nullptr) name = std::getenv("SRT_ISA");
  const bool any = name == nullptr || *name == '\0';
  for (const Level &level : kLevels)
    if ((any || std::strcmp(level.name, name) == 0) && level.available()) return &level.kernels();
  set_error("instruction-set level '%s' is not one that this CPU and build have", name);
  return nullptr;
}

}  // namespace srt

const char *srt_isa() {
  const srt::Kernels *kernels = srt::find_kernels(nullptr);
  return kernels ? kernels->name : nullptr;
}

int32_t srt_isa_available(const char *name) { return srt::find_kernels(name) != nullptr; }

int32_t srt_isa_has_tiles(const char *name) {
  const srt::Kernels *kernels = srt::find_kernels(name);
  return kernels != nullptr && kernels->tile != nullptr;
}
