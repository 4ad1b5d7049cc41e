"""Where a model behind OpenAI's routes is: addresses, headers and keys, of OpenAI, of Azure, and of
any other server.
"""

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from msgspec import Struct, field

from srt import forked
from srt.wire.errors import ConfigError

if TYPE_CHECKING:
    from lang.backends.openai_http import OpenAIHttp

OPENAI_URL = "https://api.openai.com/v1"


class Azure(Struct, frozen=True):
    """A resource of Azure: its `endpoint`, and the `deployment` of the model. Without an
    `api_version` the routes below `/openai/v1` are used, which need none."""

    endpoint: str | None = None
    deployment: str | None = None
    api_version: str | None = None


class Host(Struct, frozen=True):
    """`keys` are secrets that no message may show."""

    base_url: str
    headers: Mapping[str, str] = field(default_factory=dict)
    query: str = ""
    is_openai: bool = False  # its own models, and all fields of its API
    keys: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return f"Host({self.base_url!r})"


def checked_key(key: str, argument: str = "api_key") -> str:
    """The key without blanks around it, which files and variables often have. Raises ConfigError,
    which does not show it, for one that cannot stand in a header: HTTP libraries do."""
    key = key.strip()
    if not (key.isascii() and key.isprintable()):
        raise ConfigError(f"{argument}: the key has characters that no HTTP header can have")
    return key


def openai_host(
    base_url: str | None,
    api_key: str | None,
    organization: str | None,
    project: str | None,
    default_headers: Mapping[str, str] | None,
) -> Host:
    """A server with OpenAI's routes. Raises ConfigError for what cannot work."""
    url = base_url or os.environ.get("OPENAI_BASE_URL") or OPENAI_URL
    if not url.startswith(("http://", "https://")):
        raise ConfigError(f"base_url {url!r}: expected http:// or https://")
    is_openai = url.rstrip("/") == OPENAI_URL
    key = checked_key(api_key or os.environ.get("OPENAI_API_KEY") or "")
    if is_openai and not key:
        raise ConfigError("api_key: give one, or set OPENAI_API_KEY")
    headers = {"authorization": f"Bearer {key}"} if key else {}
    # The variables name an account at OpenAI, which is nobody else's business.
    own: dict[str, Any] = {"openai-organization": organization, "openai-project": project}
    if is_openai:
        own["openai-organization"] = organization or os.environ.get("OPENAI_ORG_ID")
        own["openai-project"] = project or os.environ.get("OPENAI_PROJECT_ID")
    headers |= {name: value for name, value in own.items() if value}
    return Host(url, headers | dict(default_headers or {}), "", is_openai, (key,) if key else ())


def azure_host(
    model: str, azure: Azure, api_key: str | None, default_headers: Mapping[str, str] | None
) -> Host:
    """A deployment of Azure. Raises ConfigError for what is missing, by its variable's name."""
    endpoint = azure.endpoint or os.environ.get("AZURE_OPENAI_ENDPOINT")
    key = checked_key(api_key or os.environ.get("AZURE_OPENAI_API_KEY") or "")
    version = azure.api_version or os.environ.get("OPENAI_API_VERSION")
    if not endpoint:
        raise ConfigError("azure_endpoint: give it, or set AZURE_OPENAI_ENDPOINT")
    if not endpoint.startswith(("http://", "https://")):
        raise ConfigError(f"azure_endpoint {endpoint!r}: expected http:// or https://")
    if not key:
        raise ConfigError("api_key: give one, or set AZURE_OPENAI_API_KEY")
    base = endpoint.rstrip("/") + "/openai"
    if version:
        base += f"/deployments/{azure.deployment or model}"
        query = f"?api-version={version}"
    else:
        base, query = base + "/v1", ""
    headers = {"api-key": key} | dict(default_headers or {})
    return Host(base, headers, query, True, (key,))


class Connection:
    """The transport to a host, made in the loop that uses it. `options` are those of OpenAIHttp,
    `fields` stand in each body."""

    def __init__(self, host: Host, fields: Mapping[str, Any], **options: Any) -> None:
        self.host, self.fields = host, dict(fields)
        self._options = options
        self._http: OpenAIHttp | None = None
        forked.renew_in_children(self, Connection._begin_in_child)

    def _begin_in_child(self) -> None:
        """The child's first request connects anew, but a given transport is not made again."""
        forked.leave(self._http)
        if self._options["transport"] is None:
            self._http = None

    def http(self) -> "OpenAIHttp":
        """Programs that do not use it do not import httpx2."""
        if self._http is None:
            from lang.backends.openai_http import OpenAIHttp

            host = self.host
            self._http = OpenAIHttp(
                host.base_url, host.headers, query=host.query, keys=host.keys, **self._options
            )
        return self._http

    async def aclose(self) -> None:
        """Close all connections."""
        http, self._http = self._http, None
        if http is not None:
            await http.aclose()
