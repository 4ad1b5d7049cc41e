"""What the doctor finds on machines that lack something."""

import os
import shutil
import socket
import stat
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from huggingface_hub import constants

from srt import machine
from srt.commands import doctor
from srt.commands.doctor import Finding
from srt.files.model_files import ModelFiles, resolve_model
from srt.files.vocab import Vocab, load_vocab


def found(**environ: str) -> dict[str, Finding]:
    return {finding.about: finding for finding in doctor.findings(environ)}


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """What the programs that it asks answer, in place of running them."""
    answers = {"kernels": "avx2 (of avx2, portable)", "compiler": "g++ 12.2.0\nCopyright"}

    def output(command: list[str]) -> str:
        return answers["kernels" if command[-1].endswith("level") else "compiler"]

    monkeypatch.setattr(doctor, "_output", output)
    monkeypatch.setattr(doctor, "_why_not", lambda command: answers.get("why", ""))
    return answers


def test_a_sound_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    findings = found(SRT_PORT=str(port))
    assert findings["port"].text == f"127.0.0.1:{port} is free"
    assert {each.about for each in findings.values() if each.state == "problem"} == set()
    assert findings["options"].text == "set by SRT_PORT"
    assert findings["kernels"] == Finding("kernels", "avx2 (of avx2, portable)")
    assert findings["model"].text == "smollm2 (gguf)"


def test_a_port_in_use() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        finding = found(SRT_PORT=str(port))["port"]
    assert finding.state == "problem"
    assert f"cannot listen on 127.0.0.1:{port}" in finding.text and "--port 0" in finding.advice


def test_no_compiler(monkeypatch: pytest.MonkeyPatch, quick: dict[str, str]) -> None:
    monkeypatch.setattr("shutil.which", lambda name: None)
    assert found()["compiler"].state == "ok"  # the library of a wheel is enough
    quick["kernels"] = ""
    findings = found()
    assert findings["compiler"].state == "warning" and "install g++" in findings["compiler"].advice
    assert findings["kernels"].state == "warning" and "on torch" in findings["kernels"].text


def test_a_context_that_the_model_lacks(quick: dict[str, str]) -> None:
    assert "9000 is above the context" in found(SRT_MAX_MODEL_LEN="9000")["model"].text


def test_a_level_that_the_processor_lacks(quick: dict[str, str]) -> None:
    why = "SRT_ISA: instruction-set level 'amx' is not one that this CPU and build have"
    quick |= {"kernels": "", "why": why}
    assert found()["kernels"] == Finding("kernels", why, "problem", found()["kernels"].advice)


def test_neither_kernels_nor_torch(monkeypatch: pytest.MonkeyPatch, quick: dict[str, str]) -> None:
    quick["kernels"] = ""
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert found()["kernels"].state == "problem"


def test_a_processor_without_vectors(quick: dict[str, str]) -> None:
    quick["kernels"] = "portable (of portable)"
    assert found()["kernels"].state == "warning"


def test_a_gibibyte_of_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "memory.max").write_text(f"{2**30}\n")
    (tmp_path / "memory.current").write_text(f"{2**28}\n")
    monkeypatch.setattr(machine, "CONTROL_GROUPS", tmp_path)
    finding = found()["memory"]
    assert finding.state == "warning"
    assert finding.text.startswith("0.8 GiB available of 1.0; the pool would have 3")


@pytest.mark.skipif(os.getuid() == 0, reason="root may write anywhere")
def test_a_home_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tmp_path.chmod(stat.S_IRUSR | stat.S_IXUSR)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert found()["cache"].state == "warning"


