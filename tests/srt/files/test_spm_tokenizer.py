"""SentencePiece's kind of tokenizer from GGUF files.

References: the algorithm itself, written here (the pair with the best score is merged first, the
leftmost of equals), and the tokenizers that transformers makes of the same file.
"""

from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from srt.files.gguf_tokens import SPM_SPACE, merges_by_score
from srt.files.model_files import ModelFiles
from srt.files.tokenizer import PlainTokenizer, Tokenizer, load_plain_tokenizer, load_tokenizer
from srt.files.vocab import Vocab, load_vocab
from srt.wire.errors import ConfigError
from tests.running.late import late
from tests.running.profiles import some
from tests.spm_files import (
    BYTES,
    CORPUS,
    learned_pieces,
    pieces_and_types,
    scores,
    write_spm_gguf,
)

if TYPE_CHECKING:
    from transformers.integrations.gguf import gguf_tokenizer_mapping
else:
    gguf_tokenizer_mapping = late("transformers.integrations.gguf.gguf_tokenizer_mapping")


WORDS = sorted({word for text in CORPUS for word in text.split()})
PARTS = [*WORDS, " ", " " * 3, "\n", ", ", "\t", "aaaa", "é", "e\u0301", "🐈‍⬛"]
# No U+2581, which such a tokenizer takes as a space, and no "<", with which tokens begin.
OTHERS = st.text(st.characters(exclude_characters=[SPM_SPACE, "<"], codec="utf-8"), max_size=4)
TEXT = st.lists(st.sampled_from(PARTS) | OTHERS, max_size=12).map("".join)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> ModelFiles:
    return write_spm_gguf(tmp_path_factory.mktemp("spm") / "spm.gguf")


@pytest.fixture(scope="module")
def tokenizer(files: ModelFiles) -> Tokenizer:
    return load_tokenizer(files)


@pytest.fixture(scope="module")
def plain(files: ModelFiles) -> PlainTokenizer:
    return load_plain_tokenizer(files)


@pytest.fixture(scope="module")
def vocab(files: ModelFiles) -> Vocab:
    return load_vocab(files)


def merged_by_score(text: str) -> list[int]:
    """The ids of `text` by SentencePiece's algorithm, in quadratic time."""
    tokens, _ = pieces_and_types()
    ids = {token: i for i, token in enumerate(tokens)}
    score = {piece: scores()[ids[piece]] for piece in learned_pieces()}
    symbols = list(text.replace(" ", SPM_SPACE))
    while True:
        pairs = [a + b for a, b in pairwise(symbols)]
        known = [i for i, pair in enumerate(pairs) if pair in score]
        if not known:
            break
        best = max(known, key=lambda i: (score[pairs[i]], -i))
        symbols[best : best + 2] = [pairs[best]]
    found = []
    for symbol in symbols:
        pieces = [symbol] if symbol in score else [BYTES[byte] for byte in symbol.encode()]
        found += [ids[piece] for piece in pieces]
    return found


@given(TEXT)
@example("aaaaaaaaaaa")
def test_ids_are_those_of_the_algorithm(
    tokenizer: Tokenizer, plain: PlainTokenizer, text: str
) -> None:
    assert plain.split(text).ids == merged_by_score(text)
    prompt = merged_by_score(" " + text) if text else []
    assert tokenizer.encode(text, add_special_tokens=False).tolist() == prompt
    assert tokenizer.encode(text).tolist() == [1, *prompt]


@given(TEXT)
def test_decoding_gives_the_text_back(
    tokenizer: Tokenizer, plain: PlainTokenizer, vocab: Vocab, text: str
) -> None:
    assert vocab.decode_prompt(tokenizer.encode(text)) == text
    assert b"".join(vocab.token_bytes[i] for i in plain.split(text).ids) == text.encode()


@given(TEXT)
def test_words_are_encoded_one_by_one(plain: PlainTokenizer, vocab: Vocab, text: str) -> None:
    """So a text may be cut before any run of spaces."""
    assert plain.cuts_words
    pieces = plain.split(text)
    ids: list[int] = []
    for word in range(max((w for w in pieces.words if w is not None), default=-1) + 1):
        own = [i for i, w in zip(pieces.ids, pieces.words, strict=True) if w == word]
        ids += own
        word_text = b"".join(vocab.token_bytes[i] for i in own).decode()
        assert plain.split(word_text).ids == own
        assert " " not in word_text.lstrip(" ")
    assert ids == pieces.ids


