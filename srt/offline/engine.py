"""Offline use: `Engine` runs a server without HTTP for one program, and ends it.

The server is an ordinary ring in child processes, so everything behaves as it does online. Its
synchronous calls run on a loop in a thread of its own, so they work in notebooks too.
"""

import asyncio
import os
import secrets
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import AsyncGenerator, Coroutine, Generator, Sequence
from pathlib import Path
from typing import Any, TypeVar, Unpack, overload

from srt.client.arguments import BatchArgs, Fields, ScoreArgs
from srt.client.face import AsyncClient
from srt.client.generation import GenerateOutput, ScoreOutput
from srt.client.many import generate_many
from srt.client.media import Media
from srt.client.request_fields import checked_request
from srt.hub import with_model_here
from srt.launch import PARENT_FD_VARIABLE
from srt.options.settings import Settings, read_settings
from srt.wire.errors import ConfigError, RequestError, RingError, SrtError, check_process
from srt.wire.sampling import SamplingParams

T = TypeVar("T")
Sampling = SamplingParams | Fields | None

START_TIMEOUT_S = 600.0  # of a large model from a slow disk
STOP_TIMEOUT_S = 15.0


class Engine:
    """`with Engine(model="smollm2") as engine: engine.generate("Once upon a time")`.

    Arguments are those of `python -m srt.launch`, with underscores. The server ends with the
    engine (`close`, the end of the `with` block), and with this process however it ends. It cannot
    be used in a process that was forked from this one: calls raise ConfigError there. Without
    `model`, the environment may name one.
    """

    def __init__(self, model: str | os.PathLike[str] | None = None, **args: Any) -> None:
        # The launcher makes this directory, and removes it even if this process is killed.
        self.directory = Path(tempfile.gettempdir()) / f"srt-engine-{secrets.token_hex(8)}"
        directory = str(self.directory)
        given = _command_line(args)
        named = [] if model is None else [f"--model={os.fspath(model)}"]
        settings = _checked([*named, *given])
        here = with_model_here(settings.args)
        self.args = here  # with the model on this machine
        self._pid = os.getpid()
        self._read_end, self._write_end = os.pipe()
        command = [sys.executable, "-m", "srt.launch", "--no-http", "--ring-dir", directory]
        command += [*given, f"--model={here.model}"]
        if "log_level" not in settings.sources:
            command.append("--log-level=warning")
        if here.served_model_name:
            command.append(f"--served-model-name={here.served_model_name}")
        path = os.pathsep.join(p for p in sys.path if p)
        self._process = subprocess.Popen(
            command,
            pass_fds=[self._read_end],
            env={**os.environ, PARENT_FD_VARIABLE: str(self._read_end), "PYTHONPATH": path},
            # Ctrl-C in a terminal, or in a notebook, is for this process: it may go on.
            start_new_session=True,
        )
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="engine", daemon=True)
        self._thread.start()
        self._client: AsyncClient | None = None
        try:
            self.call(self._connect(directory))
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> "Engine":
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    async def __aenter__(self) -> "Engine":
        return self

    async def __aexit__(self, *exc: object) -> None:
        await asyncio.get_running_loop().run_in_executor(None, self.close)

    @overload
    def generate(  # type: ignore[overload-overlap]  # a text is one prompt, though a sequence
        self, prompts: str, sampling: Sampling = None, **request: Unpack[BatchArgs]
    ) -> GenerateOutput: ...

    @overload
    def generate(
        self, prompts: Sequence[str], sampling: Sampling = None, **request: Unpack[BatchArgs]
    ) -> list[GenerateOutput]: ...

    def generate(
        self, prompts: str | Sequence[str], sampling: Sampling = None, **request: Unpack[BatchArgs]
    ) -> GenerateOutput | list[GenerateOutput]:
        """Complete one prompt (a GenerateOutput) or several at once (a list, in order).

        `sampling` holds SamplingParams' fields; `request` the other arguments of `submit`. Of
        several prompts, `media` has a list for each. With
        `n` above 1 there is a list of samples in place of each output, which has no type of its
        own. A batch may be of any size; the first failure ends all of it.
        """
        outputs = self.call(self._generate(prompts, sampling, request))
        return outputs[0] if isinstance(prompts, str) else outputs

    @overload
    async def async_generate(  # type: ignore[overload-overlap]  # as above
        self, prompts: str, sampling: Sampling = None, **request: Unpack[BatchArgs]
    ) -> GenerateOutput: ...

    @overload
    async def async_generate(
        self, prompts: Sequence[str], sampling: Sampling = None, **request: Unpack[BatchArgs]
    ) -> list[GenerateOutput]: ...

    async def async_generate(
        self, prompts: str | Sequence[str], sampling: Sampling = None, **request: Unpack[BatchArgs]
    ) -> GenerateOutput | list[GenerateOutput]:
        """`generate` for asynchronous code. Cancelling it ends its requests."""
        outputs = await self._acall(self._generate(prompts, sampling, request))
        return outputs[0] if isinstance(prompts, str) else outputs

    async def async_stream(
        self, prompt: str, sampling: Sampling = None, **request: Unpack[BatchArgs]
    ) -> AsyncGenerator[GenerateOutput, None]:
        """`stream` for asynchronous code."""
        outputs = self.client.stream(prompt, sampling=sampling or {}, **request)
        try:
            while (output := await self._acall(_next(outputs))) is not None:
                yield output
        finally:
            if not self._loop.is_closed():
                await self._acall(outputs.aclose())

    def stream(
        self, prompt: str, sampling: Sampling = None, **request: Unpack[BatchArgs]
    ) -> Generator[GenerateOutput, None, None]:
        """One completion as it grows."""
        outputs = self.client.stream(prompt, sampling=sampling or {}, **request)
        try:
            while True:
                output = self.call(_next(outputs))
                if output is None:
                    return
                yield output
        finally:
            if not self._loop.is_closed():
                self.call(outputs.aclose())

    def score(
        self,
        prefix: str | None,
        continuations: Sequence[str | Sequence[int]],
        **request: Unpack[ScoreArgs],
    ) -> ScoreOutput:
        """How likely each continuation is after the prefix; see `AsyncClient.score`."""
        return self.call(self.client.score(prefix, continuations, **request))

    @property
    def client(self) -> AsyncClient:
        """The engine's client; use it on the engine's own loop."""
        if self._client is None:
            raise RingError("the engine is closed")
        return self._client

    def flush_cache(self) -> None:
        """Empty the prefix cache."""
        self.call(self.client.flush_cache())

    def stats(self) -> dict[str, Any]:
        """The scheduler's counters and gauges."""
        return self.call(self.client.stats())

    @property
    def has_ended(self) -> bool:
        """Whether the server's process has, by itself or by `close`."""
        return self._process.poll() is not None

    def close(self) -> None:
        """End the server. May be called more than once; in a forked process it does nothing."""
        if self._write_end < 0 or os.getpid() != self._pid:
            return
        if self._client is not None:
            self.call(self._client.__aexit__(None, None, None))
            self._client = None
        os.close(self._write_end)
        os.close(self._read_end)
        self._write_end = -1
        self._process.terminate()
        try:
            self._process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        shutil.rmtree(self.directory, ignore_errors=True)  # of one that was ended as it began
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(STOP_TIMEOUT_S)
        self._loop.close()

    async def _connect(self, directory: str) -> None:
        deadline = self._loop.time() + START_TIMEOUT_S
        while not (Path(directory) / "front").exists():
            self._check_starting(deadline)
            await asyncio.sleep(0.02)
        while self._client is None:
            connecting = asyncio.ensure_future(AsyncClient(f"ipc://{directory}").__aenter__())
            try:
                while not connecting.done():
                    self._check_starting(deadline)
                    await asyncio.wait([connecting], timeout=0.1)
                self._client = connecting.result()
            except RingError:  # a large model takes longer than a client waits
                self._check_starting(deadline)
            finally:
                connecting.cancel()
                await asyncio.wait([connecting], timeout=1.0)

    def _check_starting(self, deadline: float) -> None:
        if self._process.poll() is not None:
            raise ConfigError("the server could not start (its message is above)")
        if self._loop.time() > deadline:
            raise RingError(f"the server was not ready within {START_TIMEOUT_S:.0f} s")

    async def _generate(
        self,
        prompts: str | Sequence[str],
        sampling: Sampling,
        request: BatchArgs,
    ) -> list[Any]:
        """For each prompt its output, or the list of its samples if n > 1."""
        texts = [prompts] if isinstance(prompts, str) else prompts
        fields = {name: value for name, value in request.items() if name != "media"}
        requests = [
            checked_request({"text": text, "sampling": sampling or {}, **fields}) for text in texts
        ]
        media = _media_of(prompts, request)
        results = await generate_many(self.client.transport, requests, media)
        return [outputs[0] if len(outputs) == 1 else outputs for outputs in results]

    async def _acall(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run on the engine's loop, and wait on the caller's."""
        self._check_usable(coroutine)
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(coroutine, self._loop))

    def call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the engine's loop, where its client lives, and return its result."""
        self._check_usable(coroutine)
        future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        try:
            return future.result()
        finally:
            future.cancel()  # after an interrupt the loop must not go on with it

    def _check_usable(self, coroutine: Coroutine[Any, Any, T]) -> None:
        """Raise RingError if the engine is closed, ConfigError in a forked process."""
        try:
            check_process(self._pid, "engine")
            if self._loop.is_closed():
                raise RingError("the engine is closed")
        except SrtError:
            coroutine.close()
            raise


async def _next(outputs: Any) -> GenerateOutput | None:
    return await anext(outputs, None)


def _media_of(prompts: str | Sequence[str], request: BatchArgs) -> Sequence[Sequence[Media]]:
    """What each prompt shows; nothing if none shows anything. Raises RequestError."""
    given: Any = request.get("media") or ()
    if not given or isinstance(prompts, str):
        return [given] if given else ()
    if not isinstance(given, list | tuple) or len(given) != len(prompts):
        raise RequestError(f" must have a list for each of {len(prompts)} prompts", at="media")
    return given


def _checked(command_line: list[str]) -> Settings:
    """What the server will make of it, and of the environment. Raises ConfigError."""
    try:
        return read_settings(command_line, os.environ)
    except SystemExit:
        raise ConfigError("these are no arguments of a server (the message is above)") from None


def _command_line(args: dict[str, Any]) -> list[str]:
    command = []
    for name, value in args.items():
        flag = "--" + name.replace("_", "-")
        if value is True:
            command.append(flag)
        elif value is False:
            command.append(f"{flag}=false")  # whatever the environment says
        else:
            texts = value if isinstance(value, (list, tuple)) else [value]
            command.append(f"{flag}={','.join(map(str, texts))}")
    return command
