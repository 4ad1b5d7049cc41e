"""The formats that are enforced, each as a pattern; every other `format` is an annotation.

Called for the keyword `format`. Every string that a pattern lets through is valid by the
format's RFC. Where the RFC allows what a regex of sane size cannot check, the pattern allows
less: leap seconds at offsets of whole and half hours, host names without "--" in the third place,
regular expressions without named groups and back-references, and with up to three nested groups.
"""

from collections.abc import Iterator
from functools import cache

from scheduler_proc.grammar.schema.pattern import pattern_of
from scheduler_proc.grammar.schema.shapes import Strings
from srt.patterns.read_ecma import read_ecma

# RFC 3339. The years with a 29 February: multiples of 4 but not of 100, or of 400.
_LEAP_YEAR = "(?:[0-9][0-9](?:0[48]|[2468][048]|[13579][26])|(?:[02468][048]|[13579][26])00)"
_DATE = (
    "(?:[0-9]{4}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])"
    "|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)|02-(?:0[1-9]|1[0-9]|2[0-8]))"
    f"|{_LEAP_YEAR}-02-29)"
)
_OFFSET = "(?:[Zz]|[+\\-](?:[01][0-9]|2[0-3]):[0-5][0-9])"
_TIME = f"(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\\.[0-9]+)?{_OFFSET}"


def _leap_seconds() -> Iterator[str]:
    """23:59:60 in UTC, as local time."""
    for sign, factor in (("\\+", 1), ("-", -1)):
        for offset in range(0, 24 * 60, 30):
            local = (23 * 60 + 59 + factor * offset) % (24 * 60)
            zone = f"{sign}{offset // 60:02}:{offset % 60:02}" + ("" if offset else "|[Zz]")
            yield f"{local // 60:02}:{local % 60:02}:60(?:\\.[0-9]+)?(?:{zone})"


_TIME = f"(?:{_TIME}|{'|'.join(_leap_seconds())})"
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
# RFC 6532: any character beyond ASCII is a letter.
_BEYOND = "\\u0080-\\u{10ffff}"
_UTEXT = f"(?:{_ATEXT}|[{_BEYOND}])"
_UQUOTED = f'"(?:[ !#-\\[\\]-~{_BEYOND}]|\\\\[ -~])*"'


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
_ADDRESS = f"\\[(?:{_IPV4}|IPv6:{_IPV6})\\]"
_DOMAIN = f"(?:{_HOSTNAME}|{_ADDRESS})"
_HEX = "[0-9A-Fa-f]"
_PERCENT = f"%{_HEX}{{2}}"
# RFC 5892 for the larger scripts, in labels whose ASCII form is certainly not too long. A name with
# letters written from the right has no label that begins with a digit (RFC 5893).
_KANA = "\\u3041-\\u3096\\u30a1-\\u30fa\\u30fc\\u3007\\u4e00-\\u9fa5"
_GREEK = "\\u03ac-\\u03ce"
_LETTER = (
    f"a-zA-Z\\u00df-\\u00f6\\u00f8-\\u00ff{_GREEK}\\u0430-\\u045f\\u0f0b\\uac00-\\ud7a3{_KANA}"
)
_INDIC = "[\\u0904-\\u0939](?:[\\u093e-\\u094c]|\\u094d[\\u200c\\u200d]?)?"
_LETTERS = f"(?:{_INDIC}|l(?:\\u00b7l)+|\\u0375[{_GREEK}]|[{_LETTER}])"
_DIGITS = "[0-9\\u06f0-\\u06f9]"
_RIGHT = "(?:[\\u05d0-\\u05ea][\\u05f3\\u05f4]?|[\\u0620-\\u063f\\u0641-\\u064a\\u06fd\\u06fe])"
_MORE = f"(?:-?(?:{_LETTERS}|{_DIGITS})){{0,19}}"
_FROM_LEFT = f"{_LETTERS}{_MORE}|[{_KANA}\\u30fb]{{0,9}}[{_KANA}][{_KANA}\\u30fb]{{0,9}}"
_FROM_RIGHT = "|".join(
    f"{_RIGHT}(?:-?(?:{_RIGHT}|{digits})){{0,19}}" for digits in (_DIGITS, "[\\u0660-\\u0669]")
)
_DOT = "[.\\u3002\\uff0e\\uff61]"
_IDN = "|".join(
    f"(?:{label})(?:{_DOT}(?:{label}))*"
    for label in (f"{_LABEL}|{_FROM_LEFT}|{_DIGITS}{_MORE}", f"{_FROM_LEFT}|{_FROM_RIGHT}")
)
# RFC 3987, section 2.2: what IRIs have beyond URIs, and what their queries have beyond that.
_PRIVATE = "\\ue000-\\uf8ff\\u{f0000}-\\u{ffffd}\\u{100000}-\\u{10fffd}"
_UCS = "\\u00a0-\\ud7ff\\uf900-\\ufdcf\\ufdf0-\\uffef" + "".join(
    f"\\u{{{plane:x}{'1000' if plane == 14 else '0000'}}}-\\u{{{plane:x}fffd}}"
    for plane in range(1, 15)
)


