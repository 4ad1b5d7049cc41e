"""Answers that repeat themselves: what a small model says when it has nothing more to say.

Each further round of a loop is known in advance, so a server that guesses tokens from the text
before them is faster on such answers than on any that a user would want.
"""

ROUNDS = 3
MIN_CHARS = 24
_SEEN_CHARS = 2000  # of the end of an answer, which bounds the phrase


def ends_in_loop(text: str) -> bool:
    """Whether `text` ends in a phrase that stands there at least ROUNDS times in a row, and at
    least as often as it takes to fill MIN_CHARS.

    This is how Holtzman et al. (2020) count repetition, by characters in place of tokens, which
    only the server knows. The last round may be cut anywhere. A list whose numbers go up is none.
    """
    end = text[-_SEEN_CHARS:]
    return any(
        end.endswith(end[-size:] * max(ROUNDS, -(-MIN_CHARS // size)))
        for size in range(1, len(end) // ROUNDS + 1)
    )
