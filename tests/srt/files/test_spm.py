"""`tokenizer.model` in a model directory, against the sentencepiece package itself."""

import io
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from srt.files.model_files import ModelFiles
from srt.files.tokenizer import load_plain_tokenizer, load_tokenizer
from srt.files.vocab import load_vocab
from srt.wire.errors import ConfigError
from tests.model_files import write_json
from tests.spm_files import CORPUS, message, spm_model

PARTS = sorted({word for text in CORPUS for word in text.split()})
PARTS += [" ", "   ", ", ", "\t", "é", "e\u0301", "ﬁ", "Ⅳ", "日本", "🐈‍⬛", "<0x41>", "汉字"]
OTHERS = st.characters(exclude_characters="<\u2581\x00", codec="utf-8")
# No combining marks: the tokenizers library maps clusters of characters, not characters.
NO_MARKS = st.characters(exclude_characters="<\x00", max_codepoint=0x2FF)

KINDS: dict[str, dict[str, Any]] = {
    "llama": {"model_type": "bpe", "normalization_rule_name": "identity", "byte_fallback": True}
    | {"remove_extra_whitespaces": False},
    "gemma": {"model_type": "bpe", "normalization_rule_name": "identity", "byte_fallback": True}
    | {"remove_extra_whitespaces": False, "add_dummy_prefix": False},
    "bpe": {"model_type": "bpe"},
    "unigram": {"model_type": "unigram"},
    "bytes": {"model_type": "unigram", "byte_fallback": True, "add_dummy_prefix": False},
    "spaces": {"model_type": "unigram", "normalization_rule_name": "nfkc_cf"}
    | {"remove_extra_whitespaces": False},
}


def trained(**options: Any) -> bytes:
    """The model that sentencepiece learns, with a control and a user-defined piece."""
    spm = pytest.importorskip("sentencepiece")
    model = io.BytesIO()
    given = {"vocab_size": 420, "hard_vocab_limit": False, "control_symbols": ["<|end|>"]}
    given |= {
        "user_defined_symbols": ["<tool>"],
        "minloglevel": 9,
        "required_chars": "<0x41>",
        "character_coverage": 1.0,
    }
    spm.SentencePieceTrainer.train(
        sentence_iterator=iter(CORPUS * 20), model_writer=model, **{**given, **options}
    )
    return model.getvalue()


def write_directory(path: Path, model: bytes, rows: int = 1000) -> ModelFiles:
    (path / "tokenizer.model").write_bytes(model)
    ids = {"bos_token_id": 1, "eos_token_id": 2}
    write_json(path / "config.json", {"max_position_embeddings": 64, "vocab_size": rows, **ids})
    return ModelFiles("small", "hf", path)


@pytest.mark.parametrize("kind", [*KINDS, "written here"])
@pytest.mark.draws
def test_ids_are_those_of_sentencepiece(tmp_path: Path, kind: str) -> None:
    model = trained(**KINDS[kind]) if kind in KINDS else spm_model()
    files = write_directory(tmp_path, model)
    theirs = pytest.importorskip("sentencepiece").SentencePieceProcessor(model_proto=model)
    ours, plain, vocab = load_tokenizer(files), load_plain_tokenizer(files), load_vocab(files)
    assert [vocab.token_bytes[i] for i in (1, 2)] == [b"<s>", b"</s>"]
    assert vocab.add_bos
    keeps_text = KINDS.get(kind, KINDS["llama"]).get("normalization_rule_name") == "identity"

    others = st.text(OTHERS if keeps_text else NO_MARKS, max_size=4)

    @given(st.lists(st.sampled_from(PARTS) | others, max_size=12).map("".join))
    def check(text: str) -> None:
        ids = theirs.encode(text)
        assert ours.encode(text, add_special_tokens=False).tolist() == ids
        assert ours.encode(text).tolist() == [1, *ids]
        if keeps_text:
            assert vocab.decode_prompt(ids) == text
            assert b"".join(vocab.token_bytes[i] for i in plain.split(text).ids) == text.encode()

    check()


