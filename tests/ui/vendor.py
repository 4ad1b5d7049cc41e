"""`python -m tests.ui.vendor`: the libraries that the page brings, unchanged, and their hashes.

Checks what lies in `srt/gateway/ui/static/vendor`. With `--fetch` it is taken anew from its
package, by the npm client, and checked too. To bring another version, change what stands here.
"""

import argparse
import hashlib
import subprocess
import tarfile
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

VENDOR = Path(__file__).parents[2] / "srt" / "gateway" / "ui" / "static" / "vendor"


class File(NamedTuple):
    """Where it lies in its package, as what it lies here, and its SHA-256."""

    source: str
    name: str
    digest: str


PACKAGES = {
    "marked@18.2.1": (  # MIT; reads the Markdown of answers
        File(
            "lib/marked.esm.js",
            "marked.esm.js",
            "5371fea86fd0656b4fc7bea7c94c663109d82789b69433eeee78d42895aa44de",
        ),
        File(
            "lib/marked.d.ts",
            "marked.esm.d.ts",
            "d7d5a034b73c62e4681ad6cb2945e9862a89e56ab92b06fd7d77e2652e667ac5",
        ),
        File(
            "LICENSE",
            "marked.LICENSE.txt",
            "8e3a3f82f59a60958f56ca08f445647c32a4733dc7ca6c2c46f6eb898471ab9c",
        ),
    ),
    "uplot@1.6.32": (  # MIT; charts of the pulse
        File(
            "dist/uPlot.esm.js",
            "uPlot.esm.js",
            "5dd9b3281aa64b461b42d9945f6adb2649d346502b12281a9ae0d46599a80eba",
        ),
        File(
            "dist/uPlot.min.css",
            "uPlot.min.css",
            "df630c6a8d6f8eeaff264b50f73ce5b114f646ffd9a0bb74f049b0a00135fa04",
        ),
        File(
            "dist/uPlot.d.ts",
            "uPlot.esm.d.ts",
            "af44374f6e808be4f7f3fa5888b9c7574dca9f8a15a66d54b6763535802c8080",
        ),
        File(
            "LICENSE",
            "uPlot.LICENSE.txt",
            "8f989229699b4fe2f1a0432d0e9edc338a8a911e250e2d1b01ecd770a5f5b1bd",
        ),
    ),
}


def wrong() -> list[str]:
    """The files that are not what stands here, and those of which nothing stands here."""
    files = {file.name: file.digest for each in PACKAGES.values() for file in each}
    found = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in VENDOR.iterdir()}
    return sorted(name for name in files | found if files.get(name) != found.get(name))


def fetch() -> None:
    """Take the files out of the packages."""
    for package, files in PACKAGES.items():
        with TemporaryDirectory() as folder:
            subprocess.run(["npm", "pack", "--silent", package], cwd=folder, check=True)
            (archive,) = Path(folder).glob("*.tgz")
            with tarfile.open(archive) as packed:
                for file in files:
                    data = packed.extractfile(f"package/{file.source}")
                    assert data is not None, file.source
                    (VENDOR / file.name).write_bytes(data.read())


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.ui.vendor", description=__doc__)
    parser.add_argument("--fetch", action="store_true", help="take them from their packages first")
    if parser.parse_args(argv).fetch:
        fetch()
    if names := wrong():
        raise SystemExit(f"not as stated: {', '.join(names)}")
    print("all files are as stated")


if __name__ == "__main__":
    main()
