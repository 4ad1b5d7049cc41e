"""Grammars as SGLang's users write them, indented in their programs: the output matches, whatever
the model would have said. On /generate and on the chat route.
"""

import json
import re
from typing import Any

import httpx2
import pytest

from tests.e2e.server import Server

CASES: dict[str, tuple[str, str]] = {
    "an address": (
        """
        root ::= user "@" host "." [a-z]{2,3}
        user ::= [a-z]{1,9} ("." [a-z]{1,9}){0,1}
        host ::= "example" |
                 "mail"
        """,
        r"[a-z]{1,9}(\.[a-z]{1,9})?@(example|mail)\.[a-z]{2,3}",
    ),
    "one of several words": ('root ::= "Hello" | "Hi" | "Good day"', "Hello|Hi|Good day"),
    "a number": (
        """
        root ::= digit digit digit
        digit ::= [0-9]
        """,
        r"[0-9]{3}",
    ),
    "a telephone number": (
        """
            root ::= "(" area ") " prefix "-" line
            area ::= [0-9] [0-9] [0-9]
            prefix ::= [0-9]{3}
            line ::= [0-9]{4}
        """,
        r"\([0-9]{3}\) [0-9]{3}-[0-9]{4}",
    ),
    "a date": (
        """
        root ::= year "-" month "-" day
        year ::= "20" [0-9] [0-9]
        month ::= "0" [1-9]
            | "1" [0-2]
        day ::= "0" [1-9] | [12] [0-9] | "3" [01]
        """,
        r"20\d\d-(0[1-9]|1[0-2])-(0[1-9]|[12]\d|3[01])",
    ),
    "a colour": (
        """
        root ::= "#" hex hex hex hex hex hex
        hex ::= [0-9] | [A-F]  # capitals only
        """,
        r"#[0-9A-F]{6}",
    ),
    "an object": (
        r"""
        root ::= object
        object ::= "{" ws pair ("," ws pair)? ws "}"
        pair ::= "\"name\"" ws ":" ws name |
                 "\"age\"" ws ":" ws [1-9] [0-9]?
        name ::= "\"" [A-Z] [a-z]{1,9} "\""
        ws ::= " "?
        """,
        r'\{ ?"(name|age)".*\}',
    ),
    "a line of a log": (
        """
        root ::= "[" time "] " level ": " message
        time ::= [0-2] [0-9] ":" [0-5] [0-9]
        level ::= ("INFO"
                   | "ERROR")
        message ::= "Operation " [a-z]{1,9} " " ("failed" | "done")
        """,
        r"\[[0-2]\d:[0-5]\d\] (INFO|ERROR): Operation [a-z]{1,9} (failed|done)",
    ),
    "a list in brackets": (
        """
        root ::= list
        list ::= "[" (list ("," list)?)? "]"
        """,
        r"[\[\],]+",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_a_grammar(server: Server, name: str) -> None:
    grammar, pattern = CASES[name]
    prompt = f"Give me {name}: "
    asked: dict[str, Any] = {"temperature": 0.7, "sampling_seed": 5, "max_new_tokens": 60}
    body = {"text": prompt, "sampling_params": asked | {"ebnf": grammar}}
    chat = {"messages": [{"role": "user", "content": prompt}], "ebnf": grammar, "seed": 5}
    with httpx2.Client(base_url=server.url, timeout=300) as http:
        native = http.post("/generate", json=body).json()
        other = http.post("/v1/chat/completions", json=chat | {"max_tokens": 60}).json()
    choice = other["choices"][0]
    texts = {
        native["text"]: native["meta_info"]["finish_reason"]["type"],
        choice["message"]["content"]: choice["finish_reason"],
    }
    for text, finish in texts.items():
        if name == "a list in brackets" and finish == "length":  # it may nest for ever
            assert re.fullmatch(pattern, text)
            continue
        assert finish == "stop" and re.fullmatch(pattern, text), text
        if name == "an object":
            assert set(json.loads(text)) <= {"name", "age"}


def test_stop_patterns_with_assertions(server: Server) -> None:
    """A boundary of a word, and the end of what was generated so far."""
    listed = "one two twofold three. four"
    for pattern, kept in ((r"\btwo\b", "one "), (r"hree\.$", "one two twofold t")):
        body = {
            "text": "Count: ",
            "sampling_params": {
                "regex": re.escape(listed),
                "stop_regex": [pattern],
                "stop_token_ids": [2**30],
                "max_new_tokens": 40,
            },
        }
        answer = httpx2.post(server.url + "/generate", json=body, timeout=300).json()
        assert answer["text"] == kept
        assert answer["meta_info"]["finish_reason"] == {"type": "stop", "matched": pattern}