def of_transformers(path: Path) -> Any:
    """The tokenizer that transformers makes of a GGUF file."""
    arch, content, _ = gguf_tokenizer_mapping.get_gguf_tokenizer(str(path))
    return gguf_tokenizer_mapping.convert_gguf_tokenizer(arch, content)[0]


FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {},
    "phi3": {},
    "gemma2": {"add_space_prefix": False},
    "gemma3": {"add_space_prefix": False},
}


@pytest.mark.parametrize("arch", some(FAMILIES))
@pytest.mark.draws
def test_ids_are_those_of_transformers(tmp_path: Path, arch: str) -> None:
    files = write_spm_gguf(tmp_path / "m.gguf", arch, **FAMILIES[arch])
    ours, theirs = load_tokenizer(files), of_transformers(files.path)

    @given(TEXT)
    def check(text: str) -> None:
        # There, Metaspace adds a Llama's prefix, but not to a text that begins with a space.
        text = text.lstrip(" ") if arch == "llama" else text
        ids = ours.encode(text, add_special_tokens=False).tolist()
        assert ids == theirs.encode(text, add_special_tokens=False).ids

    check()


@given(TEXT)
def test_text_inside_of_other_text(tokenizer: Tokenizer, plain: PlainTokenizer, text: str) -> None:
    assert tokenizer.encode_inside(text).tolist() == plain.split(text).ids


@pytest.fixture(scope="module")
def by_merges(tmp_path_factory: pytest.TempPathFactory) -> ModelFiles:
    """The same vocabulary in the form of Gemma 4's files: with merges, and no space in front."""
    ranked = merges_by_score(dict(zip(pieces_and_types()[0], scores(), strict=True)))
    merges = [f"{left} {right}" for left, right in ranked if left + right in learned_pieces()]
    path = tmp_path_factory.mktemp("merges") / "m.gguf"
    return write_spm_gguf(path, model="gemma4", scores=None, merges=merges)


@given(TEXT)
def test_ids_by_merges_are_those_by_scores(by_merges: ModelFiles, text: str) -> None:
    ids = load_tokenizer(by_merges).encode(text)
    assert ids.tolist() == merged_by_score(text)
    assert load_vocab(by_merges).decode_prompt(ids) == text


def test_special_and_user_defined_tokens(tokenizer: Tokenizer, vocab: Vocab) -> None:
    """Each stretch of text between special tokens gets a space in front, as in llama.cpp."""
    ids = tokenizer.encode("<|user|>the<a tool>the<|end|>the")
    pieces = [vocab.token_bytes[i] for i in ids]
    assert pieces[:2] == [b"<s>", b"<|user|>"]
    assert b"".join(pieces[1:]) == b"<|user|> the<a tool> the<|end|> the"
    assert b"<a tool>" in pieces
    user, end = (vocab.token_bytes.index(name) for name in (b"<|user|>", b"<|end|>"))
    assert vocab.special_ids == {0, 1, 2, user, end}
    assert vocab.eos_ids == (2, end)


def test_special_tokens_are_text_to_the_plain_tokenizer(
    plain: PlainTokenizer, vocab: Vocab
) -> None:
    pieces = plain.split("<s><|end|> the")
    assert not vocab.special_ids.intersection(pieces.ids)
    assert b"".join(vocab.token_bytes[i] for i in pieces.ids) == b"<s><|end|> the"


def test_special_tokens_of_phi_3_take_the_white_space_behind_them(tmp_path: Path) -> None:
    files = write_spm_gguf(tmp_path / "m.gguf", "phi3")
    tokenizer, vocab = load_tokenizer(files), load_vocab(files)
    same = tokenizer.encode("<|user|>the cat<|end|>the cat").tolist()
    assert tokenizer.encode("<|user|>\n the cat<|end|> \nthe cat").tolist() == same
    assert vocab.decode_prompt(tokenizer.encode("<s> a"), False) == "<s>  a"


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({}, (1, True, False, True)),
        ({"bos_token_id": 5, "add_bos_token": False}, (5, False, False, True)),
        ({"add_eos_token": True, "add_space_prefix": False}, (1, True, True, False)),
    ],
)
def test_what_surrounds_a_prompt(
    tmp_path: Path, keys: dict[str, Any], expected: tuple[int, bool, bool, bool]
) -> None:
    files = write_spm_gguf(tmp_path / "m.gguf", **keys)
    vocab = load_vocab(files)
    bos, add_bos, add_eos, space = expected
    assert (vocab.bos_id, vocab.add_bos, vocab.add_eos, vocab.space_prefix) == expected
    pieces = [vocab.token_bytes[i] for i in load_tokenizer(files).encode("the")]
    text = [b" " * space + b"the"]
    assert [b"".join(pieces[add_bos : len(pieces) - add_eos])] == text
    assert (pieces[0] == vocab.token_bytes[bos]) == add_bos
    assert (pieces[-1] == b"</s>") == add_eos


