"""`python -m tests.docs.preloaded`: runs programs, each in a fork of this process.

A fork has what this process has imported, which an interpreter of its own would import again. For
each line that it reads, the directory of a program `block.py`, it writes the exit status; what the
program prints is in `out` and `err` there.
"""

import os
import runpy
import signal
import sys
from pathlib import Path

import httpx2
import openai

import lang
from srt.client.face import AsyncClient
from tests.docs.blocks import TIMEOUT_S

PRELOADED = (httpx2, openai, lang, AsyncClient)


def main() -> None:
    """To the end of the input; in a fork, to the end of its program."""
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            signal.alarm(TIMEOUT_S)  # nobody catches it: one that hangs ends
            os.chdir(line.rstrip("\n"))
            for number, name in enumerate((os.devnull, "out", "err")):
                os.dup2(os.open(name, os.O_RDWR | os.O_CREAT), number)
            sys.argv, sys.path[0] = ["block.py"], str(Path.cwd())
            runpy.run_path("block.py", run_name="__main__")
            return
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)


if __name__ == "__main__":
    main()