def test_control_and_user_defined_pieces(tmp_path: Path) -> None:
    files = write_directory(tmp_path, trained(**KINDS["gemma"]))
    vocab = load_vocab(files)
    end, tool = (vocab.token_bytes.index(name) for name in (b"<|end|>", b"<tool>"))
    assert vocab.special_ids == {0, 1, 2, end}
    ids = load_tokenizer(files).encode("the <tool><|end|>cat").tolist()
    assert tool in ids and end in ids
    assert vocab.decode(ids, False) == "<s>the <tool><|end|>cat"
    pieces = load_plain_tokenizer(files).split("<|end|> the")
    assert not vocab.special_ids.intersection(pieces.ids)
    assert vocab.decode(pieces.ids) == "<|end|> the"


def test_tokenizer_config_decides_about_bos(tmp_path: Path) -> None:
    files = write_directory(tmp_path, trained(**KINDS["llama"]))
    write_json(tmp_path / "tokenizer_config.json", {"add_bos_token": False})
    assert 1 not in load_tokenizer(files).encode("the cat")
    assert not load_vocab(files).add_bos


BPE = message((3, 2))
A, B = message((1, b"a")), message((1, b"b"), (3, 1))


@pytest.mark.parametrize(
    ("model", "error"),
    [
        (b"", "has no pieces"),
        (b"not a model", "not a SentencePiece model"),
        (message((1, A), (1, A)), "has no pieces, or the same piece twice"),
        (message((1, A), (2, message((3, 3)))), "model type 'word' is not supported"),
        (message((1, A), (2, message((3, 4)))), "model type 'char' is not supported"),
        (message((1, A), (2, message((24, 1)))), "treat_whitespace_as_suffix is not supported"),
        (message((1, A), (3, message((5, 0)))), "escape_whitespaces = false is not supported"),
        (message((1, A), (1, B))[:-2], "it ends too early"),
        (message((1, message((1, b"\xff")))), "not a SentencePiece model"),
        (message((1, 7)), "not a SentencePiece model"),
        (message((1, A), (2, 7)), "not a SentencePiece model"),
        (message((1, message((1, b"a"), (2, b"xy")))), "not a SentencePiece model"),
        (message((1, A), (3, message((2, b"xy")))), "cannot be loaded"),
    ],
)
def test_files_that_cannot_be_used(tmp_path: Path, model: bytes, error: str) -> None:
    files = write_directory(tmp_path, model)
    with pytest.raises(ConfigError, match=f"tokenizer.model: .*{error}"):
        load_tokenizer(files)


LONG = [message((1, b"a" * k)) for k in range(1, 800)]
PIECES = [message((1, text)) for text in (b"a", b"b", b"ab")]


def test_pieces_that_would_make_too_many_merges(tmp_path: Path) -> None:
    """799 pieces; each begins and ends with all shorter ones."""
    files = write_directory(tmp_path, message(*((1, piece) for piece in LONG), (2, BPE)))
    with pytest.raises(ConfigError, match=r"tokenizer.model: the tokens are too long: the squares"):
        load_tokenizer(files)


def test_more_pieces_than_rows(tmp_path: Path) -> None:
    """Only unused pieces and control pieces may have ids above the model's rows."""
    surplus = [message((1, b"aab"), (3, 5)), message((1, b"<pad>"), (3, 3))]
    model = message(*((1, piece) for piece in PIECES + surplus), (2, BPE))
    ids = load_tokenizer(write_directory(tmp_path, model, rows=3)).encode("ab", False)
    assert ids.tolist() == [2]
    for rows in (1, 2):
        files = write_directory(tmp_path, model, rows)
        with pytest.raises(ConfigError, match=f"ids up to 2, but vocab_size .* is {rows}"):
            load_tokenizer(files)


def test_a_file_that_is_cut_off(tmp_path: Path) -> None:
    """It is either refused, or read without what is missing."""
    model = trained(model_type="unigram", vocab_size=80, normalization_rule_name="identity")
    for end in range(0, len(model), 7):
        files = write_directory(tmp_path, model[:end])
        try:
            load_tokenizer(files).encode("the cat")
        except ConfigError as error:
            assert "tokenizer.model" in str(error)
