"""SmolVLM's videos: frames, texts and pixels are those of transformers.

Its processor of videos resizes with torchvision, so pixels are compared with those that it has for
pictures that are not split.
"""

from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from srt.files.tokenizer import Tokenizer
from srt.wire.errors import ConfigError, RequestError
from srt.wire.messages import ChatMessage, GenerateReq
from srt.wire.sampling import SamplingParams
from tests.running.late import late
from tests.running.profiles import some
from tests.tokenizer_proc.media.checkpoints import MEAN, STD, config, load, make_tokenizer
from tests.tokenizer_proc.media.fake_processor import image, video
from tests.tokenizer_proc.media.films import decoded, film
from tests.tokenizer_proc.media.gallery import encoded, rgb
from tests.tokenizer_proc.media.test_families import CASES, normalised
from tests.tokenizer_proc.media.test_family_videos import watched
from tokenizer_proc.media.base import MediaProcessor, Processed
from tokenizer_proc.media.families.smolvlm import in_words
from tokenizer_proc.media.showing import Showing, Shown, controls_of
from tokenizer_proc.prompt.chat_template import ChatTemplate
from tokenizer_proc.prompt.prompt import PromptReader

if TYPE_CHECKING:
    import transformers
    from transformers import video_utils
    from transformers.models.smolvlm import video_processing_smolvlm
else:
    transformers = late("transformers")
    video_processing_smolvlm = late("transformers.models.smolvlm.video_processing_smolvlm")
    video_utils = late("transformers.video_utils")

CASE = CASES["SmolVLM"]
SETTINGS = CASE.settings | {"image_mean": MEAN, "image_std": STD}
TEMPLATE = (
    "{% for m in messages %}{% for c in m.content %}"
    "{{ c.text if c.type == 'text' else '<' + c.type + '>' }}{% endfor %}{% endfor %}"
)


def smol(path: Path, **more: Any) -> MediaProcessor:
    return load(
        path,
        config=config(CASE.family, **CASE.config),
        preprocessor_config=SETTINGS | more,
        processor_config=CASE.processor,
    )


def sampling(fps: float = 1, most: int = 64) -> dict[str, Any]:
    size = {"longest_edge": 128}
    return {"video_sampling": {"fps": fps, "max_frames": most, "video_size": size}}


def text_of(items: list[Processed], metadata: "video_utils.VideoMetadata", monkeypatch: Any) -> str:
    """What transformers writes for a video."""
    name = "transformers.models.smolvlm.processing_smolvlm.num2words"
    monkeypatch.setattr(name, in_words)
    reference = transformers.SmolVLMProcessor.__new__(transformers.SmolVLMProcessor)
    reference.image_seq_len, reference.image_token = CASE.processor["image_seq_len"], "<image>"
    reference.fake_image_token = "<fake_token_around_image>"
    reference.global_image_token = "<global-img>"
    pixels = np.zeros((1, len(items)))
    written: str = reference.replace_video_token(
        {"pixel_values": pixels, "video_metadata": [metadata]}, 0
    )
    return written


