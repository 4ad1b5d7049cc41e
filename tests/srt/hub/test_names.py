"""How models of the hub are named."""

import traceback
from pathlib import Path

import pytest

from srt.files.model_files import resolve_model
from srt.hub.names import HubName, Link, parse_name, shown_address
from srt.wire.errors import ConfigError

REPO = "Qwen/Qwen3-0.6B-GGUF"


@pytest.mark.parametrize(
    ("text", "name"),
    [
        (REPO, HubName(REPO)),
        (f"{REPO}@v1.0", HubName(REPO, "v1.0")),
        (f"{REPO}@refs/pr/3", HubName(REPO, "refs/pr/3")),
        (f"{REPO}:Q4_K_M", HubName(REPO, "", "Q4_K_M")),
        (f"{REPO}@main:q8_0", HubName(REPO, "main", "q8_0")),
        (f"hf://{REPO}", HubName(REPO)),
        (f"hf://{REPO}@main:Q4_0", HubName(REPO, "main", "Q4_0")),
        (f"hf://{REPO}/sub/a-Q4_0.gguf", HubName(REPO, "", "", "sub/a-Q4_0.gguf")),
        (f"https://huggingface.co/{REPO}", HubName(REPO)),
        (f"https://huggingface.co/{REPO}/tree/v2", HubName(REPO, "v2")),
        (f"https://HuggingFace.co/{REPO}/tree/refs%2Fpr%2F1", HubName(REPO, "refs/pr/1")),
        (f"https://hf.co/{REPO}/blob/main/a%20b.gguf", HubName(REPO, "main", "", "a b.gguf")),
        (
            f"https://huggingface.co/{REPO}/resolve/main/x/a.gguf?download=true",
            HubName(REPO, "main", "", "x/a.gguf"),
        ),
        (f"hf.co/{REPO}:Q4_K_M", HubName(REPO, "", "Q4_K_M")),
        (f"huggingface.co/{REPO}", HubName(REPO)),
        (f"https://hf.co/{REPO}:q8_0", HubName(REPO, "", "q8_0")),
        (f"hf.co/{REPO}/blob/main/a.gguf", HubName(REPO, "main", "", "a.gguf")),
        (f"https://huggingface.co:443/{REPO}", HubName(REPO)),
        (f"https://me:secret@huggingface.co/{REPO}", HubName(REPO)),
        (f"HF://{REPO}", HubName(REPO)),
        ("HTTPS://example.com/a.gguf", Link("https://example.com/a.gguf")),
        ("https://example.com/m/a-Q4_0.gguf", Link("https://example.com/m/a-Q4_0.gguf")),
    ],
)
def test_names_and_addresses(text: str, name: HubName | Link) -> None:
    assert parse_name(text) == name


@pytest.mark.parametrize(
    "text",
    [
        "smollm2",
        "a.gguf",
        "models/a.gguf",
        "/models/a",
        "./a/b",
        "~/a",
        "a/b/c",
        "../a/b",
        "",
        "a b/c",
        "~no_such_user/model",
    ],
)
def test_what_is_of_this_machine(text: str) -> None:
    assert parse_name(text) is None


def test_a_directory_of_that_name_goes_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert parse_name("org/name") == HubName("org/name")
    (tmp_path / "org" / "name").mkdir(parents=True)
    assert parse_name("org/name") is None
    assert parse_name("hf://org/name") == HubName("org/name")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("hf://name", "hf:// is followed by org/name"),
        ("hf://org/name/config.json", "hf:// is followed by"),
        ("hf://org/name/a.gguf:Q4_0", "names a file and a quantisation"),
        ("https://huggingface.co/org", "only models and their .gguf files"),
        ("https://huggingface.co/org/name/resolve/main/model.py", "only models and their .gguf"),
        ("ftp://example.com/model.gguf?sig=secret", "'ftp://example.com/model.gguf': it may begin"),
        ("s3://example.com/model.gguf?sig=secret", "'s3://example.com/model.gguf': it may begin"),
        ("https:/example.com/a.gguf?sig=secret", "'https:/+example.com/a.gguf': it may begin"),
        ("https://example.com/\udcff.gguf", "is no address"),
        ("https://example.com:port/a.gguf", "is no address"),
        ("https://me:secret@ho\u2100st/a.gguf", "is no address"),
        ("https://me:sec/ret@example.com/a.gguf", "'https://example.com/a.gguf' is no address"),
        ("https://example.com/model.bin", "must be that of a .gguf file"),
    ],
)
def test_what_names_no_model(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        parse_name(text)
    assert "secret" not in "".join(traceback.format_exception(caught.value))


@pytest.mark.parametrize(
    "name",
    [HubName(REPO), HubName(REPO, "v1", "Q4_0"), HubName(REPO, "v1", "", "x/a.gguf")],
)
def test_a_name_reads_back(name: HubName) -> None:
    assert parse_name(f"hf://{name}") == name


def test_another_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://mirror:8080/")
    assert parse_name("http://mirror:8080/org/name") == HubName("org/name")
    monkeypatch.setenv("HF_ENDPOINT", "http://mirror:port/")
    with pytest.raises(ConfigError, match="HF_ENDPOINT http://mirror:port is no address"):
        parse_name("http://mirror:8080/org/name")


@pytest.mark.parametrize("text", ["~no_such_user/model", "b" * 300, "a\0b"])
def test_what_cannot_be_looked_for(text: str) -> None:
    with pytest.raises(ConfigError, match=r"^model '"):
        resolve_model(text)


def test_an_address_is_shown_without_what_gives_access() -> None:
    shown = shown_address("https://me:secret@example.com:8/m/a.gguf?X-Amz-Signature=secret#x")
    assert shown == "https://example.com:8/m/a.gguf"
    with pytest.raises(ConfigError) as caught:
        parse_name("https://me:secret@example.com/a.bin?sig=secret")
    assert "secret" not in str(caught.value)
    with pytest.raises(ConfigError) as caught:
        parse_name("https://hf.co/org/name/a.bin?sig=secret")
    assert "secret" not in str(caught.value)
    with pytest.raises(ConfigError, match="is no address") as caught:
        parse_name("http://me:secret@[::1/y.gguf?sig=secret")
    assert "secret" not in str(caught.value)
