"""Which version of a package is installed."""

from importlib.metadata import PackageNotFoundError, version

OWN = "srt-lang"


def version_of(package: str = OWN, otherwise: str = "0+unknown") -> str:
    """Of a distribution; `otherwise` if it is not installed, as where a checkout runs as it is."""
    try:
        return version(package)
    except PackageNotFoundError:
        return otherwise
