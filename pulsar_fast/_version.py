"""The version of the installed distribution."""

from importlib.metadata import PackageNotFoundError, version

__all__ = ["__version__"]

try:
    __version__ = version("pulsar-fast")
except PackageNotFoundError:  # run from a source tree that was never installed
    __version__ = "0+unknown"
