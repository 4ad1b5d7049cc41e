"""Model directories with the tokenizers of the families, as transformers saves them: prompts are
encoded and texts decoded in the same way."""

import unicodedata
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers
from tokenizers import pre_tokenizers as cuts

from srt.files.gguf_tokens import PRE_KINDS, SPM_SPACE, TokenType, merges_by_score
from srt.files.model_files import ModelFiles
from srt.files.tokenizer import load_plain_tokenizer, load_tokenizer
from srt.files.vocab import load_vocab
from tests.model_files import write_json
from tests.running.late import late
from tests.running.profiles import some
from tests.spm_files import (
    CORPUS,
    learned_pieces,
    pieces_and_types,
    scores,
)
from tests.srt.files.test_bpe_kinds import trained

if TYPE_CHECKING:
    import transformers
else:
    transformers = late("transformers")


PARTS = sorted({word for text in CORPUS for word in text.split()})
PARTS += [" ", " " * 3, "\n", "é", "e\u0301", "日本", "🐈‍⬛", "<|user|>", "<|end|>", "<s>", "</s>"]
OTHERS = st.text(st.characters(exclude_characters=[SPM_SPACE, "<"], codec="utf-8"), max_size=3)
TEXT = st.lists(st.sampled_from(PARTS) | OTHERS, max_size=12).map("".join)


def spm_model() -> dict[str, Any]:
    """Vocabulary and merges as transformers' classes take them."""
    tokens, _ = pieces_and_types()
    known = dict(zip(tokens, scores(), strict=True))
    merges = merges_by_score({piece: known[piece] for piece in learned_pieces()})
    return {"vocab": {token: i for i, token in enumerate(tokens)}, "merges": merges}


def llama(**options: Any) -> Any:
    tokenizer = transformers.LlamaTokenizer(**spm_model(), **options)
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|user|>", "<|end|>"]})
    return tokenizer


def llama_2() -> Any:
    """As in Llama 2, Mistral 7B and TinyLlama: the normalizer adds the prefix."""
    tokens, types = pieces_and_types()
    model = models.BPE(**spm_model(), unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    tokenizer = Tokenizer(model)
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend(SPM_SPACE), normalizers.Replace(" ", SPM_SPACE)]
    )
    steps = [decoders.Replace(SPM_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)])
    special = (TokenType.CONTROL, TokenType.UNKNOWN)
    tokenizer.add_special_tokens(
        [
            AddedToken(token, normalized=False)
            for token, kind in zip(tokens, types, strict=True)
            if kind in special
        ]
    )
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", add_bos_token=True
    )


def phi_3() -> Any:
    """Like Llama 2, but special tokens include the white space after them, and there is no BOS."""
    tokenizer = llama_2()
    strip = [AddedToken(t, normalized=False, rstrip=True) for t in ("<|user|>", "<|end|>")]
    tokenizer.add_special_tokens({"additional_special_tokens": strip})
    tokenizer.add_bos_token = False
    return tokenizer


def gemma() -> Any:
    model = spm_model()
    tokenizer = transformers.GemmaTokenizer(
        **model, bos_token="<s>", eos_token="</s>", add_bos_token=True
    )
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|user|>", "<|end|>"]})
    return tokenizer


def byte_level() -> dict[str, Any]:
    tokens, merges = trained()
    pairs = [tuple(merge.split(" ")) for merge in merges]
    return {"vocab": {token: i for i, token in enumerate(tokens)}, "merges": pairs}


def qwen() -> Any:
    tokenizer = transformers.Qwen2Tokenizer(**byte_level())
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|user|>", "<|end|>"]})
    tokenizer.eos_token = "<|end|>"
    return tokenizer


def llama_3() -> Any:
    tokenizer = Tokenizer(models.BPE(**byte_level(), ignore_merges=True))
    pattern = Regex(PRE_KINDS["llama-bpe"].patterns[0])
    byte_level_step = cuts.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = cuts.Sequence([cuts.Split(pattern, "isolated"), byte_level_step])
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<s>", "</s>", "<|user|>", "<|end|>"])
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", add_bos_token=True
    )


FAMILIES: dict[str, Callable[[], Any]] = {
    "llama": llama,
    "llama-legacy": lambda: llama(legacy=True),
    "llama-2": llama_2,
    "llama-3": llama_3,
    "phi-3": phi_3,
    "gemma": gemma,
    "qwen": qwen,
}


def save(tokenizer: Any, path: Path) -> ModelFiles:
    tokenizer.save_pretrained(path)
    write_json(path / "config.json", {"vocab_size": len(tokenizer), "max_position_embeddings": 64})
    write_json(path / "generation_config.json", {"eos_token_id": [tokenizer.eos_token_id, 7]})
    return ModelFiles("m", "hf", path)


@pytest.mark.parametrize("family", some(FAMILIES, "llama-3", "gemma"))
@pytest.mark.draws
def test_prompts_and_texts_are_those_of_transformers(tmp_path: Path, family: str) -> None:
    theirs = FAMILIES[family]()
    files = save(theirs, tmp_path)
    ours, vocab = load_tokenizer(files), load_vocab(files)
    assert vocab.eos_ids == (theirs.eos_token_id, 7)
    special_ids = {i for i, token in theirs.added_tokens_decoder.items() if token.special}
    assert vocab.special_ids == special_ids
    bos = theirs.bos_token_id

    @given(TEXT)
    def check(text: str) -> None:
        for special in (False, True):
            ids = theirs(text, add_special_tokens=special).input_ids
            if vocab.add_bos and special and ids[:2] == [bos, bos]:
                ids = ids[1:]  # ours does not put a BOS before a BOS
            assert ours.encode(text, add_special_tokens=special).tolist() == ids
            for skip in (False, True):
                decoded = theirs.decode(ids, skip_special_tokens=skip)
                assert vocab.decode_prompt(ids, skip_special_tokens=skip) == decoded

    check()


@pytest.mark.parametrize("family", some(FAMILIES, "llama-3", "gemma"))
@pytest.mark.draws
def test_text_that_continues_other_text(tmp_path: Path, family: str) -> None:
    """Such text gets no prefix, and words are encoded one by one."""
    theirs = FAMILIES[family]()
    files = save(theirs, tmp_path)
    plain, vocab = load_plain_tokenizer(files), load_vocab(files)
    assert plain.cuts_words

    @given(TEXT)
    def check(text: str) -> None:
        pieces = plain.split(text)
        given_back = b"".join(vocab.token_bytes[i] for i in pieces.ids).decode()
        assert given_back == (unicodedata.normalize("NFC", text) if family == "qwen" else text)
        words: dict[int | None, list[int]] = {}
        for piece, word in zip(pieces.ids, pieces.words, strict=True):
            words.setdefault(word, []).append(piece)
        for ids in words.values():
            word_text = b"".join(vocab.token_bytes[i] for i in ids).decode()
            assert plain.split(word_text).ids == ids

    check()
