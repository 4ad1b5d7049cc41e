"""The compile worker's last question to a grammar: can the scheduler afford it?

A grammar of llguidance or xgrammar is compiled again where it is loaded, and its masks are
computed between two steps. What is too slow at that, or fails at once, is refused here, where it
costs nobody else anything. Random walks find the common cases; `allowance` bounds the others.
"""

import numpy as np

from scheduler_proc.grammar.allowance import MeteredGrammar
from scheduler_proc.grammar.base import CompiledGrammar, Grammar, GrammarError
from scheduler_proc.grammar.vocabulary import TokenVocabulary

# The slowest of 462 schemas of real programs takes 83 ms.
MAX_LOAD_S = 0.4
_WALKS = 2
_TOKENS = 12


def check_affordable(compiled: CompiledGrammar, vocabulary: TokenVocabulary) -> None:
    """Raise GrammarError with the reason if the grammar must not reach the scheduler.

    `compiled.load_s`, if there is one, is the CPU time in seconds that loading it takes. An
    automaton of ours is always affordable: it is loaded as it is.
    """
    if compiled.backend == "fsm":
        return
    load_s = getattr(compiled, "load_s", 0.0)
    if load_s > MAX_LOAD_S:
        raise GrammarError(
            f"it is too large: {compiled.backend} takes {1000 * load_s:.0f} ms to make its grammar,"
            f" above the limit of {1000 * MAX_LOAD_S:.0f} ms"
        )
    random = np.random.default_rng(0)
    try:
        for _ in range(_WALKS):
            _walk(MeteredGrammar(compiled.start()), vocabulary, random)
    except GrammarError as error:
        raise GrammarError(f"it cannot be followed: {error}") from None


def _walk(grammar: Grammar, vocabulary: TokenVocabulary, random: np.random.Generator) -> None:
    """Accept random tokens that are allowed, but EOS only where there is no other."""
    row = np.empty(vocabulary.mask_width, np.uint32)
    for _ in range(_TOKENS):
        grammar.fill(row)
        going_on = row & ~vocabulary.eos_mask
        if not going_on.any():
            return
        bits = np.flatnonzero(np.unpackbits(going_on.view(np.uint8), bitorder="little"))
        grammar.accept([int(random.choice(bits))])
        grammar.forced_bytes()
    grammar.fill(row)  # raises if the last of them took too long