def test_a_vocabulary_without_bytes_has_an_unknown_token(tmp_path: Path) -> None:
    tokens, types = pieces_and_types()
    kept = [i for i, token in enumerate(tokens) if token not in BYTES]
    files = write_spm_gguf(
        tmp_path / "m.gguf",
        tokens=[tokens[i] for i in kept],
        token_type=[int(types[i]) for i in kept],
        scores=[scores()[i] for i in kept],
    )
    vocab, tokenizer = load_vocab(files), load_tokenizer(files)
    ids = tokenizer.encode("the 🐈🐈 the")
    assert ids.tolist().count(0) == 1
    assert vocab.decode_prompt(ids) == "the  the"


def test_pieces_that_reach_over_words(tmp_path: Path) -> None:
    """Words cannot be encoded one by one then; the ids are still right."""
    tokens, types = pieces_and_types()
    pair = f"t{SPM_SPACE}"
    files = write_spm_gguf(
        tmp_path / "m.gguf",
        tokens=[*tokens, pair],
        token_type=[*map(int, types), 1],
        scores=[*scores(), 1.0],
    )
    assert not load_plain_tokenizer(files).cuts_words
    vocab = load_vocab(files)
    ids = load_tokenizer(files).encode("cat cat", add_special_tokens=False)
    assert b"t " in [vocab.token_bytes[i] for i in ids]
    assert vocab.decode_prompt(ids) == "cat cat"


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"scores": None}, "key tokenizer.ggml.scores is missing"),
        ({"token_type": None}, "key tokenizer.ggml.token_type is missing"),
        ({"scores": [0.0, 1.0]}, "2 scores for"),
        ({"token_type": [1, 1]}, "2 types for"),
        ({"model": "t5"}, "tokenizer 't5' is not supported"),
        ({"bos_token_id": 9999}, "bos_token_id is 9999, and there are 50. tokens"),
        ({"eot_token_id": 600}, "eot_token_id is 600"),
        ({"unknown_token_id": 2**31}, "unknown_token_id is 2147483648"),
        ({"eos_token_id": "x"}, r"Expected `int \| null`, got `str` - at `\$.eos_token_id`"),
        ({"tokens": "abc"}, r"Expected `array`, got `str` - at `\$.tokens`"),
        ({"tokens": [1, 2, 3]}, r"Expected `str`, got `int` - at `\$.tokens\[0\]`"),
        ({"tokens": ["a" * 12_000]}, "the squares of their lengths add up to 144000000"),
        ({"token_type": 3}, r"got `int` - at `\$.token_type`"),
        ({"scores": ["x"]}, r"Expected `float`, got `str` - at `\$.scores\[0\]`"),
        ({"model": "gpt2", "pre": ["gpt-2"]}, r"got `array` - at `\$.pre`"),
        ({"model": "gemma4"}, "key tokenizer.ggml.merges is missing"),
        ({"model": "gpt2", "pre": "gpt-2"}, "key tokenizer.ggml.merges is missing"),
        ({"model": "gpt2", "pre": "gpt-2", "merges": ["ab"]}, "merges has 'ab'"),
        ({"model": "gpt2", "pre": "gpt-2", "merges": ["a \u0100"]}, "cannot be used .*out of voc"),
    ],
)
def test_metadata_that_does_not_fit(tmp_path: Path, keys: dict[str, Any], message: str) -> None:
    files = write_spm_gguf(tmp_path / "m.gguf", **keys)
    with pytest.raises(ConfigError, match=message):
        load_tokenizer(files)
