"""Builds the native kernels as a part of every install; the rest is in pyproject.toml.

An install without a working C++ compiler succeeds, with a warning, and runs on torch alone. With
SRT_REQUIRE_NATIVE=1 it fails instead.
"""

import importlib.util
import os
from pathlib import Path
from types import ModuleType

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext

PACKAGE = Path("scheduler_proc", "kernels")
WARNING = """
*** The native kernels were not built. The CPU will run on torch, which is slower. ***
Install a C++17 compiler (g++ 11 or clang 12, or later) and install this package again.
{error}"""


def load_build() -> ModuleType:
    """kernels/build.py by its path: its package may need what is not installed yet."""
    spec = importlib.util.spec_from_file_location("srt_kernels_build", PACKAGE / "build.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class BuildKernels(build_ext):
    """Makes the one "extension", a library for ctypes, with kernels/build.py."""

    def get_ext_filename(self, fullname: str) -> str:
        return os.path.join(*fullname.split(".")) + ".so"

    def build_extension(self, ext: Extension) -> None:
        build = load_build()
        output = Path(self.get_ext_fullpath(ext.name)).absolute()
        try:
            # pip shows it with -v. An editable install is for those who look at the source.
            build.build(output, has_lines=self.editable_mode, say=print)
        except build.BuildError as error:
            if os.environ.get("SRT_REQUIRE_NATIVE") == "1":
                raise
            self._do_without(output, error)

    def _do_without(self, output: Path, error: Exception) -> None:
        # What an earlier install left would be of other sources than the package.
        output.unlink(missing_ok=True)
        if self.editable_mode:
            (PACKAGE / output.name).unlink(missing_ok=True)
        self.warn(WARNING.format(error=error))


class PlatformWheel(bdist_wheel):
    """The library does not depend on the Python that loads it, only on the machine."""

    def get_tag(self) -> tuple[str, str, str]:
        return "py3", "none", super().get_tag()[2]


def kernels() -> Extension:
    files = sorted(path.as_posix() for path in (PACKAGE / "src").iterdir())
    return Extension(
        "scheduler_proc.kernels.libsrt_kernels",
        sources=[file for file in files if file.endswith(".cpp")],
        depends=[file for file in files if not file.endswith(".cpp")],
        optional=True,
    )


setup(
    ext_modules=[kernels()],
    cmdclass={"build_ext": BuildKernels, "bdist_wheel": PlatformWheel},
)
