"""Runs of `lang` on the page."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import expect

from tests.e2e.server import Server
from tests.ui.conftest import Open, address

pytestmark = pytest.mark.ui
ROOT = Path(__file__).parents[2]
PROGRAM = """
import sys
import lang as sgl

sgl.set_default_backend(sgl.RuntimeEndpoint(sys.argv[1]))


@sgl.function
def judge(s, essay):
    s += "An essay: " + essay + "<b>bold</b>\\n"
    forks = s.fork(3)
    for i, fork in enumerate(forks):
        fork += f"Dimension {i}: " + sgl.gen("verdict", max_tokens=8 + 16 * i, ignore_eos=True)
    forks.join()
    s += "In all: " + sgl.gen("summary", max_tokens=12)
    s += " Grade: " + sgl.select("grade", ["good", "bad"])


state = judge.run("Rivers are long. " * 10)
print(state["grade"])
"""


def run(server: Server, trace: str, tmp_path: Path) -> subprocess.CompletedProcess[str]:
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    environment: dict[str, Any] = os.environ | {"SGL_TRACE": trace, "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        [sys.executable, str(path), server.url],
        capture_output=True,
        text=True,
        timeout=120,
        env=environment,
        check=True,
    )


def test_a_run_has_lanes_and_a_critical_path(
    server: Server, open_page: Open, tmp_path: Path, picture: Any
) -> None:
    page = open_page(address(server))
    page.get_by_role("tab", name="Programs").click()
    expect(page.get_by_text("No program reports here yet")).to_be_visible()
    done = run(server, address(server), tmp_path)
    assert done.stdout.strip() in ("good", "bad") and "SGL_TRACE" not in done.stderr
    expect(page.get_by_role("button", name="judge")).to_contain_text("5 calls")
    expect(page.locator(".lane")).to_have_count(4)
    expect(page.locator(".lane", has_text="main").locator(".bar")).to_have_count(2)
    critical = page.locator(".bar.critical")
    expect(critical).to_have_count(3)
    steps = {bar.get_attribute("data-step") for bar in critical.all()}
    assert steps == {"0/fork0.2/0", "0/2", "0/3"}  # the longest fork, the summary, the grade
    page.get_by_role("button", name="gen summary").focus()
    detail = page.locator("#programs .detail")
    expect(detail).to_contain_text("from the cache")
    expect(detail).to_contain_text("In all:")
    assert page.locator("#programs .lanes svg path").count() == 3  # the forks join the summary
    expect(page.get_by_role("button", name="judge")).to_contain_text("% cached")
    page.keyboard.press("ArrowRight")
    expect(page.get_by_role("button", name="select grade")).to_be_focused()
    page.get_by_text("As a table").click()
    rows = page.get_by_role("table").get_by_role("row")
    expect(rows).to_have_count(6)
    expect(rows.filter(has_text="gen summary")).to_contain_text("verdict, verdict, verdict")
    picture(page, "program")
    later = open_page(address(server))  # a page that comes later sees it too
    later.get_by_role("tab", name="Programs").click()
    expect(later.get_by_role("button", name="judge")).to_contain_text("5 calls")


@pytest.mark.parametrize("trace", ["nonsense", "http://127.0.0.1:9/#key=x", "{url}/#key=guessed"])
def test_a_program_that_cannot_report_runs_all_the_same(
    server: Server, tmp_path: Path, trace: str
) -> None:
    done = run(server, trace.format(url=server.url), tmp_path)
    assert done.stdout.strip() in ("good", "bad")
    assert done.stderr.count("SGL_TRACE") == 1
