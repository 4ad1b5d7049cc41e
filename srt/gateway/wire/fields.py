"""The classes of request fields, as one table per kind of request.

* Honoured: a field of the request's struct in `wire.native` or `wire.openai`.
* `Ignored`: any value is accepted, because no value changes what this server answers.
* `OnlyNeutral`: accepted with a value that asks for nothing, refused by name with another one.
* `Hint`: without effect; the OpenAI routes name it in a header, others refuse it.

Native routes refuse every other name as unknown. The OpenAI routes know the names of other servers
(`Renamed`, `Members`, `Refused`), and ignore and name the rest. Null means "default" for every
field but those of `Kind.with_null`.
"""

from srt.gateway.wire.kinds.anthropic import CONTENT_BLOCK as CONTENT_BLOCK
from srt.gateway.wire.kinds.anthropic import COUNT as COUNT
from srt.gateway.wire.kinds.anthropic import MESSAGES as MESSAGES
from srt.gateway.wire.kinds.anthropic import MESSAGES_TOOL as MESSAGES_TOOL
from srt.gateway.wire.kinds.classes import NO_EXTRAS as NO_EXTRAS
from srt.gateway.wire.kinds.classes import FieldClass as FieldClass
from srt.gateway.wire.kinds.classes import Foreign as Foreign
from srt.gateway.wire.kinds.classes import Hint as Hint
from srt.gateway.wire.kinds.classes import Ignored as Ignored
from srt.gateway.wire.kinds.classes import Kind as Kind
from srt.gateway.wire.kinds.classes import Members as Members
from srt.gateway.wire.kinds.classes import OnlyNeutral as OnlyNeutral
from srt.gateway.wire.kinds.classes import Refused as Refused
from srt.gateway.wire.kinds.classes import Renamed as Renamed
from srt.gateway.wire.kinds.classes import rule_sentences as rule_sentences
from srt.gateway.wire.kinds.reading import MAX_OBJECTS as MAX_OBJECTS
from srt.gateway.wire.kinds.reading import Notes as Notes
from srt.gateway.wire.kinds.reading import honoured_only as honoured_only
from srt.gateway.wire.kinds.tables import CHAT as CHAT
from srt.gateway.wire.kinds.tables import COMPLETION as COMPLETION
from srt.gateway.wire.kinds.tables import NATIVE as NATIVE
from srt.gateway.wire.kinds.tables import NATIVE_SAMPLING as NATIVE_SAMPLING
from srt.gateway.wire.kinds.tables import RESPONSES as RESPONSES
