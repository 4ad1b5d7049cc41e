"""Which vector level the kernels use here: `python -m scheduler_proc.kernels.level`."""

import sys

from scheduler_proc.kernels.library import load
from srt.wire.errors import SrtError


def main() -> int:
    """Write both; returns 1, with the reason, where the library is missing or does not work."""
    try:
        library = load()
        print(f"{library.isa()} (of {', '.join(library.available_isas())})")
    except (SrtError, RuntimeError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
