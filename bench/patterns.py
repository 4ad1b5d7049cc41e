"""Patterns for benchmarks of constrained decoding: two classic ones and a seeded family."""

import random

_TEXT = r"[\w\d\s]{1,16}"

# After the JSON of SGLang's jump-forward benchmark: a character, and a city with fixed fields.
CHARACTER = (
    r"\{\n"
    rf'    "name": "{_TEXT}",\n'
    r'    "house": "(Gryffindor|Slytherin|Ravenclaw|Hufflepuff)",\n'
    r'    "blood status": "(Pure-blood|Half-blood|Muggle-born)",\n'
    r'    "occupation": "(student|teacher|auror|ministry of magic|death eater|'
    r'order of the phoenix)",\n'
    r'    "wand": \{\n'
    rf'        "wood": "{_TEXT}",\n'
    rf'        "core": "{_TEXT}",\n'
    r'        "length": [0-9]{1,2}\.[0-9]{0,2}\n'
    r"    \},\n"
    r'    "alive": "(Alive|Deceased)",\n'
    rf'    "patronus": "{_TEXT}",\n'
    rf'    "bogart": "{_TEXT}"\n'
    r"\}"
)
CITY = (
    r"\{\n"
    rf'  "name": "{_TEXT}",\n'
    rf'  "country": "{_TEXT}",\n'
    r'  "latitude": [-+]?[0-9]{1,2}\.[0-9]{0,2},\n'
    r'  "population": [-+]?[0-9]{1,8},\n'
    r'  "top 3 landmarks": \["' + r'", "'.join([_TEXT] * 3) + r'"\]\n'
    r"\}"
)

_KEYS = (
    *("name", "status", "created_at", "description", "total amount", "customer identifier"),
    *("shipping address", "is active", "priority", "category", "phone number", "units in stock"),
)
_VALUES = (
    '"[a-z ]{3,20}"',
    '"[A-Z][a-z]{2,12}"',
    "[0-9]{1,5}",
    r"[0-9]{1,3}\.[0-9]{2}",
    "(true|false)",
    '"(low|medium|high|urgent)"',
    '"20[0-9]{2}-[01][0-9]-[0-3][0-9]"',
    r'"\+[0-9]{2} [0-9]{3} [0-9]{6}"',
    r"\[[0-9]{1,2}(, [0-9]{1,2}){1,3}\]",
)


def seeded_patterns(count: int, seed: int = 0) -> list[str]:
    """`count` patterns of records: JSON, key-value lines, tags and comma-separated fields."""
    rng = random.Random(seed)
    return [_record(rng) for _ in range(count)]


def _record(rng: random.Random) -> str:
    fields = [(key, rng.choice(_VALUES)) for key in rng.sample(_KEYS, rng.randint(1, 6))]
    style = rng.choice(("json", "lines", "tags", "cells"))
    if style == "json":
        gap = rng.choice(("", " ", r"\n  "))
        inner = f",{gap}".join(f'"{key}": {value}' for key, value in fields)
        return r"\{" + gap + inner + (r"\n" if gap == r"\n  " else "") + r"\}"
    if style == "lines":
        return r"\n".join(f"{key}: {value}" for key, value in fields)
    if style == "tags":
        names = [key.replace(" ", "-") for key, _ in fields]
        values = [value for _, value in fields]
        return "".join(f"<{n}>{v}</{n}>" for n, v in zip(names, values, strict=True))
    return ";".join(value for _, value in fields)
