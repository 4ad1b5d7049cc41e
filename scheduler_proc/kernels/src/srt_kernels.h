/* The C ABI of the native kernels: the only part that Python uses.
 *
 * A plain C header without torch or C++ types. All arrays are contiguous and row-major unless a
 * stride is given; the caller owns every array and keeps it alive as long as the engine or the
 * call needs it. Calls return 0, or -1 with a text in srt_last_error() (per thread).
 */
#ifndef SRT_KERNELS_H
#define SRT_KERNELS_H

#include <stddef.h>
#include <stdint.h>

#define SRT_ABI_VERSION 11

#ifdef __cplusplus
extern "C" {
#endif

#define SRT_EXPORT __attribute__((visibility("default")))

/* Packed weight formats: blocks of 16 output channels; see formats.h for the layouts. */
typedef enum {
  SRT_F32 = 0,  /* float                                                             */
  SRT_F16 = 1,  /* IEEE half                                                         */
  SRT_BF16 = 2, /* bfloat16                                                          */
  SRT_Q4 = 3,   /* groups of 32: w = d*q + m, q in 0..15, half d and m: Q4_0, Q4_1   */
  SRT_Q4K = 4,  /* the same with float d and m: Q4_K                                 */
  SRT_Q8 = 5,   /* groups of 32: w = d*q, q in -128..127, half d: Q8_0               */
  SRT_Q6 = 6,   /* groups of 16: w = d*q, q in -32..31, float d: Q6_K                */
  /* The same, in the order that levels with matrix tiles read; only they compute with these. */
  SRT_Q4_TILES = 7,
  SRT_Q4K_TILES = 8,
  SRT_Q8_TILES = 9,
  SRT_Q6_TILES = 10,
  SRT_I16 = 11, /* of KV pools only: whole numbers up to 8191, a scale for each head of a token */
} srt_format;

/* Source encodings for srt_pack: ggml's type ids, and BF16. */
typedef enum {
  SRT_SRC_F32 = 0,
  SRT_SRC_F16 = 1,
  SRT_SRC_Q4_0 = 2,
  SRT_SRC_Q4_1 = 3,
  SRT_SRC_Q8_0 = 8,
  SRT_SRC_Q4_K = 12,
  SRT_SRC_Q6_K = 14,
  SRT_SRC_BF16 = 30,
} srt_source;

/* y = x @ w.T + bias with w [n, k]. `n` is the true number of outputs; data is padded to 16. */
typedef struct {
  int32_t format; /* srt_format */
  int32_t n, k;
  const void *data;  /* srt_packed_bytes(format, n, k) bytes, 64-byte aligned */
  const float *bias; /* [n] or NULL; with it n must be a multiple of 16 */
} srt_matrix;

/* How a token's experts are chosen and weighed, in float32: RouterRule of models/config.py, field for
 * field. Ties go to the lowest id. */
typedef struct {
  int32_t sigmoid;    /* scores are sigmoids of the logits; else a softmax over them */
  int32_t by_logits;  /* the experts of the highest logits are chosen, and scored among themselves;
                         else all are scored, and those of the highest scores are chosen */
  int32_t normalised; /* the chosen scores are divided by their sum */
  int32_t groups;     /* of equal size, ids in order; a group is worth the sum of its two best */
  int32_t used_groups; /* experts are of the best so many groups */
  float scale;         /* of the weights, at the end */
} srt_router_rule;

/* A layer's mixture of experts: y = sum of weight[e] * down[e](silu(gate[e] x) * up[e] x) over the
 * chosen experts in ascending order, then the shared expert's. Each of gate, up and down has one
 * format for all experts. */
typedef struct {
  int32_t count, used, width; /* width is a multiple of 16 */
  srt_router_rule rule;
  srt_matrix router;        /* [count, hidden] SRT_F32, SRT_F16 or SRT_BF16; without a bias */
  const float *router_bias; /* [count] or NULL */
  const float *correction;  /* [count] or NULL: added to what experts are chosen by, and only there */
  const srt_matrix *gate, *up, *down; /* [count] each: [width, hidden] twice, [hidden, width] */
  srt_matrix shared_gate, shared_up, shared_down; /* n = 0: no shared expert */
  const float *shared_score; /* [hidden] or NULL: the shared expert's weight is sigmoid(x . this) */
} srt_experts;

/* One decoder layer. Pools are [num_slots, kv_heads, head_dim] of the model's kv_format; those of
 * SRT_I16 have [num_slots, kv_heads] floats after these, and end with a multiple of 64 bytes. */
typedef struct {
  const float *attn_norm, *mlp_norm; /* [hidden] */
  const float *q_norm, *k_norm;      /* RMSNorm before rope, of each head: [head_dim]; or NULL */
  srt_matrix q, k, v, o;
  srt_matrix gate, up, down;  /* of a dense layer */
  const srt_experts *experts; /* or NULL: the layer is dense */
  void *k_pool, *v_pool;
  int32_t window; /* a token sees this many, itself included; 0: all */
} srt_layer;

/* The inputs that matrices are multiplied with. */
typedef enum {
  SRT_IN_QKV = 0,     /* of q, k and v                 */
  SRT_IN_O = 1,       /* what attention made           */
  SRT_IN_GATE_UP = 2, /* of gate and up                */
  SRT_IN_DOWN = 3,    /* what gate and up made         */
  SRT_IN_HEAD = 4,    /* of the logits                 */
  SRT_NUM_INPUTS = 5,
} srt_input;

typedef struct {
  int32_t num_layers, hidden, heads, kv_heads, head_dim, intermediate, vocab;
  int32_t num_slots;
  int32_t kv_format; /* SRT_F16, SRT_F32 or SRT_I16 */
  /* Of each srt_input, where it is multiplied with quantised weights outside tiles: 8, 16, 12 for at
   * least as many where 16 are slower, else 16, or 0 for what the level computes best with. What 12
   * and 0 mean may differ between formats. */
  int32_t activation_bits[SRT_NUM_INPUTS];
  float rms_eps;
  float attn_scale;          /* usually 1/sqrt(head_dim) */
  float embed_scale;         /* of rows of `embed` */
  float residual_scale;      /* of what attention and MLP add to the residual stream */
  float logit_scale;
  int32_t whole_norms;       /* q_norm [heads*head_dim] and k_norm [kv_heads*head_dim] are of all heads
                                together */
  const float *rope_freqs;   /* [head_dim/2]: angle per position */
  const float *final_norm;   /* [hidden] */
  srt_matrix embed, head;    /* [vocab, hidden]; the same data when tied */
  const srt_layer *layers;   /* [num_layers] */
} srt_model;

/* One step: scheduler_proc.batch.ForwardBatch, field for field. T tokens, R rows, S samples,
 * L prompt log-probabilities, D detail rows, E tokens with embeddings. A row's KV is kv_indices[kv_indptr[r] ..
 * kv_indptr[r+1]), its last entries being the step's own out slots. */
typedef struct {
  int32_t num_tokens, num_rows, num_samples, num_logprobs, num_details;
  const int32_t *input_ids, *positions, *out_slots; /* [T] */
  const int32_t *qo_indptr, *kv_indptr;             /* [R+1] */
  const int32_t *kv_indices;
  const int32_t *sample_tokens; /* [S] index into [0, T) */
  const float *temperature, *top_p, *min_p; /* [S] */
  const float *top_n_sigma;                 /* [S], 0 or less: off */
  const int32_t *top_k;                     /* [S], -1: off */
  const double *uniform;                    /* [S] in [0, 1) */
  const uint8_t *want_logprob;              /* [S] */
  const int32_t *suppress_indptr;           /* [S+1], into suppress_ids */
  const int32_t *suppress_ids;              /* ids that the sample must not be; others ignored */
  const int32_t *mask_rows;                 /* [S] row of `masks`, -1: none; or NULL */
  const uint32_t *masks;                    /* [*, (vocab+31)/32] bit set: allowed */
  /* Logits of sample s that change before it is drawn: those of adjust_ids[adjust_indptr[s] ..
   * adjust_indptr[s+1]), which are distinct. Positive ones are divided by adjust_repeat, others are
   * multiplied by it, then adjust_add is added. adjust_indptr [S+1] or NULL. */
  const int32_t *adjust_indptr, *adjust_ids;
  const float *adjust_repeat, *adjust_add; /* finite, adjust_repeat above 0 */
  const int32_t *logprob_tokens, *logprob_targets; /* [L] */
  /* More log-probabilities at sample detail_rows[d] or, from S on, at prompt log-probability
   * detail_rows[d] - S: of the likeliest tokens, as many as top_indptr has room for, and of
   * detail_ids[detail_indptr[d] .. detail_indptr[d+1]). */
  const int32_t *detail_rows;               /* [D] ascending */
  const int32_t *top_indptr, *detail_indptr; /* [D+1] */
  const int32_t *detail_ids;
  /* Token embed_tokens[e] begins as row e of embeds [E, hidden], not as the row of its id. */
  int32_t num_embeds;
  const int32_t *embed_tokens; /* [E] ascending */
  const float *embeds;
  int32_t share_prefixes; /* cascade: rows that list the same slots read them once */
  int32_t *next_ids;      /* out [S] */
  float *logprobs;        /* out [S], NaN where not wanted */
  float *prompt_logprobs; /* out [L] */
  int32_t *top_ids;       /* out [top_indptr[D]] the likeliest first, among equals the lowest id */
  float *top_logprobs;    /* out [top_indptr[D]] */
  float *id_logprobs;     /* out [detail_indptr[D]] */
} srt_batch;

typedef struct srt_engine srt_engine;

/* ---- library ---- */
SRT_EXPORT int32_t srt_abi_version(void);
SRT_EXPORT const char *srt_last_error(void);
/* The best level that this CPU and the environment's SRT_ISA allow: "amx", "avx512", "avx2" or
 * "portable". NULL (see srt_last_error) if SRT_ISA names one that the CPU or build lacks. */
SRT_EXPORT const char *srt_isa(void);
/* Whether this CPU runs the level of that name. */
SRT_EXPORT int32_t srt_isa_available(const char *name);
/* Whether the level of that name, or srt_isa() for NULL, computes with the formats in tiles. */
SRT_EXPORT int32_t srt_isa_has_tiles(const char *name);

/* ---- weights ---- */
SRT_EXPORT size_t srt_packed_bytes(int32_t format, int32_t n, int32_t k);
/* Pack rows of a source encoding. `row_order` [n] (or NULL) gives the source row of each output.
 * A quantised source keeps its values exactly in its own format, in tiles or not; F32, F16 and BF16
 * can be kept, or quantised to SRT_Q8 or SRT_Q4; every source can become SRT_F32. */
SRT_EXPORT int32_t srt_pack(int32_t source, const void *src, int32_t n, int32_t k,
                            const int32_t *row_order, int32_t format, void *out);
/* Row `row` of a packed matrix as k floats. */
SRT_EXPORT int32_t srt_unpack_row(const srt_matrix *matrix, int32_t row, float *out);

/* ---- engine ---- */
/* An engine with its own threads (the caller's is one of them). The model's arrays stay the
 * caller's. `isa` is a level's name or NULL for srt_isa(). NULL on error. */
SRT_EXPORT srt_engine *srt_engine_create(const srt_model *model, int32_t threads, const char *isa);
SRT_EXPORT void srt_engine_destroy(srt_engine *engine);
/* Run one step; from one thread at a time. */
SRT_EXPORT int32_t srt_engine_step(srt_engine *engine, const srt_batch *batch);
/* Seconds per phase since the last call, as thread 0 saw them: [SRT_NUM_PHASES]. */
#define SRT_NUM_PHASES 14
SRT_EXPORT void srt_engine_profile(srt_engine *engine, double *seconds);
SRT_EXPORT const char *srt_phase_name(int32_t phase);
/* Tokens that each expert has computed so far: counts [num_layers, the most experts of a layer], 0
 * where there is none. From any thread at any time. */
SRT_EXPORT void srt_engine_expert_counts(const srt_engine *engine, int64_t *counts);
/* How often the engine's workspace has grown: constant in the steady state. */
SRT_EXPORT int64_t srt_engine_growths(const srt_engine *engine);

/* ---- token masks of grammars ---- */
/* A vocabulary's tokens as a trie without its root: its nodes in preorder, so that a subtree is the
 * range [i, ends[i]). A node's tokens, whose bytes are the path to it, are
 * token_ids[token_indptr[i] .. token_indptr[i+1]). */
typedef struct {
  int32_t num_nodes, num_tokens, vocab, max_depth;
  const uint8_t *bytes;        /* [num_nodes] on the edge into the node */
  const int32_t *depths;       /* [num_nodes] 1 .. max_depth */
  const int32_t *ends;         /* [num_nodes] */
  const int32_t *token_indptr; /* [num_nodes+1] */
  const int32_t *token_ids;    /* [num_tokens], each below vocab */
} srt_trie;

/* A deterministic automaton on bytes. */
typedef struct {
  int32_t num_states, num_classes;
  const int32_t *transitions; /* [num_states, num_classes], -1: none */
  const uint8_t *byte_class;  /* [256] */
  const uint8_t *token_ends;  /* [num_states]: a token may end here; or NULL: everywhere */
} srt_dfa;

/* The tokens that the automaton can read from `state`, of these only those that lead to a state
 * whose distance, if `distances` [num_states] is not NULL, is at most `most`: mask [(vocab+31)/32].
 * Indices outside the tables are an error, and are never read. */
SRT_EXPORT int32_t srt_token_mask(const srt_trie *trie, const srt_dfa *dfa, int32_t state,
                                  const int32_t *distances, int32_t most, uint32_t *mask);

/* For each state: the fewest bytes to one of the `accepting` [num_states] ones, and the fewest
 * tokens that spell one text so short, both [num_states]; INT32_MAX: none. */
SRT_EXPORT int32_t srt_closing_tables(const srt_trie *trie, const srt_dfa *dfa,
                                      const uint8_t *accepting, int32_t *bytes, int32_t *tokens);

/* The fewest tokens to an accepting state, `distances` [num_states], right for all states that one
 * may pass through on the way from `state` to acceptance within `left` tokens; INT32_MAX, or more
 * than is right, elsewhere. `at_least` [num_states] are bounds from below. Returns 1, and writes
 * nothing, if that takes more than `allowance` nodes of the trie. */
SRT_EXPORT int32_t srt_closing_region(const srt_trie *trie, const srt_dfa *dfa,
                                      const uint8_t *accepting, const int32_t *at_least,
                                      int32_t state, int32_t left, int64_t allowance,
                                      int32_t *distances);

/* ---- single operations, for tests and benchmarks: unlike a step they allocate at each call ---- */
typedef struct srt_pool srt_pool;
/* `activation_bits` is one of those in srt_model. */
SRT_EXPORT srt_pool *srt_pool_create(int32_t threads, const char *isa, int32_t activation_bits);
SRT_EXPORT void srt_pool_destroy(srt_pool *pool);
/* y [m, n] = x [m, k] @ w.T + bias; activations quantised in groups of 32 for the Q formats,
 * bfloat16 for those in tiles. */
SRT_EXPORT int32_t srt_op_linear(srt_pool *pool, const srt_matrix *w, const float *x, int32_t m,
                                 float *y);
/* y [m, gate.n] = silu(x @ gate.T) * (x @ up.T) */
SRT_EXPORT int32_t srt_op_gate_up(srt_pool *pool, const srt_matrix *gate, const srt_matrix *up,
                                  const float *x, int32_t m, float *y);
/* q [T, heads, head_dim] attends causally to the pools: out [T, heads, head_dim]. Of the layer's
 * weights only the format of q matters: if it is in tiles, attention is as in such a layer. */
SRT_EXPORT int32_t srt_op_attention(srt_pool *pool, const srt_model *model, const srt_layer *layer,
                                    const srt_batch *batch, const float *q, float *out);
/* x [m, k] -> y [m, k]: x / rms(x) * weight */
SRT_EXPORT int32_t srt_op_rms_norm(srt_pool *pool, const float *x, const float *weight, int32_t m,
                                   int32_t k, float eps, float *y);
/* Rotate pairs (i, i + head_dim/2) of x [m, heads, head_dim] in place. */
SRT_EXPORT int32_t srt_op_rope(srt_pool *pool, float *x, const int32_t *positions,
                               const float *freqs, int32_t m, int32_t heads, int32_t head_dim);
/* The batch's num_samples rows of logits [S, vocab] -> next_ids, logprobs, and details of samples.
 * Adjusted logits are changed while the call runs and then restored. */
SRT_EXPORT int32_t srt_op_sample(srt_pool *pool, float *logits, int32_t vocab,
                                 const srt_batch *batch);
/* Read `bytes` of `data` (whole blocks of 512) once with all threads, to measure bandwidth;
 * returns a checksum. */
SRT_EXPORT uint64_t srt_op_read(srt_pool *pool, const void *data, size_t bytes);

#ifdef __cplusplus
}
#endif
#endif
