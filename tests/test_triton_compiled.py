"""What Triton makes of the kernels for a Hopper GPU; to look at it takes no GPU."""

import importlib
import os
import re
import sys
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


def buffers_of_products(code):
    """Of the buffers that are filled in the background and that products read: how many places each has."""
    whole = dict(re.findall(r"(%\w+) = ttg\.memdesc_\w+ (%\w+)", code))

    def buffer(name):
        return buffer(whole[name]) if name in whole else name

    read = {buffer(name) for pair in re.findall(r"warp_group_dot (%\w+), (%\w+),", code) for name in pair}
    filled = {buffer(name) for name in re.findall(r"async_copy_global_to_local %\w+, (%\w+)", code)}
    places = dict(re.findall(r"(%\w+) = ttg\.local_alloc : \(\) -> !ttg\.memdesc<(\d+)x", code))
    return {name: int(places[name]) for name in read & filled}


@pytest.mark.parametrize("outputs", [1, 2, 6, 12])
def test_nothing_is_fetched_to_where_a_product_may_still_read(outputs):
    """A product runs on in the background: with one place, what is fetched next would overwrite what it reads."""
    found = buffers_of_products(learn(outputs))
    assert found
    assert min(found.values()) >= 2
