"""What Triton makes of the kernels for a Hopper GPU; to look at it takes no GPU."""

import importlib
import os
import re
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))
from stacked import MlpShape

triton = pytest.importorskip("triton")
if os.environ.get("TRITON_INTERPRET") == "1":
    pytest.skip("the interpreter compiles nothing", allow_module_level=True)
kernels, backends = importlib.import_module("kernels"), importlib.import_module("triton.backends.compiler")

HOPPER = backends.GPUTarget("cuda", 90, 32)
HALVES = ("halves", "h1", "h2", "d_h1", "d_h2")


def learn(outputs):
    """The kernel that makes Adam's steps of policies with so many outputs, in Triton's last language of its own."""
    shape = MlpShape(17, outputs)
    columns = shape.padded_inputs
    sizes = {"P": shape.parameters, "S": 2, "N": 1, "B": 256, "AGENT": 256 * columns, "C": columns, "H": 256}
    tiles = {"A": outputs, "AP": max(16, triton.next_power_of_2(outputs)), "CT": 32, "RT": 64, "T": 64}
    starts = {name.upper(): start for name, start in shape.starts().items() if name != "w1"}
    known = {**starts, **sizes, **tiles, "FACTOR": 1 / 256, "FACTOR3": 1.0, "FOLLOW": True}
    numbers = ("speed", "beta1", "beta2", "eps")
    names = kernels.learn.arg_names
    kinds = dict.fromkeys(names, "*fp32") | dict.fromkeys(HALVES, "*fp16") | dict.fromkeys(numbers, "fp32")
    kinds |= dict.fromkeys(known, "constexpr")
    places = [(k,) for k, name in enumerate(names) if kinds[name].startswith("*")]
    values = {(names.index(name),): value for name, value in known.items()}
    aligned = {place: [["tt.divisibility", 16]] for place in places}
    source = triton.compiler.ASTSource(kernels.learn, kinds, values, aligned)
    return triton.compile(source, target=HOPPER, options={"num_warps": 4, "num_stages": 2}).asm["ttgir"]


@dataclass
class Buffer:
    """Shared memory that products read: how many tiles it holds, and how many are fetched at a time."""

    places: int
    fetched: int = 0


def buffers_of_products(code):
    """All of them, of which some are filled by hand; what is fetched before a loop and in it is under way at once."""
    buffers, found = {}, []  # names come again in another branch, so what counts is the last before
    for line in code.splitlines():
        if new := re.search(r"(%\w+) = ttg\.local_alloc (.*-> )?.*?!ttg\.memdesc<(\d+)x", line):
            buffers[new[1]] = Buffer(int(new[3]))
        elif view := re.search(r"(%\w+) = ttg\.memdesc_\w+ (%\w+)", line):
            buffers[view[1]] = buffers[view[2]]
        elif fetch := re.search(r"async_copy_global_to_local %\w+, (%\w+)", line):
            buffers[fetch[1]].fetched += 1
        elif product := re.search(r"warp_group_dot (%\w+), (%\w+),", line):
            found += [buffers[product[1]]] if product[1] in buffers else []  # else it is in registers
            found.append(buffers[product[2]])
    return found


@pytest.mark.parametrize("outputs", [1, 2, 3, 6, 12])
def test_nothing_is_fetched_to_where_a_product_may_still_read(outputs):
    """A product runs on in the background: it needs a place beside those of all that is under way meanwhile."""
    found = buffers_of_products(learn(outputs))
    assert len(found) >= 2 + (outputs > 1)  # both operands of the second layer's, and what several outputs need
    assert [buffer for buffer in found if buffer.places < buffer.fetched] == []
