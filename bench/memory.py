"""`python -m bench.memory PID`: the memory of a server whose KV pool has been touched everywhere.

PID is the launcher's. Sends prompts of random ids until the pool is full, then adds up the
proportional set size (each shared page counted in parts) of the launcher and all its children.
Linux only.
"""

import argparse
import random
from collections.abc import Iterator
from pathlib import Path

import httpx2

PROMPT_LEN = 3900


def descendants(pid: int) -> Iterator[int]:
    """`pid` and every process below it."""
    yield pid
    for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        yield from descendants(int(child))


def pss_mib(pid: int) -> float:
    """Proportional set size of one process in MiB."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 1024


def name_of(pid: int) -> str:
    arguments = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
    return arguments[arguments.index("-m") + 1] if "-m" in arguments else arguments[0]


def fill_pool(client: httpx2.Client) -> int:
    """Touch every slot; return the pool's size in tokens."""
    size: int = client.get("/server_info").json()["max_total_tokens"]
    rng = random.Random(0)
    for _ in range(size // PROMPT_LEN + 1):
        ids = [rng.randrange(1000, 40000) for _ in range(PROMPT_LEN)]
        parameters = {"max_new_tokens": 1, "temperature": 0, "ignore_eos": True}
        body = {"input_ids": ids, "sampling_params": parameters}
        client.post("/generate", json=body).raise_for_status()
    return size


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.memory", description=__doc__)
    parser.add_argument("pid", type=int, help="the launcher's process id")
    parser.add_argument("--url", default="http://127.0.0.1:30000")
    args = parser.parse_args()
    with httpx2.Client(base_url=args.url, timeout=300) as client:
        size = fill_pool(client)
    sizes = [(name_of(pid), pss_mib(pid)) for pid in descendants(args.pid)]
    print(f"pool of {size} tokens, all touched; proportional set sizes in MiB:")
    for name, mib in (*sizes, ("together", sum(mib for _, mib in sizes))):
        print(f"{name:20} {mib:8.0f}")


if __name__ == "__main__":
    main()
