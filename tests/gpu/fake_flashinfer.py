"""What `scheduler_proc.attention.flashinfer` uses of the package FlashInfer, in torch, on a CPU.

Names, defaults and keyword-only arguments are the package's (`test_fake_flashinfer.py` compares
them with the installed one), and so is what it refuses. Work is queued on a `fake_stream`. A plan
puts its work items into one buffer of pinned memory per wrapper and only queues their copy, so that
planning anew before the copy has run overwrites them. Host arrays that a plan is given are not
pinned: they are read at once. Device arrays are read when the kernel runs. The CPU is both host and
device, so indices count as the latter.
"""

from typing import Any, NamedTuple

import torch

from tests.gpu.fake_stream import STREAM

_INT_BYTES = 8 << 20
_Q_TYPES = (torch.float16, torch.bfloat16)
_KV_TYPES = (*_Q_TYPES, torch.float8_e4m3fn, torch.float8_e5m2)
_Scale = float | torch.Tensor | None


class _Problem(NamedTuple):
    """What the planner and the kernel are given."""

    heads: int
    kv_heads: int
    head_dim: int
    page_size: int
    causal: bool
    window_left: int
    soft_cap: float
    scale: float | None
    q_type: torch.dtype
    kv_type: torch.dtype


class _Wrapper:
    def __init__(self, workspace: torch.Tensor, kv_layout: str, backend: str) -> None:
        if workspace.data_ptr() % 16 or workspace[:4096].any():
            raise ValueError("float_workspace_buffer must be 16-byte aligned and zeroed")
        assert kv_layout == "NHD" and backend == "fa2", "all that this fake can do"
        self.device = workspace.device
        self.reset_workspace_buffer(workspace, torch.empty(_INT_BYTES, dtype=torch.uint8))
        self._problem: _Problem | None = None

    def reset_workspace_buffer(
        self, float_workspace_buffer: torch.Tensor, int_workspace_buffer: torch.Tensor
    ) -> None:
        """Use other buffers; the pinned one is made anew."""
        self._float_workspace_buffer = float_workspace_buffer
        self._int_workspace_buffer = int_workspace_buffer
        self._pinned = torch.empty_like(int_workspace_buffer)

    def _plan(self, problem: _Problem, layout: "_Layout") -> None:
        """Write work items, and queue their copy."""
        layout.check(problem)
        items = torch.cat([layout.qo_indptr, layout.kv_indptr, layout.last_page_len])
        size = 4 * (len(items) + 1)
        if size > len(self._pinned):
            raise RuntimeError(f"Failed to allocate memory for {size} bytes in AlignedAllocator")
        head = torch.tensor([len(items)], dtype=torch.int32)
        self._pinned[:size].view(torch.int32).copy_(torch.cat([head, items]))
        pinned, to = self._pinned, self._int_workspace_buffer
        STREAM.copy(lambda: to[:size].copy_(pinned[:size]))
        self._problem = problem

    def _run(
        self,
        layout: "_Layout",
        q: torch.Tensor,
        cache: tuple[torch.Tensor, torch.Tensor],
        out: torch.Tensor | None,
        lse: torch.Tensor | None,
        return_lse: bool,
        k_scale: _Scale,
        v_scale: _Scale,
    ) -> Any:
        problem = self._problem
        assert problem is not None, "plan info is not initialized"
        k, v = cache
        if q.dtype != problem.q_type or k.dtype != problem.kv_type:
            raise ValueError(f"{q.dtype}, {k.dtype} do not match those specified in plan function")
        assert k.dim() == v.dim() == 4 and k.shape[1] == problem.page_size
        assert q.shape[1:] == (problem.heads, problem.head_dim) and q.is_contiguous()
        if q.shape[0] != layout.total:
            raise ValueError(f"q.shape[0] ({q.shape[0]}) does not match qo_indptr[-1]")
        made = torch.full_like(q, torch.nan) if out is None else out
        assert made.shape == q.shape and made.dtype == q.dtype and made.is_contiguous()
        if lse is None:
            lse = torch.full(q.shape[:2], torch.nan)
        assert lse.shape == q.shape[:2] and lse.dtype == torch.float32
        items, found = self._int_workspace_buffer, lse

        def kernel() -> None:
            count = int(items[:4].view(torch.int32))
            own = torch.cat([layout.qo_indptr, layout.kv_indptr, layout.last_page_len])
            copied = items[4 : 4 + 4 * len(own)].view(torch.int32)
            if count != len(own) or (copied != own).any():
                made.fill_(torch.nan)  # the work items of another plan: anything may happen
                return
            scale = problem.scale if problem.scale is not None else problem.head_dim**-0.5
            scale *= 1.0 if k_scale is None else float(k_scale)
            for request in range(len(layout.qo_indptr) - 1):
                _attend(problem, layout, request, scale, (q, k, v), made, found)
            if v_scale is not None:
                made.mul_(v_scale)

        STREAM.launch(kernel)
        return (made, lse) if return_lse else made


