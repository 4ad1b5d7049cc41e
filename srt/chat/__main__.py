"""`python -m srt.chat`."""

import sys

from srt.chat import main

sys.exit(main())
