// What is checked of a batch and a model before any of their memory is touched.
#pragma once
#include "kernels.h"

namespace srt {

// 0, or -1 and an error text that names the field.
// `has_tiles`: whether the level that is to run the model computes with weights in tiles.
int check_model(const srt_model &model, bool has_tiles);
// Whether it is a value that srt_model.activation_bits may have.
int check_activation_bits(int32_t bits);
int check_batch(const srt_model &model, const srt_batch &batch);
// The part of it that srt_op_sample uses too: suppressed and adjusted ids, details.
int check_sampling(const srt_batch &batch, int vocab);

}  // namespace srt