def test_folders_that_cannot_be_written(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(**kwargs: Any) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr("tempfile.TemporaryFile", refused)
    findings = found()
    assert findings["cache"].state == "warning"
    assert findings["sockets"].state == "problem"
    assert "Read-only file system" in findings["sockets"].text


def test_options_that_cannot_work(tmp_path: Path) -> None:
    finding = found(SRT_DP="0")["options"]
    assert finding.state == "problem" and "set by SRT_DP" in finding.text
    assert found(SRT_PROT="1")["options"].state == "warning"


def test_a_model_that_is_not_there(tmp_path: Path) -> None:
    file = tmp_path / "srt.toml"
    file.write_text('model = "/no/such"')
    findings = found(SRT_CONFIG=str(file))
    assert findings["options"].state == "ok"
    assert findings["model"].state == "warning" and "'/no/such'" in findings["model"].text


def test_a_model_without_a_chat_template(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def without(files: ModelFiles, chat_template: str) -> Vocab:
        vocab = load_vocab(files, chat_template)
        own = vocab.chat_template if chat_template else None
        return replace(vocab, model_name="vicuna-7b-v1.5", chat_template=own)

    monkeypatch.setattr("srt.files.vocab.load_vocab", without)
    finding = found()["model"]
    assert finding.state == "warning" and finding.text.endswith("it has no chat template")
    assert finding.advice.startswith("--chat-template vicuna ")
    assert found(SRT_CHAT_TEMPLATE="vicuna")["model"].state == "ok"
    other = found(SRT_CHAT_TEMPLATE="vikuna")["options"]
    assert other.state == "problem" and "llama-2" in other.text


def test_a_model_that_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "empty.gguf").touch()
    finding = found(SRT_MODEL=str(tmp_path / "empty.gguf"))["model"]
    assert finding.state == "warning" and "empty.gguf" in finding.text
    link = found(SRT_MODEL="https://example.com/m.gguf?sig=secret")["model"]
    assert link == Finding("model", "m, a file of another server, which a start brings")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    for name in ("https://example.com/m.gguf", "org/no-such-model"):
        finding = found(SRT_MODEL=name)["model"]
        assert finding.state == "problem" and finding.advice == "unset HF_HUB_OFFLINE"


def test_what_a_start_does_not_need(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        assert found(SRT_PORT=port, SRT_NO_HTTP="1")["port"].state == "ok"
    assert found(SRT_RING_DIR=str(tmp_path))["sockets"].state == "problem"


def test_a_model_of_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    text = "org/name:Q4_0, not in the cache of the hub: a start brings it"
    assert found(SRT_MODEL="org/name:Q4_0")["model"] == Finding("model", text)


def test_a_model_of_the_hub_that_is_not_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    base = tmp_path / "models--org--name"
    folder = base / "snapshots" / ("a" * 40)
    folder.mkdir(parents=True)
    (base / "refs").mkdir()
    (base / "refs" / "main").write_text("a" * 40)
    (folder / "config.json").write_text("{}")
    finding = found(SRT_MODEL="org/name")["model"]
    assert finding.state == "warning" and "org/name: has no safetensors" in finding.text
    (folder / "m-Q4_0.gguf").write_bytes(b"GGUF")
    finding = found(SRT_MODEL="org/name:Q4_0")["model"]
    assert finding.state == "warning" and "m-Q4_0.gguf" in finding.text
    shutil.copy(resolve_model("smollm2").path, folder / "m-Q4_0.gguf")
    text = "org/name:Q4_0, in the cache of the hub"
    assert found(SRT_MODEL="org/name:Q4_0")["model"] == Finding("model", text)


def test_torch_where_it_is_asked_for(
    monkeypatch: pytest.MonkeyPatch, quick: dict[str, str]
) -> None:
    assert "torch" not in found()
    assert found(SRT_DEVICE="cuda")["torch"].text == "sees g++ 12.2.0\nCopyright"
    quick["compiler"] = ""
    assert "torch sees no CUDA device" in found(SRT_DEVICE="cuda")["torch"].text
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    for variable, value in (("SRT_DEVICE", "cuda"), ("SRT_EXECUTOR", "torch")):
        finding = found(**{variable: value})["torch"]
        assert finding.state == "problem" and finding.advice == "pip install 'srt-lang[torch]'"


def test_a_host_that_is_not_here() -> None:
    assert found(SRT_MODEL=f"org/name@{300 * 'a'}")["model"].state == "ok"
    for host in ("192.0.2.1", "a" * 70):
        finding = found(SRT_HOST=host)["port"]
        assert finding.state == "problem" and "an address of this machine" in finding.advice


def test_more_threads_and_connections_than_there_can_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("resource.getrlimit", lambda which: (1024, 1024))
    findings = found(SRT_THREADS="4000")
    assert findings["CPUs"].state == "warning"
    assert findings["open files"].state == "warning"
    assert "ulimit -n 2304" in findings["open files"].advice


def test_nothing_in_it_names_the_user_or_a_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    home = tmp_path / "jane-doe"
    home.mkdir()
    file = home / "srt.toml"
    file.write_text('admin-api-key = "open"\nport = 0\n')
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("SRT_CONFIG", str(file))
    monkeypatch.setenv("SRT_API_KEY", "sesame")
    assert doctor.main([]) == 0
    shown = capsys.readouterr().out
    assert "jane-doe" not in shown and "sesame" not in shown
    assert "~/srt.toml" in shown and "~/.cache/srt" in shown
    assert "open\n" not in shown.replace("open files", "")


def test_the_same_as_json(capsys: pytest.CaptureFixture[str], monkeypatch: Any) -> None:
    monkeypatch.setenv("SRT_PORT", "0")
    assert doctor.main(["--json"]) == 0
    findings = msgspec.json.decode(capsys.readouterr().out, type=list[dict[str, str]])
    assert {"system", "python", "memory", "port"} <= {finding["about"] for finding in findings}
