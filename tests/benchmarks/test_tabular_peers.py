"""TVAE and CTGAN behind the interface of our generator."""

import json
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box

from synther_replay import Transitions, TransitionSpec
from synther_replay.benchmarks.peers.tabular import PEERS, TabularPeer

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def real() -> Transitions:
    """Rows of a task with one column of each kind, a fifth of them terminated."""
    rng = np.random.default_rng(0)
    spec = TransitionSpec.from_spaces(Box(-np.inf, np.inf, (1,)), Box(-1, 1, (1,)))
    values = rng.normal(size=(4, 400, 1))
    return Transitions.from_arrays(spec, values[0], values[1], values[2, :, 0], values[3], np.arange(400) % 5 == 0)


class Bootstrap:
    """Stands for a model of the package: draws from the rows it was fitted to."""

    def __init__(self, width=128, epochs=300, enable_gpu=True):
        self.given = width, epochs, enable_gpu
        self.decoder = torch.nn.Linear(3, 2)

    def set_random_state(self, seed):
        self.seed = seed

    def fit(self, table, discrete):
        self.table, self.discrete = table, discrete

    def sample(self, n):
        return self.table.iloc[torch.randint(len(self.table), (n,)).numpy()]


@pytest.fixture
def stand_in(monkeypatch):
    """The package with another model in it."""
    pytest.importorskip("pandas")
    module = SimpleNamespace(TVAE=Bootstrap, CTGAN=Bootstrap, __version__="1.2")
    monkeypatch.setitem(sys.modules, "ctgan", module)


def test_the_package_gets_a_table_with_one_discrete_column(stand_in, real):
    peer = TabularPeer("tvae", device=CPU, seed=3)
    peer.fit(real)
    model = peer._model
    assert model.given == (128, 300, False)
    assert model.seed == 3
    assert model.discrete == ["4"]
    assert [str(kind) for kind in model.table.dtypes] == ["float64"] * 4 + ["bool"]
    assert peer.parameters == 8
    assert peer.settings == {"package": "ctgan 1.2", "width": 128, "epochs": 300, "enable_gpu": False}
    rows = peer.sample(100)
    assert rows.spec == real.spec
    rows.check()
    assert all((real.rows == row).all(1).any() for row in rows.rows)


def test_the_same_seed_agrees_and_two_draws_differ(stand_in, real):
    torch.manual_seed(0)
    before = torch.get_rng_state()
    draws = []
    for seed in (0, 0, 7):
        peer = TabularPeer("ctgan", epochs=2, device=CPU, seed=seed)
        peer.fit(real)
        draws.append([peer.sample(50).rows for _ in range(2)])
    assert all(torch.equal(one, other) for one, other in zip(draws[0], draws[1], strict=True))
    assert not torch.equal(draws[0][0], draws[0][1])
    assert not torch.equal(draws[0][0], draws[2][0])
    assert torch.equal(torch.get_rng_state(), before)


def test_what_cannot_be_built_is_refused(stand_in):
    with pytest.raises(ValueError, match="name: expected one of tvae, ctgan, got 'gan'"):
        TabularPeer("gan", device=CPU)
    with pytest.raises(ValueError, match="epochs: expected a whole number of at least 1, got 0"):
        TabularPeer("tvae", epochs=0, device=CPU)


def test_without_the_package_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "ctgan", None)
    with pytest.raises(ImportError, match=r"pip install 'synther-replay\[fidelity\]'"):
        TabularPeer("tvae", device=CPU)


@pytest.mark.parametrize("name", PEERS)
def test_the_real_ones_learn_and_generate(name, real):
    pytest.importorskip("ctgan")
    peers = [TabularPeer(name, epochs=1, device=CPU, seed=1) for _ in range(2)]
    for peer in peers:
        peer.fit(real)
    one, other = (peer.sample(300) for peer in peers)
    one.check()
    assert len(one) == 300
    assert torch.equal(one.rows, other.rows)
    assert peers[0].parameters > 10_000
    assert json.dumps(peers[0].settings)
