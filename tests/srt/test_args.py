"""Options: their bounds, and their defaults."""

from pathlib import Path

import pytest

from srt.wire.errors import ConfigError
from tests.srt.options.command_lines import parse_args

NO_NAMES = ["a b", " ", ".".join(["a" * 60] * 5)]
NO_NAMES += f"a..b a- a:80 http://a [::1] *.a bücher a/b {'a' * 64}".split()


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--step-timeout", "-1"),
        ("--step-timeout", "0.5"),  # less than the time between two reports
        ("--part-timeout", "0.99"),
        ("--grammar-compile-timeout", "0"),
        ("--grammar-compile-timeout", "12.5"),  # the client would have given up before
        ("--grammar-compile-timeout", "nan"),
        ("--grammar-compile-memory", "15"),
        ("--max-connections", "0"),
        ("--speculative-max-tokens", "0"),
        ("--speculative-max-tokens", "33"),
        ("--stream-interval", "0"),
        ("--max-total-tokens", "-1"),
        ("--mem-fraction-static", "0"),
        ("--mem-fraction-static", "1"),
        ("--mem-fraction-static", "0.7"),  # on a CPU
        ("--api-key", ","),
        ("--api-key", "two words"),
        ("--api-key", "schlüssel"),
        ("--api-key-file", "/nonexistent"),
        ("--api-key-file", "/dev/null"),
        ("--cors-allow-origins", "app.example"),
        ("--cors-allow-origins", "https://app.example/path"),
        *(("--allowed-hosts", name) for name in NO_NAMES),
        ("--trusted-proxies", "proxy.example"),
    ],
)
def test_bounds_name_their_option(option: str, value: str) -> None:
    with pytest.raises(ConfigError, match=option):
        parse_args([option, value])


def test_defaults() -> None:
    args = parse_args(["--grammar-compile-timeout", "12", "--grammar-cache-dir", ""])
    assert (args.grammar_backend, args.grammar_compile_memory) == ("fsm", 1024)
    assert (args.grammar_compile_timeout, args.grammar_cache_dir) == (12.0, "")


def test_guesses_from_a_tree_need_one() -> None:
    assert parse_args(["--speculative", "auto", "--disable-radix-cache"]).speculative == "auto"
    with pytest.raises(ConfigError, match=r"--speculative tree .* --disable-radix-cache"):
        parse_args(["--speculative", "tree", "--disable-radix-cache"])


def test_the_pool_is_sized_by_option_device_or_default() -> None:
    assert parse_args([]).pool_tokens == 32768
    assert parse_args(["--device", "mps"]).pool_tokens == 32768
    assert parse_args(["--max-total-tokens", "100"]).pool_tokens == 100
    on_device = parse_args(["--device", "cuda:1", "--mem-fraction-static", "0.7"])
    assert (on_device.pool_tokens, on_device.mem_fraction_static) == (0, 0.7)
    assert parse_args(["--device", "cuda", "--max-total-tokens", "100"]).pool_tokens == 100
    with pytest.raises(ConfigError, match="--dp needs --max-total-tokens on a CUDA device"):
        parse_args(["--device", "cuda", "--dp", "2"])


@pytest.mark.parametrize(
    "option", [("--deterministic",), ("--disable-cuda-graph",), ("--mem-fraction-static", "0.5")]
)
def test_options_for_cuda_devices_are_refused_elsewhere(option: tuple[str, ...]) -> None:
    assert parse_args(["--device", "cuda", *option]).is_cuda
    with pytest.raises(ConfigError, match=f"{option[0]} is for CUDA devices"):
        parse_args(option)


def test_an_unknown_back_end_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse_args(["--grammar-backend", "outlines"])
    assert "fsm" in capsys.readouterr().err


def test_keys_of_both_options(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("three\n\n  four \none\n")
    args = parse_args(["--api-key", "one,two,", "--api-key-file", str(keys)])
    assert args.api_keys() == ("one", "two", "three", "four")
    assert "two" not in str(args.public())
    assert parse_args([]).api_keys() == ()


def test_a_file_that_is_no_text_is_named(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match=f"--api-key-file: cannot read {keys}"):
        parse_args(["--api-key-file", str(keys)])


def test_proxies() -> None:
    assert parse_args(["--trusted-proxies", " , ,"]).proxy_networks() == ()
    given = "10.0.0.1, , 172.16.0.0/255.240.0.0,FD00::/8,::ffff:192.0.2.0/120"
    told = ["10.0.0.1/32", "172.16.0.0/12", "fd00::/8", "192.0.2.0/24"]
    assert [*map(str, parse_args(["--trusted-proxies", given]).proxy_networks())] == told
    for entry, reason in (
        ("10.0.0.1/33", "is not an IP address or a network"),
        ("10.0.0.1:80", "is not an IP address or a network"),
        ("10.1.2.3/8", "has bits beyond its prefix: the network is 10.0.0.0/8"),
        ("::/0", "is every address"),
        ("fe80::1%eth0", "has a zone, which is not compared"),
        ("fe80::%eth0/64", "has a zone, which is not compared"),
    ):
        with pytest.raises(ConfigError, match=f"--trusted-proxies '{entry}' {reason}"):
            parse_args(["--trusted-proxies", f"10.0.0.1,{entry}"])


def test_origins() -> None:
    args = parse_args(["--cors-allow-origins", "https://a.example, http://localhost:3000"])
    assert args.cors_origins() == ("https://a.example", "http://localhost:3000")
    assert parse_args(["--cors-allow-origins", "*"]).cors_origins() == ("*",)
    assert parse_args([]).cors_origins() == ()


def test_names_of_the_server() -> None:
    args = parse_args(["--allowed-hosts", "srt-service, My_Box.example,10.0.0.7,"])
    assert args.host_names() == ("srt-service", "My_Box.example", "10.0.0.7")
    assert parse_args(["--allowed-hosts", "*"]).host_names() == ("*",)
