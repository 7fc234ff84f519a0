"""The kernel that mixes a batch gives what PyTorch gives; on a GPU, or with ``TRITON_INTERPRET=1``."""

import importlib
import importlib.util
import inspect
import os

import pytest
import torch

pytest.importorskip("torchrl")
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1" and importlib.util.find_spec("triton") is not None
if not (torch.cuda.is_available() or INTERPRETED):
    pytest.skip("needs a GPU, or Triton's interpreter", allow_module_level=True)

from synther_replay.adapters.torchrl import mixing  # noqa: E402

DEVICE = torch.device("cpu" if INTERPRETED else "cuda")


@pytest.mark.parametrize("size, real", [(256, 128), (37, 20), (16, 1), (300, 299), (300, 300)])
@pytest.mark.parametrize("widths", [[17, 6, 1, 17], [1], [70, 3, 1, 70]], ids=str)
def test_the_kernel_gives_the_batch_of_pytorch(size, real, widths):
    rng = torch.Generator().manual_seed(0)
    numbers = torch.randn(500, sum(widths), generator=rng).to(DEVICE)
    flags = (torch.rand(5, 500, generator=rng) < 0.3).to(DEVICE)
    rows = torch.randn(size, sum(widths) + 1, generator=rng).to(DEVICE)
    rows[:, -1] = (rows[:, -1] > 0.5).float()
    places = torch.randperm(size, generator=rng)[:real].to(DEVICE)
    index = torch.randint(500, (real,), generator=rng).to(DEVICE)
    columns = mixing.Columns.of(widths, DEVICE)
    launchers = importlib.import_module("synther_replay.adapters.torchrl.launchers")
    arguments = (rows, places, index, numbers, flags, 3, columns)
    assert list(inspect.signature(launchers.mix).parameters) == list(inspect.signature(mixing.mix).parameters)
    for found, expected in zip(launchers.mix(*arguments), inspect.unwrap(mixing.mix)(*arguments), strict=True):
        assert torch.equal(found, expected)
