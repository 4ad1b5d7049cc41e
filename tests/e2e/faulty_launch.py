"""A launcher like `srt.launch`, whose scheduler has faults: see `faulty_scheduler`."""

import sys

from srt.launch import main
from srt.ring import child

if __name__ == "__main__":
    child.MODULES["scheduler"] = "tests.e2e.faulty_scheduler"
    sys.exit(main())
