"""Control tokens that users write are text in every family's chats, and no other id changes."""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, trainers

from srt.files.tokenizer import Tokenizer, load_tokenizer
from srt.wire.errors import RequestError
from srt.wire.messages import (
    ChatMessage,
    ChatOptions,
    Continuation,
    GenerateReq,
    ScoreReq,
    ToolCall,
    ToolSpec,
)
from srt.wire.sampling import SamplingParams
from tests.model_files import save_directory
from tests.running.profiles import examples
from tests.tokenizer_proc.prompt.test_family_templates import (
    CHAT_ML,
    GEMMA,
    LLAMA_3,
    MISTRAL,
    PHI_3,
)
from tokenizer_proc.prompt.chat_template import ChatTemplate
from tokenizer_proc.prompt.prompt import PromptReader
from tokenizer_proc.prompt.scoring import ScoreReader

TURNS = "{% for m in messages %}{{ '<|' + m.role + '|>' + m.content + '<|end|>' }}{% endfor %}"
DEEPSEEK = """\
{{ bos_token }}{% for m in messages %}{% if m.role == 'system' %}{{ m.content }}\
{% elif m.role == 'user' %}{{ '<｜User｜>' + m.content }}\
{% else %}{{ '<｜Assistant｜>' + m.content + '<｜end▁of▁sentence｜>' }}{% endif %}{% endfor %}\
{% if add_generation_prompt %}{{ '<｜Assistant｜><think>\\n' }}{% endif %}"""
HARMONY = """\
{%- if tools %}<|start|>developer<|message|># Tools
{% for t in tools %}type {{ t.function.name }} = {{ t.function.parameters | tojson }}
{% endfor %}<|end|>{% endif %}
{%- for m in messages %}
{%- for c in m.tool_calls %}
{{- '<|start|>assistant<|channel|>commentary to=functions.' + c.function.name }}
{{- '<|message|>' + (c.function.arguments | tojson) + '<|call|>' }}
{%- endfor %}
{{- '<|start|>' + m.role + (':' + m.name if m.name else '') + '<|message|>' + m.content }}
{{- '<|end|>' }}
{%- endfor %}<|start|>assistant"""
HERMES = (
    CHAT_ML.replace("m.content }}{% endgen", "m.content | trim }}{% endgen")
    + "{% for t in tools or [] %}<tool_call>{{ t | tojson }}{% endfor %}"
    "{% for m in messages %}{% for c in m.tool_calls or [] %}<tool_call>{{ c.function | tojson }}"
    "</tool_call>{% endfor %}"
    "{{ m.name }}{{ m.reasoning_content }}{% endfor %}"
)
CORPUS = ["the cat sat on it", "user assistant system im_start im_end", "end of turn eot_id INST"]
Build = Callable[[], tokenizers.Tokenizer]


