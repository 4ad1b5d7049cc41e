"""Where options come from: flags before variables before a file before defaults."""

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from srt.args import NO_OPTIONS, ServerArgs
from srt.chat import run
from srt.commands import bench
from srt.options.elsewhere import ALWAYS_ON, CALLED, IN_NAME, IN_UNITS, NONE, OF_CLIENTS
from srt.options.settings import LATER, Settings, as_toml, make_parser, read_settings
from srt.options.table import all_options
from srt.wire.errors import ConfigError


def of_file(tmp_path: Path, text: str, *argv: str, **environ: str) -> Settings:
    file = tmp_path / "srt.toml"
    file.write_text(text)
    return read_settings(["--config", str(file), *argv], environ)


def test_every_field_is_an_option_once() -> None:
    fields = [option.field for option in all_options()]
    assert sorted([*fields, *NO_OPTIONS]) == sorted(ServerArgs.__struct_fields__)
    assert read_settings([], {}) == Settings(ServerArgs(), {}, [])


def test_precedence(tmp_path: Path) -> None:
    text = "port = 1\nmax_total_tokens = 2\ndp = 3\nno-ui = true\nmax-queue-wait = 9\n"
    variables = {"SRT_PORT": "10", "SRT_MAX_TOTAL_TOKENS": "20", "SRT_THREADS": "40"}
    settings = of_file(tmp_path, text, "--port", "100", "--threads=400", **variables)
    args = settings.args
    assert (args.port, args.max_total_tokens, args.dp, args.threads) == (100, 20, 3, 400)
    assert (args.no_ui, args.max_queue_wait, args.host) == (True, 9.0, "127.0.0.1")
    file = str(tmp_path / "srt.toml")
    assert settings.sources == {
        **dict.fromkeys(("dp", "no_ui", "max_queue_wait"), file),
        "max_total_tokens": "SRT_MAX_TOTAL_TOKENS",
        "port": "--port",
        "threads": "--threads",
    }


def test_a_flag_that_repeats_the_default_goes_first_too() -> None:
    assert read_settings(["--port", "30000"], {"SRT_PORT": "1"}).args.port == 30000


@pytest.mark.parametrize(
    ("flag", "variable", "is_off"),
    [
        ("--no-ui=false", "true", False),
        ("--no-ui=true", "0", True),
        ("--no-ui", "no", True),
        ("", "YES", True),
        ("", "off", False),
    ],
)
def test_switches_can_be_set_and_taken_back(flag: str, variable: str, is_off: bool) -> None:
    argv = [flag] if flag else []
    assert read_settings(argv, {"SRT_NO_UI": variable}).args.no_ui is is_off


def test_the_file_may_be_named_by_a_variable(tmp_path: Path) -> None:
    file = tmp_path / "srt.toml"
    file.write_text("port = 1")
    assert read_settings([], {"SRT_CONFIG": str(file)}).args.port == 1
    with pytest.raises(ConfigError, match="does not exist"):
        read_settings(["--config", f"{file}.old"], {"SRT_CONFIG": str(file)})


