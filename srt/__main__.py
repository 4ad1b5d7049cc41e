"""`python -m srt`: the command `srt`."""

import sys

from srt.commands.command import main

if __name__ == "__main__":
    sys.exit(main())
