// The amx level: linear layers of weights in tiles, and attention of such layers over a pool of
// halves, on AMX's bfloat16 products; everything else is as in avx512.
//
// A group of weights, 16 channels x 32 inputs, is made one tile of bfloat16 and multiplied with
// tiles of activations, 32 inputs x up to 16 rows. An output's sum stays in its tile from the first
// group to the last: TDPBF16PS adds the even and the odd products of a group in two chains of fused
// operations, and their sum to the sum so far, for every row in the same way. So a row's result
// does not depend on how many rows there are.
#include "linear_amx.inl"
#include "attention_amx.inl"

namespace srt {

namespace avx512 {
extern const Kernels table;
}

namespace amx {

static void linear_of_any_format(const LinearTask &task, int first, int last, int first_row,
                                 int last_row, uint8_t *scratch) {
  const bool tiled = is_tiled(task.w[0]->format);
  (tiled ? linear : avx512::table.linear)(task, first, last, first_row, last_row, scratch);
}

static void attend_any(const AttentionCall &call, const AttentionUnit &unit, float *scratch) {
  const bool in_tiles = call.in_bfloat16 && call.kv_format == SRT_F16;
  (in_tiles ? attend : avx512::table.attend)(call, unit, scratch);
}

static Kernels make_table() {
  Kernels made = avx512::table;
  made.name = "amx";
  made.linear = linear_of_any_format;
  made.attend = attend_any;
  made.tile = tile;
  made.release = release;
  return made;
}

// Made when a CPU that has the level asks for it: a global would be made while the library is
// loaded, on every CPU, with instructions of this level.
const Kernels &table() {
  static const Kernels made = make_table();
  return made;
}

}  // namespace amx

}  // namespace srt
