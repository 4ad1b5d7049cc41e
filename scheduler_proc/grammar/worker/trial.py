"""The compile worker's last question to a grammar: can the scheduler afford it?

A grammar of llguidance or xgrammar is compiled again where it is loaded, and its masks are
computed between two steps. What is too slow for that, or fails at once, is refused here, where it
costs nobody else anything. Random walks find the common cases; `allowance` bounds the others.
"""

from time import thread_time

import numpy as np

from scheduler_proc.grammar.allowance import MeteredGrammar
from scheduler_proc.grammar.base import BackEndError, CompiledGrammar, Grammar, GrammarError
from scheduler_proc.grammar.vocabulary import TokenVocabulary

# The slowest of 462 schemas of real programs takes 83 ms.
MAX_LOAD_S = 0.4
_WALKS = 2
_TOKENS = 12
_QUICK_S = 0.005  # of CPU time; if one walk takes no more, another would hardly show more


def check_affordable(compiled: CompiledGrammar, vocabulary: TokenVocabulary) -> None:
    """Raise BackEndError with the reason if the grammar must not reach the scheduler.

    `compiled.load_s`, if there is one, is the CPU time in seconds that loading it takes. An
    automaton of ours is always affordable: it is loaded without a trial.
    """
    if compiled.backend == "fsm":
        return
    load_s = getattr(compiled, "load_s", 0.0)
    if load_s > MAX_LOAD_S:
        raise BackEndError(
            f"it is too large: {compiled.backend} takes {1000 * load_s:.0f} ms to make its grammar,"
            f" above the limit of {1000 * MAX_LOAD_S:.0f} ms"
        )
    random = np.random.default_rng(0)
    try:
        for _ in range(_WALKS):
            started = thread_time()
            _walk(MeteredGrammar(compiled.start()), vocabulary, random)
            if thread_time() - started < _QUICK_S:
                return
    except GrammarError as error:
        raise BackEndError(f"it cannot be followed: {error}") from None


def _walk(grammar: Grammar, vocabulary: TokenVocabulary, random: np.random.Generator) -> None:
    """Accept random tokens that are allowed, but EOS only if there is no other."""
    row, no_eos = np.empty(vocabulary.mask_width, np.uint32), ~vocabulary.eos_mask
    for _ in range(_TOKENS):
        grammar.fill(row)
        going_on = row & no_eos
        if not going_on.any():
            return
        grammar.accept([_any_of(going_on, random)])
        grammar.forced_bytes()
    grammar.fill(row)  # raises if the last of them took too long


def _any_of(mask: np.ndarray, random: np.random.Generator) -> int:
    """One of the tokens of a mask, each as likely as the others."""
    behind = np.cumsum(np.bitwise_count(mask))  # of each word, the bits up to its end
    number = int(random.integers(behind[-1]))
    word = int(np.searchsorted(behind, number, side="right"))
    before = int(behind[word - 1]) if word else 0
    bits = np.flatnonzero(np.unpackbits(mask[word : word + 1].view(np.uint8), bitorder="little"))
    return 32 * word + int(bits[number - before])
