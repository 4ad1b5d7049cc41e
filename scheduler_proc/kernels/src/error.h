// The last error of the calling thread, for srt_last_error().
#pragma once

namespace srt {

// Remembers a printf-style text; returns -1, as failing calls do.
__attribute__((format(printf, 1, 2))) int set_error(const char *format, ...);

}  // namespace srt
