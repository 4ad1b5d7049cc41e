"""Fields of other servers and their clients, and what they are here: by level of a request.

The OpenAI routes read them (`wire.kinds.reading`). A name that is in no table is ignored and named
too, unless it is nearly one of ours or says that it constrains or bounds an answer. So these tables
have the names that are honoured, those whose neutral values need no naming, and those that other
rules would take for something else.
"""

from typing import Any

from srt.gateway.wire.kinds.classes import Foreign, Hint, Meanings, Members, Refused, Renamed

_UNLIMITED: Meanings = ((-1, None), (-2, None))  # -2: until the context is full

_SAMPLERS = "this server has no such sampler"
_FIXED = "chosen when the server starts"
_ONE_MODEL = "there is one model and one provider"
_FIELDS = Members("each member is a field of the request, by the same rules")
_NONE: tuple[Any, ...] = ([], "")

# llama.cpp, Ollama, vLLM, SGLang, TGI, Mistral, OpenRouter and libraries that write for several.
_SAMPLING: dict[str, Foreign] = {
    "repeat_penalty": Renamed("repetition_penalty"),
    "num_predict": Renamed("max_tokens", _UNLIMITED),
    "n_predict": Renamed("max_tokens", _UNLIMITED),
    "max_new_tokens": Renamed("max_tokens"),
    "max_output_tokens": Renamed("max_tokens"),
    "min_new_tokens": Renamed("min_tokens"),
    "stop_sequences": Renamed("stop"),
    "stop_words": Renamed("stop"),
    "grammar": Renamed("ebnf"),
    "schema": Renamed("json_schema"),
    "format": Renamed("json_schema", (("json", {"type": "object"}),)),
    "sampling_seed": Renamed("seed", ((-1, None),)),
    "random_seed": Renamed("seed", ((-1, None),)),
    # Ollama's, what OpenAI's package calls its own way for other fields, NVIDIA's, TGI's, Gemini's.
    **dict.fromkeys(("options", "extra_body", "nvext", "parameters", "generation_config"), _FIELDS),
    "max_length": Refused("max_tokens, which does not count the prompt"),
    "min_length": Refused("min_tokens, which does not count the prompt", (0,)),
    "max_time": Refused("timeout_ms"),
    "timeout": Refused("timeout_ms"),
    "tokens_to_generate": Refused("max_tokens"),
    "num_tokens": Refused("max_tokens"),
    "t_max_predict_ms": Refused("timeout_ms", (-1, 0)),
    "eos_token_id": Refused("stop_token_ids"),
    "end_id": Refused("stop_token_ids"),
    "bad_words_ids": Refused("bad_words, or logit_bias", _NONE),
    "banned_strings": Refused("bad_words", _NONE),
    "banned_tokens": Refused("bad_words, or logit_bias", _NONE),
    "response_mime_type": Refused("response_format", ("text/plain",)),
    "response_schema": Refused("response_format"),
    "output_format": Refused("response_format"),
    "output_schema": Refused("response_format"),
    "output_config": Refused("response_format"),
    "grammar_lazy": Refused("constraint_after with ebnf", (False,)),
    "grammar_triggers": Refused("constraint_after with ebnf", _NONE),
    "guided_decoding": Refused("structured_outputs"),
    "forced_decoder_ids": Refused("regex or choices"),
    "watermark": Hint("nothing is marked", (False,)),
    "safe_prompt": Hint("the prompt is the request's", (False,)),
    "cache_prompt": Hint("the prefixes of prompts are always cached", (True,)),
    "num_ctx": Hint("the context is the model's, within --max-total-tokens"),
    "n_ctx": Hint("the context is the model's, within --max-total-tokens"),
    "keep_alive": Hint("the model stays in memory"),
    "truncation_length": Hint("no prompt is shortened"),
    "guidance_scale": Hint(_SAMPLERS, (1,)),
    "typical_p": Hint(_SAMPLERS, (1,)),
    "tfs_z": Hint(_SAMPLERS, (1,)),
    "top_a": Hint(_SAMPLERS, (0,)),
    "min_keep": Hint(_SAMPLERS, (0,)),
    "mirostat": Hint(_SAMPLERS, (0,)),
    "mirostat_tau": Hint(_SAMPLERS),
    "mirostat_eta": Hint(_SAMPLERS),
    "dynatemp_range": Hint(_SAMPLERS, (0,)),
    "xtc_probability": Hint(_SAMPLERS, (0,)),
    "dry_multiplier": Hint(_SAMPLERS, (0,)),
    "dry_allowed_length": Hint(_SAMPLERS),
    "repeat_last_n": Hint("repetition_penalty looks at the prompt and all of the output"),
    "penalize_newline": Hint("penalties make no exception", (True,)),
    "penalize_nl": Hint("penalties make no exception", (True,)),
    "num_keep": Hint("no prompt is shortened"),
    "n_keep": Hint("no prompt is shortened", (0,)),
    "num_batch": Hint(_FIXED),
    "num_gpu": Hint(_FIXED),
    "main_gpu": Hint(_FIXED),
    "num_thread": Hint(_FIXED),
    "use_mmap": Hint(_FIXED),
    "use_mlock": Hint(_FIXED),
    "id_slot": Hint("requests have no slots", (-1,)),
    "slot_id": Hint("requests have no slots", (-1,)),
    "provider": Hint(_ONE_MODEL),
    "models": Hint(_ONE_MODEL),
    "route": Hint(_ONE_MODEL),
    "mode": Hint("the route says whether this is a chat"),
    "tool_stream": Hint("calls stream as they come", (True,)),
    "max_retries": Hint("the client's own"),
}
_THINKING = "the prompt's text says whether the model reasons"