class _Layout(NamedTuple):
    qo_indptr: torch.Tensor
    kv_indptr: torch.Tensor
    indices: torch.Tensor
    last_page_len: torch.Tensor
    total: int  # tokens, as the host knows them

    def check(self, problem: _Problem) -> None:
        """Refuse what the package refuses, or would read wrongly."""
        for array in (self.qo_indptr, self.kv_indptr, self.indices, self.last_page_len):
            if array.dtype != torch.int32 or array.dim() != 1 or not array.is_contiguous():
                raise ValueError("index arrays are int32, one-dimensional and contiguous")
        for indptr in (self.qo_indptr, self.kv_indptr):
            if int(indptr[0]) != 0 or (indptr.diff() < 0).any():
                raise ValueError("an indptr begins with 0 and never falls")
        if len(self.qo_indptr) != len(self.kv_indptr):
            raise ValueError("as many requests in qo_indptr as in kv_indptr")
        if int(self.kv_indptr[-1]) > len(self.indices):
            raise ValueError("kv_indptr[-1] pages are needed in indices")
        pages = self.kv_indptr.diff()
        # On the host an empty request has as many entries as its last page; on the device none.
        if not torch.equal(
            (pages - 1).clamp(min=0) * problem.page_size + self.last_page_len,
            torch.where(pages > 0, (pages - 1) * problem.page_size + self.last_page_len, 0),
        ):
            raise ValueError("last_page_len of a request without pages must be 0")
        used = self.last_page_len[pages > 0]
        if ((used < 1) | (used > problem.page_size)).any():
            raise ValueError("1 <= last_page_len <= page_size")
        if problem.heads % problem.kv_heads or problem.head_dim not in (64, 128, 256, 512):
            raise ValueError("heads are a multiple of kv heads; head_dim is 64, 128, 256 or 512")
        if problem.q_type not in _Q_TYPES or problem.kv_type not in _KV_TYPES:
            raise ValueError(f"no kernels for {problem.q_type} over {problem.kv_type}")


def _attend(
    problem: _Problem,
    layout: _Layout,
    request: int,
    scale: float,
    tensors: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    out: torch.Tensor,
    lse: torch.Tensor,
) -> None:
    """One request; its queries are the last of its keys where the mask counts."""
    q, k, v = tensors
    start, stop = layout.qo_indptr[request : request + 2].tolist()
    first, last = layout.kv_indptr[request : request + 2].tolist()
    out[start:stop], lse[start:stop] = 0, -torch.inf
    if first == last or start == stop:
        return
    size = problem.page_size
    length = (last - first - 1) * size + int(layout.last_page_len[request])
    pages = layout.indices[first:last].long()
    group = problem.heads // problem.kv_heads
    keys, values = (
        pool[pages].flatten(0, 1)[:length].float().repeat_interleave(group, 1) for pool in (k, v)
    )
    scores = torch.einsum("qhd,khd->hqk", q[start:stop].float(), keys) * scale
    if problem.soft_cap > 0:
        scores = problem.soft_cap * torch.tanh(scores / problem.soft_cap)
    at = torch.arange(length - (stop - start), length)[:, None]
    seen = torch.ones((stop - start, length), dtype=torch.bool)
    if problem.causal:
        seen &= torch.arange(length) <= at
    if problem.window_left >= 0:
        seen &= torch.arange(length) >= at - problem.window_left
    scores = scores.masked_fill(~seen, -torch.inf)
    out[start:stop] = torch.einsum("hqk,khd->qhd", scores.softmax(-1), values).to(out.dtype)
    lse[start:stop] = (scores.logsumexp(-1) / torch.tensor(2.0).log()).T


