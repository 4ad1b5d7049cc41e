"""Bounds on what programs may take. Beyond those of a submission a request is refused (400), beyond
those of a caller it may be made again later (429), and so it may beyond those of the server, where
callers who hold more give way."""

MAX_TEXT_BYTES = 2**20  # of a variable, in UTF-8
MAX_PROMPT_CHARS = 4 * 2**20  # of an output; a variable may be in it many times
MAX_NAME_CHARS = 256
MAX_KEY_CHARS = 256  # of an idempotency key

# Of one submission.
MAX_PARTS = 1024  # calls, transforms and variables to be set, together
MAX_SEGMENTS = 1024  # of a call
MAX_REFERENCES = 16_384
MAX_CHOICES = 128  # of an output
MAX_RETRIES = 8
MAX_PATTERNS = 32  # different ones
MAX_PATTERN_CHARS = 256
MAX_PATTERN_NODES = 256  # its repetitions unrolled
MAX_PATTERN_WORK = 2**22  # characters times nodes: some 30 ms

# Of one session, and of one get.
MAX_VARS = 16_384
MAX_GET_VARS = 1024
MAX_TOLD_BYTES = 16 * 2**20  # of texts in one answer
MAX_IDLE_S = 86_400.0
MAX_GET_S = 600.0

# Of the server. One caller may take a CALLER_SHARE of each.
MAX_SESSIONS = 1024
MAX_GETS = 1024
MAX_BYTES = 256 * 2**20
CALLER_SHARE = 0.25
MAX_ENDED = 2**16  # ids of what was ended for other callers, whose clients are told so

# Of what is told of a variable.
MAX_CAUSES = 16
MAX_CONSUMERS = 64
