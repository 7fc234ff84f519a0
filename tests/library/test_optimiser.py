"""The stacked Adam against PyTorch's, one model at a time."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from synther_replay.diffusion.optimiser import StackAdam

Stream = Callable[[int], torch.Generator]
BETAS, CLIP, STACK, P = (0.9, 0.99), 1.0, 3, 40


@pytest.mark.parametrize(
    "scales", [(0.01, 0.01, 0.01), (50.0, 50.0, 50.0), (0.01, 1.0, 50.0)], ids=["inactive", "active", "mixed"]
)
def test_fifty_steps_equal_torch_adam_with_clipping_per_model(scales: tuple[float, ...], stream: Stream) -> None:
    rng = stream(0)
    start = torch.randn(STACK, P, generator=rng)
    ours = StackAdam(start.clone(), torch.float32, betas=BETAS, clip=CLIP)
    theirs = [torch.nn.Parameter(row.clone().double()) for row in start]
    optimisers = [torch.optim.Adam([row], lr=1.0, betas=BETAS) for row in theirs]
    # The rate falls as it does in training.
    learning_rates = torch.linspace(1e-2, 1e-4, 50, dtype=torch.float64)
    norms = []
    for t, learning_rate in enumerate(learning_rates, start=1):
        gradient = torch.randn(STACK, P, generator=rng) * torch.tensor(scales)[:, None]
        norms.append(gradient.norm(dim=1))
        ours.gradient.copy_(gradient)
        ours.step(ours.bias_corrected(learning_rate, torch.tensor([t]))[0])
        for m in range(STACK):
            theirs[m].grad = gradient[m].double()
            torch.nn.utils.clip_grad_norm_([theirs[m]], CLIP)
            optimisers[m].param_groups[0]["lr"] = learning_rate.item()
            optimisers[m].step()
    clipped = (torch.stack(norms) > CLIP).double().mean(0)
    assert clipped.tolist() == [float(scale > 0.01) for scale in scales]
    expected = torch.stack(theirs).detach()
    torch.testing.assert_close(ours.parameters.double(), expected, rtol=1e-5, atol=1e-5)
    assert (expected - start).abs().mean() > 0.01


def test_the_rates_of_several_steps_are_those_of_each(stream: Stream) -> None:
    optimiser = StackAdam(torch.zeros(1, 1), torch.float32, betas=BETAS, clip=CLIP)
    rates = optimiser.bias_corrected(torch.tensor(0.1, dtype=torch.float64), torch.tensor([1, 5, 1000]))
    expected = [[0.1 / (1 - 0.9**t), (1 - 0.99**t) ** -0.5] for t in (1, 5, 1000)]
    torch.testing.assert_close(rates, torch.tensor(expected))


def test_a_zero_gradient_moves_nothing() -> None:
    optimiser = StackAdam(torch.ones(2, 5), torch.float32, betas=BETAS, clip=CLIP)
    optimiser.step(torch.tensor([0.1, 1.0]))
    assert torch.equal(optimiser.parameters, torch.ones(2, 5))


def test_the_average_follows_its_formula(stream: Stream) -> None:
    rng = stream(0)
    optimiser = StackAdam(torch.randn(2, 5, generator=rng), torch.float32, betas=BETAS, clip=CLIP)
    expected = optimiser.parameters.double()
    for weight in (0.9, 0.5, 0.005):
        optimiser.parameters.copy_(torch.randn(2, 5, generator=rng))
        optimiser.update_average(torch.tensor(weight, dtype=torch.float64))
        expected = (1 - weight) * expected + weight * optimiser.parameters.double()
        torch.testing.assert_close(optimiser.average.double(), expected, rtol=1e-6, atol=1e-6)


def test_the_working_copy_follows_the_weights_in_its_own_type(stream: Stream) -> None:
    optimiser = StackAdam(torch.randn(2, 5, generator=stream(0)), torch.bfloat16, betas=BETAS, clip=CLIP)
    assert optimiser.working.dtype == optimiser.gradient.dtype == torch.bfloat16
    assert optimiser.parameters.dtype == optimiser.average.dtype == torch.float32
    optimiser.gradient.fill_(1)
    optimiser.step(torch.tensor([0.1, 1.0]))
    assert torch.equal(optimiser.working, optimiser.parameters.bfloat16())


def test_the_working_copy_is_no_view_of_the_weights() -> None:
    optimiser = StackAdam(torch.zeros(1, 3), torch.float32, betas=BETAS, clip=CLIP)
    optimiser.parameters.fill_(2)
    assert not optimiser.working.any()
    optimiser.refresh_working()
    assert torch.equal(optimiser.working, torch.full((1, 3), 2.0))


def test_reset_forgets_moments_and_average_in_place(stream: Stream) -> None:
    optimiser = StackAdam(torch.zeros(2, 5), torch.float32, betas=BETAS, clip=CLIP)
    optimiser.gradient.fill_(1)
    optimiser.step(torch.tensor([0.1, 1.0]))
    optimiser.update_average(torch.tensor(0.5))
    places = {name: tensor.data_ptr() for name, tensor in optimiser.tensors().items()}
    new = torch.randn(2, 5, generator=stream(0))
    optimiser.reset(new)
    for tensor in (optimiser.parameters, optimiser.working, optimiser.average):
        assert torch.equal(tensor, new)
    assert not optimiser.mean.any()
    assert not optimiser.square.any()
    assert places == {name: tensor.data_ptr() for name, tensor in optimiser.tensors().items()}
