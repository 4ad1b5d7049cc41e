"""`srt doctor`: what this machine has, and what would keep a server from starting or slow it down.

What it prints can be pasted into a report: it names no user and no key.
"""

import argparse
import importlib.util
import os
import platform
import resource
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

import msgspec
from msgspec.structs import replace

from srt.args import ServerArgs
from srt.files.chat_templates import template_advice
from srt.files.model_files import resolve_model
from srt.files.sizes import model_sizes
from srt.files.vocab import Vocab, served_vocab
from srt.hub.cache import snapshot
from srt.hub.link import cached_link, is_offline
from srt.hub.names import HubName, parse_name
from srt.hub.offer import choose
from srt.machine import cache_folder, cpu_name, memory_available, memory_limit, usable_cpus
from srt.options.arguments import Parser
from srt.options.settings import Settings, read_settings
from srt.ring.listener import OTHER_FILES, bind_listener
from srt.ring.places import temporary_directory
from srt.sizing import MemoryShort, plan_for
from srt.version import OWN, version_of
from srt.wire.errors import ConfigError

_GIB = 2**30
_PACKAGES = ("msgspec", "pyzmq", "uvloop", "starlette", "uvicorn", "tokenizers", "numpy", "gguf")
_OPTIONAL = ("huggingface-hub", "torch", "transformers", "flashinfer-python", "triton")
_FAST_LEVELS = ("amx", "avx512", "avx2")
_LIBRARY_TIMEOUT_S = 60.0


class Finding(NamedTuple):
    """One line. `advice` says what to do where the state is not `ok`."""

    about: str
    text: str
    state: Literal["ok", "warning", "problem"] = "ok"
    advice: str = ""


def findings(environ: dict[str, str]) -> Iterator[Finding]:
    """What there is to say, one thing after the other. A server's options are those that
    `environ` gives it."""
    yield Finding("system", f"{platform.system()} {platform.release()}, {platform.machine()}")
    yield _python()
    yield from _packages()
    settings, said = _settings(environ)
    yield said
    args = settings.args if settings else ServerArgs()
    for look in (_kernels, _torch, _cpus, _memory, _files, _port, _folders, _model):
        yield from look(args)


def _python() -> Finding:
    version = f"{platform.python_implementation()} {platform.python_version()}"
    return Finding("python", f"{version} {platform.architecture()[0]}")


def _packages() -> Iterator[Finding]:
    found = {name: version_of(name, "") for name in (OWN, *_PACKAGES, *_OPTIONAL)}
    missing = [name for name in (OWN, *_PACKAGES) if not found[name]]
    listed = ", ".join(f"{name} {version}" for name, version in found.items() if version)
    if missing:
        advice = "install srt-lang again, with what it depends on"
        yield Finding("packages", f"missing: {', '.join(missing)}; {listed}", "problem", advice)
    else:
        yield Finding("packages", listed)


def _settings(environ: dict[str, str]) -> tuple[Settings | None, Finding]:
    try:
        settings = read_settings([], environ, find_model=False)
    except ConfigError as error:
        return None, Finding("options", str(error), "problem", "mend the variable or the file")
    if settings.warnings:
        advice = "check the names"
        return settings, Finding("options", "; ".join(settings.warnings), "warning", advice)
    names = ", ".join(sorted(set(settings.sources.values())))
    return settings, Finding("options", f"set by {names}" if names else "defaults")


def _kernels(args: ServerArgs) -> Iterator[Finding]:
    """The compiler, and what the native library says, which runs in a process of its own: one that
    was built for another machine may crash."""
    names = [os.environ.get("CXX", ""), "c++", "g++", "clang++"]
    compiler = next((name for name in names if name and shutil.which(name)), "")
    command = [sys.executable, "-m", "scheduler_proc.kernels.level"]
    level = _output(command)
    if compiler:
        version = _output([compiler, "--version"])
        yield Finding("compiler", version.splitlines()[0] if version else compiler)
    elif level:
        yield Finding("compiler", "none; the kernels are there without it")
    else:
        advice = "install g++ 11 or clang 12 or later, then srt-lang again"
        yield Finding("compiler", "none", "warning", advice)
    if not level:
        yield _no_kernels(_why_not(command))
    elif level.split()[0] not in _FAST_LEVELS:
        advice = "a processor with AVX2 would be much faster"
        yield Finding("kernels", level, "warning", advice)
    else:
        yield Finding("kernels", level)


