// Attention of one token on tiles: see attention_amx.inl.
#include "attention_tiles.inl"

namespace srt::amx {

template <int V>
struct TileRows : TileAttention<V> {
  using Base = TileAttention<V>;
  using Base::kDim;
  using Base::kGroups;
  using Base::kHeadBytes;
  using Base::kRecord;
  using Base::kValueBytes;

  static constexpr size_t kStageBytes = 2 * kHeadBytes > kValueBytes ? 2 * kHeadBytes : kValueBytes;

  struct View {
    const AttentionCall &call;
    const AttentionUnit &unit;
    const Query &query;
    size_t stride;      // of a pool's rows
    int group, tiles;   // heads of a kv head, and tiles of them
    float *scores;      // [heads of the unit][kChunk], then weights: see `weigh`
    float *records;     // [heads of the unit]
    float *states;      // [heads of the unit]
    float *maxima;      // [heads of the unit]
    float *products;    // [2][tiles][2] tiles of scores
    char *queries;      // [kv heads of the unit][tiles][kGroups] tiles
    char *stages[2];    // tiles of 32 keys or values

    int kv_heads() const { return unit.last_head - unit.first_head; }
    int heads() const { return kv_heads() * group; }
    const f16 *pool(const void *of, int local) const {
      return static_cast<const f16 *>(of) + size_t(unit.first_head + local) * kDim;
    }
  };

  static View make_view(const AttentionCall &call, const AttentionUnit &unit, float *scratch) {
    View view{call, unit, call.queries[unit.first_query], size_t(call.kv_heads) * kDim,
              call.heads / call.kv_heads, 0, scratch, nullptr, nullptr, nullptr, nullptr, nullptr,
              {}};
    view.tiles = tile_rows(view.group) / kTileRows;
    const int rows = tile_rows(view.heads()) + kTileRows;  // tiles read past the last head
    view.records = view.scores + size_t(rows) * kChunk;
    view.states = view.records + size_t(rows) * kRecord;
    view.maxima = view.states + size_t(rows) * kRecord;
    view.products = view.maxima + rows;
    view.queries = reinterpret_cast<char *>(view.products + view.tiles * 4 * kTileFloats);
    view.stages[0] = view.queries + size_t(view.kv_heads()) * view.tiles * kHeadBytes;
    view.stages[1] = view.stages[0] + kStageBytes;
    return view;
  }

  // A kv head's heads as the right operand, sixteen at a time; missing ones are zero.
  SRT_FLATTEN void read_queries(const float *q, int group, char *to) {
    for (int h = 0; h < group; h += kTileRows)
      for (int g = 0; g < kGroups; g++, to += kTileBytes) {
        F rows[16];
        for (int i = 0; i < 16; i++)
          rows[i] = h + i < group
                        ? _mm512_castsi512_ps(Base::read_group(q + size_t(h + i) * kDim, g))
                        : zero();
        store_transposed(to, rows);
      }
  }

  // Prefetches the rows that the next pass will read, with all kv heads of the unit: one row for
  // every `period_` keys that this pass reads of one head. They go into the second-level cache,
  // because a pass takes longer than the first could keep them.
  class Ahead {
   public:
    Ahead(const View &view, const void *pool, const int32_t *slots, int count)
        : first_(reinterpret_cast<const char *>(view.pool(pool, 0))),
          slots_(slots),
          end_(slots + std::max(0, count)),
          row_bytes_(view.stride * sizeof(f16)),
          bytes_(size_t(view.kv_heads()) * kDim * sizeof(f16)),
          period_(view.kv_heads()) {}
    inline __attribute__((always_inline)) void key() {
      if (--wait_ <= 0) row();
    }
    inline __attribute__((always_inline)) void row() {
      wait_ = period_;
      if (slots_ >= end_) return;
      const char *row = first_ + size_t(*slots_++) * row_bytes_;
      for (size_t at = 0; at < bytes_; at += 64) _mm_prefetch(row + at, _MM_HINT_T1);
    }
    void all() {
      while (slots_ < end_) row();
    }

   private:
    const char *first_;
    const int32_t *slots_, *end_;
    size_t row_bytes_, bytes_;
    int period_, wait_ = 0;
  };

  // A pass over one kv head after the other, in `all` blocks of 32 keys or values.
  struct Pass {
    const View &view;
    const int32_t *slots;
    int lo, n, first, steps, all;

