"""The names of callers, of at most 64 characters: by a key, by an address, or by a client of the
ring. No name has a key in it."""

import hashlib
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from re import compile as pattern

MAX_NAME_CHARS = 64
_DIGEST_CHARS = 16
_WITH_PORT = pattern(r"\[(?P<v6>[^\]]*)\](?::\d{1,5})?|(?P<v4>[^:]*):\d{1,5}")

Address = IPv4Address | IPv6Address


def address_of(text: str) -> Address | None:
    """The address that `text` is, with or without a port; None if it is something else. An IPv4
    address that is written as an IPv6 one (`::ffff:127.0.0.1`) is the IPv4 address."""
    found = _WITH_PORT.fullmatch(text)
    host = text if found is None else found["v6"] or found["v4"] or ""
    try:
        address = ip_address(host.partition("%")[0])
    except ValueError:
        return None
    return getattr(address, "ipv4_mapped", None) or address


def network_of(address: str) -> str:
    """What counts as one address: an IPv6 network of 64 bits is one host's, or one customer's, but
    not that of `::1`."""
    found = address_of(address)
    if isinstance(found, IPv6Address) and not found.is_loopback:
        return str(ip_network((int(found), 64), strict=False))
    return address if found is None else str(found)


def name_of_address(address: str) -> str:
    """The caller at an address, where no key says who it is."""
    return f"ip:{network_of(address)}"[:MAX_NAME_CHARS]


def key_digest(key: str) -> bytes:
    """The digest (SHA-256) by which a key is known after its file is read."""
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()


def name_of_key(digest: bytes) -> str:
    """The caller with the key of this digest, where its file gives it no name."""
    return digest.hex()[:_DIGEST_CHARS]


def is_like_digest(name: str) -> bool:
    """Whether a name could be taken for that of a key without a name."""
    return len(name) == _DIGEST_CHARS and not set(name) - set("0123456789abcdef")


def caller_of(client: bytes, tenant: str) -> str:
    """The caller of a request that a client of the ring sends for `tenant`; "" is itself."""
    if not tenant:
        return f"ring:{client.hex()}"[:MAX_NAME_CHARS]
    if len(tenant) <= MAX_NAME_CHARS:
        return tenant
    return hashlib.sha256(tenant.encode("utf-8", "surrogateescape")).hexdigest()[:MAX_NAME_CHARS]
