"""Build of the compiled core; everything else is declared in pyproject.toml.

``PULSAR_FAST_DEBUG=1`` builds with assertions and poisoned buffers, ``PULSAR_FAST_SANITIZE=1`` (gcc) also with the
address and undefined behaviour sanitizers, which then see the poison.
"""

import os
import sys

from Cython.Build import cythonize
from setuptools import Extension, setup

SANITIZE = os.environ.get("PULSAR_FAST_SANITIZE") == "1"
DEBUG = SANITIZE or os.environ.get("PULSAR_FAST_DEBUG") == "1"
POSIX = sys.platform != "win32"

cflags = ["-Wall", "-Wno-unused-function", "-fvisibility=hidden"] if POSIX else []
if POSIX:
    cflags += ["-O1", "-g", "-UNDEBUG"] if DEBUG else ["-O3", "-g0"]
sanitizers = ["-fsanitize=address,undefined", "-fno-sanitize-recover=undefined"] if SANITIZE else []
if SANITIZE:
    cflags += [*sanitizers, "-fno-omit-frame-pointer"]

core = Extension(
    "pulsar_fast._core",
    sources=["src/pulsar_fast/_core.pyx"],
    include_dirs=["src/pulsar_fast"],
    define_macros=[("PULSAR_FAST_DEBUG", "1" if DEBUG else "0"), ("CYTHON_USE_TYPE_SPECS", "0")],
    extra_compile_args=cflags,
    extra_link_args=sanitizers,
)

setup(
    ext_modules=cythonize(
        [core],
        include_path=["src"],
        compiler_directives={
            "language_level": 3,
            "boundscheck": False,
            "wraparound": False,
            "cdivision": True,
            "initializedcheck": False,
            "embedsignature": True,
        },
        annotate=os.environ.get("PULSAR_FAST_ANNOTATE") == "1",
    )
)