    Pass(const View &view_, const int32_t *slots_, int lo_, int n_)
        : view(view_), slots(slots_), lo(lo_), n(n_), first(lo / kGroup),
          steps((n + kGroup - 1) / kGroup - first), all(steps * view.kv_heads()) {}
    int kv_head(int i) const { return i / steps; }
    int group(int i) const { return first + i % steps; }
    char *stage(int i) const { return view.stages[i % 2]; }
  };

  // Block i's keys, as the left operand.
  SRT_FLATTEN void stage_keys(const Pass &pass, int i, Ahead &ahead) {
    const View &view = pass.view;
    const f16 *pool = view.pool(view.call.k_pool, pass.kv_head(i));
    const int t = pass.group(i) * kGroup, count = std::min(kGroup, pass.n - t);
    for (int key = 0; key < count; key++) {
      ahead.key();
      const f16 *from = pool + size_t(pass.slots[t + key]) * view.stride;
      char *to = pass.stage(i) + key / kTileRows * kHeadBytes + key % kTileRows * 64;
      repeat<kGroups>([&](auto g) {
        _mm512_storeu_si512(to + g * kTileBytes, Base::read_group(from, g));
      });
    }
  }

  SRT_FLATTEN void stage_values(const Pass &pass, int i, Ahead &ahead) {
    const View &view = pass.view;
    const int kv = pass.kv_head(i), t = pass.group(i) * kGroup;
    I most = _mm512_setzero_si512();
    Base::gather_values(view.pool(view.call.v_pool, kv), view.stride, pass.slots, t, pass.lo,
                        pass.n, pass.stage(i), most, [&] { ahead.key(); });
  }

  // Scores [16 keys][16 heads] as rows of heads, `count` of them.
  SRT_FLATTEN void write_scores(const float *tile, int count, float *scores) {
    if (count > 4) {
      F r[16];
      for (int i = 0; i < 16; i++) r[i] = load(tile + 16 * i);
      transpose(r);
      for (int h = 0; h < count; h++) store(scores + h * kChunk, r[h]);
      return;
    }
    F r[4];  // of keys 4l + i in lane group l
    repeat<4>([&](auto i) {
      F x = _mm512_castps128_ps512(_mm_loadu_ps(tile + 16 * i));
      x = _mm512_mask_broadcast_f32x4(x, 0x00f0, _mm_loadu_ps(tile + 16 * (i + 4)));
      x = _mm512_mask_broadcast_f32x4(x, 0x0f00, _mm_loadu_ps(tile + 16 * (i + 8)));
      r[i] = _mm512_mask_broadcast_f32x4(x, 0xf000, _mm_loadu_ps(tile + 16 * (i + 12)));
    });
    const F a = _mm512_unpacklo_ps(r[0], r[1]), b = _mm512_unpacklo_ps(r[2], r[3]);
    const F c = _mm512_unpackhi_ps(r[0], r[1]), d = _mm512_unpackhi_ps(r[2], r[3]);
    const F heads[4] = {_mm512_shuffle_ps(a, b, 0x44), _mm512_shuffle_ps(a, b, 0xee),
                        _mm512_shuffle_ps(c, d, 0x44), _mm512_shuffle_ps(c, d, 0xee)};
    for (int h = 0; h < count; h++) store(scores + h * kChunk, heads[h]);
  }

  // For the tile registers see `configure_for_token`.
  SRT_FLATTEN void multiply_keys(const Pass &pass, int i) {
    const View &view = pass.view;
    const char *queries = view.queries + size_t(pass.kv_head(i)) * view.tiles * kHeadBytes;
    float *products = view.products + i % 2 * view.tiles * 2 * kTileFloats;
    for (int tile = 0; tile < view.tiles; tile++, products += 2 * kTileFloats) {
      const char *keys = pass.stage(i);
      _tile_zero(0);
      _tile_zero(1);
      for (int g = 0; g < kGroups; g++, keys += kTileBytes, queries += kTileBytes) {
        SRT_TILE_LOAD(6, queries, 64);
        SRT_TILE_LOAD(4, keys, 64);
        SRT_TILE_LOAD(5, keys + kHeadBytes, 64);
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 5, 6);
      }
      SRT_TILE_STORE(0, products, 64);
      SRT_TILE_STORE(1, products + kTileFloats, 64);
    }
  }

