"""Which tokens a banned word stands for, with the tokenizers of two families."""

import pytest
import tokenizers
from tokenizers import decoders, models, normalizers

from srt.files.model_files import resolve_model
from srt.files.tokenizer import Tokenizer, load_tokenizer
from srt.files.vocab import load_vocab
from srt.wire.errors import RequestError
from tokenizer_proc.tokenizing.reading import MAX_BAD_TOKENS, bad_ids


def spm_tokenizer() -> Tokenizer:
    """One like Llama 2's: it puts a space before a text, and spaces are U+2581."""
    tokens = ["<unk>", "\u2581", "\n", "a", "b", "\u2581a", "ab", "\u2581ab"]
    merges = [("\u2581", "a"), ("a", "b"), ("\u2581a", "b"), ("\u2581", "ab")]
    model = models.BPE({t: i for i, t in enumerate(tokens)}, merges, unk_token="<unk>")
    encoder = tokenizers.Tokenizer(model)
    encoder.normalizer = normalizers.Sequence(
        [normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")]
    )
    encoder.decoder = decoders.Replace("\u2581", " ")
    return Tokenizer(encoder)


def test_words_as_they_are_inside_of_a_text() -> None:
    """Without the space that this tokenizer puts before a text."""
    tokenizer = spm_tokenizer()
    assert tokenizer.encode("ab").tolist() == [7]
    assert bad_ids(["ab", " a"], tokenizer) == [[6], [7], [3], [5]]


def test_smollm2() -> None:
    files = resolve_model("smollm2")
    vocab, tokenizer = load_vocab(files), load_tokenizer(files)
    found = bad_ids(["Paris", "quokka", "\n", "<|im_end|>", " "], tokenizer)
    texts = [vocab.decode(ids, skip_special_tokens=False) for ids in found]
    expected = ["Paris", " Paris", "quokka", " quokka", "\n", " \n", "<|im_end|>"]
    assert texts == [*expected, " <|im_end|>", " ", "  "]
    text = "In Paris,Paris"
    ids = tokenizer.encode(text).tolist()
    assert found[1][0] in ids and found[0][0] in ids


def test_a_word_without_tokens() -> None:
    model = models.BPE({"a": 0}, [])
    with pytest.raises(RequestError) as caught:
        bad_ids(["a", "b"], Tokenizer(tokenizers.Tokenizer(model)))
    assert caught.value.info.param == "bad_words"


def test_all_words_together_are_bounded() -> None:
    model = models.BPE({"a": 0, " ": 1}, [])
    tokenizer = Tokenizer(tokenizers.Tokenizer(model))
    words = ["a" * 127] * (MAX_BAD_TOKENS // 255)  # 127 tokens alone, 128 after a space
    assert len(bad_ids(words, tokenizer)) == 2
    with pytest.raises(RequestError, match="more than 4096 tokens") as caught:
        bad_ids([*words, "a" * 127], tokenizer)
    assert caught.value.info.param == "bad_words"