def _no_kernels(why: str) -> Finding:
    """Without their level, for this reason, if there is one."""
    if why.startswith("SRT_ISA"):
        advice = "unset SRT_ISA: the best of these is taken then"
        return Finding("kernels", why, "problem", advice)
    text = why or "they do not run here"
    advice = "install g++ 11 or clang 12 or later, then srt-lang again"
    if importlib.util.find_spec("torch") is None:
        return Finding("kernels", f"{text}; and there is no torch either", "problem", advice)
    return Finding("kernels", f"{text}; models run on torch, which is slower", "warning", advice)


def _torch(args: ServerArgs) -> Iterator[Finding]:
    """Where the options ask for it."""
    if not (args.is_cuda or args.executor == "torch"):
        return
    asked = f"--device {args.device}" if args.is_cuda else "--executor torch"
    if importlib.util.find_spec("torch") is None:
        text = f"{asked} needs torch, which is not installed"
        yield Finding("torch", text, "problem", "pip install 'srt-lang[torch]'")
    elif args.is_cuda:
        look = "import torch; print(torch.cuda.get_device_name())"
        name = _output([sys.executable, "-c", look])
        if name:
            yield Finding("torch", f"sees {name}")
        else:
            advice = "nvidia-smi says whether the driver does; torch must be a build for CUDA"
            yield Finding("torch", f"{asked}: torch sees no CUDA device", "problem", advice)


def _output(command: list[str]) -> str:
    done = _run(command)
    return done.stdout.strip() if done and done.returncode == 0 else ""


def _why_not(command: list[str]) -> str:
    """The last line that a command that fails writes of it."""
    done = _run(command)
    return next(iter(done.stderr.splitlines()[-1:]), "") if done else ""


