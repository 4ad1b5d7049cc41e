"""Options in a TOML file: one key each, with the flag's name without its dashes."""

import tomllib
from pathlib import Path

from srt.options.table import Value, all_options
from srt.options.unknown import instead_of
from srt.wire.errors import ConfigError

MAX_FILE_BYTES = 1024 * 1024


def read_file(path: str) -> dict[str, Value]:
    """The values in `path` by field of `ServerArgs`.

    Raises ConfigError, which names the file and the key, for what is no TOML, no option, or not of
    the option's type.
    """
    options = {option.name: option for option in all_options()}
    found: dict[str, Value] = {}
    for key, value in _keys_of(path).items():
        option = options.get(key.replace("_", "-"))
        if option is None:
            raise ConfigError(f"{path}: {key!r} is not an option{instead_of(key, options)}")
        if option.field in found:
            raise ConfigError(f"{path}: {option.name} is set twice, with - and with _")
        try:
            found[option.field] = option.of_toml(value)
        except ValueError as error:
            raise ConfigError(f"{path}: {key} {error}") from None
    return found


def _keys_of(path: str) -> dict[str, object]:
    try:
        file = Path(path).expanduser()
        # A pipe could be read only once, and a file without an end would be.
        if not file.is_file():
            what = "is not a regular file" if file.exists() else "does not exist"
            raise ConfigError(f"--config: {path} {what}")
        if file.stat().st_size > MAX_FILE_BYTES:
            raise ConfigError(f"--config: {path} has more than {MAX_FILE_BYTES} bytes")
        return tomllib.loads(file.read_text("utf-8"))
    except OSError as error:
        raise ConfigError(f"--config: cannot read {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"--config: {path} is not UTF-8") from None
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise ConfigError(f"--config: {path} is not TOML: {error}") from None
    except RuntimeError as error:  # ~ of a user that there is not
        raise ConfigError(f"--config: cannot read {path}: {error}") from None
