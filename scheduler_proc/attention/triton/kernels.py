"""The Triton kernels: attention of blocks of query tokens over slots, and the merge of parts.

One kernel attends for decodes, extends and shared prefixes alike. A program takes one item (see
`work.py`) and one kv head. The query heads that share this kv head are folded into the rows of the
query tile, so K and V are read once per kv head. Scores are kept in base 2: the scale comes with
log2(e) in it, and exp2 is what the hardware has. The softmax is the online one of FlashAttention
(Dao et al., 2022). A token whose keys are spread over several items gets a part of each: its output
over those keys and the base-2 logarithm of the sum of its exponentials. `merge` combines them as
Flash-Decoding does.

Keys that all tokens of the item see are attended without masks. Loads beyond the item's last slot
are masked, and what they would have read counts as 0: slots that nobody lists may hold NaN, which
would get through a weight of 0.

This module is imported only where a backend is made. Under TRITON_INTERPRET=1, set before triton is
imported, the kernels run on the CPU.
"""

import triton
import triton.language as tl

_LOG2_E = tl.constexpr(1.4426950408889634)
# int32 per item: its first token, its number of tokens, where its list of slots begins in
# kv_indices, the first and one past the last entry of the list that it attends to, the first
# token's position in that list, the number of its part or -1 for the whole output, and nothing.
_ITEM_FIELDS = tl.constexpr(8)
# int32 per token in parts: the token, its first part, its number of parts, and nothing.
_MERGE_FIELDS = tl.constexpr(4)


@triton.jit
def _loaded(at, rows, dims, DIM: tl.constexpr, BLOCK: tl.constexpr):
    """Rows of DIM numbers at the pointers `at` [n, 1], as [n, BLOCK]; 0 where `rows` is false."""
    if DIM == BLOCK:
        return tl.load(at + dims[None, :], mask=rows[:, None], other=0.0)
    return tl.load(at + dims[None, :], mask=rows[:, None] & (dims < DIM)[None, :], other=0.0)


@triton.jit
def _queries(q, at, used, HEAD_DIM: tl.constexpr, K_A: tl.constexpr, K_B: tl.constexpr):
    """The rows `at` of q in one block or two; without a second the first one stands for it."""
    row = (at * HEAD_DIM)[:, None]
    q_a = _loaded(q + row, used, tl.arange(0, K_A), K_A if K_B > 0 else HEAD_DIM, K_A)
    q_b = q_a
    if K_B > 0:
        q_b = _loaded(q + row + K_A, used, tl.arange(0, K_B), HEAD_DIM - K_A, K_B)
    return q_a, q_b


@triton.jit
def _store(
    to, at, rows, factor, value_a, value_b,
    VALUE_DIM: tl.constexpr, V_A: tl.constexpr, V_B: tl.constexpr,
):  # fmt: skip
    """Write the values times `factor` [n] to the rows `at` [n] of `to`, where `rows` is true."""
    row = (at * VALUE_DIM)[:, None]
    dims = tl.arange(0, V_A)
    mask = rows[:, None] & (dims < VALUE_DIM)[None, :]
    tl.store(
        to + row + dims[None, :], (value_a * factor[:, None]).to(to.dtype.element_ty), mask=mask
    )
    if V_B > 0:
        dims_b = V_A + tl.arange(0, V_B)
        mask_b = rows[:, None] & (dims_b < VALUE_DIM)[None, :]
        tl.store(
            to + row + dims_b[None, :],
            (value_b * factor[:, None]).to(to.dtype.element_ty),
            mask=mask_b,
        )


@triton.jit
def _product(a, b, PRECISION: tl.constexpr):
    """a @ b in float32. The interpreter cannot multiply bfloat16, so there it is widened first."""
    if PRECISION == "interpreted":
        return tl.dot(a.to(tl.float32), b.to(tl.float32))
    else:
        return tl.dot(a, b, input_precision=PRECISION)


