"""What Triton makes of the kernels for a Hopper GPU; to look at it takes no GPU."""

import importlib
import os
import re

import pytest
import torch

triton = pytest.importorskip("triton")
if os.environ.get("TRITON_INTERPRET") == "1":
    pytest.skip("the interpreter compiles nothing", allow_module_level=True)
launchers, kernels, backends = map(
    importlib.import_module,
    (
        "synther_replay.diffusion.launchers",
        "synther_replay.diffusion.triton_kernels",
        "triton.backends.compiler",
    ),
)

HOPPER = backends.GPUTarget("cuda", 90, 32)
KINDS = {torch.float32: "*fp32", torch.bfloat16: "*bf16", float: "fp32", int: "i32"}
NAMES = [
    name
    for name, value in vars(kernels).items()
    if isinstance(value, triton.runtime.jit.JITFunction) and not name.startswith("_")
]
# Loads and stores of 16 bytes at a time, where all operands have aligned rows.
ALIGNED = ("biased_silu", "shifted_relu", "add_through_relu", "add_gained", "gained_gradient", "adam")


class Launch:
    """Stands for a kernel: notes what it would be launched with."""

    def __init__(self, kernel):
        self.kernel = kernel

    def __getitem__(self, grid):
        return self.note

    def note(self, *values, **named):
        arguments = dict(zip(self.kernel.arg_names, values, strict=False)) | named
        self.known, self.kinds, self.aligned, self.specialised = {}, {}, {}, []
        for place, parameter in enumerate(self.kernel.params):
            value = arguments[parameter.name]
            if parameter.is_constexpr:
                self.known[(place,)], self.kinds[parameter.name] = value, "constexpr"
            elif isinstance(value, torch.Tensor):
                self.aligned[(place,)] = [["tt.divisibility", 16]]
                self.kinds[parameter.name] = KINDS[value.dtype]
            else:
                self.kinds[parameter.name] = KINDS[type(value)]
                if isinstance(value, int) and not parameter.do_not_specialize:
                    self.specialised.append(parameter.name)

    def ptx(self):
        source = triton.compiler.ASTSource(self.kernel, self.kinds, self.known, self.aligned)
        return triton.compile(source, target=HOPPER, options={"num_warps": 4}).asm["ptx"]


def launch_all(patch, models, rows, width, dim):
    """Every kernel once, with these sizes; returns what each would be launched with."""
    launches = {name: Launch(getattr(kernels, name)) for name in NAMES}
    with patch.context() as here:
        for name, launch in launches.items():
            here.setattr(kernels, name, launch)
        padded, size = -(-dim // 8) * 8, 40 * width

        def bf16(*shape):
            return torch.zeros(shape, dtype=torch.bfloat16)

        def layer(columns=width):
            return bf16(models, rows, columns)

        sigma, codes = torch.zeros(1, 1, 1), torch.zeros(models, rows, dim)
        launchers.corrupt(
            codes, torch.zeros(models, rows, 1), codes, torch.zeros(models, 1, 8), padded, 24, torch.bfloat16
        )
        launchers.biased_silu(layer(), bf16(models, 1, width))
        launchers.running_sum(bf16(models, 7, width))
        launchers.shifted_relu(layer(), bf16(models, 1, width), layer())
        launchers.add_through_relu(layer(), layer(), layer(), layer())
        launchers.add_gained(layer(padded), layer(2 * padded), layer(padded), (3.0, 1.0))
        launchers.gained_gradient(layer(padded), layer(padded), (3.0, 1.0))
        launchers.squared_error(layer(padded), codes, torch.zeros(models))
        launchers.scaled_input(codes, sigma, padded, torch.bfloat16)
        launchers.denoised(codes, layer(padded), sigma)
        flat = [torch.zeros(models, size, dtype=kind) for kind in (torch.float32, torch.bfloat16) * 2]
        parameters, working, mean, gradient = flat
        norm, rates = torch.zeros(models, 1), torch.zeros(2)
        launchers.adam(parameters, working, gradient, mean, mean, norm, rates, 1.0, 0.9, 0.99)
    return launches


def test_one_compilation_serves_all_sizes():
    first, second = (launch_all(pytest.MonkeyPatch, *sizes) for sizes in ((1, 256, 1024, 42), (8, 1, 136, 715)))
    for name in NAMES:
        assert first[name].specialised == [], name
        for attribute in ("known", "kinds", "aligned"):
            assert getattr(first[name], attribute) == getattr(second[name], attribute), name


@pytest.mark.parametrize("name", NAMES)
def test_a_kernel_compiles_and_moves_16_bytes_at_a_time(name):
    code = launch_all(pytest.MonkeyPatch, 2, 256, 512, 42)[name].ptx()
    assert "st.global" in code
    if name in ALIGNED:
        # What is broadcast over rows or shared by all, such as rates, is read one by one.
        assert set(re.findall(r"st\.global[\w.:]*", code)) == {"st.global.v4.b32"}
        assert "ld.global.v4.b32" in code
