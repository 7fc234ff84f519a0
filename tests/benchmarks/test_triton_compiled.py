"""What Triton makes of the kernels for a Hopper GPU, as they are launched; to look at it takes no GPU."""

import importlib
import os
import re
from dataclasses import dataclass

import pytest
import torch

from synther_replay.benchmarks.agents.networks.adam import Adam
from synther_replay.benchmarks.agents.networks.mlp import MlpShape

triton = pytest.importorskip("triton")
if os.environ.get("TRITON_INTERPRET") == "1":
    pytest.skip("the interpreter compiles nothing", allow_module_level=True)
NETWORKS = "synther_replay.benchmarks.agents.networks"
kernels, learning, triton_networks, triton_matmul, backends = map(
    importlib.import_module,
    (
        f"{NETWORKS}.triton_kernels",
        f"{NETWORKS}.triton_learning",
        f"{NETWORKS}.triton_networks",
        f"{NETWORKS}.triton_matmul",
        "triton.backends.compiler",
    ),
)

HOPPER = backends.GPUTarget("cuda", 90, 32)
KINDS = {torch.float32: "*fp32", torch.float16: "*fp16", float: "fp32", int: "i32"}
BATCH = 256


class Launch:
    """Stands for a kernel: notes what it would be launched with."""

    def __init__(self, kernel):
        self.kernel, self.arguments = kernel, {}

    def __getitem__(self, grid):
        return self.note

    def note(self, *values, **named):
        self.arguments = dict(zip(self.kernel.arg_names, values, strict=False)) | named

    def compiled(self):
        """In Triton's last language of its own."""
        known, kinds, aligned = {}, {}, {}
        for place, parameter in enumerate(self.kernel.params):
            value = self.arguments[parameter.name]
            if parameter.is_constexpr:
                known[(place,)], kinds[parameter.name] = value, "constexpr"
            elif isinstance(value, torch.Tensor):
                aligned[(place,)], kinds[parameter.name] = [["tt.divisibility", 16]], KINDS[value.dtype]
            else:
                kinds[parameter.name] = KINDS[type(value)]
        source = triton.compiler.ASTSource(self.kernel, kinds, known, aligned)
        options = {name: self.arguments[name] for name in ("num_warps", "num_stages")}
        return triton.compile(source, target=HOPPER, options=options).asm["ttgir"]


@pytest.fixture
def launches(monkeypatch):
    """All kernels by name, none of which runs."""
    modules = dict.fromkeys(("values", "errors", "outputs", "back", "product"), kernels) | {"learn": learning}
    found = {name: Launch(getattr(module, name)) for name, module in modules.items()}
    for name, launch in found.items():
        monkeypatch.setattr(modules[name], name, launch)
    return found


@dataclass
class Buffer:
    """Shared memory that products read: how many tiles it holds, and how many are fetched at a time."""

    places: int
    fetched: int = 0


def buffers_of_products(code):
    """All of them, of which some are filled by hand; what is fetched before a loop and in it is under way at once."""
    buffers, found = {}, []  # names come again in another branch, so what counts is the last before
    for line in code.splitlines():
        if new := re.search(r"(%\w+) = ttg\.local_alloc .*!ttg\.memdesc<(\d+)x", line):
            buffers[new[1]] = Buffer(int(new[2]))
        elif view := re.search(r"(%\w+) = ttg\.memdesc_\w+ (%\w+)", line):
            buffers[view[1]] = buffers[view[2]]
        elif fetch := re.search(r"async_copy_global_to_local %\w+, (%\w+)", line):
            buffers[fetch[1]].fetched += 1
        elif product := re.search(r"warp_group_dot (%\w+), (%\w+),", line):
            found += [buffers[product[1]]] if product[1] in buffers else []  # else it is in registers
            found.append(buffers[product[2]])
    return found


def check(launch):
    """A product runs on in the background: it needs a place beside those of all that is under way meanwhile."""
    found = buffers_of_products(launch.compiled())
    assert [buffer for buffer in found if buffer.places < buffer.fetched] == []
    return found


@pytest.mark.parametrize(("agents", "outputs"), [(2, 1), (2, 2), (2, 3), (2, 12), (32, 6)])
def test_networks_fetch_nothing_to_where_a_product_may_still_read(agents, outputs, launches):
    shape = MlpShape(17, outputs)
    parameters = torch.zeros(2 * agents, shape.parameters)
    network = triton_networks.LearningTritonNetwork(
        parameters, Adam(parameters[:agents], 3e-4), shape, batch_size=BATCH, target_speed=0.005
    )
    out = network.forward(torch.zeros(agents, BATCH, shape.padded_inputs))
    network.backward_to_inputs(out)
    check(launches["back"])
    network.learn(out, torch.zeros(2), update_targets=True)
    for name in ("outputs", "back"):
        check(launches[name])
    # Both operands of the second layer's, and what several outputs need.
    assert len(check(launches["learn"])) >= 2 + (outputs > 1)


@pytest.mark.parametrize(("agents", "each"), [(2, 2), (8, 2), (8, 10)])
@pytest.mark.parametrize("norm", [{}, {"layer_norm": True}, {"layer_norm": True, "alternating": True}])
def test_critics_fetch_nothing_to_where_a_product_may_still_read(agents, each, norm, launches):
    shape, stack = MlpShape(23, 1, **norm), agents * each
    values = torch.zeros(2 * stack, shape.parameters)
    critics = triton_networks.TritonCritics(
        values, Adam(values[:stack], 3e-4), shape, critics=each, batch_size=BATCH, target_speed=0.005
    )
    asked = torch.zeros(2, agents, BATCH, shape.padded_inputs)
    critics.update(asked, torch.zeros(2, agents, BATCH), torch.zeros(agents, each), torch.zeros(2))
    for name in ("values", "errors", "learn"):
        check(launches[name])


@pytest.mark.parametrize(("m", "n", "k"), [(1024, 512, 512), (512, 512, 1024), (256, 256, 256), (24, 256, 256)])
def test_products_fetch_nothing_to_where_they_may_still_read(m, n, k, launches):
    triton_matmul.product(torch.zeros(8, m, k).half(), torch.zeros(8, k, n).half())
    check(launches["product"])


# EDAC and CQL use `product` for each layer: forward, back through a layer, and for the gradients of weights.
LAYER = (256, 256, 256)
FORWARD = [
    (kind, size, "") for kind in ("plain", "biased", "masked") for size in (LAYER, (256, 256, 24), (256, 1, 256))
]
BACK = [(kind, size, "b") for kind in ("plain", "masked") for size in (LAYER, (256, 24, 256), (256, 256, 12))]
GRADIENTS = [(kind, size, "a") for kind in ("plain", "added") for size in (LAYER, (24, 256, 256), (256, 1, 256))]


@pytest.mark.parametrize(("kind", "size", "transposed"), [*FORWARD, *BACK, *GRADIENTS])
def test_products_of_layers_fetch_nothing_to_where_they_may_still_read(kind, size, transposed, launches):
    m, n, k = size
    a = torch.zeros(40, k, m).mT if transposed == "a" else torch.zeros(40, m, k)
    b = torch.zeros(40, n, k).mT if transposed == "b" else torch.zeros(40, k, n)
    options = {
        "plain": {"dtype": torch.float32},
        "biased": {"bias": torch.zeros(40, 1, n).half(), "relu": True},
        "masked": {"unit": torch.zeros(40, m, n).half()},
        "added": {"out": torch.zeros(40, m, n), "add": True, "factor": 1 / 256},
    }
    triton_matmul.product(a.half(), b.half(), **options[kind])
    check(launches["product"])
