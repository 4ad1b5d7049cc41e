// Checks of a batch and a model, made before any of their memory is touched.
#pragma once
#include "kernels.h"

namespace srt {

// All return 0, or -1 and an error text that names the field.
// `has_tiles`: whether the level that will run the model computes with weights in tiles.
int check_model(const srt_model &model, bool has_tiles);
// One of srt_model.activation_bits.
int check_activation_bits(int32_t bits);
int check_batch(const srt_model &model, const srt_batch &batch);
// The part of check_batch that srt_op_sample uses too: suppressed and adjusted ids, details.
int check_sampling(const srt_batch &batch, int vocab);

}  // namespace srt
