"""stand-in"""

import hashlib
from pathlib import Path
from typing import Any

import msgspec


def fingerprint(path: Path, text_path: Path, options: dict[str, Any]) -> str:
    digest = hashlib.sha256()
    for each in (path, text_path):
        for file in sorted(each.iterdir()) if each.is_dir() else [each]:
            digest.update(f"{file.name} {file.stat().st_size}\n".encode())
    digest.update(msgspec.json.encode(options, order="deterministic"))
    return digest.hexdigest()
