"""A launcher like `srt.launch`, whose scheduler has no model: see `null_scheduler`.

It is run as a file, so that it starts whatever checkout is first on the path.
"""

import sys

from srt.launch import main
from srt.ring import child

if __name__ == "__main__":
    child.MODULES["scheduler"] = "null_scheduler"
    sys.exit(main())
