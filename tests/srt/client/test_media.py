"""Pictures and videos as programs give them, and as they are sent to the ring."""

import base64
import hashlib
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from srt.client import media
from srt.client.generation import Request, ScoreRequest
from srt.client.media import MediaFile, Picture, Video, data_url, frames_of, opened
from srt.client.message_parts import with_media, without_media
from srt.client.request_fields import checked_request
from srt.client.ring.generation import RingSamples
from srt.client.ring.score import RingScore
from srt.wire.errors import RequestError, renaming
from srt.wire.media import MediaRef
from srt.wire.messages import ChatMessage, GenerateReq, decoder, encode

CAT, DOG = b"a cat", b"a dog"
IMAGE, VIDEO = MediaFile("image", (CAT,)), MediaFile("video", (CAT, DOG), num_frames=1)


def url(data: bytes) -> str:
    return "data:image/png;base64," + base64.b64encode(data).decode()


def pixels(data: bytes) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(data)))


async def test_files_in_all_shapes(tmp_path: Path) -> None:
    path = tmp_path / "cat.png"
    path.write_bytes(CAT)
    given: list[Any] = [str(path), path, CAT, bytearray(CAT), url(CAT), Picture(path), IMAGE]
    assert await opened(given) == [IMAGE] * 7
    assert await opened([Picture(CAT, "low")]) == [MediaFile("image", (CAT,), "low")]
    videos: list[Any] = [Video(path, 4), Video([CAT, path]), Video((url(DOG),))]
    assert await opened(videos) == [
        MediaFile("video", (CAT,), num_frames=4),
        MediaFile("video", (CAT, CAT)),
        MediaFile("video", (DOG,)),
    ]


async def test_pictures_of_pillow_keep_their_pixels() -> None:
    rng = np.random.default_rng(0)
    array = rng.integers(0, 256, (5, 3, 3), np.uint8)
    picture = Image.fromarray(array)
    turned = picture.copy()
    turned.getexif()[0x0112] = 6  # to be shown turned by 90 degrees
    modes = [picture.convert(mode) for mode in ("1", "L", "RGBA", "P", "CMYK")]
    files = await opened([picture, turned, *modes])
    assert all(len(file.frames) == 1 and file.kind == "image" for file in files)
    assert np.array_equal(pixels(files[0].frames[0]), array)
    assert np.array_equal(pixels(files[1].frames[0]), np.rot90(array, -1))
    for mode, file in zip(modes[:3], files[2:], strict=False):
        assert np.array_equal(pixels(file.frames[0]), np.asarray(mode))
    (video,) = await opened([Video(np.stack([array, array[::-1]]))])
    assert [pixels(frame).tolist() for frame in video.frames] == [
        array.tolist(),
        array[::-1].tolist(),
    ]


