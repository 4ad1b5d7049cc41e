// What the driver's files share: checks that end the program, and seeded random numbers.
#pragma once
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <initializer_list>
#include <random>
#include <string>
#include <vector>

#include "../../scheduler_proc/kernels/src/srt_kernels.h"

namespace driver {

inline std::string doing;  // for messages

inline void check(bool ok, const char *what) {
  if (ok) return;
  std::fprintf(stderr, "%s: %s (last error: %s)\n", doing.c_str(), what, srt_last_error());
  std::_Exit(1);
}

inline void check_refused(bool refused, const char *why) {
  check(refused, why);
  check(std::strlen(srt_last_error()) > 0, "an error has a text");
}

inline std::mt19937 rng(7);

inline int below(int n) { return static_cast<int>(rng() % static_cast<unsigned>(n)); }
inline bool one_in(int n) { return below(n) == 0; }
inline float between(float low, float high) {
  return low + (high - low) * static_cast<float>(rng() >> 8) * 0x1p-24f;
}
template <class T>
T one_of(std::initializer_list<T> values) {
  return values.begin()[below(static_cast<int>(values.size()))];
}

inline std::vector<float> random_floats(size_t n, float low = -1, float high = 1) {
  std::vector<float> x(n);
  for (float &value : x) value = between(low, high);
  return x;
}

template <class T>
bool same_bits(const std::vector<T> &a, const std::vector<T> &b) {
  return a.size() == b.size() &&
         (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0);
}

}  // namespace driver