@pytest.mark.parametrize(
    ("total", "rate", "fps", "most", "asked"),
    some(
        [
            (1, 10, 1, 64, 0),
            (25, 10, 1, 64, 0),
            (100, 10, 1, 64, 0),
            (100, 10, 2, 3, 0),  # of a long video, without its first and last second
            (100, 10, 2, 64, 5),
            (100, 1, 1, 64, 0),  # more than a minute
            (30, 10, 0.2, 64, 0),
        ],
        (25, 10, 1, 64, 0),
        (100, 10, 2, 3, 0),
    ),
)
def test_videos(
    total: int,
    rate: int,
    fps: float,
    most: int,
    asked: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    mine = smol(tmp_path, **sampling(fps, most))
    assert mine.kinds == {"image", "video"}
    data = film(total, rate=rate)
    items = watched(mine, [data], asked)
    metadata = video_utils.VideoMetadata(total, fps=float(rate), duration=total / rate)
    chooser: Any = SimpleNamespace(num_frames=most, fps=fps)
    metadata.frames_indices = video_processing_smolvlm.SmolVLMVideoProcessor.sample_frames(
        chooser, metadata, asked or None
    ).tolist()
    assert len(items) == len(metadata.frames_indices)
    whole = transformers.SmolVLMImageProcessorPil(**SETTINGS | {"do_image_splitting": False})
    frames = decoded(data)
    for (item, pixels), index in zip(items, metadata.frames_indices, strict=True):
        expected = whole([frames[index]], return_tensors="np")["pixel_values"][0]
        assert np.abs(normalised(pixels) - expected).max() < 1e-5
        assert (item.kind, item.length, item.shape) == ("video", 4, (1, 32, 32, 3))
    text = mine.expansion("video", [item for item, _ in items])
    assert text == text_of(items, metadata, monkeypatch)


def test_a_video_of_pictures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mine = smol(tmp_path, **sampling())
    files = [encoded(rgb(64, 48, seed=number)) for number in range(30)]
    items = watched(mine, files)
    metadata = video_utils.VideoMetadata(30, frames_indices=list(range(30)))
    text = mine.expansion("video", [item for item, _ in items])
    assert text == text_of(items, metadata, monkeypatch)
    assert len(watched(mine, files, 4)) == 4


def test_numbers_in_words() -> None:
    words = {0: "zero", 7: "seven", 15: "fifteen", 20: "twenty", 64: "sixty-four"}
    words |= {100: "one hundred", 101: "one hundred and one", 110: "one hundred and ten"}
    words |= {768: "seven hundred and sixty-eight"}
    assert {number: in_words(number) for number in words} == words


def test_what_a_checkpoint_says(tmp_path: Path) -> None:
    assert smol(tmp_path / "a").kinds == {"image"}
    assert smol(tmp_path / "b", fps=1, num_frames=8).kinds == {"image", "video"}
    with pytest.raises(ConfigError, match="do_resize"):
        smol(tmp_path / "c", do_resize=False, **sampling())


def test_prompts(tmp_path: Path) -> None:
    """The placeholder of videos is no token, and what becomes of it has the pictures' tokens."""
    mine = smol(tmp_path, **sampling())
    core = make_tokenizer().backend_tokenizer
    core = type(core).from_str(core.to_str().replace('"<video>"', '"<other>"'))
    tokenizer = Tokenizer(core, controls=controls_of(mine))
    reader = PromptReader(tokenizer, ChatTemplate(TEMPLATE), 400, 9000, showing=Showing(mine))
    refs = [image(), video(1)]
    files = [encoded(rgb(40, 40)), film(25)]
    items = [[i for i, _ in mine.process(r, [f])] for r, f in zip(refs, files, strict=True)]
    one, film_text = (mine.expansion(r.kind, i) for r, i in zip(refs, items, strict=True))

    def read(**fields: Any) -> list[int]:
        req = GenerateReq(rid="r", epoch=1, sampling=SamplingParams(), media=refs, **fields)
        prompt = reader.read(req, Shown(refs, items))
        assert [span.item for span in prompt.media] == [*items[0], *items[1]]
        ids: list[int] = prompt.ids.tolist()
        return ids

    expected = tokenizer.encode(f"a{one}b{film_text}c").tolist()
    assert read(text="a<image>b<video>c") == expected
    with pytest.raises(
        RequestError, match=r"media\[0\] is of kind image, but the prompt has <video>"
    ):
        read(text="<video><image>")
    said = [ChatMessage("user", "", parts=["<video>", 0, "<image>", 1, "!"])]
    written, marked = (tokenizer.encode_marked(t, "#").tolist() for t in ("<#video>", "<#image>"))
    parts = [tokenizer.encode(text).tolist() for text in (one, film_text, "!")]
    assert read(messages=said) == [*written, *parts[0], *marked, *parts[1], *parts[2]]
    assert bytes(ord(tokenizer_text(i)) for i in written) == b"<video>"


def tokenizer_text(token_id: int) -> str:
    return str(make_tokenizer().decode([token_id]))