@triton.jit
def _attend_range(
    first, stop, end, slots, k_head, v_head, q_a, q_b, out_a, out_b, top, total,
    limits, lowers, scale,
    MASKED: tl.constexpr, WINDOW: tl.constexpr, SOFTCAP: tl.constexpr,
    K_STRIDE: tl.constexpr, V_STRIDE: tl.constexpr,
    HEAD_DIM: tl.constexpr, VALUE_DIM: tl.constexpr,
    K_A: tl.constexpr, K_B: tl.constexpr, V_A: tl.constexpr, V_B: tl.constexpr,
    BLOCK_N: tl.constexpr, PRECISION: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """The online softmax over the keys [first, stop) of the list, in blocks; none from `end` on.

    Unless MASKED, every query sees all of them and they are whole blocks. Slots are loaded a block
    ahead, so that the addresses of K and V never wait for memory: the compiler then keeps copies of
    K and V in flight, STAGES - 1 blocks of each. Returns out_a, out_b
    (unnormalised), top (the greatest score) and total (the sum of exponentials relative to it).
    """
    dims_ka, dims_va = tl.arange(0, K_A), tl.arange(0, V_A)
    keys = first + tl.arange(0, BLOCK_N)
    ahead = tl.load(slots + keys, mask=keys < end, other=0)
    for start in tl.range(first, stop, BLOCK_N, num_stages=STAGES):
        keys = start + tl.arange(0, BLOCK_N)
        slot = ahead.to(tl.int64)
        ahead = tl.load(slots + keys + BLOCK_N, mask=keys + BLOCK_N < end, other=0)
        inside = keys < end if MASKED else tl.full([BLOCK_N], True, tl.int1)
        k_at, v_at = (k_head + slot * K_STRIDE)[:, None], (v_head + slot * V_STRIDE)[:, None]
        k = _loaded(k_at, inside, dims_ka, K_A if K_B > 0 else HEAD_DIM, K_A)
        scores = _product(q_a, tl.trans(k.to(q_a.dtype)), PRECISION)
        if K_B > 0:
            k_rest = _loaded(k_at + K_A, inside, tl.arange(0, K_B), HEAD_DIM - K_A, K_B)
            scores += _product(q_b, tl.trans(k_rest.to(q_b.dtype)), PRECISION)
        if SOFTCAP > 0:
            # cap * tanh(x / cap) in base 2: `scale` brings 2 * log2(e) / cap with it. The error of
            # this form is some 1e-7 of the cap.
            scores = (1.0 - 2.0 / (tl.exp2(scores * scale) + 1.0)) * (SOFTCAP * _LOG2_E)
            factor = 1.0
        else:
            factor = scale
        if MASKED:
            visible = inside[None, :] & (keys[None, :] < limits[:, None])
            if WINDOW > 0:
                visible &= keys[None, :] >= lowers[:, None]
            scores = tl.where(visible, scores, -float("inf"))
        new_top = tl.maximum(top, tl.max(scores, 1) * factor)
        # Where nothing has been seen so far any finite value will do.
        finite_top = tl.where(new_top == -float("inf"), 0.0, new_top) if MASKED else new_top
        weights = tl.exp2(scores * factor - finite_top[:, None])
        shrink = tl.exp2(top - finite_top)
        total = total * shrink + tl.sum(weights, 1)
        top = new_top
        narrow = weights.to(q_a.dtype)
        v = _loaded(v_at, inside, dims_va, V_A if V_B > 0 else VALUE_DIM, V_A).to(q_a.dtype)
        out_a = out_a * shrink[:, None] + _product(narrow, v, PRECISION)
        if V_B > 0:
            v_rest = _loaded(v_at + V_A, inside, tl.arange(0, V_B), VALUE_DIM - V_A, V_B)
            out_b = out_b * shrink[:, None] + _product(narrow, v_rest.to(q_a.dtype), PRECISION)
    return out_a, out_b, top, total


@triton.jit
def attend(
    q, k_pool, v_pool, out, out_lse, part_out, part_lse, sinks,
    items, order, part_starts, kv_indices, visible_until, scale, v_scale,
    KV_HEADS: tl.constexpr, GROUP: tl.constexpr, HEAD_DIM: tl.constexpr, VALUE_DIM: tl.constexpr,
    K_STRIDE: tl.constexpr, K_HEAD_STRIDE: tl.constexpr,
    V_STRIDE: tl.constexpr, V_HEAD_STRIDE: tl.constexpr,
    WINDOW: tl.constexpr, SOFTCAP: tl.constexpr, HAS_SINKS: tl.constexpr,
    HAS_ORDER: tl.constexpr, HAS_UNTIL: tl.constexpr, STORE_LSE: tl.constexpr,
    K_A: tl.constexpr, K_B: tl.constexpr, V_A: tl.constexpr, V_B: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, PRECISION: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """One item and kv head per program: grid (items * KV_HEADS,), the kv heads of an item together.

    q [T, heads, HEAD_DIM], out [T, heads, VALUE_DIM] (contiguous), out_lse [T, heads] float32;
    part_out [parts, heads, VALUE_DIM], part_lse [parts, heads] float32; sinks [heads]. With
    HAS_ORDER the tokens of items are numbers of `order`, else of the batch; part_starts [T] is the
    first part of each token that has parts.
    """
    kv_head = tl.program_id(0) % KV_HEADS
    item = items + tl.program_id(0) // KV_HEADS * _ITEM_FIELDS
    num_tokens = tl.load(item + 1)
    if num_tokens == 0:  # a graph's grid has room for more items than there are
        return
    first_token, list_start = tl.load(item), tl.load(item + 2)
    begin, end = tl.load(item + 3), tl.load(item + 4)
    position, part = tl.load(item + 5), tl.load(item + 6)

    rows = tl.arange(0, BLOCK_M)
    number, used = rows // GROUP, rows // GROUP < num_tokens
    token = first_token + number
    if HAS_ORDER:
        token = tl.load(order + token, mask=used, other=0)
    head = kv_head * GROUP + rows % GROUP
    at = token.to(tl.int64) * (KV_HEADS * GROUP) + head
    q_a, q_b = _queries(q, at, used, HEAD_DIM, K_A, K_B)
    # What each token sees: its keys [lower, limit) of the list.
    limits, lowers = position + number + 1, position + number + 1 - WINDOW
    if HAS_UNTIL:
        limits = tl.maximum(limits, tl.load(visible_until + token, mask=used, other=0))
    # All tokens see the keys [middle, middle_end), which are whole blocks.
    middle = begin
    if WINDOW > 0:
        before = tl.maximum(position + num_tokens - WINDOW - begin, 0)
        middle += (before + BLOCK_N - 1) // BLOCK_N * BLOCK_N
    middle_len = tl.maximum(tl.minimum(end, position + 1) - middle, 0)
    middle_end = middle + middle_len // BLOCK_N * BLOCK_N

    slots = kv_indices + list_start
    k_head, v_head = k_pool + kv_head * K_HEAD_STRIDE, v_pool + kv_head * V_HEAD_STRIDE
    top = tl.full([BLOCK_M], -float("inf"), tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    if HAS_SINKS:  # the first score of a whole output; `merge` counts it for parts
        sink = tl.load(sinks + head, mask=used, other=0.0).to(tl.float32) * _LOG2_E
        top, total = tl.where(part < 0, sink, top), tl.where(part < 0, 1.0, total)
    out_a = tl.zeros([BLOCK_M, V_A], tl.float32)
    out_b = tl.zeros([BLOCK_M, V_B if V_B > 0 else 16], tl.float32)
    for phase in tl.static_range(0 if WINDOW > 0 else 1, 3):
        if phase == 0:  # keys that tokens do not see any more
            first, stop = begin, tl.minimum(middle, end)
        elif phase == 1:
            first, stop = middle, middle_end
        else:  # keys that tokens do not see yet, and what is left of the last block
            first, stop = middle_end, end
        out_a, out_b, top, total = _attend_range(
            first, stop, end, slots, k_head, v_head, q_a, q_b, out_a, out_b, top, total,
            limits, lowers, scale, phase != 1, WINDOW, SOFTCAP, K_STRIDE, V_STRIDE,
            HEAD_DIM, VALUE_DIM, K_A, K_B, V_A, V_B, BLOCK_N, PRECISION, STAGES,
        )  # fmt: skip

    if part < 0:
        _store(out, at, used, v_scale / total, out_a, out_b, VALUE_DIM, V_A, V_B)
        if STORE_LSE:
            tl.store(out_lse + at, top + tl.log2(total), mask=used)
    else:
        # A token of an extend may see none of this part's keys: a weight of 0 and zeros.
        factor = v_scale / tl.where(total == 0.0, 1.0, total)
        start = tl.load(part_starts + token, mask=used, other=0)
        at = (start + part).to(tl.int64) * (KV_HEADS * GROUP) + head
        _store(part_out, at, used, factor, out_a, out_b, VALUE_DIM, V_A, V_B)
        tl.store(part_lse + at, top + tl.log2(total), mask=used)


@triton.jit
def merge(
    part_out, part_lse, out, out_lse, sinks, merges,
    HEADS: tl.constexpr, VALUE_DIM: tl.constexpr, BLOCK_V: tl.constexpr,
    BLOCK_PARTS: tl.constexpr, HAS_SINKS: tl.constexpr, STORE_LSE: tl.constexpr,
):  # fmt: skip
    """One token in parts and head per program: grid (tokens * HEADS,). The sink of the head is
    counted here, and in no part. Arguments as in `attend`."""
    head = tl.program_id(0) % HEADS
    entry = merges + tl.program_id(0) // HEADS * _MERGE_FIELDS
    num_parts = tl.load(entry + 2)
    if num_parts < 2:  # in a graph: a token whose output is written already
        return
    token, first = tl.load(entry).to(tl.int64), tl.load(entry + 1).to(tl.int64)
    if HAS_SINKS:
        top = tl.load(sinks + head).to(tl.float32) * _LOG2_E
        total = 1.0
    else:
        top = -float("inf")
        total = 0.0
    dims = tl.arange(0, BLOCK_V)
    value = tl.zeros([BLOCK_V], tl.float32)
    for start in tl.range(0, num_parts, BLOCK_PARTS):
        parts = start + tl.arange(0, BLOCK_PARTS)
        inside = parts < num_parts
        at = (first + parts) * HEADS + head
        lse = tl.load(part_lse + at, mask=inside, other=-float("inf"))
        values = _loaded(part_out + (at * VALUE_DIM)[:, None], inside, dims, VALUE_DIM, BLOCK_V)
        new_top = tl.maximum(top, tl.max(lse, 0))
        finite_top = tl.where(new_top == -float("inf"), 0.0, new_top)
        weights = tl.exp2(lse - finite_top)
        shrink = tl.exp2(top - finite_top)
        total = total * shrink + tl.sum(weights, 0)
        value = value * shrink + tl.sum(values * weights[:, None], 0)
        top = new_top
    at = token * HEADS + head
    result = (value / total).to(out.dtype.element_ty)
    tl.store(out + at * VALUE_DIM + dims, result, mask=dims < VALUE_DIM)
    if STORE_LSE:
        tl.store(out_lse + at, top + tl.log2(total))
