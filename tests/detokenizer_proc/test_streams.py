"""A stream adds up to the answer without streaming, whatever stops it and whatever it carries."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from detokenizer_proc.core import Detokenizer
from srt.files.vocab import Vocab
from srt.wire.answer_meta import AnswerMeta
from srt.wire.messages import (
    Finish,
    LogprobDetail,
    Output,
    pack_floats,
    pack_ids,
    unpack_floats,
    unpack_ids,
)
from srt.wire.ring_messages import ReqEnd, ReqStart, TokenBatch
from srt.wire.sampling import Scoring

PIECES = [b"", b"a", b"b", b"ab", b"ba:", b"\xc3", b"\xa9", "é".encode(), b"<stop>"]
STOP_ID = 8
VOCAB = Vocab("pieces", PIECES, frozenset({0, STOP_ID}), (0,), None, False, 100, None)

STARTS = st.fixed_dictionaries(
    {
        "stop": st.lists(st.sampled_from(["bb", "aé", "b:", "abab"]), max_size=2),
        "stop_regex": st.lists(st.sampled_from(["b+:", "é[ab]", "aa|bb", "^ab"]), max_size=2),
        "min_new_tokens": st.integers(0, 8),
        "no_stop_trim": st.booleans(),
        "skip_special_tokens": st.booleans(),
        "skip_bytes": st.integers(0, 3),
        "scoring": st.none()
        | st.builds(Scoring, top=st.integers(0, 2), ids=st.lists(st.integers(0, 8), max_size=2)),
    }
)


def detail(scoring: Scoring, ids: list[int]) -> LogprobDetail:
    """Values that show which id and column they belong to."""
    k, m = scoring.top, len(scoring.ids)
    return LogprobDetail(
        pack_ids([10 * i + n for i in ids for n in range(k)]),
        pack_floats([-10.0 * i - n for i in ids for n in range(k)]),
        pack_floats([-10.0 * i - n for i in ids for n in range(m)]),
    )


def batch(starts: list[ReqStart], ids: list[int], drop: int | None, ends: bool) -> TokenBatch:
    """The same tokens for every request: a jump if `drop` is given."""
    count = len(starts)
    return TokenBatch(
        0,
        handles=[start.handle for start in starts],
        counts=[len(ids)] * count,
        ids=pack_ids(ids * count),
        logprobs=pack_floats([-float(i) for i in ids] * count),
        jumps=[] if drop is None else [(n, drop, 0) for n in range(count)],
        details={n: detail(start.scoring, ids) for n, start in enumerate(starts) if start.scoring},
        ends=[ReqEnd(start.handle, Finish("stop", STOP_ID)) for start in starts] if ends else [],
    )


class Collected:
    """What a client has received in its Outputs."""

    def __init__(self) -> None:
        self.text = ""
        self.rows: dict[str, list[Any]] = {}
        self.last: Output | None = None

    def take(self, start: ReqStart, output: Output) -> None:
        assert self.last is None or self.last.finish is None
        self.last, self.text = output, self.text + output.text
        got = output.detail or LogprobDetail()
        scoring = start.scoring or Scoring()
        k, m = scoring.top, len(scoring.ids)
        self._extend("ids", unpack_ids(output.ids).reshape(-1, 1), output.dropped)
        self._extend("logprobs", unpack_floats(output.logprobs).reshape(-1, 1), output.dropped)
        self._extend("top ids", unpack_ids(got.top_ids).reshape(-1, k or 1), output.dropped)
        self._extend("tops", unpack_floats(got.top_values).reshape(-1, k or 1), output.dropped)
        self._extend("named", unpack_floats(got.id_values).reshape(-1, m or 1), output.dropped)

    def _extend(self, name: str, new: Any, dropped: int) -> None:
        rows = self.rows.setdefault(name, [])
        del rows[max(0, len(rows) - dropped) :]
        rows += new.tolist()

    def assert_rows_belong_to_ids(self, start: ReqStart) -> None:
        ids = [i for (i,) in self.rows["ids"]]
        assert self.last is not None and self.last.meta.completion_tokens == len(ids)
        meta = self.last.meta
        assert meta.jump_forward_tokens == max(0, len(ids) - meta.forward_passes)
        if start.scoring is None:
            assert not any(rows for name, rows in self.rows.items() if name != "ids")
            return
        assert self.rows["logprobs"] == [[-float(i)] for i in ids]
        if start.scoring.top:
            expected = [[10 * i + n for n in range(start.scoring.top)] for i in ids]
            assert self.rows["top ids"] == expected
            assert self.rows["tops"] == [[-float(i) for i in row] for row in expected]
        if start.scoring.ids:
            count = len(start.scoring.ids)
            assert self.rows["named"] == [[-10.0 * i - n for n in range(count)] for i in ids]


@given(
    options=STARTS,
    columns=st.lists(
        st.tuples(
            st.lists(st.integers(0, 7), min_size=1, max_size=4), st.sampled_from([None, None, 0])
        ),
        max_size=8,
    ),
    stop_token=st.booleans(),
)
def test_a_stream_adds_up(
    options: dict[str, Any], columns: list[tuple[list[int], int | None]], stop_token: bool
) -> None:
    detokenizer = Detokenizer(VOCAB, 0, [0])
    starts = [
        ReqStart(handle, b"c", f"{handle}", AnswerMeta(3), stream=handle == 1, **options)
        for handle in (1, 2)
    ]
    clients = {start.rid: Collected() for start in starts}
    if stop_token:
        columns = [*columns, ([1, STOP_ID], None)]
    steps = [TokenBatch(0, starts=starts)]
    steps += [
        batch(starts, ids, drop, stop_token and n == len(columns) - 1)
        for n, (ids, drop) in enumerate(columns)
    ]
    if not stop_token:
        steps.append(TokenBatch(0, ends=[ReqEnd(s.handle, Finish("length")) for s in starts]))
    for step in steps:
        for output in detokenizer.step(step).outputs.get(b"c", []):
            clients[output.rid].take(starts[int(output.rid) - 1], output)
    stream, whole = clients["1"], clients["2"]
    assert stream.last is not None and whole.last is not None
    assert (stream.text, stream.rows) == (whole.text, whole.rows)
    assert stream.last.finish == whole.last.finish is not None
    stream.assert_rows_belong_to_ids(starts[0])
