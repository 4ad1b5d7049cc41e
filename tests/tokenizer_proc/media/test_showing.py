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
from tests.tokenizer_proc.media.fake_processor import image, video
from tests.tokenizer_proc.media.films import film
from tests.tokenizer_proc.media.gallery import gallery
from tests.tokenizer_proc.media.test_families import CASES, ours, shown
from tokenizer_proc.media.showing import Showing, Shown, controls_of
from tokenizer_proc.prompt.chat_template import ChatTemplate
from tokenizer_proc.prompt.prompt import PromptReader

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


SEEING_VIDEOS = ("LLaVA-OneVision", "Qwen2.5-VL", "Qwen3-VL")
# OneVision's own: all pictures of a message come before its videos.
PICTURES_FIRST = (
    "{% for m in messages %}{% for kind in ('image', 'video', 'text') %}"
    "{% for c in m.content if c.type == kind %}"
    "{{ {'image': 'IMAGE', 'video': 'VIDEO', 'text': c.text}[kind] }}"
    "{% endfor %}{% endfor %}{% endfor %}"
)


@pytest.mark.parametrize("name", SEEING_VIDEOS)
def test_each_kind_is_in_its_own_order(name: str, tmp_path: Path) -> None:
    """As in transformers, whose processors replace one kind's placeholders after the other's."""
    processor = ours(CASES[name], tmp_path)
    image_place, video_place = processor.placeholder("image"), processor.placeholder("video")
    template = PICTURES_FIRST.replace("IMAGE", image_place).replace("VIDEO", video_place)
    tokenizer = Tokenizer(make_tokenizer().backend_tokenizer, controls=controls_of(processor))
    reader = PromptReader(tokenizer, ChatTemplate(template), 400, 9000, showing=Showing(processor))
    shorter, longer = film(4), film(9)
    files = [longer, PICTURES[0], shorter, PICTURES[1]]
    refs = [video(1), image(), video(1), image()]
    pairs = zip(refs, files, strict=True)
    items = [[item for item, _ in processor.process(ref, [file])] for ref, file in pairs]
    media = Shown(refs, items)
    first, one, second, other = (
        processor.expansion(ref.kind, each) for ref, each in zip(refs, items, strict=True)
    )
    text = f"a{image_place}b{video_place}{image_place}{video_place}"
    expected = make_tokenizer()(f"a{one}b{first}{other}{second}")["input_ids"]
    ordered = [item for at in (1, 0, 3, 2) for item in items[at]]
    alone, whole = (pack_ids(ids) for ids in (make_tokenizer()(text)["input_ids"], expected))
    for given in ({"text": text}, {"text": None, "input_ids": alone}, {"input_ids": whole}):
        prompt = reader.read(request(**given), media)
        assert prompt.ids.tolist() == expected
        assert [span.item for span in prompt.media] == ordered
    chat = [ChatMessage("user", "", parts=[0, 1, "c", 2, 3])]
    prompt = reader.read(request(messages=chat), media)
    assert prompt.ids.tolist() == make_tokenizer()(f"{one}{other}{first}{second}c")["input_ids"]
    assert [span.item for span in prompt.media] == [i for at in (1, 3, 0, 2) for i in items[at]]


def _byte(token_id: int) -> int:
    return ord(str(make_tokenizer().decode([int(token_id)])))
