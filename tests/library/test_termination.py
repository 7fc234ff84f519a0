"""The termination classifier finds rare terminations, is calibrated, and keeps the models of a stack independent."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from synther_replay import termination as ends_module
from synther_replay.errors import CheckpointError, DivergedError
from synther_replay.termination import TerminationClassifier


def rows_of(n: int, seed: int = 0, inputs: int = 6) -> Tensor:
    return torch.randn(1, n, inputs, generator=torch.Generator().manual_seed(seed))


def too_low(inputs: Tensor) -> Tensor:
    """0.6 % of the rows are terminated, determined by one input."""
    return (inputs[..., 2] < -2.5).float()


def fit(inputs: Tensor, terminated: Tensor, seed: int = 0) -> TerminationClassifier:
    return TerminationClassifier.fit(inputs, terminated, batch_size=128, seed=seed)


def drawn(classifier: TerminationClassifier, inputs: Tensor, seed: int = 0) -> Tensor:
    return classifier.draw(inputs, torch.Generator().manual_seed(seed))


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Short training, for tests that do not check the quality of the classifier."""
    monkeypatch.setattr(ends_module, "_STEPS", (10, 30))


@pytest.fixture
def shorter(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorter training, sufficient for these tests."""
    monkeypatch.setattr(ends_module, "_STEPS", (200, 500))


@pytest.mark.slow
@pytest.mark.usefixtures("shorter")
def test_rare_ends_are_found_in_rows_that_it_has_not_seen() -> None:
    known, new = rows_of(20_000), rows_of(20_000, seed=1)
    found = drawn(fit(known, too_low(known)), new)
    right = (found * too_low(new)).sum()
    assert right / found.sum() > 0.9
    assert right / too_low(new).sum() > 0.6


@pytest.mark.slow
@pytest.mark.usefixtures("shorter")
@pytest.mark.parametrize("share", [0.02, 0.3, 0.9])
def test_unpredictable_terminations_keep_their_rate(share: float) -> None:
    inputs = rows_of(20_000)
    chance = torch.rand(1, 20_000, generator=torch.Generator().manual_seed(2))
    found = drawn(fit(inputs, (chance < share).float()), rows_of(20_000, seed=1))
    assert float(found.mean()) == pytest.approx(share, abs=0.4 * min(share, 1 - share))


@pytest.mark.parametrize("end", [0.0, 1.0])
@pytest.mark.usefixtures("hasty")
def test_rows_that_all_are_of_one_kind_stay_so(end: float) -> None:
    inputs = rows_of(100)
    assert (drawn(fit(inputs, torch.full((1, 100), end)), 100 * rows_of(1_000, seed=1)) == end).all()


@pytest.mark.slow
@pytest.mark.usefixtures("shorter")
def test_each_model_of_a_stack_has_ends_of_its_own() -> None:
    inputs = rows_of(5_000).expand(4, -1, -1)
    first, none, all_of_them = too_low(inputs[0] - 1), torch.zeros(5_000), torch.ones(5_000)
    ends = torch.stack((first, none, all_of_them, (inputs[3, :, 0] > 1).float()))
    found = drawn(fit(inputs, ends), inputs)
    assert (found[1] == 0).all()
    assert (found[2] == 1).all()
    for model in (0, 3):
        assert float((found[model] == ends[model]).float().mean()) > 0.99


@pytest.mark.usefixtures("hasty")
def test_the_same_seed_gives_the_same_classifier_and_flags() -> None:
    inputs = rows_of(500)
    ends = (inputs[..., 0] + torch.randn(1, 500, generator=torch.Generator().manual_seed(1)) > 0).float()
    one, again, other = (fit(inputs, ends, seed) for seed in (0, 0, 1))
    assert all(map(torch.equal, one, again))
    assert not torch.equal(one.w1, other.w1)
    assert torch.equal(drawn(one, inputs), drawn(again, inputs))
    assert not torch.equal(drawn(one, inputs), drawn(one, inputs, seed=1))


@pytest.mark.usefixtures("hasty")
def test_no_global_state_is_touched_and_no_gradient_is_left() -> None:
    inputs = rows_of(100)
    before = torch.get_rng_state()
    with torch.no_grad():
        classifier = fit(inputs, too_low(inputs))
        assert not torch.is_grad_enabled()
    assert torch.equal(torch.get_rng_state(), before)
    assert not any(tensor.requires_grad for tensor in classifier)


@pytest.mark.usefixtures("hasty")
def test_a_state_comes_back_as_it_was() -> None:
    inputs = rows_of(200)
    classifier = fit(inputs, too_low(inputs))
    state = classifier.state_dict()
    again = TerminationClassifier.from_state(state, 1, inputs.shape[2], torch.device("cpu"))
    state["w1"].zero_()
    assert all(map(torch.equal, classifier, again))


@pytest.mark.parametrize(("stack", "inputs"), [(2, 6), (1, 5)])
@pytest.mark.usefixtures("hasty")
def test_a_state_of_other_sizes_is_refused(stack: int, inputs: int) -> None:
    rows = rows_of(100)
    with pytest.raises(CheckpointError, match="w1"):
        TerminationClassifier.from_state(fit(rows, too_low(rows)).state_dict(), stack, inputs, torch.device("cpu"))


@pytest.mark.slow
@pytest.mark.usefixtures("shorter")
def test_predicted_probabilities_are_calibrated() -> None:
    known, new = rows_of(20_000), rows_of(20_000, seed=1)
    chance = torch.rand(1, 20_000, generator=torch.Generator().manual_seed(2))
    likely = lambda rows: (rows[..., 2] - 3).sigmoid()  # noqa: E731
    told = fit(known, (chance < likely(known)).float()).log_odds(new).sigmoid()
    for part in (new[..., 2] < -1, new[..., 2] > 1):
        assert float(told[part].mean()) == pytest.approx(float(likely(new)[part].mean()), rel=0.4)


@pytest.mark.slow
@pytest.mark.usefixtures("shorter")
def test_few_terminations_among_many_inputs_are_not_memorised() -> None:
    known, new = (rows_of(10_000, seed, inputs=40).expand(2, -1, -1) for seed in (0, 1))
    # one input is informative in the first model, none in the second
    chances = [torch.stack(((2 * rows[0, :, 2] - 5).sigmoid(), torch.full((10_000,), 0.02))) for rows in (known, new)]
    ends = (torch.rand(2, 10_000, generator=torch.Generator().manual_seed(2)) < chances[0]).float()
    told = TerminationClassifier.fit(known, ends, batch_size=256, seed=0).log_odds(new)
    guess = ends.mean(1, keepdim=True).logit().expand(2, 10_000)
    loss, of_guess, least = (
        F.binary_cross_entropy_with_logits(one, chances[1], reduction="none").mean(1)
        for one in (told, guess, chances[1].logit())
    )
    assert loss[0] - least[0] < 0.5 * (of_guess[0] - least[0])
    assert loss[1] < 1.2 * of_guess[1]


@pytest.mark.usefixtures("hasty")
def test_divergence_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ends_module, "_LEARNING_RATE", 1e30)
    with pytest.raises(DivergedError, match="termination classifier"):
        fit(rows_of(100), too_low(rows_of(100)))


@pytest.mark.usefixtures("hasty")
def test_a_fit_that_only_gets_worse_keeps_the_base_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ends_module, "_LEARNING_RATE", 1.0)
    inputs, terminated = rows_of(400), (torch.arange(400) % 4 == 0).float()[None]
    assert torch.allclose(fit(inputs, terminated).log_odds(inputs), terminated.mean().logit(), atol=1e-3)
