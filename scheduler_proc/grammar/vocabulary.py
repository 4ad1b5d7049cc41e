"""What grammars know of a model's vocabulary: the bytes of the tokens that an output is made of.

Built once per process from `srt.files.vocab.Vocab`. Ordinary tokens are those that stand for text:
neither hidden, nor EOS, nor without bytes. A grammar allows no others, but for EOS at its end.
"""

import hashlib
from collections.abc import Collection
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from scheduler_proc.grammar.mask_cache import MaskCache
from scheduler_proc.grammar.trie import TokenTrie, build_trie
from srt.files.sorted_tokens import SortedTokens
from srt.files.vocab import Vocab

# Must change when the meaning of what is kept under a fingerprint changes.
_FINGERPRINT_VERSION = b"1"


@dataclass(frozen=True, eq=False)
class TokenVocabulary:
    """`token_bytes` has an entry per id, empty for all but ordinary tokens. `eos_ids` are in
    range and distinct; `special_ids` includes them. `mask_cache` is for the token masks of all
    grammars over this vocabulary: one bound for a process, however many grammars it holds."""

    token_bytes: list[bytes]
    special_ids: frozenset[int]
    eos_ids: tuple[int, ...]
    trie: TokenTrie
    mask_cache: MaskCache = field(default_factory=MaskCache)

    @classmethod
    def from_vocab(cls, vocab: Vocab) -> "TokenVocabulary":
        return cls.from_tokens(vocab.token_bytes, vocab.hidden_ids, vocab.eos_ids)

    @classmethod
    def from_tokens(
        cls, tokens: list[bytes], special_ids: Collection[int], eos_ids: Collection[int]
    ) -> "TokenVocabulary":
        """The vocabulary of `tokens`, by id. EOS ids end an output, special or not."""
        eos = tuple(dict.fromkeys(i for i in eos_ids if 0 <= i < len(tokens)))
        hidden = frozenset(special_ids) | frozenset(eos)
        ordinary = [b"" if i in hidden else data for i, data in enumerate(tokens)]
        trie = build_trie([(data, i) for i, data in enumerate(ordinary) if data])
        return cls(token_bytes=ordinary, special_ids=hidden, eos_ids=eos, trie=trie)

    @property
    def vocab_size(self) -> int:
        return len(self.token_bytes)

    @property
    def mask_width(self) -> int:
        """Words of a token mask: ceil(vocab_size / 32)."""
        return (self.vocab_size + 31) // 32

    @cached_property
    def absent_bytes(self) -> bytes:
        """The bytes that are in no ordinary token, ascending: no output can have them."""
        counts = np.bincount(self.trie.bytes, minlength=256)
        return bytes(np.flatnonzero(counts == 0).tolist())

    @cached_property
    def single_bytes(self) -> np.ndarray:
        """The bytes that are an ordinary token of their own: bool [256]."""
        trie = self.trie
        ends_token = np.diff(trie.token_indptr) > 0
        single = np.zeros(256, np.bool_)
        single[trie.bytes[(trie.depths == 1) & ends_token]] = True
        return single

    @cached_property
    def sorted_tokens(self) -> SortedTokens:
        """The ordinary tokens by their bytes."""
        return SortedTokens(self.token_bytes, self.special_ids)

    @cached_property
    def eos_mask(self) -> np.ndarray:
        """A token mask of the EOS ids: uint32 [mask_width]."""
        return self.pack(self.eos_ids)

    @cached_property
    def text_mask(self) -> np.ndarray:
        """A token mask of everything that a grammar may ever allow, EOS too."""
        text: np.ndarray = self.pack(self.trie.token_ids) | self.eos_mask
        return text

    def pack(self, ids: Collection[int] | np.ndarray) -> np.ndarray:
        """A token mask with the bits of `ids` set: uint32 [mask_width], lowest bit first."""
        bits = np.zeros(self.mask_width * 32, np.bool_)
        bits[np.fromiter(ids, np.int64, len(ids))] = True
        words = np.packbits(bits, bitorder="little").view("<u4")
        return words.astype(np.uint32, copy=False)

    @cached_property
    def fingerprint(self) -> str:
        """Equal for vocabularies that grammars cannot tell apart: 32 hex digits."""
        lengths = np.fromiter(map(len, self.token_bytes), np.int32, self.vocab_size)
        digest = hashlib.sha256(_FINGERPRINT_VERSION)
        digest.update(np.array([self.vocab_size, *self.eos_ids], "<i8").tobytes())
        digest.update(b"".join(self.token_bytes))
        digest.update(lengths.astype("<i4").tobytes())
        return digest.hexdigest()[:32]

    @property
    def num_bytes(self) -> int:
        """Memory beyond the tokens' own, about."""
        return self.trie.num_bytes + 8 * self.vocab_size
