"""Which vector level the kernels use here: `python -m scheduler_proc.kernels.level`."""

import sys

from scheduler_proc.kernels.library import load
from srt.wire.errors import ConfigError, SrtError


def main() -> int:
    """Write it and those that there are; returns 1, with the reason, where the library is missing,
    and 2 where SRT_ISA asks for another level than these."""
    try:
        library = load()
        print(f"{library.isa()} (of {', '.join(library.available_isas())})")
    except SrtError as error:
        print(error, file=sys.stderr)
        return 2 if isinstance(error, ConfigError) else 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
