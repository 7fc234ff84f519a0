"""Runs the tests that a framework ships with, with our buffers in place of its own.

    python tests/integrations/run_framework_tests.py sb3 --real-ratio 0.5
    python tests/integrations/run_framework_tests.py torchrl --checkout path/to/rl --real-ratio 0.5

The tests come from a checkout or, where PyPI has them, from the source distribution of the installed version; they run
against the installed framework. Unknown arguments are passed to pytest. Tests that cannot apply are listed with a
reason and must fail. README.md in this folder has the results. Do not use it with pytest-xdist, whose workers would use
the framework's own buffers.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.metadata
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

import pytest
import torch
from substitution import Framework, Plugin, Record

FRAMEWORKS = {"sb3": "sb3_substitution", "torchrl": "torchrl_substitution"}


def download(distribution: str, folder: Path) -> Path:
    """Unpack the source distribution of the installed version and return where it is."""
    wanted = f"{distribution}=={importlib.metadata.version(distribution)}"
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", ":all:"]
    subprocess.run([*command, "--dest", folder, wanted], check=True)
    (archive,) = folder.glob("*.tar.gz")
    with tarfile.open(archive) as packed:
        packed.extractall(folder, filter="data")
    return folder / archive.name.removesuffix(".tar.gz")


def main(arguments: list[str] | None = None) -> int:
    """Run the tests and return pytest's exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("framework", choices=FRAMEWORKS)
    parser.add_argument("--checkout", type=Path, help="repository of the framework (default: its source on PyPI)")
    parser.add_argument("--real-ratio", type=float, default=1.0, help="real ratio of every buffer (default: 1.0)")
    parser.add_argument("--files", nargs="+", metavar="FILE", help="some of the test files (default: all listed)")
    options, for_pytest = parser.parse_known_args(arguments)
    framework: Framework = importlib.import_module(FRAMEWORKS[options.framework]).FRAMEWORK
    files = options.files or list(framework.files)
    if unknown := set(files) - set(framework.files):
        parser.error(f"--files: expected some of {sorted(framework.files)}, got {sorted(unknown)}")
    if options.checkout is None and not framework.on_pypi:
        parser.error(f"--checkout: PyPI does not have the tests of {framework.distribution}; name a checkout of it")
    torch.set_num_threads(1)  # more threads are slower for small networks
    with tempfile.TemporaryDirectory() as temporary:
        checkout = options.checkout or download(framework.distribution, Path(temporary))
        folder = checkout.resolve() / framework.folder
        if not folder.is_dir():
            parser.error(f"--checkout: there is no folder {folder}")
        record = Record(options.real_ratio)
        framework.substitute(record)
        plugin = Plugin(framework, record, whole=not options.files and not for_pytest)
        paths = [str(folder / name) for name in files]
        return pytest.main([*paths, "-ra", "-p", "no:cacheprovider", *for_pytest], plugins=[plugin])


if __name__ == "__main__":
    sys.exit(main())