def _references(ucs: str, private: str) -> tuple[str, str]:
    """RFC 3986 and 3987: an identifier with its scheme, and one that may be relative."""
    plain = f"A-Za-z0-9\\-._~!$&'()*+,;={ucs}"
    char = f"(?:[{plain}:@]|{_PERCENT})"
    future = f"[Vv]{_HEX}+\\.[A-Za-z0-9\\-._~!$&'()*+,;=:]+"
    host = f"(?:\\[(?:{_IPV6}|{future})\\]|(?:[{plain}]|{_PERCENT})*)"
    authority = f"(?:(?:[{plain}:]|{_PERCENT})*@)?{host}(?::[0-9]*)?"
    path = f"(?:/{char}*)*"
    rooted = f"//{authority}{path}|/(?:{char}+{path})?"
    tail = f"(?:\\?(?:{char}|[/?{private}])*)?(?:#(?:{char}|[/?])*)?"
    absolute = f"[A-Za-z][A-Za-z0-9+\\-.]*:(?:{rooted}|(?:{char}+{path})?){tail}"
    relative = f"(?:{rooted}|(?:(?:[{plain}@]|{_PERCENT})+{path})?){tail}"
    return absolute, f"{absolute}|{relative}"


_URI, _URI_REFERENCE = _references("", "")
_IRI, _IRI_REFERENCE = _references(_UCS, _PRIVATE)
# RFC 6570, with its erratum about the apostrophe.
_VARIABLE = f"(?:\\w|{_PERCENT})+(?:\\.(?:\\w|{_PERCENT})+)*(?::[1-9][0-9]{{0,3}}|\\*)?"
_EXPRESSION = f"\\{{[+#./;?&=,!@|]?{_VARIABLE}(?:,{_VARIABLE})*\\}}"
_TEMPLATE = f"(?:[!#$&-;=?-\\[\\]_a-z~{_UCS}{_PRIVATE}]|{_PERCENT}|{_EXPRESSION})*"


def _regex() -> str:
    """ECMA-262's patterns, in Unicode mode."""
    escape = f"\\\\(?:[dDwWsSfnrtv0^$\\\\.*+?()[\\]{{}}|/]|c[A-Za-z]|x{_HEX}{{2}}|u{_HEX}{{4}})"
    rising = "|".join(
        f"{chr(low)}-[{chr(low)}-{last}]"
        for first, last in ("09", "az", "AZ")
        for low in range(ord(first), ord(last) + 1)
    )
    one = f"[^\\\\\\]\\-]|{escape}|\\\\[b\\-]"
    char_class = f"\\[\\^?-?(?:{rising}|{one})*-?\\]"
    counts = "|".join(f"{n},[{n}-9]" for n in range(10))
    count = f"\\{{(?:[0-9]{{1,4}},?|{counts}|[0-9],[1-9][0-9]{{1,3}})\\}}"
    atom, found = f"[^\\^$\\\\.*+?()[\\]{{}}|]|\\.|{escape}|{char_class}", ""
    for _ in range(4):
        groups = f"|\\((?:\\?:)?{found}\\)" if found else ""
        looks = f"|\\(\\?<?[=!]{found}\\)" if found else ""
        term = f"(?:(?:{atom}{groups})(?:(?:[*+?]|{count})\\??)?|\\^|\\$|\\\\[bB]{looks})"
        found = f"(?:{term}|\\|)*"
    return found


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
    "uri": _URI,
    "uri-reference": _URI_REFERENCE,
    "iri": _IRI,
    "iri-reference": _IRI_REFERENCE,
    "uri-template": _TEMPLATE,
    "regex": _regex(),
    "idn-hostname": _IDN,
    "idn-email": f"(?:{_UTEXT}+(?:\\.{_UTEXT}+)*|{_UQUOTED})@(?:{_IDN}|{_ADDRESS})",
    "relative-json-pointer": "(?:0|[1-9][0-9]*)(?:#|(?:/(?:[^~/]|~[01])*)*)",
}
_MAX_LENGTHS = {"hostname": 253, "idn-hostname": 253}


@cache
def format_strings(name: str) -> Strings | None:
    """The strings of a format, or None if it is an annotation here."""
    pattern = _PATTERNS.get(name)
    if pattern is None:
        return None
    (tree,), _ = read_ecma(f"^(?:{pattern})$")
    return Strings(most=_MAX_LENGTHS.get(name), patterns=(pattern_of(tree),))
