"""Options in the environment: `SRT_` and the option's name in capitals."""

import re
from collections.abc import Mapping

from srt.options.table import Value, all_options
from srt.options.unknown import instead_of
from srt.wire.errors import ConfigError

CONFIG_VARIABLE = "SRT_CONFIG"
# Read elsewhere: the kernels' level, the launcher's parent, where tests find things.
_NOT_OPTIONS = {
    "SRT_ISA",
    "SRT_REQUIRE_NATIVE",
    "SRT_PARENT_FD",
    "SRT_BROWSER",
    "SRT_DATA",
    "SRT_VOCABS",
}
# What Kubernetes tells every container about a service that is called `srt` or `srt-…`.
_OF_A_SERVICE = re.compile(
    r"SRT_(\w+_)?(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)"
)
_ADDRESS = re.compile(r"(tcp|udp|sctp)://.*")


def read_environment(environ: Mapping[str, str]) -> tuple[dict[str, Value], list[str]]:
    """The values by field of `ServerArgs`, and warnings about names that look like options.

    A variable without text sets nothing. Raises ConfigError, which names the variable, for a value
    that the option cannot have.
    """
    options = {option.variable: option for option in all_options()}
    found: dict[str, Value] = {}
    warnings, of_a_service = [], []
    for name in sorted(name for name in environ if name.startswith("SRT_")):
        text = environ[name]
        option = options.get(name)
        if name == CONFIG_VARIABLE or name in _NOT_OPTIONS or not text:
            continue
        is_link = name.endswith("_PORT") and _ADDRESS.fullmatch(text)
        if is_link or _OF_A_SERVICE.fullmatch(name):
            of_a_service.append(name)
        elif option is None:
            known = [*options, CONFIG_VARIABLE]
            warnings.append(f"{name} is not an option: ignored{instead_of(name, known)}")
        else:
            try:
                found[option.field] = option.of_text(text)
            except ValueError as error:
                raise ConfigError(f"{name} {error}") from None
    if of_a_service:
        more = f" and {len(of_a_service) - 1} more" if len(of_a_service) > 1 else ""
        warnings.append(
            f"{of_a_service[0]}{more}: ignored, as Kubernetes sets them for a service called srt "
            "(enableServiceLinks: false turns this off)"
        )
    return found, warnings