# What /v1/responses has of the names above; a part of a field takes other values.
_NAMES_OF_RESPONSES = {
    "max_tokens": "max_output_tokens",
    "seed": "seed",
    "timeout_ms": "timeout_ms",
    "json_schema": "text.format",
    "response_format": "text.format",
}


def _of_responses(field: Foreign) -> Foreign:
    """What a field is on /v1/responses, which has few parameters of sampling."""
    if isinstance(field, Hint):
        return field
    if isinstance(field, Members):
        return Refused("a field for each of its members")
    chats_name = field.to if isinstance(field, Renamed) else field.instead
    name = _NAMES_OF_RESPONSES.get(chats_name)
    if isinstance(field, Renamed):
        if name is not None and "." not in name:
            return field._replace(to=name)
        field = Refused(chats_name)
    return field._replace(instead=name or f"/v1/chat/completions, which has {chats_name}")


OF_COMPLETIONS: dict[str, Foreign] = _SAMPLING | {
    "max_completion_tokens": Renamed("max_tokens"),
    "reasoning": Hint(_THINKING),
    "reasoning_effort": Hint(_THINKING),
    "include_reasoning": Hint(_THINKING, (True,)),
    "thinking": Hint(_THINKING),
    "enable_thinking": Hint(_THINKING),
    "think": Hint(_THINKING),
    "reasoning_format": Hint(_THINKING),
    "parallel_tool_calls": Hint("completions call no tools"),
    **dict.fromkeys(("verbosity", "chat_template_kwargs"), Hint("the prompt has no template")),
}
OF_CHATS: dict[str, Foreign] = _SAMPLING | {
    "think": Renamed("enable_thinking"),
    # Groq's and llama.cpp's.
    "reasoning_format": Renamed(
        "include_reasoning",
        (("hidden", False), ("parsed", True), ("auto", True), ("deepseek", True)),
    ),
}
OF_RESPONSES: dict[str, Foreign] = {
    **{n: _of_responses(field) for n, field in _SAMPLING.items() if n != "max_output_tokens"},
    "max_tokens": Renamed("max_output_tokens", _UNLIMITED),
    "max_completion_tokens": Renamed("max_output_tokens", _UNLIMITED),
    **dict.fromkeys(("response_format", "json_schema", "guided_json"), Refused("text.format")),
    "include_reasoning": Hint("reasoning is given as it is", (True,)),
    "reasoning_format": Hint("reasoning is given as it is", ("parsed", "auto")),
    "thinking": Hint("reasoning.effort says whether to reason"),
    **dict.fromkeys(
        ("enable_thinking", "think"),
        Renamed("reasoning", ((False, {"effort": "none"}), (True, {}))),
    ),
}
OF_MESSAGES: dict[str, Foreign] = {
    "id": Hint("nothing is fetched by it"),
    "metadata": Hint("labels for a store that does not exist here"),
    "provider_specific_fields": Hint("those of another server"),
    "reasoning_details": Hint("reasoning has the text"),
    "cache_control": Hint("the prefixes of prompts are always cached"),
    "prefix": Refused("continue_final_message of the request", (False,)),
    # What OpenAI's package adds to what it has read.
    "parsed": Hint("content has the text"),
    "parsed_output": Hint("text has it"),  # Anthropic's
    "parsed_arguments": Hint("arguments has the text"),
    "annotations": Hint("those of another server", ([],)),
    "logprobs": Hint("those of another answer", ([],)),
}
OF_TOOLS: dict[str, Foreign] = {
    "cache_control": Hint("the prefixes of prompts are always cached"),
}
