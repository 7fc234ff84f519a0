"""The best state of each model is kept, and patience counts for each."""

import torch

from synther_replay.diffusion.stopping import BestModels


def test_each_model_goes_back_to_its_own_best():
    state = {"weights": torch.zeros(2, 3), "frequencies": torch.zeros(2, 1, 1)}
    best = BestModels(state, patience=None)
    for step, losses in enumerate([[3.0, 3.0], [1.0, 4.0], [2.0, 2.0]]):
        for tensor in state.values():
            tensor.fill_(step)
        assert not best.measure(torch.tensor(losses))
    best.restore()
    assert best.loss.tolist() == [1.0, 2.0]
    assert state["weights"][:, 0].tolist() == [1.0, 2.0]
    assert state["frequencies"].flatten().tolist() == [1.0, 2.0]


def test_it_ends_when_the_last_model_is_out_of_patience():
    best = BestModels({"weights": torch.zeros(2, 1)}, patience=2)
    ends = [best.measure(torch.tensor(losses)) for losses in ([1.0, 1.0], [2.0, 0.9], [2.0, 1.0], [2.0, 1.0])]
    assert ends == [False, False, False, True]


def test_a_model_out_of_patience_does_not_gain_from_the_time_that_another_takes():
    state = {"weights": torch.zeros(2, 1)}
    best = BestModels(state, patience=2)
    for step, losses in enumerate([[2.0, 5.0], [3.0, 4.0], [3.0, 3.0], [1.0, 2.0], [1.0, 2.5], [1.0, 2.5]]):
        state["weights"].fill_(step)
        ended = best.measure(torch.tensor(losses))
    assert ended
    best.restore()
    assert best.loss.tolist() == [2.0, 2.0]
    assert state["weights"].flatten().tolist() == [0.0, 3.0]


def test_a_loss_that_is_only_equal_is_no_improvement():
    best = BestModels({"weights": torch.zeros(1, 1)}, patience=1)
    assert [best.measure(torch.tensor([1.0])) for _ in range(2)] == [False, True]


def test_the_model_before_the_fit_is_kept_if_nothing_is_better_but_does_not_use_up_patience():
    state = {"weights": torch.zeros(1, 1)}
    best = BestModels(state, patience=2)
    best.begin_with(torch.tensor([1.0]))
    state["weights"].fill_(7)
    assert [best.measure(torch.tensor([loss])) for loss in (4.0, 3.0, 2.0, 2.5, 2.6)] == [False] * 4 + [True]
    best.restore()
    assert state["weights"].item() == 0
    assert best.loss.item() == 1.0
