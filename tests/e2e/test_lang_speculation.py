"""API speculation and open turns with the real model, over OpenAI's routes of our server."""

from collections.abc import Iterator
from typing import Any

import pytest

import lang as sgl
from tests.e2e.server import Server

SHOTS = """Read the sentence, and fill in the fields.

Sentence: Dune by Frank Herbert came out in 1965.
Title: Dune
Author: Frank Herbert
Year: 1965

Sentence: In 1949 George Orwell published Nineteen Eighty-Four.
Title: Nineteen Eighty-Four
Author: George Orwell
Year: 1949

"""
FIELDS = ("title", "author", "year")
SENTENCES = (
    "Emma was written by Jane Austen and published in 1815.",
    "Dracula, by Bram Stoker, came out in 1897.",
    "In 1851 Herman Melville published Moby-Dick.",
    "The Trial by Franz Kafka appeared in 1925.",
)


@sgl.function(num_api_spec_tokens="auto")
def extract(s: Any, sentence: str) -> None:
    title, author, year = (sgl.gen(x, max_tokens=16, stop="\n") for x in FIELDS)
    s += SHOTS + f"Sentence: {sentence}\nTitle:"
    s += title + "\nAuthor:" + author + "\nYear:" + year


@sgl.function
def judge(s: Any, essay: str) -> None:
    s += sgl.user("Judge this essay: " + essay)
    summary = sgl.gen("summary", max_tokens=24, stop=".")
    s += sgl.assistant("In summary," + summary + ". My" + sgl.gen("more", max_tokens=8, stop="."))


@pytest.fixture
def openai(request: pytest.FixtureRequest, server: Server) -> Iterator[sgl.OpenAI]:
    is_chat = getattr(request, "param", False)
    with sgl.OpenAI("smollm2", is_chat, base_url=f"{server.url}/v1", dialect="sglang") as made:
        yield made


def test_fewer_requests_for_a_few_shot_prompt(server: Server, openai: sgl.OpenAI) -> None:
    rows = [{"sentence": sentence} for sentence in SENTENCES]
    texts, calls, prompts = [], [], []
    for tokens in (0, "auto"):
        before = server.wait_idle()
        openai.token_usage.reset()
        options: dict[str, Any] = {"temperature": 0, "num_api_spec_tokens": tokens}
        states = extract.run_batch(rows, backend=openai, cache_prefix=False, **options)
        texts.append([state.text() for state in states])
        used, after = [state.usage() for state in states], server.wait_idle()
        calls.append(sum(each.calls for each in used))
        prompts.append(sum(each.prompt_tokens for each in used))
        # The server's own counters agree, and nothing was left uncounted.
        assert after["num_requests_total"] - before["num_requests_total"] == calls[-1]
        assert after["prompt_tokens_total"] - before["prompt_tokens_total"] == prompts[-1]
        assert openai.token_usage.prompt_tokens == prompts[-1]
        assert not any(each.uncounted for each in used)
    assert texts[0] == texts[1]
    assert calls == [3 * len(rows), len(rows)] and 3 * prompts[1] < prompts[0]
    assert sum(each.speculated for each in used) == 2 * len(rows)
    # The last stop of each, and what comes until its stream is left, which takes longer under load.
    asked = 3 * 16 + len("\nAuthor:\nYear:")
    assert 0 < sum(each.wasted_tokens for each in used) < asked * len(rows)


@pytest.mark.parametrize("openai", [True], indirect=True)
def test_an_open_turn_goes_on_as_on_our_own_back_end(server: Server, openai: sgl.OpenAI) -> None:
    essay = "The sea is deep and blue."
    with sgl.RuntimeEndpoint(server.url) as endpoint:
        ours = judge.run(essay, backend=endpoint, temperature=0)
        expected = ours.vars()
    assert judge.run(essay, backend=openai, temperature=0).vars() == expected
    state = judge.run(essay, backend=openai, temperature=0, num_api_spec_tokens=48)
    assert state.vars() == expected and state.usage().calls in (1, 2)
    assert ours.messages()[-1] == state.messages()[-1]


@pytest.mark.full
def test_all_that_differs_is_where_a_literal_ends_within_a_token(openai: sgl.OpenAI) -> None:
    """With a blank at the end of each label, the model writes other tokens after it than by itself:
    there, and only there, texts may differ."""

    @sgl.function
    def labelled(s: Any, sentence: str, blank: str) -> None:
        title, author, year = (sgl.gen(x, max_tokens=16, stop="\n") for x in FIELDS)
        s += SHOTS + f"Sentence: {sentence}\nTitle:{blank}"
        s += title + f"\nAuthor:{blank}" + author + f"\nYear:{blank}" + year

    differ = []
    for blank in ("", " "):
        for sentence in SENTENCES:
            options: dict[str, Any] = {"backend": openai, "temperature": 0}
            plain = labelled.run(sentence, blank, **options)
            ahead = labelled.run(sentence, blank, num_api_spec_tokens="auto", **options)
            if plain.text() != ahead.text():
                differ.append((blank, sentence, plain.vars(), ahead.vars()))
    assert all(blank for blank, *_ in differ), differ