  SRT_FLATTEN void write_block(const Pass &pass, int i) {
    const View &view = pass.view;
    const float *products = view.products + i % 2 * view.tiles * 2 * kTileFloats;
    float *scores = view.scores + size_t(pass.kv_head(i)) * view.group * kChunk +
                    pass.group(i) * kGroup;
    for (int h = 0; h < view.group; h += kTileRows)
      for (int t = 0; t < kGroup; t += kTileRows, products += kTileFloats)
        write_scores(products, std::min(kTileRows, view.group - h), scores + h * kChunk + t);
  }

  SRT_FLATTEN void multiply_values(const Pass &pass, int i) {
    const View &view = pass.view;
    const bool is_first = i % pass.steps == 0;
    const int stride = 4 * kRecord;
    for (int h = 0; h < view.group; h += kTileRows) {
      const int head = pass.kv_head(i) * view.group + h;
      const Operand weights = Base::weights_from(view.scores + size_t(head) * kChunk);
      const char *values = pass.stage(i);
      float *out = view.records + size_t(head) * kRecord;
      SRT_TILE_LOAD(7, weights.at(pass.group(i)), weights.stride);
      for (int c = 0; c < Base::kColumnTiles;
           c += 2, values += 2 * kTileBytes, out += 2 * kColumns) {
        const bool two = c + 1 < Base::kColumnTiles;
        if (is_first) {
          _tile_zero(2);
          _tile_zero(3);
        } else {
          SRT_TILE_LOAD(2, out, stride);
          if (two) SRT_TILE_LOAD(3, out + kColumns, stride);
        }
        SRT_TILE_LOAD(4, values, 64);
        if (two) SRT_TILE_LOAD(5, values + kTileBytes, 64);
        _tile_dpbf16ps(2, 7, 4);
        if (two) _tile_dpbf16ps(3, 7, 5);
        SRT_TILE_STORE(2, out, stride);
        if (two) SRT_TILE_STORE(3, out + kColumns, stride);
      }
    }
  }

  // A block is multiplied when the next one has been staged, and its products are read when the one
  // after that has been: what was stored only just now is slow to load.
  static void chunk_scores(const Pass &pass, Ahead ahead) {
    for (int i = 0; i < pass.all + 2; i++) {
      if (i < pass.all) stage_keys(pass, i, ahead);
      if (i >= 2) write_block(pass, i - 2);
      if (i >= 1 && i <= pass.all) multiply_keys(pass, i - 1);
    }
  }

  static void chunk_values(const Pass &pass, Ahead ahead) {
    for (char *stage : pass.view.stages) Base::write_ones(stage);  // over the keys that were there
    for (int i = 0; i <= pass.all; i++) {
      if (i < pass.all) stage_values(pass, i, ahead);
      if (i >= 1) multiply_values(pass, i - 1);
    }
  }

  static void attend(const AttentionCall &call, const AttentionUnit &unit, float *scratch) {
    const View view = make_view(call, unit, scratch);
    configure_for_token(std::min(view.group, kTileRows));
    const Query &query = view.query;
    const int head = unit.first_head * view.group, heads = view.heads();
    for (int local = 0; local < view.kv_heads(); local++)
      read_queries(call.q + query.token * call.ldq + size_t(head + local * view.group) * kDim,
                   view.group, view.queries + size_t(local) * view.tiles * kHeadBytes);
    for (int chunk = unit.first_chunk; chunk < unit.last_chunk; chunk++) {
      const int32_t *slots = unit.slots + chunk * kChunk;
      const int lo = std::max(0, query.lower - chunk * kChunk);
      const int n = std::min(kChunk, query.limit - chunk * kChunk);
      const int left = std::min((unit.last_chunk - chunk - 1) * kChunk,
                                query.limit - (chunk + 1) * kChunk);
      if (chunk == unit.first_chunk) Ahead(view, call.k_pool, slots + lo, n - lo).all();
      const Pass pass(view, slots, lo, n);
      chunk_scores(pass, Ahead(view, call.v_pool, slots + lo, n - lo));
      for (int h = 0; h < heads; h++)
        view.maxima[h] = Base::weigh(view.scores + size_t(h) * kChunk, lo, n);
      chunk_values(pass, Ahead(view, call.k_pool, slots + n, std::min(kChunk, left)));
      for (int h = 0; h < heads; h++) {
        float *record = view.records + size_t(h) * kRecord;
        record[kDim] = view.maxima[h];
        Base::keep(call, query, chunk, head + h, record, view.states + size_t(h) * kRecord);
      }
    }
    for (int h = 0; h < heads; h++)
      Base::finish(call, query, head + h, view.states + size_t(h) * kRecord);
  }
};

}  // namespace srt::amx
