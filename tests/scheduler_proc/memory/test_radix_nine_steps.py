"""The nine steps of the paper's example of RadixAttention, followed on the tree itself.

Source: the RadixAttention figure of Zheng et al., arXiv 2312.07104 (figure 3). Tokens are small
numbers: 1 2 3 is the system prompt, 50.. the few-shot examples. To keep the steps readable, no req
generates tokens; answers are part of the next prompt, as a chat client would send them.
"""

from tests.scheduler_proc.driver import Driver, tree_as_text

SYSTEM = [1, 2, 3]
CHAT_A1 = [*SYSTEM, 10, 11]
CHAT_A2 = [*CHAT_A1, 12, 13, 14, 15, 16, 17]
CHAT_B1 = [*SYSTEM, 20, 21]
CHAT_B2 = [*CHAT_B1, 22, 23, 24, 25]
FEW_SHOT = [50, 51, 52]
QUERY = [*FEW_SHOT, 60]
BATCH = [[*FEW_SHOT, 70, 71], [*FEW_SHOT, 80, 81]]
CHAT_A_AGAIN = [*CHAT_A1, 18, 19]
SAMPLES = [[*FEW_SHOT, 70, 71, i] for i in (90, 91, 92)]


def ask(driver: Driver, *prompts: list[int]) -> list[int]:
    """Send prompts together, run them, and say how many tokens of each were cached."""
    rids = [f"{driver.now:.2f}/{i}" for i in range(len(prompts))]
    for rid, prompt in zip(rids, prompts, strict=True):
        driver.add(rid, prompt, max_new=0)
    driver.run()
    return [driver.cached[rid] for rid in rids]


def test_the_nine_steps() -> None:
    driver = Driver(max_total_tokens=16)

    def tree() -> list[str]:
        return tree_as_text(driver.core)

    # (1) The tree is empty.
    assert tree() == []

    # (2) The first chat turn becomes one edge.
    assert ask(driver, CHAT_A1) == [0]
    assert tree() == ["[1 2 3 10 11]"]

    # (3) The second turn finds the first. Nobody else uses its edge, so the edge grows.
    assert ask(driver, CHAT_A2) == [5]
    assert tree() == ["[1 2 3 10 11 12 13 14 15 16 17]"]

    # (4) A second chat splits the edge after the common system prompt.
    assert ask(driver, CHAT_B1) == [3]
    assert tree() == ["[1 2 3][10 11 12 13 14 15 16 17]", "[1 2 3][20 21]"]

    # (5) Its next turn needs 4 slots, 3 are free: the least recently used leaf gives up its tail.
    assert ask(driver, CHAT_B2) == [5]
    assert tree() == ["[1 2 3][10 11 12 13 14 15 16]", "[1 2 3][20 21 22 23 24 25]"]

    # (6) A few-shot query without a common prefix is a new branch of the root.
    assert ask(driver, QUERY) == [0]
    assert tree() == [
        "[1 2 3][10 11 12]",
        "[1 2 3][20 21 22 23 24 25]",
        "[50 51 52 60]",
    ]

    # (7) A batch with the same examples shares them by splitting that node. To make room, the
    # first chat's leaf goes, then the tail of the next least recently used leaf.
    assert ask(driver, *BATCH) == [3, 3]
    assert tree() == [
        "[1 2 3][20 21 22 23 24]",
        "[50 51 52][60]",
        "[50 51 52][70 71]",
        "[50 51 52][80 81]",
    ]

    # (8) The first chat comes back: the tail of the second, least recently used, is evicted.
    assert ask(driver, CHAT_A_AGAIN) == [3]
    assert tree() == [
        "[1 2 3][10 11 18 19]",
        "[1 2 3][20]",
        "[50 51 52][60]",
        "[50 51 52][70 71]",
        "[50 51 52][80 81]",
    ]

    # (9) More samples of one question: the least recently used leaves go, the shared node stays.
    assert ask(driver, *SAMPLES) == [5, 5, 5]
    assert tree() == [
        "[1 2 3][10 11 18 19]",
        "[50 51 52][70 71][90]",
        "[50 51 52][70 71][91]",
        "[50 51 52][70 71][92]",
        "[50 51 52][80]",
    ]
