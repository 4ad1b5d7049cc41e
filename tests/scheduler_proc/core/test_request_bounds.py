"""Whatever passes `FilledParams.check` runs on both executors: no number in one request may fail
a check that refuses a whole step."""

import math
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from scheduler_proc.core.scheduler import Scheduler
from scheduler_proc.core.state import SchedulerConfig
from scheduler_proc.executor.base import Executor
from scheduler_proc.executor.native_executor import NativeExecutor
from srt.wire.errors import RequestError
from srt.wire.filled_params import FilledParams
from srt.wire.messages import pack_ids
from srt.wire.ring_messages import TokenizedReq
from srt.wire.sampling import MIN_REPETITION_PENALTY, Scoring
from tests.running.late import late
from tests.scheduler_proc.kernels.ops import load_or_skip
from tests.scheduler_proc.models.checkpoints import SMALL, random_llama, save_directory

if TYPE_CHECKING:
    from scheduler_proc.executor import torch_executor
else:
    torch_executor = late("scheduler_proc.executor.torch_executor")


VOCAB = int(SMALL["vocab_size"])
POOL = 64
DEFAULTS = FilledParams(max_new_tokens=3)

# Values near the limits of float32 and of each field's range, and any others.
NUMBERS = st.one_of(
    st.sampled_from([0.0, 1.0, 2.0, -2.0, 100.0, 1e4, -1e4, 1e-6, MIN_REPETITION_PENALTY, 5e-324]),
    st.sampled_from([1e-50, 7e-46, 1.4e-45, 1e-38, 1 - 1e-12, 1e-6 + 1e-20, 1e300, math.nan]),
    st.floats(0.0, 2.0),
    st.floats(-2.0, 2.0),
    st.floats(),
)
INTEGERS = st.one_of(
    st.sampled_from([-1, 0, 1, VOCAB - 1, VOCAB, 2**31 - 1, 2**31, 2**63 - 1, 2**63]),
    st.integers(-5, VOCAB + 5),
)
TOKENS = st.one_of(st.integers(0, VOCAB - 1), INTEGERS)
FIELDS: dict[str, st.SearchStrategy[Any]] = {
    "min_new_tokens": INTEGERS,
    "temperature": NUMBERS,
    "top_p": NUMBERS,
    "top_k": INTEGERS,
    "min_p": NUMBERS,
    "top_n_sigma": NUMBERS,
    "seed": st.none() | INTEGERS,
    "stop_token_ids": st.lists(TOKENS, max_size=4),
    "frequency_penalty": NUMBERS,
    "presence_penalty": NUMBERS,
    "repetition_penalty": NUMBERS,
    "logit_bias": st.dictionaries(TOKENS, NUMBERS, max_size=4),
    "allowed_token_ids": st.none() | st.lists(TOKENS, max_size=4),
}


def admitted(sampling: FilledParams) -> FilledParams:
    """The same parameters, with the default in each field that `check` refuses."""
    for _ in FIELDS:
        try:
            sampling.check(VOCAB)
        except RequestError as error:
            name = error.info.param
            assert name is not None and name in FIELDS
            sampling = replace(sampling, **{name: getattr(DEFAULTS, name)})
    sampling.check(VOCAB)
    stops = [i for i in sampling.stop_token_ids if 0 <= i < VOCAB]  # as the front does
    return replace(sampling, stop_token_ids=stops)


@pytest.fixture(scope="module", params=["NativeExecutor", "TorchExecutor"])
def executor(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Executor:
    make: Any = NativeExecutor
    if request.param == "TorchExecutor":
        make = torch_executor.TorchExecutor
    else:
        load_or_skip()
    files = save_directory(random_llama(head_dim=16), tmp_path_factory.mktemp("small"))
    made: Executor = make(files, max_total_tokens=POOL, num_threads=1)
    return made


def run(executor: Executor, sampling: FilledParams) -> None:
    """Run a request with these parameters beside one with defaults, step by step to the end."""
    core = Scheduler(SchedulerConfig(POOL, executor.context_len, VOCAB))
    for rid, params in (("asked", sampling), ("beside", DEFAULTS)):
        ids = pack_ids([1, 2, 3, VOCAB - 1])
        core.add(TokenizedReq(b"c", rid, 0, ids, params, scoring=Scoring()), 0.0)
    while (plan := core.prepare(0.0)) is not None:
        step = core.seal(plan)
        if step is not None:
            core.commit(step, executor.run(step.batch))
    batch = core.take_output(0.0)
    assert batch is not None and len(batch.ends) == 2
    assert all(0 <= i < VOCAB for i in memoryview(batch.ids).cast("i"))


@given(fields=st.fixed_dictionaries({}, optional=FIELDS))
def test_what_the_check_lets_through_runs(executor: Executor, fields: dict[str, Any]) -> None:
    run(executor, admitted(replace(DEFAULTS, **fields)))


@pytest.mark.parametrize("value", [0.0, -1.0, 5e-324, 1e-50, 7e-46, 1e-40, 9e-7, 2.1, math.nan])
def test_a_penalty_that_float32_cannot_hold_is_refused_by_name(value: float) -> None:
    with pytest.raises(RequestError, match="repetition_penalty must be between 1e-06 and 2"):
        FilledParams(repetition_penalty=value).check(VOCAB)


def test_the_least_penalty_keeps_logits_finite(executor: Executor) -> None:
    run(executor, FilledParams(max_new_tokens=3, repetition_penalty=MIN_REPETITION_PENALTY))