@pytest.mark.parametrize(
    ("given", "param", "reason"),
    [
        ("/nowhere/cat.png", "media[0]", "there is no file '/nowhere/cat.png'"),
        ("/dev/zero", "media[0]", "there is no file"),
        ("\0", "media[0]", "there is no file"),
        ("https://a.test/b", "media[0]", "fetches no addresses"),
        ("data:image/png,abc", "media[0]", "must have base64"),
        ("data:;base64,a", "media[0]", "not valid base64"),
        ("data:;base64,AAAA\vAAAA", "media[0]", "not valid base64"),
        ("data:;base64,", "media[0]", "is empty"),
        (b"", "media[0]", "is empty"),
        (b"12345678", "media[0]", "more than 7 bytes"),
        (url(b"12345678"), "media[0]", "more than 7 bytes"),
        (3, "media[0]", "must be a path, bytes, a data: URL or a picture of Pillow's, not int"),
        (np.zeros((2, 2)), "media[0]", "must be an array of uint8, not float64"),
        (np.zeros((2, 2, 2, 2), np.uint8), "media[0]", "cannot be written as a PNG"),
        (Picture(CAT, "most"), "media[0].detail", "must be one of auto, low, high"),
        (Video([]), "media[0]", "1 to 768 frames, not 0"),
        (Video([CAT] * 769), "media[0]", "1 to 768 frames, not 769"),
        (Video([CAT, b""]), "media[0].source[1]", "is empty"),
        (Video([CAT, CAT]), "media[0]", "more than 7 bytes"),
        (MediaFile("video", (b"",)), "media[0]", "is empty"),
        (Video(CAT, -1), "media[0].num_frames", "must be in"),
        (Video(CAT, 769), "media[0].num_frames", "must be in [0, 768]"),
        (Video(CAT, True), "media[0].num_frames", "must be in"),
        (MediaFile("audio", (CAT,)), "media[0].kind", "must be one of image, video"),
        (MediaFile("image", (CAT, DOG)), "media[0]", "1 to 1 frames"),
        (MediaFile("image", ("cat",)), "media[0]", "must have bytes"),  # type: ignore[arg-type]
    ],
)
async def test_what_is_no_file(
    given: Any, param: str, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(media, "MAX_FILE_BYTES", 7)
    with pytest.raises(RequestError, match=reason.replace("[", r"\[")) as caught:
        await opened([given])
    assert caught.value.info.param == param
    assert "YWJj" not in caught.value.info.message


async def test_a_large_file_is_not_read_to_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(media, "MAX_FILE_BYTES", 1000)
    path = tmp_path / "large"
    with path.open("wb") as file:
        file.truncate(10**12)  # sparse
    with pytest.raises(RequestError, match="more than 1000 bytes"):
        await opened([path])


@pytest.mark.parametrize("given", ["cat.png", CAT, IMAGE, {"a": 1}])
async def test_media_are_a_list(given: Any) -> None:
    with pytest.raises(RequestError, match="media must be a list"):
        await opened(given)


@pytest.mark.parametrize("size", [5, 10**6])
async def test_equal_files_are_sent_once(size: int) -> None:
    cat, dog = CAT * size, DOG * size
    files = [
        MediaFile("image", (cat,), "low"),
        MediaFile("image", (dog,)),
        MediaFile("image", (bytes(bytearray(cat)),)),
        MediaFile("video", (cat, dog), num_frames=2),
        MediaFile("video", (cat, dog)),
        MediaFile("video", (cat + dog,)),  # the same bytes, and another video
    ]
    refs, blobs = await frames_of(files)
    both = hashlib.sha256(cat + dog).digest()
    assert refs == [
        MediaRef("image", hashlib.sha256(cat).digest(), 1, "low"),
        MediaRef("image", hashlib.sha256(dog).digest()),
        MediaRef("image", hashlib.sha256(cat).digest(), 0),
        MediaRef("video", both, 2, num_frames=2),
        MediaRef("video", both, 0),
        MediaRef("video", both, 1),
    ]
    assert blobs == [cat, dog, cat, dog, cat + dog]


async def test_messages_name_their_frames() -> None:
    refs, blobs = await frames_of([IMAGE, VIDEO])
    asked = Request(text="a", media=[IMAGE, VIDEO])

    async def no_captures(*_: Any) -> None:
        return None

    samples = RingSamples("r", "7", asked, lambda _: None, no_captures)
    message = samples.message(1, refs)
    assert message.media == refs and message.num_frames == len(blobs) == 3
    assert decoder(GenerateReq).decode(encode(message)) == message
    scored = ScoreRequest(text="a", continuations=["b"], media=[IMAGE])
    assert RingScore("r", "8", 1).message(scored, 1, refs[:1]).media == refs[:1]


async def test_parts_of_messages(tmp_path: Path) -> None:
    path = tmp_path / "dog"
    path.write_bytes(DOG)
    content: list[Any] = [
        {"type": "text", "text": "This "},
        {"type": "text", "text": "is"},
        {"type": "image", "image": path},
        {"type": "text", "text": ""},
        {"type": "image_url", "image_url": {"url": url(CAT), "detail": "high"}},
        {"type": "video_url", "video_url": {"url": url(DOG), "num_frames": 3}},
        " and",
        {"type": "video", "video": [CAT, DOG], "num_frames": 1},
    ]
    messages: list[Any] = [
        {"role": "system", "content": [{"type": "text", "text": "a"}, "b"]},
        {"role": "user", "content": content},
        ChatMessage("assistant", "c"),
        {"role": "user", "content": [{"type": "image_url", "image_url": url(CAT)}]},
    ]
    shown = await with_media({"messages": messages, "media": [CAT], "rid": "q"})
    request = checked_request(shown.request)
    assert request.messages == [
        ChatMessage("system", "ab"),
        ChatMessage("user", "", parts=["This is", 1, 2, 3, " and", 4]),
        ChatMessage("assistant", "c"),
        ChatMessage("user", "", parts=[5]),
    ]
    assert request.media == [
        IMAGE,
        MediaFile("image", (DOG,)),
        MediaFile("image", (CAT,), "high"),
        MediaFile("video", (DOG,), num_frames=3),
        VIDEO,
        IMAGE,
    ]
    with pytest.raises(RequestError) as caught, renaming(shown.names):
        raise RequestError(" is no picture", at="media[2]")
    assert caught.value.info.param == "messages[1].content[4].image_url.url"
    assert len(content) == 8, "the caller's messages are unchanged"


async def test_requests_that_show_nothing_are_as_they_were() -> None:
    given = {"messages": [{"role": "user", "content": "hi"}], "media": []}
    assert (await with_media(given)).request is given
    assert without_media(given["messages"]) is given["messages"]
    assert without_media(None) is None
    texts = [{"role": "user", "content": [{"type": "text", "text": "hi"}]}]
    assert without_media(texts) == [{"role": "user", "content": "hi"}]


@pytest.mark.parametrize(
    ("part", "param"),
    [
        ({"type": "image_url", "image_url": "https://a.test/b"}, "image_url"),
        ({"type": "image_url", "image_url": {"url": "/etc/passwd"}}, "image_url.url"),
        ({"type": "image_url", "image_url": {}}, "image_url.url"),
        ({"type": "image_url"}, "image_url"),
        ({"type": "image", "image": 3}, "image"),
        ({"type": "image", "image": CAT, "detail": "most"}, "image.detail"),
        ({"type": "text"}, "text"),
        ({"type": "audio", "audio": CAT}, ""),
        (3, ""),
    ],
)
async def test_parts_that_are_wrong(part: Any, param: str) -> None:
    message = {"role": "user", "content": ["What is", part]}
    with pytest.raises(RequestError) as caught:
        await with_media({"messages": [{"role": "system", "content": ""}, message]})
    where = "messages[1].content[1]"
    assert caught.value.info.param == (f"{where}.{param}" if param else where)


def test_tokens_of_pictures_are_not_asked_for() -> None:
    message = {"role": "user", "content": [{"type": "image", "image": CAT}]}
    with pytest.raises(RequestError) as caught:
        without_media([message])
    assert caught.value.info.param == "messages[0].content[0].image"


def test_data_urls() -> None:
    cat, dog = (base64.b64encode(each).decode() for each in (CAT, DOG))
    assert json.loads(bytes(data_url(IMAGE))) == f"data:image/*;base64,{cat}"
    assert json.loads(bytes(data_url(VIDEO))) == f"data:video/jpeg;base64,{cat},{dog}"
    long = bytes(range(256)) * 2**12
    url = json.loads(bytes(data_url(MediaFile("image", (long,)))))
    assert base64.b64decode(url.partition(",")[2]) == long
