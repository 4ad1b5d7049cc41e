// Error texts and the ABI's version.
#include "error.h"

#include <cstdarg>
#include <cstdio>

#include "srt_kernels.h"

namespace {
thread_local char last_error[512] = "";
}

int srt::set_error(const char *format, ...) {
  va_list args;
  va_start(args, format);
  std::vsnprintf(last_error, sizeof last_error, format, args);
  va_end(args);
  return -1;
}

const char *srt_last_error() { return last_error; }

int32_t srt_abi_version() { return SRT_ABI_VERSION; }