def _type(name: str | torch.dtype | None, default: torch.dtype) -> torch.dtype:
    if name is None:
        return default
    found: torch.dtype = getattr(torch, name) if isinstance(name, str) else name
    return found


class BatchPrefillWithPagedKVCacheWrapper(_Wrapper):
    """Without CUDA graphs, which we do not use of it."""

    def __init__(
        self,
        float_workspace_buffer: torch.Tensor,
        kv_layout: str = "NHD",
        use_cuda_graph: bool = False,
        backend: str = "auto",
    ) -> None:
        assert not use_cuda_graph
        super().__init__(float_workspace_buffer, kv_layout, backend)

    def plan(
        self,
        qo_indptr: torch.Tensor,
        paged_kv_indptr: torch.Tensor,
        paged_kv_indices: torch.Tensor,
        paged_kv_last_page_len: torch.Tensor,
        num_qo_heads: int,
        num_kv_heads: int,
        head_dim_qk: int,
        page_size: int,
        head_dim_vo: int | None = None,
        causal: bool = False,
        sm_scale: float | None = None,
        window_left: int = -1,
        logits_soft_cap: float | None = None,
        q_data_type: str | torch.dtype = "float16",
        kv_data_type: str | torch.dtype | None = None,
        fixed_split_size: int | None = None,
        disable_split_kv: bool = False,
    ) -> None:
        """Lay out requests of any length."""
        assert head_dim_vo in (None, head_dim_qk)
        q_type = _type(q_data_type, torch.float16)
        self._layout = _Layout(
            qo_indptr.clone(),
            paged_kv_indptr.clone(),
            paged_kv_indices,
            paged_kv_last_page_len.clone(),
            int(qo_indptr[-1]),
        )
        shape = (num_qo_heads, num_kv_heads, head_dim_qk, page_size)
        mask = (causal, window_left, logits_soft_cap or 0.0, sm_scale)
        self._plan(_Problem(*shape, *mask, q_type, _type(kv_data_type, q_type)), self._layout)

    def run(
        self,
        q: torch.Tensor,
        paged_kv_cache: tuple[torch.Tensor, torch.Tensor],
        *args: Any,
        k_scale: _Scale = None,
        v_scale: _Scale = None,
        out: torch.Tensor | None = None,
        lse: torch.Tensor | None = None,
        return_lse: bool = False,
    ) -> Any:
        """[T, heads, head_dim], and base-2 log-sum-exps [T, heads] with `return_lse`."""
        given = (out, lse, return_lse, k_scale, v_scale)
        return self._run(self._layout, q, paged_kv_cache, *given)


