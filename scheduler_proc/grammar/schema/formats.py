"""The formats that are enforced, each as a pattern; every other `format` is an annotation.

Called for the keyword `format`. Every string that a pattern lets through is valid by the
format's RFC. Where the RFC allows what a regex of sane size cannot check, the pattern allows
less: leap seconds only at 23:59:60 in UTC, host names without "--" in the third place.
"""

from functools import cache

from scheduler_proc.grammar.schema.ecma import parse_ecma
from scheduler_proc.grammar.schema.shapes import Strings

# Formats that are left to llguidance, whose pattern is right on the public suite.
BACK_END_FORMATS = frozenset({"uri"})

# RFC 3339. The years with a 29 February: multiples of 4 but not of 100, or of 400.
_LEAP_YEAR = "(?:[0-9][0-9](?:0[48]|[2468][048]|[13579][26])|(?:[02468][048]|[13579][26])00)"
_DATE = (
    "(?:[0-9]{4}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])"
    "|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)|02-(?:0[1-9]|1[0-9]|2[0-8]))"
    f"|{_LEAP_YEAR}-02-29)"
)
_OFFSET = "(?:[Zz]|[+\\-](?:[01][0-9]|2[0-3]):[0-5][0-9])"
_TIME = (
    f"(?:(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\\.[0-9]+)?{_OFFSET}"
    "|23:59:60(?:\\.[0-9]+)?(?:[Zz]|[+\\-]00:00))"
)
# RFC 3339, appendix A.
_DURATION_TIME = "T(?:[0-9]+H(?:[0-9]+M(?:[0-9]+S)?)?|[0-9]+M(?:[0-9]+S)?|[0-9]+S)"
_DURATION_DATE = "(?:[0-9]+Y(?:[0-9]+M(?:[0-9]+D)?)?|[0-9]+M(?:[0-9]+D)?|[0-9]+D)"
_DURATION = f"P(?:{_DURATION_DATE}(?:{_DURATION_TIME})?|{_DURATION_TIME}|[0-9]+W)"
# RFC 1123 with RFC 5891's ban on "--" in the third and fourth place.
_ALNUM = "[A-Za-z0-9]"
_LABEL = (
    f"(?:{_ALNUM}|{_ALNUM}{_ALNUM}|{_ALNUM}[A-Za-z0-9\\-]{_ALNUM}"
    f"|{_ALNUM}[A-Za-z0-9\\-](?:{_ALNUM}[A-Za-z0-9\\-]|-{_ALNUM})[A-Za-z0-9\\-]{{0,58}}{_ALNUM}"
    f"|{_ALNUM}[A-Za-z0-9\\-]{{2}}{_ALNUM})"
)
_HOSTNAME = f"{_LABEL}(?:\\.{_LABEL})*"
_BYTE = "(?:25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])"
_IPV4 = f"{_BYTE}(?:\\.{_BYTE}){{3}}"
_GROUP = "[0-9A-Fa-f]{1,4}"
_LAST_32 = f"(?:{_GROUP}:{_GROUP}|{_IPV4})"
# RFC 5321 with RFC 6531 left out: a dot-string or a quoted string, at a domain or an address.
_ATEXT = "[A-Za-z0-9!#$%&'*+\\-/=?^_`{|}~]"
_QUOTED = '"(?:[ !#-\\[\\]-~]|\\\\[ -~])*"'


def _ipv6() -> str:
    """RFC 3986's IPv6address: by how many groups stand in front of the `::`."""
    options = [f"(?:{_GROUP}:){{6}}{_LAST_32}"]
    for before in range(8):
        head = f"(?:(?:{_GROUP}:){{0,{before - 1}}}{_GROUP})?" if before else ""
        after = 7 - before
        if after >= 2:
            tail = f"(?:{_GROUP}:){{{after - 2}}}{_LAST_32}"
        else:
            tail = _GROUP if after == 1 else ""
        options.append(f"{head}::{tail}")
    return f"(?:{'|'.join(options)})"


_IPV6 = _ipv6()
_DOMAIN = f"(?:{_HOSTNAME}|\\[(?:{_IPV4}|IPv6:{_IPV6})\\])"
_HEX = "[0-9A-Fa-f]"

_PATTERNS = {
    "date": _DATE,
    "time": _TIME,
    "date-time": f"{_DATE}[Tt]{_TIME}",
    "duration": _DURATION,
    "hostname": _HOSTNAME,
    "ipv4": _IPV4,
    "ipv6": _IPV6,
    "uuid": f"{_HEX}{{8}}(?:-{_HEX}{{4}}){{3}}-{_HEX}{{12}}",
    "email": f"(?:{_ATEXT}+(?:\\.{_ATEXT}+)*|{_QUOTED})@{_DOMAIN}",
    "json-pointer": "(?:/(?:[^~/]|~[01])*)*",
    "relative-json-pointer": "(?:0|[1-9][0-9]*)(?:#|(?:/(?:[^~/]|~[01])*)*)",
}
_MAX_LENGTHS = {"hostname": 253}

ENFORCED_FORMATS = frozenset(_PATTERNS) | BACK_END_FORMATS


@cache
def format_strings(name: str) -> Strings | None:
    """The strings of a format, or None if it is an annotation here."""
    pattern = _PATTERNS.get(name)
    if pattern is None:
        return None
    return Strings(most=_MAX_LENGTHS.get(name), patterns=(parse_ecma(f"^(?:{pattern})$"),))
