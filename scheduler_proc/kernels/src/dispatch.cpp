// Chooses the instruction-set level at run time: the best that the CPU has, or SRT_ISA.
#include <cstdlib>
#include <cstring>

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
#endif

struct Level {
  const Kernels *kernels;
  bool (*available)();
};

// Best first.
const Level kLevels[] = {
#ifndef SRT_NO_X86
    {&avx512::table, has_avx512},
    {&avx2::table, has_avx2},
#endif
    {&portable::table, [] { return true; }},
};

}  // namespace

const Kernels *find_kernels(const char *name) {
  if (name == nullptr) name = std::getenv("SRT_ISA");
  const bool any = name == nullptr || *name == '\0';
  for (const Level &level : kLevels)
    if ((any || std::strcmp(level.kernels->name, name) == 0) && level.available())
      return level.kernels;
  set_error("instruction-set level '%s' is not one that this CPU and build have", name);
  return nullptr;
}

}  // namespace srt

const char *srt_isa() {
  const srt::Kernels *kernels = srt::find_kernels(nullptr);
  return kernels ? kernels->name : nullptr;
}

int32_t srt_isa_available(const char *name) { return srt::find_kernels(name) != nullptr; }
