"""Builds an encoder of the `tokenizers` library from a GGUF file's tokens.

Called by `srt.files.tokenizer`. SentencePiece's BPE, which merges the pair that makes the token of
the best score, becomes merges in the order of those scores, as Hugging Face converts such models.
They are equal except for ties between overlapping splittings of the same piece, which SentencePiece
decides from left to right and ranks cannot express.
"""

import re
from collections.abc import Collection, Iterable

import tokenizers
from tokenizers import AddedToken, Regex, models, normalizers, pre_tokenizers

from srt.files.gguf_tokens import SPM_SPACE, GGUFTokens, TokenType, merges_by_score

_LITERAL = (TokenType.CONTROL, TokenType.UNKNOWN, TokenType.USER_DEFINED)
# Tokens of Phi-3 that leave the white space after them alone, unlike its other special ones.
_NOT_STRIPPING = ("<unk>", "<s>", "<|endoftext|>")
_SPACE_INSIDE = re.compile(f"[^{SPM_SPACE}]{SPM_SPACE}")


def gguf_encoder(tokens: GGUFTokens, plain: bool = False) -> tokenizers.Tokenizer:
    """The encoder of `tokens`. `plain`: for text that continues other text, so without the space
    that SentencePiece puts before a prompt."""
    encoder = _spm(tokens, plain) if tokens.is_spm else _byte_level(tokens)
    _add_literal_tokens(encoder, tokens)
    return encoder


def _byte_level(tokens: GGUFTokens) -> tokenizers.Tokenizer:
    kind = tokens.pre_kind()
    ids = {text: i for i, text in enumerate(tokens.texts)}
    encoder = tokenizers.Tokenizer(models.BPE(ids, tokens.merges(), ignore_merges=kind.whole_words))
    if kind.nfc:
        encoder.normalizer = normalizers.NFC()
    cuts = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in kind.patterns]
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    encoder.pre_tokenizer = pre_tokenizers.Sequence([*cuts, byte_level])
    return encoder


def _spm(tokens: GGUFTokens, plain: bool) -> tokenizers.Tokenizer:
    texts = tokens.literal_texts()
    ids = {text: i for i, text in enumerate(texts)}
    normal = [i for i, kind in enumerate(tokens.types) if kind == TokenType.NORMAL]
    if tokens.is_scored:
        scores = tokens.scores()
        merges = merges_by_score({texts[i]: scores[i] for i in normal})
    else:
        merges = tokens.merges()
    unknown = None if tokens.unknown_id is None else texts[tokens.unknown_id]
    has_bytes = all(f"<0x{byte:02X}>" in ids for byte in range(256))
    model = models.BPE(ids, merges, unk_token=unknown, fuse_unk=True, byte_fallback=has_bytes)
    encoder = tokenizers.Tokenizer(model)
    spaces = normalizers.Replace(" ", SPM_SPACE)
    if tokens.space_prefix and not plain:
        encoder.normalizer = normalizers.Sequence([normalizers.Prepend(SPM_SPACE), spaces])
    else:
        encoder.normalizer = spaces
    if has_bytes and begins_words_with_space(texts[i] for i in normal):
        encoder.pre_tokenizer = spm_words()
    return encoder


def begins_words_with_space(pieces: Iterable[str]) -> bool:
    """Whether no piece extends past the end of a word, so that words can be encoded one by one."""
    return not any(_SPACE_INSIDE.search(piece) for piece in pieces)


def spm_words() -> pre_tokenizers.PreTokenizer:
    """Cuts text, its spaces already U+2581, before each run of spaces."""
    return pre_tokenizers.Split(Regex(f"{SPM_SPACE}*[^{SPM_SPACE}]+|{SPM_SPACE}+"), "isolated")


def _add_literal_tokens(encoder: tokenizers.Tokenizer, tokens: GGUFTokens) -> None:
    """Make control, unknown and user-defined tokens match literally, before any splitting."""
    texts = tokens.literal_texts()
    marked = [(text, kind) for text, kind in zip(texts, tokens.types, strict=True) if text]
    strip: Collection[str] = ()
    if tokens.strips_after_special:
        strip = {t for t, kind in marked if kind in _LITERAL}.difference(_NOT_STRIPPING)
    for special in (True, False):
        kinds = _LITERAL[:2] if special else _LITERAL[2:]
        added = [
            AddedToken(text, special=special, normalized=False, rstrip=text in strip)
            for text, kind in marked
            if kind in kinds
        ]
        encoder.add_special_tokens(added) if special else encoder.add_tokens(added)