def test_lists(tmp_path: Path) -> None:
    text = 'served-model-name = ["a", "b"]\ncors-allow-origins = "*"\napi-key = ["k", "l"]'
    args = of_file(tmp_path, text).args
    assert (args.model_names, args.cors_origins(), args.api_keys()) == (
        ("a", "b"),
        ("*",),
        ("k", "l"),
    )
    assert read_settings([], {"SRT_SERVED_MODEL_NAME": "a,b"}).args.model_names == ("a", "b")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("prot = 1", r"srt.toml: 'prot' is not an option; did you mean port\?"),
        ("max_total_token = 1", r"did you mean max-total-tokens\?"),
        ("zzzzzzzz = 1", r"'zzzzzzzz' is not an option$"),
        ("[port]\nx = 1", "port must be an integer, not {'x': 1}"),
        ('port = "1"', "port must be an integer, not '1'"),
        ("port = true", "port must be an integer, not True"),
        ("port = 1.5", "port must be an integer, not 1.5"),
        ("no-ui = 1", "no-ui must be true or false, not 1"),
        ("host = 1", "host must be text, not 1"),
        ("host = ['a']", r"host must be text, not \['a'\]"),
        ("media-domain = [1]", "media-domain must be text or a list of texts"),
        ('executor = "gpu"', "executor must be one of auto, native, torch, not 'gpu'"),
        ("max-total-tokens = 1\nmax_total_tokens = 2", "max-total-tokens is set twice"),
        ("port = 1\nport = 2", "is not TOML: Cannot overwrite a value"),
        ("port", "is not TOML"),
        ("x = " + "[" * 5000, "is not TOML"),
        ('api-key = ["a,b"]', "api-key must have no commas within a text"),
        (r'ring-dir = "/a\u0000b"', "ring-dir must have no NUL"),
        ("port = 99999", r"--port must be between 0 and 65535 \(set by .*srt.toml\)"),
        ('model = "/no/such"', r"model '/no/such' not found.*\(set by .*srt.toml\)"),
    ],
)
def test_files_that_are_refused(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        of_file(tmp_path, text)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    file = tmp_path / "big.toml"
    with pytest.raises(ConfigError, match=r"cannot read ~no-such-user/srt\.toml"):
        read_settings(["--config", "~no-such-user/srt.toml"], {})
    with pytest.raises(ConfigError, match="is not a regular file"):
        read_settings(["--config", "/dev/zero"], {})
    file.write_bytes(b"#" * 1024 * 1025)
    with pytest.raises(ConfigError, match="more than 1048576 bytes"):
        read_settings(["--config", str(file)], {})
    file.write_bytes(b'host = "\xff"')
    with pytest.raises(ConfigError, match="is not UTF-8"):
        read_settings(["--config", str(file)], {})


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("SRT_PORT", "http", "SRT_PORT must be an integer, not 'http'"),
        ("SRT_NO_UI", "maybe", "SRT_NO_UI must be true or false, not 'maybe'"),
        ("SRT_EXECUTOR", "gpu", "SRT_EXECUTOR must be one of auto, native, torch"),
        ("SRT_DP", "0", r"--dp must be between 1 and 64 \(set by SRT_DP\)"),
        ("SRT_MAX_QUEUE_WAIT", "inf", "--max-queue-wait must be a number, and at most"),
        ("SRT_STEP_TARGET_MS", "nan", "--step-target-ms must be a number"),
        ("SRT_MAX_TOTAL_TOKENS", "9" * 23, "--max-total-tokens must be a number, and at most"),
        ("SRT_MAX_RUNNING_REQUESTS", "65537", "--max-running-requests must be at most 65536"),
        ("SRT_API_KEY", "two words", r"--api-key keys must .*\(set by SRT_API_KEY\)"),
    ],
)
def test_variables_that_are_refused(name: str, value: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        read_settings([], {name: value})
    assert "two words" not in str(caught.value)


def test_variables_that_are_no_options_warn() -> None:
    environ = {
        "SRT_ISA": "avx2",
        "SRT_DP": "",
        "SRT_MAX_TOTAL_TOKEN": "5",
        "SRT_COLOUR": "red",
        "HOME": "/",
    }
    settings = read_settings([], environ)
    assert settings.args == ServerArgs()
    assert settings.warnings == [
        "SRT_COLOUR is not an option: ignored",
        "SRT_MAX_TOTAL_TOKEN is not an option: ignored; did you mean SRT_MAX_TOTAL_TOKENS?",
    ]


def test_what_kubernetes_sets_for_a_service_called_srt_is_left_alone() -> None:
    address = "tcp://10.96.0.7:30000"
    environ = {
        "SRT_PORT": address,
        "SRT_SERVICE_HOST": "10.96.0.7",
        "SRT_SERVICE_PORT": "30000",
        "SRT_SERVICE_PORT_HTTP": "30000",
        "SRT_PORT_30000_TCP": address,
        "SRT_PORT_30000_TCP_PROTO": "tcp",
        "SRT_PORT_30000_TCP_PORT": "30000",
        "SRT_PORT_30000_TCP_ADDR": "10.96.0.7",
        "SRT_MODELS_PORT": address,  # of a service called srt-models
    }
    settings = read_settings([], environ)
    assert settings.args == ServerArgs() and settings.sources == {}
    (warning,) = settings.warnings
    assert warning.startswith("SRT_MODELS_PORT and 8 more: ignored, as Kubernetes sets them")


def test_a_port_of_no_service_is_an_ordinary_name() -> None:
    (warning,) = read_settings([], {"SRT_HTTP_PORT": "8000"}).warnings
    assert warning.startswith("SRT_HTTP_PORT is not an option: ignored")


def test_an_unknown_flag_has_a_suggestion(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        read_settings(["--max-total-token", "5"], {})
    assert "did you mean --max-total-tokens?" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (["--api-keyy", "secret"], "arguments: --api-keyy ...; did you mean --api-key?"),
        (["--api-keyy=secret"], "arguments: --api-keyy ...; did you mean --api-key?"),
        (["--max-num-seqs", "8"], "--max-num-seqs ...; it is called --max-running-requests here"),
        (["--ctx-size", "8"], "--ctx-size ...; it is called --max-model-len here"),
        (["-m", "x.gguf"], "arguments: -m ...; it is called --model here"),
        (["-hf", "org/secret"], "arguments: -hf; it is called --model here"),
        (["-hf=org/secret"], "arguments: -hf; it is called --model here"),
        (["--enable-metrics"], "--enable-metrics; not needed: it is always on\n"),
        (["--enable-prefix-caching"], "always on (--disable-radix-cache turns it off)\n"),
        (["--revision", "v1"], "write it into the name of the model: org/name@REVISION"),
        (["--ssl-keyfile", "k"], "; there is none: a proxy in front of the server speaks TLS"),
        (["--numa", "distribute"], "--numa ...; there is none\n"),
        (["-C", "ff"], "-C ...; there is none\n"),  # a mask of CPUs, and -c is a size
        (["-Cb", "ff"], "arguments: -Cb ...\n"),
        (["--mm-processor-cache-gb", "4"], "; it is called --media-cache-mb here, in MB\n"),
        (["--no-warmup"], "; there is none: this is always on\n"),
        (["--zzzz"], "arguments: --zzzz\n"),
        (["--api", "secret"], "arguments: --api ..."),
        (["https://me:secret@h/a.gguf?sig=secret"], "arguments: https://h/a.gguf\n"),
    ],
)
def test_what_follows_an_unknown_flag_is_not_shown(
    words: list[str], shown: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        read_settings(words, {})
    (line,) = capsys.readouterr().err.splitlines(keepends=True)
    assert shown in line and "secret" not in line


def test_options_of_other_servers_are_none_of_ours_and_stand_in_one_table() -> None:
    ours = {option.name for option in all_options()} | {name.lstrip("-") for name in LATER}
    tables = [*CALLED, *ALWAYS_ON, *IN_NAME, *NONE]
    assert len(tables) == len(set(tables)) and ours.isdisjoint(tables)
    assert set(CALLED.values()) <= ours and set(IN_UNITS) <= set(CALLED)
    named = re.findall(r"--([a-z][a-z-]+)", " ".join([*ALWAYS_ON.values(), *NONE.values()]))
    assert named and set(named) <= ours


def test_options_of_other_clients(capsys: pytest.CaptureFixture[str]) -> None:
    parsers = run.make_parser(), bench.make_parser()
    ours = {name for parser in parsers for name in parser.format_help().split()}
    assert {f"--{name}" for name in OF_CLIENTS.values()} <= ours
    for parser, word, said in zip(
        parsers, ("--temp", "--base-url"), ("--temperature", "--url"), strict=True
    ):
        with pytest.raises(SystemExit):
            parser.parse_args([word, "1"])
        assert f"; it is called {said} here\n" in capsys.readouterr().err


def test_an_error_says_what_has_set_the_option() -> None:
    settings = read_settings([], {"SRT_MAX_MODEL_LEN": "99"})
    assert settings.sourced(ConfigError("--max-model-len 99 is")).endswith(
        "(set by SRT_MAX_MODEL_LEN)"
    )
    assert settings.sourced(ConfigError("SRT_ISA is")) == "SRT_ISA is"


@pytest.mark.parametrize("word", ["--tp", "-tp", "--tp-size=2", "--tensor_parallel_size=2"])
def test_what_comes_later(word: str) -> None:
    with pytest.raises(ConfigError, match="tensor parallelism is not supported yet"):
        read_settings([word, "2"], {})


def test_options_of_other_servers_in_variables_and_files(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is not an option; it is called max-running-requests"):
        of_file(tmp_path, "max_num_seqs = 1")
    (warning,) = read_settings([], {"SRT_CONTEXT_LENGTH": "4096"}).warnings
    assert warning.endswith("ignored; it is called SRT_MAX_MODEL_LEN here")


def test_an_empty_model_is_not_the_default_one() -> None:
    for words in ([""], ["--model", ""]):
        with pytest.raises(ConfigError, match="model '' not found"):
            read_settings(words, {}, "srt serve")
    with pytest.raises(ConfigError, match="--config"):
        read_settings(["--config", ""], {"SRT_CONFIG": "/no/such"})


def test_help_names_every_option_and_stays_within_a_terminal() -> None:
    shown = make_parser().format_help()
    assert all(f"  {option.flag}" in shown for option in all_options())
    assert "=false" not in shown
    assert shown.startswith("usage: python -m srt.launch [--OPTION VALUE ...]\n")


def a_value(option: Any) -> st.SearchStrategy[Any]:
    default = option.default
    if option.choices:
        return st.sampled_from(option.choices)
    if type(default) is bool:
        return st.booleans()
    if type(default) is str:
        return st.text(
            st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=20
        )
    return st.integers() if type(default) is int else st.floats(allow_nan=False)


ANY_ARGS = st.fixed_dictionaries({o.field: a_value(o) for o in all_options() if not o.is_secret})


@given(ANY_ARGS)
def test_what_is_printed_reads_back(values: dict[str, Any]) -> None:
    settings = Settings(ServerArgs(**values, api_key="sesame", admin_api_key="open"), {}, [])
    shown = as_toml(settings)
    options = {option.name: option for option in all_options()}
    read: dict[str, Any] = {
        options[k].field: options[k].of_toml(v) for k, v in tomllib.loads(shown).items()
    }
    expected = msgspec.structs.replace(settings.args, api_key="", admin_api_key="")
    assert ServerArgs(**read) == expected


def test_an_address_is_printed_without_what_gives_access() -> None:
    for model, printed in (
        ("https://me:secret@example.com/a.gguf?signature=secret", "https://example.com/a.gguf"),
        ("HTTPS://example.com/a.gguf?signature=secret", "https://example.com/a.gguf"),
        ("hf.co/org/name?token=secret", "hf.co/org/name"),
    ):
        shown = as_toml(read_settings(["--model", model], {}))
        assert f'model = "{printed}"  # --model\n' in shown and "secret" not in shown


def test_a_path_with_a_line_end_is_no_line_of_the_file(tmp_path: Path) -> None:
    (tmp_path / "a\nb.toml").write_text("port = 80")
    shown = as_toml(read_settings(["--config", str(tmp_path / "a\nb.toml")], {}))
    assert tomllib.loads(shown) == {"port": 80}


def test_a_home_stands_in_every_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "keys").write_text("sesame")
    flags = ["--api-key-file=~/keys", "--ring-dir=~/ring", "--host=~"]
    args = read_settings(flags, {"SRT_ADMIN_API_KEY_FILE": "~/keys"}).args
    assert (args.api_keys(), args.admin_keys()) == (("sesame",), ("sesame",))
    assert args.ring_dir == f"{tmp_path}/ring" and args.host == "~"


def test_a_model_among_the_names_that_clients_use() -> None:
    for model in ("org/name", "smollm2", __file__):
        words = ["--served-model-name", "a", model]
        with pytest.raises(ConfigError, match="looks like a model: put the model first"):
            read_settings(words, {}, "srt serve")
        assert read_settings(words, {}).args.model_names == ("a", model)
        args = read_settings(words, {"SRT_MODEL": "smollm2"}, "srt serve").args
        assert args.model_names == ("a", model)


def test_print_config_shows_origins_and_no_keys(tmp_path: Path) -> None:
    file = tmp_path / "srt.toml"
    file.write_text('admin-api-key = "sesame"\nhost = "::1"\n')
    command = [sys.executable, "-m", "srt.launch", "--config", str(file), "--port", "80"]
    environ = {**os.environ, "SRT_API_KEY": "hush-1,hush-2", "SRT_NO_SUCH": "x"}
    done = subprocess.run(
        [*command, "--print-config"], env=environ, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert "sesame" not in done.stdout and "hush" not in done.stdout
    assert "# api-key: set by SRT_API_KEY, not shown\n" in done.stdout
    assert f"# admin-api-key: set by {file}, not shown\n" in done.stdout
    assert f'host = "::1"  # {file}\nport = 80  # --port\n# no-http = false\n' in done.stdout
    assert "SRT_NO_SUCH is not an option" in done.stderr
