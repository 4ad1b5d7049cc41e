// Many rows of a quantised linear layer on AMX tiles; included by linear.inl at the amx level.
//
// The tile unit computes the int8 dot products of one group of 32 inputs for 16 rows x 16 channels;
// vectors then scale and add them, group by group, exactly as the other levels do: the same bits.
// Integer results go through scratch memory, several groups at a time, so that a row's accumulators
// can stay in registers.

constexpr int kTileRows = 16;
constexpr int kBatchGroups = 8;  // their integer results fill about one first-level cache
constexpr int kScaleRows = 4;    // rows of one register tile of the float part

struct alignas(64) TileConfig {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};
};

// Tiles 0-3 are results [row half][channel block], 4 and 5 activations, 6 and 7 weights.
static void configure_tiles() {
  TileConfig config;
  for (int t = 0; t < 4; t++) config.rows[t] = kTileRows, config.row_bytes[t] = 64;
  for (int t = 4; t < 6; t++) config.rows[t] = kTileRows, config.row_bytes[t] = kGroup;
  for (int t = 6; t < 8; t++) config.rows[t] = kGroup / 4, config.row_bytes[t] = 64;
  _tile_loadconfig(&config);
}

// dots[half][block] [16][16] of one group, for H halves of 16 rows and N channel blocks.
template <int H, int N>
SRT_INLINE void tile_dots(const int8_t *q, int k, const uint8_t *const (&codes)[N], int32_t *dots) {
  constexpr int kSize = kTileRows * 16;
  _tile_loadd(4, q, k);
  _tile_loadd(6, codes[0], 64);
  _tile_zero(0);
  _tile_dpbsud(0, 4, 6);
  _tile_stored(0, dots, 64);
  if constexpr (N == 2) {
    _tile_loadd(7, codes[1], 64);
    _tile_zero(1);
    _tile_dpbsud(1, 4, 7);
    _tile_stored(1, dots + kSize, 64);
  }
  if constexpr (H == 2) {
    _tile_loadd(5, q + size_t(kTileRows) * k, k);
    _tile_zero(2);
    _tile_dpbsud(2, 5, 6);
    _tile_stored(2, dots + N * kSize, 64);
    if constexpr (N == 2) {
      _tile_zero(3);
      _tile_dpbsud(3, 5, 7);
      _tile_stored(3, dots + 3 * kSize, 64);
    }
  }
}

// Add groups [first, last) of kScaleRows rows: the float half of `quantized_tile`.
template <int N>
SRT_INLINE void scale_rows(const uint8_t *const (&w)[N], int k, const Activations &x, size_t row,
                           const int32_t *dots, size_t group_dots, int first, int last,
                           F (&acc)[kScaleRows][N]) {
  const int groups = k / kGroup;
  const float *scale = x.scale + row * groups, *sums = x.sums + row * groups;
  for (int g = first; g < last; g++) {
    for (int n = 0; n < N; n++) {
      F d, m;
      Wide::scales(w[n] + size_t(groups) * Wide::kCode + size_t(g) * Wide::kScale, d, m);
#pragma GCC unroll 4
      for (int r = 0; r < kScaleRows; r++) {
        const I dot = _mm512_load_si512(dots + (g - first) * group_dots + n * kTileRows * 16 + r * 16);
        const F by = mul(d, set1(scale[size_t(r) * groups + g]));
        acc[r][n] = fma(to_float(dot), by, acc[r][n]);
        acc[r][n] = fma(m, set1(sums[size_t(r) * groups + g]), acc[r][n]);
      }
    }
  }
}

// Rows [row, row + 16 H) of an unpacked pair.
template <int H, int N>
static void tile_rows(const LinearTask &task, int pair, const uint8_t *const (&w)[N], size_t row,
                      uint8_t *scratch) {
  constexpr size_t kGroupDots = size_t(H) * N * kTileRows * 16;
  constexpr int kRows = H * kTileRows;
  const int k = task.w[0]->k, groups = k / kGroup;
  auto *dots = reinterpret_cast<int32_t *>(scratch);
  auto *sums = reinterpret_cast<float *>(dots + kBatchGroups * kGroupDots);
  for (int first = 0; first < groups; first += kBatchGroups) {
    const int last = first + kBatchGroups < groups ? first + kBatchGroups : groups;
    for (int g = first; g < last; g++) {
      const uint8_t *codes[N];
      for (int n = 0; n < N; n++) codes[n] = w[n] + size_t(g) * Wide::kCode;
      tile_dots<H, N>(task.x.q + row * k + g * kGroup, k, codes, dots + (g - first) * kGroupDots);
    }
    for (int r = 0; r < kRows; r += kScaleRows) {
      F acc[kScaleRows][N];
      float *kept = sums + size_t(r) * N * 16;
      for (int i = 0; i < kScaleRows; i++)
        for (int n = 0; n < N; n++) acc[i][n] = first == 0 ? zero() : load(kept + (i * N + n) * 16);
      const int32_t *from = dots + size_t(r / kTileRows) * N * kTileRows * 16 + r % kTileRows * 16;
      scale_rows(w, k, task.x, row + r, from, kGroupDots, first, last, acc);
      if (last == groups) {
        for (int i = 0; i < kScaleRows; i++) add_bias(task, pair, acc[i]);
        write_tile(task, pair, row + r, acc);
      } else {
        for (int i = 0; i < kScaleRows; i++)
          for (int n = 0; n < N; n++) store(kept + (i * N + n) * 16, acc[i][n]);
      }
    }
  }
}

template <int N>
static void many_rows(const LinearTask &task, int pair, const uint8_t *const (&w)[N], int first_row,
                      int last_row, uint8_t *scratch) {
  int row = first_row;
  if (last_row - row >= kTileRows) {
    configure_tiles();
    for (; last_row - row >= 2 * kTileRows; row += 2 * kTileRows)
      tile_rows<2>(task, pair, w, row, scratch);
    for (; last_row - row >= kTileRows; row += kTileRows)
      tile_rows<1>(task, pair, w, row, scratch);
    _tile_release();
  }
  if (row < last_row) pair_of_blocks<Wide>(task, pair, w, row, last_row);
}
