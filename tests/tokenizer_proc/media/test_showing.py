"""Prompts of all families: the spans are where transformers' processors put the embeddings."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from srt.files.tokenizer import Tokenizer
from srt.wire.errors import RequestError
from srt.wire.media import MediaSpan
from srt.wire.messages import ChatMessage, GenerateReq, pack_ids
from srt.wire.sampling import SamplingParams
from tests.tokenizer_proc.media.checkpoints import make_tokenizer
from tests.tokenizer_proc.media.fake_processor import image
from tests.tokenizer_proc.media.gallery import gallery
from tests.tokenizer_proc.media.test_families import CASES, ours, shown
from tokenizer_proc.chat_template import ChatTemplate
from tokenizer_proc.media.showing import Showing, Shown, controls_of
from tokenizer_proc.prompt import PromptReader

PICTURES = list(gallery().values())[:2]
TEMPLATE = (
    "{% for m in messages %}{{ m.role }}: {% if m.content is string %}{{ m.content }}{% else %}"
    "{% for c in m.content %}{{ c.text if c.type == 'text' else 'IMAGE' }}{% endfor %}{% endif %}"
    "{% endfor %}"
)


def request(**fields: Any) -> GenerateReq:
    refs = [image() for _ in PICTURES]
    return GenerateReq(rid="r", epoch=1, sampling=SamplingParams(), media=refs, **fields)


@pytest.mark.parametrize("name", CASES)
def test_spans_of_each_kind_of_prompt(name: str, tmp_path: Path) -> None:
    processor = ours(CASES[name], tmp_path)
    place = processor.placeholder("image")
    tokenizer = Tokenizer(make_tokenizer().backend_tokenizer, controls=controls_of(processor))
    template = ChatTemplate(TEMPLATE.replace("IMAGE", place))
    reader = PromptReader(tokenizer, template, 400, 4000, showing=Showing(processor))
    items = [[item for item, _ in shown(processor, picture)] for picture in PICTURES]
    media = Shown(request(text="").media, items)
    expansions = [processor.expansion("image", each) for each in items]
    expected = make_tokenizer()(f"a{expansions[0]} b{expansions[1]}c")["input_ids"]

    def check(spans: list[MediaSpan], ids: np.ndarray) -> None:
        assert [span.item for span in spans] == [item for each in items for item in each]
        covered = np.concatenate([np.arange(span.start, span.stop) for span in spans])
        assert covered.tolist() == np.flatnonzero(ids == processor.placeholder_id).tolist()

    text = reader.read(request(text=f"a{place} b{place}c"), media)
    assert text.ids.tolist() == expected
    check(text.media, text.ids)
    for given in (make_tokenizer()(f"a{place} b{place}c")["input_ids"], expected):
        prompt = reader.read(request(text=None, input_ids=pack_ids(given)), media)
        assert prompt.ids.tolist() == expected
        check(prompt.media, prompt.ids)
    special = make_tokenizer().convert_ids_to_tokens(processor.placeholder_id)
    chat = [
        ChatMessage("user", "", parts=[f"{place}{special}", 0]),
        ChatMessage("user", "", parts=[1]),
    ]
    prompt = reader.read(request(messages=chat), media)
    check(prompt.media, prompt.ids)
    written = f"user: {place}{special}".encode()
    assert bytes(_byte(i) for i in prompt.ids[: len(written)]) == written
    with pytest.raises(RequestError):
        reader.read(request(text=f"{special}a{place}{place}"), media)


def _byte(token_id: int) -> int:
    return ord(str(make_tokenizer().decode([int(token_id)])))
