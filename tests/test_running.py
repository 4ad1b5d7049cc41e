"""How the tests are run: profiles, groups, late imports, and what a run reports."""

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.running import groups, profiles
from tests.running.coverage_table import read, table
from tests.running.late import late

ROOT = Path(__file__).parents[1]
PROBE = "xml.dom.pulldom"  # neither a test nor coverage needs it


@pytest.mark.parametrize(
    ("profile", "expected", "cases"),
    [
        ("short", range(3), 5),
        ("full", range(30), 50),
        ("rest", range(30), 50),
        ("slow", range(150), 250),
    ],
)
def test_a_profile_says_which_cases_are_drawn(
    monkeypatch: pytest.MonkeyPatch, profile: str, expected: range, cases: int
) -> None:
    monkeypatch.setattr(profiles, "_chosen", profile)
    drawn = profiles.seeds(3)
    assert [param.values[0] for param in drawn] == [*expected]
    marked = {
        mark.name: param.values[0] for param in reversed(drawn) for mark in param.marks
    }  # the first seed with each
    assert marked == {"rest": {"full": 3}, "slow": {"slow": 30}}.get(profile, {})
    assert profiles.examples(5) == cases


def test_some_values_are_in_short() -> None:
    params = profiles.some(["a", "b", "c"], "b")
    assert [bool(param.marks) for param in params] == [True, False, True]
    with pytest.raises(AssertionError, match="not among the values"):
        profiles.some(["a"], "z")


def test_modules_of_longer_profiles_are_not_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number, (line, is_left_out) in enumerate(
        [
            ("pytestmark = pytest.mark.full", True),
            ("pytestmark = [\n    pytest.mark.slow,\n]", True),
            ("pytestmark = pytest.mark.skipif(True)", False),
            ("# pytestmark = pytest.mark.full", False),
        ]
    ):
        module = tmp_path / f"test_{number}.py"
        module.write_text(f"import pytest\n{line}\n")
        for profile in ("short", "full"):
            monkeypatch.setattr(profiles, "_chosen", profile)
            expected = is_left_out and profile == "short"
            assert profiles.leaves_out(module) == expected, line


def item(name: str, file: Path, *shared: str) -> Any:
    definition = SimpleNamespace(scope="session", baseid="tests")
    info = SimpleNamespace(name2fixturedefs={each: [definition] for each in shared})
    return SimpleNamespace(nodeid=name, path=file, _fixtureinfo=info)


def test_tests_that_share_a_fixture_are_one_group(tmp_path: Path) -> None:
    plain, with_torch = tmp_path / "test_a.py", tmp_path / "test_b.py"
    file = "tests/a/test_a.py"
    plain.write_text("import json\n")
    with_torch.write_text('    torch = late("torch")\n')
    found = groups.group_tests(
        [
            item("1", plain, "server"),
            item("2", with_torch, "server", "keyed"),  # joins the two
            item("3", plain, "keyed"),
            item("4", with_torch),
            item(file + "::test_x[0]", plain),
        ]
    )
    assert found == {
        "1": "server",
        "2": "server",
        "3": "server",
        "4": "torch",
        file + "::test_x[0]": file,
    }


def test_a_late_module_is_imported_when_it_is_used() -> None:
    code = f"""
import sys
from tests.running.late import late
module = late({PROBE!r})
assert not hasattr(module, "__wrapped__") and module.__name__ == {PROBE!r}
assert {PROBE!r} not in sys.modules
module.parseString
assert {PROBE!r} in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)
    with pytest.raises(AttributeError, match=f"set x in {PROBE} itself"):
        late(PROBE).x = 1


def test_what_fails_and_then_passes_alone_is_reported(tmp_path: Path) -> None:
    folder = tmp_path / "tests"
    folder.mkdir()
    (folder / "conftest.py").write_text("from tests.conftest import *\n")
    (folder / "test_it.py").write_text(
        "from pathlib import Path\n\ndef test_good(): ...\n\n"
        "def test_flaky(): assert Path('passes').exists()\n\ndef test_bad(): assert False\n"
    )
    command = [sys.executable, "-m", "pytest", "-c", str(ROOT / "pyproject.toml")]
    command += ["--rootdir", str(tmp_path), "-o", f"cache_dir={tmp_path}/cache", str(folder)]
    env = {"PYTHONPATH": str(ROOT), "PATH": ""}

    def run(*options: str) -> str:
        done = subprocess.run(
            [*command, *options], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=120
        )
        return done.stdout

    assert "2 failed, 1 passed" in (first := run()), first
    (tmp_path / "passes").touch()
    again = run("--last-failed", f"--flaky={tmp_path / 'flaky'}")
    assert "1 failed, 1 passed" in again, again
    assert (tmp_path / "flaky").read_text().splitlines() == ["tests/test_it.py::test_flaky"]


def test_coverage_by_folder(tmp_path: Path) -> None:
    for name, run in (("short", 2), ("full", 4)):
        files = {
            "srt/a/x.py": {"summary": {"num_statements": 5, "covered_lines": run}},
            "srt/y.py": {"summary": {"num_statements": 5, "covered_lines": 5}},
        }
        (tmp_path / name).write_text(json.dumps({"files": files}))
    rows = table([read(tmp_path / "short"), read(tmp_path / "full")])
    assert [row.split() for row in rows] == [
        ["all", "10", "70.0", "90.0", "20.0"],
        ["srt", "10", "70.0", "90.0", "20.0"],
        ["srt/a", "5", "40.0", "80.0", "40.0"],
    ]
