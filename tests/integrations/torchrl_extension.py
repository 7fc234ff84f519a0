"""Builds TorchRL's compiled extension, the trees of its prioritised samplers, where the published one does not load.

    python tests/integrations/torchrl_extension.py

A wheel of TorchRL fits the releases of PyTorch it was built for and few others, but brings its C++ source along. This
compiles that source against the installed PyTorch and puts the result in the place of the published file, in the
environment of the Python that runs it; where prioritised samplers work already, it does nothing. It wants a C++
compiler and the headers of Python, and no network: about a minute, or two on a busy machine.
"""

import importlib.util
import os
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

USE = """
import torch
import torchrl._torchrl  # says why not; the sampler does not
from torchrl.data.replay_buffers.samplers import PrioritizedSampler
for dtype in torch.float32, torch.float64:
    sampler = PrioritizedSampler(4, alpha=1.0, beta=1.0, eps=0.0, dtype=dtype)
    sampler.update_priority(torch.arange(4), torch.tensor([3.0, 1.0, 4.0, 2.0], dtype=dtype))
    assert (sampler._sum_tree.query(0, 4), sampler._min_tree.query(0, 4)) == (10.0, 1.0)
    assert sampler._sum_tree.scan_lower_bound(torch.tensor([2.5, 3.5, 9.0], dtype=dtype)).tolist() == [0, 1, 3]
"""

# One unit, not two: nearly all the time goes into reading PyTorch's headers.
SOURCE = '#include "pybind.cpp"\n#include "utils.cpp"\n'


class CannotBuildError(Exception):
    pass


def trouble(folder=None):
    """What goes wrong when a new process uses the extension, that in `folder` or the installed one; None if nothing."""
    search = "" if folder is None else f"import torchrl; torchrl.__path__.insert(0, {str(folder)!r})\n"
    ran = subprocess.run([sys.executable, "-c", search + USE], capture_output=True, text=True, check=False)
    if ran.returncode == 0:
        return None
    return (ran.stderr.strip().splitlines() or [f"a test of it ended with status {ran.returncode}"])[-1]


def build(sources, folder):
    """Compile the extension into a file somewhere in `folder`."""
    from setuptools import Distribution
    from torch.utils.cpp_extension import BuildExtension, CppExtension

    if not (Path(sysconfig.get_path("include")) / "Python.h").is_file():
        raise CannotBuildError("the headers of Python are missing (on Debian: apt-get install python3-dev)")
    unit = folder / "unit.cpp"
    unit.write_text(SOURCE)
    # These options take a fifth off the time.
    extension = CppExtension(
        "_torchrl", [str(unit)], include_dirs=[str(sources)], extra_compile_args=["-O1", "-g0", "-w"]
    )
    command = BuildExtension.with_options(use_ninja=False)(Distribution({"ext_modules": [extension]}))
    command.build_lib, command.build_temp = str(folder / "lib"), str(folder / "temp")
    try:
        command.ensure_finalized()
        command.run()
    except Exception as error:
        hint = "on Debian: apt-get install g++"
        raise CannotBuildError(f"the C++ compiler is missing or failed ({hint}): {error}") from error
    return Path(command.get_ext_fullpath("_torchrl"))


def main():
    spec = importlib.util.find_spec("torchrl")
    if spec is None:
        sys.exit("TorchRL is not installed.")
    published = trouble()
    if published is None:
        print("TorchRL's prioritised samplers work.")
        return
    package = Path(spec.submodule_search_locations[0])
    sources = package / "csrc"
    print(f"TorchRL's extension does not work as installed ({published}): building it from {sources}", flush=True)
    # Beside the package, so that the last step is a rename: whoever uses the old file keeps it.
    with tempfile.TemporaryDirectory(dir=package.parent, prefix=".torchrl-extension-") as folder:
        try:
            if not (sources / "pybind.cpp").is_file():
                raise CannotBuildError("this TorchRL came without its C++ source")
            built = build(sources, Path(folder))
            if problem := trouble(built.parent):
                raise CannotBuildError(f"the one that was built does not work either: {problem}")
        except CannotBuildError as error:
            sys.exit(f"TorchRL's prioritised samplers CANNOT be tested here: {error}")
        os.replace(built, package / built.name)
    print(f"Built {package / built.name}: TorchRL's prioritised samplers work.")


if __name__ == "__main__":
    main()