class BatchDecodeWithPagedKVCacheWrapper(_Wrapper):
    """On tensor cores."""

    def __init__(
        self,
        float_workspace_buffer: torch.Tensor,
        kv_layout: str = "NHD",
        use_cuda_graph: bool = False,
        use_tensor_cores: bool = False,
        paged_kv_indptr_buffer: torch.Tensor | None = None,
        paged_kv_indices_buffer: torch.Tensor | None = None,
        paged_kv_last_page_len_buffer: torch.Tensor | None = None,
        backend: str = "auto",
    ) -> None:
        super().__init__(float_workspace_buffer, kv_layout, backend)
        assert use_tensor_cores, "without them, split KV cannot be turned off"
        self._use_cuda_graph = use_cuda_graph
        self._buffers: tuple[torch.Tensor, torch.Tensor, torch.Tensor] | None = None
        if use_cuda_graph:
            indptr, indices = paged_kv_indptr_buffer, paged_kv_indices_buffer
            last_page_len = paged_kv_last_page_len_buffer
            if indptr is None or indices is None or last_page_len is None:
                raise ValueError("buffers should be torch.Tensors in cudagraph mode")
            if len(indptr) != len(last_page_len) + 1:
                raise ValueError("The size of paged_kv_indptr_buffer should be batch_size + 1")
            self._buffers = (indptr, indices, last_page_len)

    def plan(
        self,
        indptr: torch.Tensor,
        indices: torch.Tensor,
        last_page_len: torch.Tensor,
        num_qo_heads: int,
        num_kv_heads: int,
        head_dim: int,
        page_size: int,
        *,
        window_left: int = -1,
        logits_soft_cap: float | None = None,
        q_data_type: str | torch.dtype | None = "float16",
        kv_data_type: str | torch.dtype | None = None,
        sm_scale: float | None = None,
        fixed_split_size: int | None = None,
        disable_split_kv: bool = False,
    ) -> None:
        """Lay out requests of one token each."""
        count = len(last_page_len)
        qo_indptr = torch.arange(count + 1, dtype=torch.int32)
        layout = _Layout(qo_indptr, indptr.clone(), indices, last_page_len.clone(), count)
        if self._buffers is None:
            self._layout = layout
        else:
            at_indptr, at_indices, at_last = self._buffers
            if count != len(at_last):
                raise ValueError("The batch size should be fixed in cudagraph mode")
            if len(indices) > len(at_indices):
                raise ValueError(
                    "The size of indices should be less than or equal to the allocated buffer"
                )
            if fixed_split_size is not None:
                raise RuntimeError("new batch size should not exceed padded batch size")
            STREAM.copy(lambda: at_indptr.copy_(layout.kv_indptr))
            STREAM.copy(lambda: at_last.copy_(layout.last_page_len))
            STREAM.copy(lambda: at_indices[: len(indices)].copy_(indices))
            self._layout = _Layout(qo_indptr, at_indptr, at_indices, at_last, count)
        q_type = _type(q_data_type, torch.float16)
        shape = (num_qo_heads, num_kv_heads, head_dim, page_size)
        mask = (False, window_left, logits_soft_cap or 0.0, sm_scale)
        self._plan(_Problem(*shape, *mask, q_type, _type(kv_data_type, q_type)), layout)

    def run(
        self,
        q: torch.Tensor,
        paged_kv_cache: tuple[torch.Tensor, torch.Tensor],
        *args: Any,
        k_scale: float | None = None,
        v_scale: float | None = None,
        out: torch.Tensor | None = None,
        lse: torch.Tensor | None = None,
        return_lse: bool = False,
    ) -> Any:
        """See BatchPrefillWithPagedKVCacheWrapper.run."""
        given = (out, lse, return_lse, k_scale, v_scale)
        return self._run(self._layout, q, paged_kv_cache, *given)


def merge_state_in_place(
    v: torch.Tensor,
    s: torch.Tensor,
    v_other: torch.Tensor,
    s_other: torch.Tensor,
    mask: torch.Tensor | None = None,
) -> None:
    """Attention over the slots of both: v [T, heads, head_dim], s base-2 log-sum-exps."""
    assert mask is None and s.dtype == s_other.dtype == torch.float32 and v.dtype == v_other.dtype
    if v.shape[1] * v.shape[2] // 8 > 1024:
        raise RuntimeError("too many threads for one block")

    def kernel() -> None:
        total = torch.logaddexp2(s, s_other)
        ours, theirs = (torch.exp2(each - total)[..., None] for each in (s, s_other))
        v.copy_(ours * v.float() + theirs * v_other.float())
        s.copy_(total)

    STREAM.launch(kernel)
