"""`python -m srt.chat`."""

import sys

from srt.chat.main import main

sys.exit(main())
