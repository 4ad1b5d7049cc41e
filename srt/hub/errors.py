"""What went wrong with the hub, in one line that says what to do."""

from http import HTTPStatus

from srt.hub.names import HubName, endpoint, shown_address, shown_text
from srt.wire.errors import ConfigError

_NO_SPACE = "No space left"


def is_network(error: BaseException) -> bool:
    """Whether nobody answered. huggingface_hub 1 uses httpx and 2 uses httpx2; in both these are
    transport errors."""
    names = {kind.__name__ for kind in type(error).__mro__}
    return bool(names & {"TransportError", "OfflineModeIsEnabled", "ConnectionError"})


def status_of(error: BaseException) -> int:
    """The HTTP status of an answer, or 0."""
    status: int = getattr(getattr(error, "response", None), "status_code", 0)
    return status


def as_config_error(error: Exception, name: HubName, has_token: bool) -> ConfigError:
    """The error to end with. Holds no token."""
    from huggingface_hub import errors

    hub = shown_address(endpoint())
    page = f"{hub}/{name.repo}"
    if isinstance(error, ConfigError):
        return error
    if isinstance(error, errors.GatedRepoError):
        what = "this token has no access to it" if has_token else "and there is no token"
        return ConfigError(
            f"{name} is gated, {what}: accept its terms at {page}, then set HF_TOKEN (or "
            "`hf auth login`)"
        )
    if isinstance(error, errors.RevisionNotFoundError):
        return ConfigError(f"{name.repo} has no revision {name.revision!r}: see {page}/tree/main")
    if isinstance(error, errors.RepositoryNotFoundError):
        private = "or this token may not see it" if has_token else "or is private: set HF_TOKEN"
        return ConfigError(f"the hub has no model {name.repo!r}, {private}; is it spelled right?")
    if isinstance(error, errors.EntryNotFoundError):
        return ConfigError(f"{name}: a file that was listed is not there: {_first_line(error)}")
    if is_network(error):
        return ConfigError(
            f"{name}: {hub} cannot be reached ({_first_line(error) or type(error).__name__})"
            " and this machine does not have the model; check the network, HF_ENDPOINT and proxies"
        )
    if status := status_of(error):
        return ConfigError(f"{name}: {hub} answered {status}: {_advice(status, has_token)}")
    if isinstance(error, OSError) and _NO_SPACE in str(error):
        return ConfigError(f"{name}: no space left on the disk; HF_HOME names another place")
    return ConfigError(f"{name}: {type(error).__name__}: {_first_line(error)}")


def _advice(status: int, has_token: bool) -> str:
    if status == HTTPStatus.UNAUTHORIZED:
        return "HF_TOKEN is not valid" if has_token else "set HF_TOKEN"
    if status == HTTPStatus.FORBIDDEN:
        return "this token may not read it" if has_token else "set HF_TOKEN"
    if status == HTTPStatus.TOO_MANY_REQUESTS:
        more = "try again later" if has_token else "try again later, or set HF_TOKEN"
        return f"too many requests; {more}"
    return "try again later"


def _first_line(error: BaseException) -> str:
    line = next((line for line in str(error).splitlines() if line.strip()), "")
    return shown_text(line)  # a server of large files has signed addresses