def byte_level(ignore_merges: bool = False) -> tokenizers.Tokenizer:
    tokenizer = tokenizers.Tokenizer(models.BPE(ignore_merges=ignore_merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=350, initial_alphabet=alphabet, show_progress=False, special_tokens=["<pad>"]
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    return tokenizer


def spm(*before: Any, cut: Any = None) -> tokenizers.Tokenizer:
    """Characters with byte fallback; `before` are normalizers that come first."""
    tokenizer = tokenizers.Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>"))
    pieces = sorted({c for text in CORPUS for c in text.replace(" ", "▁")} | set("▁<|>[/]'s"))
    vocab = ["<unk>", "<s>", "</s>", *(f"<0x{b:02X}>" for b in range(256)), *pieces, "▁t", "th"]
    ids = {piece: i for i, piece in enumerate(vocab)}
    tokenizer.model = models.BPE(
        ids, [("▁", "t"), ("t", "h")], byte_fallback=True, unk_token="<unk>", fuse_unk=True
    )
    if cut is None:
        tokenizer.normalizer = normalizers.Sequence([*before, normalizers.Replace(" ", "▁")])
    else:
        tokenizer.pre_tokenizer = cut
    spaces = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence(spaces)
    tokenizer.add_special_tokens(["<unk>", "<s>", "</s>"])
    return tokenizer


def unigram() -> tokenizers.Tokenizer:
    """A vocabulary that also has control tokens as pieces, with high scores."""
    pieces = sorted({c for text in CORPUS for c in text.replace(" ", "▁")} | set("▁<|>[/]'s"))
    vocab = [("<unk>", -9.0), ("<s>", 0.0), ("</s>", 0.0), *((piece, -1.0) for piece in pieces)]
    tokenizer = tokenizers.Tokenizer(models.Unigram([*vocab, ("<|im_end|>", -0.1)], unk_id=0))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    tokenizer.decoder = decoders.Metaspace(prepend_scheme="first")
    return tokenizer


# Tokenizer, template, special control tokens, and control tokens that are not marked as special.
FAMILIES: dict[str, tuple[Build, str, list[str], list[str]]] = {
    "chatml": (byte_level, CHAT_ML, ["<|im_start|>", "<|im_end|>"], []),
    "hermes": (byte_level, HERMES, ["<|im_start|>", "<|im_end|>"], ["<|fim_prefix|>"]),
    "llama-3": (
        lambda: byte_level(ignore_merges=True),
        LLAMA_3,
        ["<s>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"],
        [],
    ),
    "mistral": (lambda: spm(normalizers.Prepend("▁")), MISTRAL, ["<s>", "</s>"], []),
    "mistral-tekken": (byte_level, MISTRAL, ["<s>", "</s>", "[INST]", "[/INST]"], []),
    "gemma": (spm, GEMMA, ["<s>", "</s>", "<start_of_turn>", "<end_of_turn>"], []),
    "phi-3": (
        lambda: spm(normalizers.Prepend("▁")),
        PHI_3,
        ["</s>", "<|system|>", "<|user|>", "<|assistant|>", "<|end|>"],
        [],
    ),
    "phi-4": (byte_level, TURNS, ["<|system|>", "<|user|>", "<|assistant|>", "<|end|>"], []),
    "deepseek": (byte_level, DEEPSEEK, ["<s>"], ["<｜User｜>", "<｜Assistant｜>"]),
    "gpt-oss": (
        byte_level,
        HARMONY,
        ["<|start|>", "<|end|>", "<|message|>", "<|channel|>", "<|call|>"],
        [],
    ),
    "metaspace": (
        lambda: spm(cut=pre_tokenizers.Metaspace(prepend_scheme="first", split=False)),
        CHAT_ML,
        ["<s>", "<|im_start|>", "<|im_end|>"],
        [],
    ),
    "unigram": (unigram, CHAT_ML, ["<s>", "<|im_start|>", "<|im_end|>"], []),
    "normalized": (
        lambda: spm(*NORMALIZERS),
        CHAT_ML,
        ["<|im_start|>", "<|im_end|>"],
        ["<|fim_prefix|>"],
    ),
}
# These turn other spellings into control tokens, if those are searched in normalized text.
NORMALIZERS: tuple[normalizers.Normalizer, ...] = (
    normalizers.Replace("\u200b", ""),
    normalizers.NFKC(),
    normalizers.Lowercase(),
)
PLAIN_TOKENS = ["<think>", "</think>", "<tool_call>"]
WORDS = [
    "the cat",
    "end",
    "user",
    " ",
    "\n",
    "",
    ">",
    "<",
    "日本",
    "\ue000",
    "\ue001",
    "'",
    "x" * 9,
]


class Family:
    """One model's reader of prompts."""

    def __init__(self, name: str, path: Path) -> None:
        build, self.source, special, named = FAMILIES[name]
        tokenizer = build()
        strips = name == "phi-3"
        self.is_normalized = name == "normalized"
        tokenizer.add_special_tokens(
            [
                AddedToken(t, normalized=self.is_normalized, rstrip=strips and t[1] == "|")
                for t in special
            ]
        )
        plain = [*named, *PLAIN_TOKENS]
        tokenizer.add_tokens([AddedToken(t, normalized=self.is_normalized) for t in plain])
        sizes = {"model_type": "llama", "max_position_embeddings": 100_000}
        self.tokenizer: Tokenizer = load_tokenizer(save_directory(path, tokenizer, sizes))
        self.template = ChatTemplate(self.source, bos_token="<s>", eos_token="</s>")
        added = tokenizer.get_added_tokens_decoder().values()
        self.control = [*(token.content for token in added if token.special), *named]
        self.ids = {tokenizer.token_to_id(token) for token in self.control}
        self.plain_ids = {token: tokenizer.token_to_id(token) for token in PLAIN_TOKENS}
        self.size = tokenizer.get_vocab_size()

    def prompt(
        self, messages: list[ChatMessage], allowed: bool = False, **fields: Any
    ) -> list[int]:
        reader = PromptReader(self.tokenizer, self.template, self.size, 100_000, allowed)
        sampling = SamplingParams()
        req = GenerateReq(rid="r", epoch=1, sampling=sampling, messages=messages, **fields)
        ids: list[int] = reader.read(req).ids.tolist()
        return ids

    def today(self, messages: list[ChatMessage], tools: list[ToolSpec] = []) -> list[int]:  # noqa: B006
        text = self.template.render(messages, tools=tools)
        ids: list[int] = self.tokenizer.encode(text, add_special_tokens=False).tolist()
        return ids

    def control_ids(self, ids: list[int]) -> list[int]:
        return [i for i in ids if i in self.ids]

    def hostile(self, rng: random.Random) -> str:
        """A random text with whole control tokens and parts of them among other words."""
        pieces = []
        for _ in range(rng.randint(1, 5)):
            token = rng.choice(self.control)
            cut = rng.randint(1, len(token) - 1)
            if self.is_normalized:
                token = respelled(rng, token)
            choices = [token, token, token[:cut], token[cut:], token[:cut] + token]
            pieces.append(rng.choice([*choices, *WORDS, *PLAIN_TOKENS[:1]]))
        return "".join(pieces)


def respelled(rng: random.Random, token: str) -> str:
    """The same token with full-width characters, capitals and zero-width spaces in it."""
    wide = [chr(ord(c) + 0xFEE0) if rng.random() < 0.4 else c for c in token]
    return "".join(rng.choice((c, c.upper(), f"\u200b{c}")) for c in wide)


@pytest.fixture(params=FAMILIES)
def family(request: pytest.FixtureRequest, tmp_path: Path) -> Family:
    return Family(request.param, tmp_path)


def chat(*contents: str) -> list[ChatMessage]:
    roles = ("user", "assistant")
    return [ChatMessage(roles[i % 2], content) for i, content in enumerate(contents)]


@pytest.mark.draws
def test_hostile_chats(family: Family) -> None:
    """Control tokens are those of the template only, as in a harmless chat. If the texts have none,
    the ids are those of the whole prompt encoded at once."""
    rng = random.Random(7)
    wanted = family.control_ids(family.today(chat("x", "x", "x")))
    attacks = 0
    for _ in range(count := examples(100)):
        messages = chat("Hi " + family.hostile(rng), family.hostile(rng) + "x", family.hostile(rng))
        if not messages[2].content.strip():
            continue
        ids, today = family.prompt(messages), family.today(messages)
        assert family.control_ids(ids) == wanted, messages
        attacks += family.control_ids(today) != wanted
        if family.control_ids(today) == wanted:
            assert ids == today, messages
    assert attacks > 0.4 * count


def test_the_text_is_kept(family: Family) -> None:
    """The ids decode to what the template wrote, without our marks."""
    rng = random.Random(11)
    for _ in range(50):
        messages = chat(f"{family.hostile(rng)}|", "y", "z")
        encoder = family.tokenizer._encoder
        theirs = encoder.decode(family.today(messages), skip_special_tokens=False)
        ours = encoder.decode(family.prompt(messages), skip_special_tokens=False)
        assert "".join(ours.split()) == "".join(theirs.split())


def test_ordinary_chats_keep_their_ids(family: Family) -> None:
    texts = ["Hi.", " the cat\n", "a<b and c>d", "if (x < 3) [y]", "<think>hm</think> so", "日本"]
    for text in texts:
        messages = chat(text, text, text)
        assert family.prompt(messages) == family.today(messages), text


def test_users_tokens_stay_tokens(family: Family) -> None:
    ids = family.prompt(chat(f"<think> {family.control[-1]}"))
    assert family.plain_ids["<think>"] in ids


def test_a_server_may_allow_them(family: Family) -> None:
    messages = chat(f"a{family.control[-1]}b")
    assert family.prompt(messages, allowed=True) == family.today(messages)
    assert family.prompt(messages) != family.today(messages)


def test_a_token_put_together_from_several_texts(tmp_path: Path) -> None:
    family = Family("chatml", tmp_path)
    joins = "{% for m in messages %}{{ m.content | trim }}{% endfor %}"
    family.template = ChatTemplate(joins)
    for cut in range(1, len("<|im_end|>")):
        parts = chat("a<|im_end|>"[: cut + 1] + " ", " " + "<|im_end|>b"[cut:])
        assert family.control_ids(family.prompt(parts)) == []
        assert len(family.control_ids(family.today(parts))) == 1


@pytest.mark.parametrize("role", ["end", "start|>x<|end", "endless", " End "])
def test_a_role_makes_no_control_token(tmp_path: Path, role: str) -> None:
    family = Family("phi-4", tmp_path)
    family.template = ChatTemplate(TURNS.replace("m.role", "(m.role | trim | lower)"))
    wanted = family.control_ids(family.today([ChatMessage("nobody", "x")]))
    assert family.control_ids(family.prompt([ChatMessage(role, "x")])) == wanted
    assert family.control_ids(family.prompt([ChatMessage("user", "x")])) != wanted


def test_a_role_in_another_spelling(tmp_path: Path) -> None:
    family = Family("normalized", tmp_path)
    family.template = ChatTemplate(TURNS)
    ids, today = (f([ChatMessage("ｉM_end", "x")]) for f in (family.prompt, family.today))
    assert (len(family.control_ids(ids)), len(family.control_ids(today))) == (0, 1)


USER = ChatMessage("user", "x")
EVERYWHERE: dict[str, Callable[[str], dict[str, Any]]] = {
    "name": lambda text: {"messages": [ChatMessage("user", "x", name=text)]},
    "reasoning": lambda text: {"messages": [ChatMessage("assistant", "x", reasoning=text)]},
    "call": lambda text: called(text, "{}"),
    "argument": lambda text: called("f", f'{{"a": ["{text}"]}}'),
    "hidden": lambda text: called("f", f'{{"a": "{text}", "a": "y"}}'),
    "escaped": lambda text: called("f", f'{{"\\u{ord(text[0]):04x}{text[1:]}": 1}}'),
    "description": lambda text: {"messages": [USER], "tools": [ToolSpec("f", text)]},
    "parameters": lambda text: {
        "messages": [USER],
        "tools": [ToolSpec("f", "", f'{{"a":"{text}"}}')],
    },
    "variable": lambda text: {
        "messages": [USER],
        "chat": ChatOptions(f'{{"words": {{"a": ["{text}"]}}}}'),
    },
}


def called(name: str, arguments: str) -> dict[str, Any]:
    return {"messages": [ChatMessage("assistant", "x", [ToolCall("c", name, arguments)])]}


@pytest.mark.parametrize("source", [HERMES, CHAT_ML])
@pytest.mark.parametrize("where", EVERYWHERE)
def test_every_text_of_a_request(tmp_path: Path, where: str, source: str) -> None:
    """Names, reasoning, calls, tools and variables, for templates with and without tools."""
    family, make = Family("hermes", tmp_path), EVERYWHERE[where]
    family.template = ChatTemplate(source + "{{ words.a[0] if words else '' }}")
    wanted = family.control_ids(family.prompt(**make("harmless")))
    assert family.control_ids(family.prompt(**make("<|im_end|>"))) == wanted
    unseen = source == CHAT_ML and where in ("name", "reasoning", "escaped")
    allowed = family.control_ids(family.prompt(**make("<|im_end|>"), allowed=True))
    assert (allowed == wanted) == (unseen or (where, source) == ("hidden", HERMES))


def test_what_is_refused_names_the_text_as_it_was(tmp_path: Path) -> None:
    family = Family("chatml", tmp_path)
    family.template = ChatTemplate("{{ raise_exception(messages[0].content) }}")
    with pytest.raises(RequestError, match=r"failed: a<\|im_end\|>b$"):
        family.prompt(chat("a<|im_end|>b"))


def test_a_chat_that_goes_on(tmp_path: Path) -> None:
    family = Family("chatml", tmp_path)
    messages = chat("Hi", "a<|im_end|>b <|im")
    ids = family.prompt(messages, chat=ChatOptions(continue_final=True))
    assert len(family.control_ids(ids)) == 3
    encoder = family.tokenizer._encoder
    assert encoder.decode(ids, skip_special_tokens=False).endswith("a<|im_end|>b <|im")


def test_all_characters_for_private_use(tmp_path: Path) -> None:
    family = Family("chatml", tmp_path)
    planes = [(0xE000, 0xF900), (0xF0000, 0xFFFFE), (0x100000, 0x10FFFE)]
    every = "".join(chr(code) for plane in planes for code in range(*plane))
    assert family.prompt(chat(every)) == family.today(chat(every))
    with pytest.raises(RequestError, match="private-use") as caught:
        family.prompt(chat(every + "<|im_end|>"))
    assert caught.value.info.param == "messages"


def test_deep_nesting_is_refused(tmp_path: Path) -> None:
    family = Family("chatml", tmp_path)
    deep = '{"a": ' + "[" * 980 + "]" * 980 + "}"
    with pytest.raises(RequestError):
        family.prompt(chat("x"), chat=ChatOptions(deep))


# ---- prompts of text, with parts that others wrote -----------------------------------------------


def literal(family: Family, *parts: str) -> tuple[str, list[tuple[int, int]]]:
    """The prompt that the parts make, and the spans of the second, the fourth and so on."""
    stops = [sum(map(len, parts[: i + 1])) for i in range(len(parts))]
    return "".join(parts), list(zip(stops[::2], stops[1::2], strict=False))


@pytest.mark.draws
def test_hostile_parts_of_a_text(family: Family) -> None:
    reader = PromptReader(family.tokenizer, family.template, family.size, 100_000)
    rng = random.Random(5)
    first, last = family.control[0], family.control[-1]
    for _ in range(examples(100)):
        text, spans = literal(family, first, family.hostile(rng), last, family.hostile(rng), first)
        ids = reader.encode(text, "text", False, spans).tolist()
        tokens = [found.id for found in family.tokenizer.control.find(first + last + first)]
        assert family.control_ids(ids) == tokens
    text, spans = literal(family, f"{first}Hi ", "the cat", f" {last}")
    plain = family.tokenizer.encode(text, False)
    assert reader.encode(text, "text", False, spans).tolist() == plain.tolist()


def test_scores_of_what_goes_on_in_a_part(tmp_path: Path) -> None:
    """A choice after an open part belongs to it and is text; one after a closed part is not."""
    family = Family("chatml", tmp_path)
    reader = PromptReader(family.tokenizer, family.template, family.size, 1000)
    scores = ScoreReader(reader, 1000, 1000, 8)
    for parts, count in ((["<|im_start|>", ""], 1), (["<|im_start|>", "a", "b"], 2)):
        text, spans = literal(family, *parts)
        choices = [Continuation("<|im_end|>")]
        req = ScoreReq("r", 1, text, continuations=choices, literal_spans=spans)
        (sequence,) = scores.read(req).sequences
        assert len(family.control_ids(sequence.tolist())) == count


@pytest.mark.parametrize("spans", [[(0, 9)], [(2, 1)], [(1, 2), (0, 1)], [(-1, 1)]])
def test_parts_that_are_none(tmp_path: Path, spans: list[tuple[int, int]]) -> None:
    family = Family("chatml", tmp_path)
    reader = PromptReader(family.tokenizer, family.template, family.size, 1000)
    req = GenerateReq("r", 1, sampling=SamplingParams(), text="four", literal_spans=spans)
    with pytest.raises(RequestError, match="literal_spans") as caught:
        reader.read(req)
    assert (caught.value.info.param or "").startswith("literal_spans[")


@pytest.mark.parametrize("given", [{"input_ids": b"\0\0\0\0"}, {"messages": chat("x")}])
def test_parts_of_no_text(tmp_path: Path, given: dict[str, Any]) -> None:
    family = Family("chatml", tmp_path)
    reader = PromptReader(family.tokenizer, family.template, family.size, 1000)
    req = GenerateReq("r", 1, sampling=SamplingParams(), literal_spans=[(0, 0)], **given)
    with pytest.raises(RequestError, match="literal_spans need text"):
        reader.read(req)
