"""Lines of files of keys: what they say, and how errors name them."""

from pathlib import Path

import pytest

from srt.args import ServerArgs
from srt.callers.key_lines import NO_LIMITS, CallerLimits, key_lines, limits_by_caller
from srt.callers.names import key_digest, name_of_key
from srt.wire.errors import ConfigError


def read(*lines: str) -> dict[str, CallerLimits]:
    return limits_by_caller(key_lines(enumerate(lines, start=1), "keys"))


def test_a_line_has_a_key_and_what_its_caller_may_take() -> None:
    full = "sesame name=alice share=4 requests_per_minute=60 tokens_per_minute=9000 running=2"
    (line,) = key_lines([(1, f"{full}  max_tokens=16 admin")], "keys")
    assert (line.key, line.name, line.is_admin) == ("sesame", "alice", True)
    assert line.limits == CallerLimits(
        share=4.0, requests_per_minute=60, tokens_per_minute=9000, running=2, max_tokens=16
    )


def test_a_key_alone_has_no_limits_and_a_digest_for_a_name() -> None:
    name = name_of_key(key_digest("sesame"))
    assert read("sesame") == {name: NO_LIMITS}
    assert "sesame" not in name


def test_keys_with_one_name_are_one_caller() -> None:
    assert read("old name=bob running=3", "new name=bob running=3") == {
        "bob": CallerLimits(running=3)
    }


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("k share=0", "share='0' must be a number from 0.001 to 1000"),
        ("k share=-1", "share='-1' must be"),
        ("k share=nan", "share='nan' must be"),
        ("k share=1e9", "share='1e9' must be"),
        ("k share=", "share='' must be"),
        ("k running=0", "running='0' must be a whole number from 1 to"),
        ("k requests_per_minute=0", "requests_per_minute='0' must be"),
        ("k tokens_per_minute=1.5", "tokens_per_minute='1.5' must be"),
        ("k max_tokens=-3", "max_tokens='-3' must be"),
        ("k max_tokens=99999999999", "must be a whole number"),
        ("k running=2 running=2", "running= is there twice"),
        ("k rpm=60", "'rpm=' is none of name=, share=,"),
        ("k admin=yes", "'admin=' is none of"),
        ("secret1 secret2", "word 2 is none of"),
        ("k SECRETsecret4==", "word 2 is none of"),
        ("name=al secret", "it begins with name=, and not with a key"),
        ("k name=", "name='' must have 1 to 64"),
        ("k name=a/b", "name='a/b' must have"),
        ("k name=ip:1", "name='ip:1' must have"),
        ("k name=0123456789abcdef", "looks like the name of a key without one"),
        ("kéy", "keys must be printable ASCII"),
        ("k\tname=a", "keys must be printable ASCII"),
        ("first running=2", "the key of line 1 has other limits there"),
        ("first name=bob", "the key of line 1 has another name there"),
        ("other name=al running=2", "the name of line 2 has other limits there"),
    ],
)
def test_a_wrong_line_is_named_without_its_key(line: str, reason: str) -> None:
    with pytest.raises(ConfigError) as error:
        read("first", "second name=al", line)
    assert str(error.value).startswith("keys: line 3: ") and reason in str(error.value)
    assert "secret" not in str(error.value)


def test_the_option_and_the_file_are_named(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text("one\n\n  two share=2\nthree shares=2\n")
    with pytest.raises(ConfigError) as error:
        ServerArgs(api_key_file=str(path)).check()
    assert str(error.value).startswith(f"--api-key-file: {path}: line 4: 'shares=' is none of")


def test_keys_of_a_file_may_be_admins(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text("one\ntwo name=root admin\n")
    args = ServerArgs(api_key_file=str(path))
    assert (args.api_keys(), args.admin_keys()) == (("one",), ("two",))
