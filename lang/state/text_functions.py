"""Pure functions of texts by the language's names, as the operations that servers have too.

Imported late: what travels to a server needs numpy, and the language alone does not.
"""

from collections.abc import Sequence
from typing import Any

from lang.state.unread import OpName
from srt.programs.transforms import check_guard, check_op
from srt.wire.errors import RequestError
from srt.wire.programs import Concat, Extract, Format, Guard, Join, JsonPointer, Op, Split, Strip


def op_of(name: OpName, inputs: Sequence[str], fields: dict[str, Any]) -> Op:
    """The operation on these inputs. Raises ValueError for arguments that can never work."""
    op = _op_of(name, inputs, fields)
    try:
        check_op(op, name)
    except RequestError as error:
        raise ValueError(str(error)) from None
    return op


def guard_of(fields: dict[str, Any], negate: bool) -> Guard:
    """The condition on a text. Raises ValueError for one that can never work."""
    guard = Guard("", negate=negate, **fields)
    try:
        check_guard(guard, "condition")
    except RequestError as error:
        raise ValueError(str(error)) from None
    return guard


def _op_of(name: OpName, inputs: Sequence[str], fields: dict[str, Any]) -> Op:
    match name:
        case "concat" if fields["separator"]:
            return Join([*inputs], fields["separator"])
        case "concat":
            return Concat([*inputs])
        case "format":
            return Format(fields["template"], dict(zip(fields["names"], inputs, strict=True)))
        case "strip":
            return Strip(inputs[0], fields["chars"])
        case "split":
            return Split(inputs[0], fields["separator"], fields["index"])
        case "json":
            return JsonPointer(inputs[0], fields["pointer"])
        case "match":
            return Extract(inputs[0], fields["pattern"], fields["group"])
