"""Shared by the tests that compile C or C++."""

import shutil

import pytest

from scheduler_proc.kernels import build

# The beginning of a source that EXPORTs functions.
EXPORT = '#define EXPORT extern "C" __attribute__((visibility("default")))\n'


def has_compiler() -> bool:
    try:
        return shutil.which(build.compiler()[0]) is not None
    except build.BuildError:
        return False


needs_compiler = pytest.mark.skipif(not has_compiler(), reason="no C++ compiler")