def _run(command: list[str]) -> subprocess.CompletedProcess[str] | None:
    try:
        return subprocess.run(
            command, capture_output=True, text=True, timeout=_LIBRARY_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None


def _cpus(args: ServerArgs) -> Iterator[Finding]:
    cpus, name = usable_cpus(), cpu_name()
    if args.threads > cpus:
        text = f"{cpus} usable ({name}), --threads {args.threads}"
        yield Finding("CPUs", text, "warning", "more threads than CPUs slow each other down")
    else:
        yield Finding("CPUs", f"{cpus} usable of {os.cpu_count()} ({name})")


def _memory(args: ServerArgs) -> Iterator[Finding]:
    limit, available = memory_limit(), memory_available()
    text = f"{available / _GIB:.1f} GiB available of {limit / _GIB:.1f}"
    try:
        plan = plan_for(args, model_sizes(resolve_model(args.model)), available)
    except MemoryShort as error:
        yield Finding("memory", f"{text}: {error}", "problem", "see above")
        return
    except ConfigError:  # what is wrong with the model is said below
        yield Finding("memory", text)
        return
    if args.max_total_tokens:
        yield Finding("memory", f"{text}; the pool is given: {args.max_total_tokens} tokens")
        return
    text += f"; the pool would have {plan.pool_tokens} tokens"
    if plan.pool_tokens < plan.context_len:
        text += f" of {plan.context_len} that a request could have"
        yield Finding("memory", text, "warning", "a larger limit, or a smaller model")
    else:
        yield Finding("memory", text)


def _files(args: ServerArgs) -> Iterator[Finding]:
    wanted, hard = args.max_connections + OTHER_FILES, resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if hard != resource.RLIM_INFINITY and hard < wanted:
        text = f"{hard} allowed, {wanted} wanted"
        advice = f"raise the limit (ulimit -n {wanted}), or lower --max-connections"
        yield Finding("open files", text, "warning", advice)
    else:
        yield Finding("open files", f"{'any' if hard == resource.RLIM_INFINITY else hard} allowed")


def _port(args: ServerArgs) -> Iterator[Finding]:
    if args.no_http:
        yield Finding("port", "none (--no-http)")
        return
    try:
        bind_listener(args.host, args.port).close()
    except ConfigError as error:
        what, _, advice = str(error).partition("; ")
        yield Finding("port", what, "problem", advice)
    else:
        yield Finding("port", f"{args.host}:{args.port} is free")


def _folders(args: ServerArgs) -> Iterator[Finding]:
    if args.ring_dir and Path(args.ring_dir).exists():
        advice = "end the server that runs there, or remove it"
        yield Finding("sockets", f"--ring-dir {args.ring_dir} exists already", "problem", advice)
    else:
        yield _sockets_folder(args)
    if args.grammar_cache_dir == "auto":
        advice = "grammars are compiled anew after each start; --grammar-cache-dir names a folder"
        try:
            yield _folder("cache", cache_folder(), "warning", advice)
        except OSError as error:
            yield Finding("cache", str(error), "warning", advice)


def _sockets_folder(args: ServerArgs) -> Finding:
    try:
        parent = Path(args.ring_dir).parent if args.ring_dir else temporary_directory()
    except ConfigError as error:
        what, _, advice = str(error).partition(": ")
        return Finding("sockets", what, "problem", advice)
    return _folder("sockets", parent, "problem", "name another with --ring-dir or TMPDIR")


def _folder(about: str, folder: Path, state: Literal["warning", "problem"], advice: str) -> Finding:
    """Whether a file can be made in `folder`, or in the first above it that there is."""
    there = next((each for each in (folder, *folder.parents) if each.is_dir()), Path("/"))
    try:
        with tempfile.TemporaryFile(dir=there) as file:
            file.write(b"srt")
    except OSError as error:
        return Finding(about, f"{folder} cannot be written: {error.strerror}", state, advice)
    free = shutil.disk_usage(there).free
    return Finding(about, f"{folder}, {free / _GIB:.1f} GiB free")


def _anonymous(text: str) -> str:
    """`text` without the name of this user, as it stands in the paths of a home."""
    home = os.path.expanduser("~")
    return text if home == "/" else text.replace(home, "~")


def _model(args: ServerArgs) -> Iterator[Finding]:
    name = parse_name(args.model)
    if isinstance(name, HubName):
        yield _of_hub(name, args)
        return
    if name is not None:
        where = "brought before" if cached_link(name) else "which a start brings"
        if where != "brought before" and is_offline():
            yield Finding("model", f"{name}, not here", "problem", "unset HF_HUB_OFFLINE")
        else:
            yield Finding("model", f"{name}, a file of another server, {where}")
        return
    try:
        files = resolve_model(args.model, args.tokenizer)
        model_sizes(files)
        vocab = served_vocab(args)
    except ConfigError as error:
        yield Finding("model", str(error), "warning", "or name another with --model")
    else:
        yield _with_template(f"{files.name} ({files.kind})", vocab)


def _of_hub(name: HubName, args: ServerArgs) -> Finding:
    found = snapshot(name.repo, name.revision)
    if found is None and is_offline():
        return Finding("model", f"{name}, not here", "problem", "unset HF_HUB_OFFLINE")
    if found is None:
        return Finding("model", f"{name}, not in the cache of the hub: a start brings it")
    try:
        chosen = choose(
            name, found.files, lambda path: (found.folder / path).read_bytes(), sys.maxsize
        )
        here = found.folder / chosen.main
        path = here if chosen.kind == "gguf" else here.parent
        model_sizes(resolve_model(str(path), args.tokenizer))
        vocab = served_vocab(replace(args, model=str(path)))
    except ConfigError as error:
        what = str(error).splitlines()[0]
        advice = "a start brings what is missing; if a file is damaged, remove it before"
        return Finding("model", f"{what} (in the cache of the hub)", "warning", advice)
    return _with_template(f"{name}, in the cache of the hub", vocab)


def _with_template(text: str, vocab: Vocab) -> Finding:
    """A model that is here, which may take no chats."""
    if vocab.chat_template is not None:
        return Finding("model", text)
    advice = template_advice(vocab.model_name)
    return Finding("model", f"{text}; it has no chat template", "warning", advice)


_MARKS = {"ok": "ok", "warning": "warning", "problem": "PROBLEM"}


def make_parser() -> argparse.ArgumentParser:
    """The parser of the command line."""
    parser = Parser(
        prog="srt doctor",
        description="Say what this machine has, and what would keep a server from starting or slow "
        "it down. Nothing in it names a user or a key: paste it into a report.",
    )
    parser.add_argument("--json", action="store_true", help="write the findings as JSON")
    return parser


def main(argv: Sequence[str] | None = None, write: Callable[[str], object] = print) -> int:
    """The command; returns 1 if there is a problem, 0 otherwise."""
    options = make_parser().parse_args(argv)
    found = []
    for finding in findings(dict(os.environ)):
        finding = finding._replace(text=_anonymous(finding.text))
        found.append(finding)
        if not options.json:
            write(f"{_MARKS[finding.state]:8}{finding.about:11}{finding.text}")
            if finding.advice:
                write(f"{'':19}→ {finding.advice}")
    if options.json:
        write(msgspec.json.encode([each._asdict() for each in found]).decode())
    return int(any(finding.state == "problem" for finding in found))
