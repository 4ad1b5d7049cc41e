// Fills the kernel table of one instruction-set level. Included by isa_<level>.cpp after the
// level's vectors.
#include <cmath>

#include "rowops.inl"
#include "linear.inl"
#include "attention.inl"
#include "sampling.inl"
#include "logprobs.inl"

namespace srt::SRT_ISA_NS {

extern const Kernels table;
const Kernels table = {
    SRT_ISA_NAME,     linear,          width_of,          nullptr, nullptr,    rms_norm,
    quantize<int8_t>, kQuantizeTwelve, quantize<int16_t>, rope,    scale,      silu_mul,
    add_weighted,     store_kv,        store_kv_words,    attend,  fold,       read_bytes,
    sample_row,       log_normalizer,  rank_top,
};

}  // namespace srt::SRT_ISA_NS
