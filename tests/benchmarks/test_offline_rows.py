"""The rows of offline runs: which of them are real, which are generated and when, and what is done to them."""

import json

import numpy as np
import offline_stand_ins
import pytest
import torch
from offline_stand_ins import GENERATOR, HOPPER, MAZE, config

from synther_replay import DivergedError
from synther_replay.adapters.corl import ReplayBuffer
from synther_replay.benchmarks.agents.augment import AUGMENTATIONS
from synther_replay.benchmarks.data.registry import load, write
from synther_replay.benchmarks.offline import rows as offline_rows
from synther_replay.benchmarks.offline.rows import DataSource

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return offline_stand_ins.write_sets(tmp_path_factory.mktemp("sets"))


@pytest.fixture(autouse=True)
def quick(monkeypatch, tmp_path):
    offline_stand_ins.no_other_sets(monkeypatch, tmp_path)
    offline_stand_ins.install(monkeypatch)


@pytest.fixture
def source(folder):
    return DataSource(folder, CPU)


@pytest.fixture
def fits(monkeypatch):
    """The real rows that each fit was made to, and how many were asked for."""
    made, genuine = [], ReplayBuffer.upsample

    def upsample(self, n):
        made.append((self._ring.transitions().rows.clone(), n))
        return genuine(self, n)

    monkeypatch.setattr(ReplayBuffer, "upsample", upsample)
    return made


def raw(rows):
    """The rows before states were scaled."""
    found, spec = rows.rows.clone(), rows.spec
    for columns in (spec.observations, spec.next_observations):
        found[:, columns] = found[:, columns] * rows.std + rows.mean
    return found


def expect_rows(found, expected):
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


def are_in(rows, among):
    """Which rows are also among others, but for rounding."""
    return torch.cdist(rows, among, compute_mode="donot_use_mm_for_euclid_dist").amin(1) < 1e-3


class TestKinds:
    def test_real_is_the_data_set_and_fits_nothing(self, source, fits, folder):
        rows, about = source.rows(config())
        expected = load(HOPPER, folder=folder).transitions().rows
        assert len(rows) == rows.real == len(expected)
        expect_rows(raw(rows), expected)
        assert not fits
        digest = load(HOPPER, folder=folder).digest()
        made = {"dataset_command": "python make.py", "dataset_digest": digest}
        assert about == {"origin": "regenerated", "timeouts_derived": False, "real_rows": len(expected), **made}

    def test_synther_has_no_real_row(self, source, fits, folder):
        rows, about = source.rows(config(data="synther"))
        real = load(HOPPER, folder=folder).transitions().rows
        assert (len(rows), rows.real, len(fits)) == (96, 0, 1)
        assert not are_in(raw(rows), real).any()
        expect_rows(fits[0][0], real)
        assert about["real_rows"] == len(real)  # of the set, for the table
        assert about["synthetic_rows"] == 96
        assert about["fit_steps"] == 20
        assert about.keys() >= {"fit_seconds", "generate_seconds", "held_out_loss", "origin"}

    @pytest.mark.parametrize("data", ["real", "synther", "mixed"])
    def test_observations_are_scaled_by_those_of_the_data_set(self, data, source, folder):
        rows, _ = source.rows(config(data=data))
        real = load(HOPPER, folder=folder).observations
        np.testing.assert_allclose(rows.mean, real.mean(0), rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(rows.std, real.std(0) + 1e-3, rtol=1e-4)

    @pytest.mark.parametrize(("ratio", "share"), [(0.5, 16), (0.25, 8)])
    def test_mixed_has_both_in_their_share(self, source, ratio, share):
        synthetic = raw(source.rows(config(data="synther"))[0])
        real = raw(source.rows(config())[0])
        rows, about = source.rows(config(data="mixed", real_ratio=ratio))
        expect_rows(raw(rows), torch.cat((real, synthetic)))
        assert (about["real_rows"], about["synthetic_rows"]) == (len(real), 96)
        drawn = rows.draw(50, 32, rng=torch.Generator().manual_seed(0))
        found = are_in(drawn.flatten(0, 1), rows.rows[: rows.real]).view(50, 32)
        assert (found.sum(1) == share).all()

    def test_a_maze_has_its_own_columns(self, source):
        rows, _ = source.rows(config(data="mixed", dataset=MAZE))
        assert (rows.spec.observation_dim, rows.spec.action_dim) == (4, 2)

    def test_generated_rows_are_transitions_of_the_task(self, source):
        rows, _ = source.rows(config(data="synther"))
        found, spec = raw(rows), rows.spec
        assert torch.isfinite(found).all()
        assert found[:, spec.actions].abs().max() <= 1
        assert torch.isin(found[:, spec.terminated], torch.tensor([0.0, 1.0])).all()

    def test_actions_beyond_one_are_generated_as_they_are(self, tmp_path, fits):
        arrays = dict(offline_stand_ins.collected("Hopper-v5", 200))
        arrays["actions"] = 1.5 * arrays["actions"]
        write(tmp_path / f"{HOPPER}.hdf5", arrays, {"command": "", "recipe": {}})
        rows, _ = DataSource(tmp_path, CPU).rows(config(data="synther"))
        reach = float(np.abs(arrays["actions"]).max())
        assert 1 < rows.rows[:, rows.spec.actions].abs().max() <= reach + 1e-6


class TestSharing:
    OTHERS = (
        {"dataset": MAZE},
        {"subsample": 0.5},
        {"first_seed": 1},
        {"rows": 64},
        {"preset": "fast"},
        {"generator": {**GENERATOR, "sampling_steps": 4}},
    )

    def test_rows_are_generated_once_for_all_that_share_them(self, source, fits):
        first, told = source.rows(config(data="synther"))
        sharing = [{"algo": "iql"}, {"seeds": 5}, {"steps": 80}, {"network": "large"}, {"episodes": 3}]
        for changes in sharing:
            rows, about = source.rows(config(data="synther", **changes))
            columns = rows.spec.actions  # what no reward scale and no scaling of states touches
            assert torch.equal(rows.rows[:, columns], first.rows[:, columns])
            assert about == told
        mixed, _ = source.rows(config(data="mixed"))
        expect_rows(raw(mixed)[mixed.real :], raw(first))
        assert len(fits) == 1

    @pytest.mark.parametrize("changes", OTHERS, ids=lambda changes: next(iter(changes)))
    def test_rows_are_generated_again_where_they_would_be_others(self, source, fits, changes):
        first = raw(source.rows(config(data="synther"))[0])
        other = config(data="synther", **changes)
        again = raw(source.rows(other)[0])
        assert [n for _, n in fits] == [96, other.rows]
        assert again.shape != first.shape or not torch.equal(again, first)

    def test_real_rows_in_between_change_nothing(self, source, fits):
        for data in ("synther", "real", "mixed"):
            source.rows(config(data=data))
        assert len(fits) == 1

    def test_another_call_generates_the_same(self, folder):
        found = [DataSource(folder, CPU).rows(config(data="synther"))[0].rows for _ in range(2)]
        assert torch.equal(*found)

    def test_a_data_set_is_read_once_for_all_its_cells(self, source, monkeypatch):
        read, genuine = [], offline_rows.load
        monkeypatch.setattr(
            offline_rows, "load", lambda name, **options: (read.append(name), genuine(name, **options))[1]
        )
        for changes in ({}, {"algo": "iql"}, {"data": "synther"}, {"subsample": 0.5}, {"dataset": MAZE}):
            source.rows(config(**changes))
        assert read == [HOPPER, MAZE]

    def test_a_fit_that_fails_leaves_nothing_that_could_be_taken_for_rows(self, source, monkeypatch):
        before = source.rows(config(data="synther"))[0]

        def fails(self, n):
            raise DivergedError("loss is nan")

        with monkeypatch.context() as patch:
            patch.setattr(ReplayBuffer, "upsample", fails)
            for _ in range(2):
                with pytest.raises(DivergedError, match="loss is nan"):
                    source.rows(config(data="synther", rows=64))
        assert len(source.rows(config(data="synther", rows=64))[0]) == 64
        assert torch.equal(source.rows(config(data="synther"))[0].rows, before.rows)

    def test_a_mixture_has_as_many_synthetic_rows_as_real_ones_if_nothing_is_said(self, source, fits):
        _, about = source.rows(config(data="mixed", rows=None))
        assert about["synthetic_rows"] == about["real_rows"] == fits[0][1]

    def test_too_few_rows_to_fit_are_refused_with_their_number(self, source):
        with pytest.raises(ValueError, match="expected at least 32 valid rows to fit, got 20"):
            source.rows(config(data="synther", subsample=0.1))


class TestSubsample:
    @pytest.mark.parametrize(("share", "count"), [(0.5, 99), (0.25, 50)])
    def test_reaches_generator_and_learner_alike(self, source, fits, folder, share, count):
        rows, about = source.rows(config(data="mixed", subsample=share, first_seed=3))
        whole = load(HOPPER, folder=folder)
        expected = whole.subsample(share, 3).transitions().rows
        assert (rows.real, about["real_rows"], len(expected)) == (count, count, count)
        expect_rows(fits[0][0], expected)
        expect_rows(raw(rows)[: rows.real], expected)

    def test_follows_the_seed_and_is_the_same_for_all_data(self, source):
        def real(**changes):
            rows, _ = source.rows(config(subsample=0.5, **changes))
            return raw(rows)[: rows.real]

        expect_rows(real(data="mixed"), real())
        assert not torch.allclose(real(first_seed=1), real())


class TestRewards:
    def scale(self, source, **changes):
        """What rewards of the whole or subsampled set were multiplied with."""
        of = config(**changes)
        rows, _ = source.rows(of)
        expected = torch.tensor(source.dataset(of).rewards)
        found = rows.rows[: rows.real, rows.spec.rewards].squeeze(1)
        (factor,) = set(np.round((found / expected)[expected != 0].numpy(), 3))
        return factor

    def expected(self):
        """1,000 over the range of returns, summed by hand."""
        arrays = offline_stand_ins.collected("Hopper-v5", 200)
        ends = np.flatnonzero(arrays["terminals"] | arrays["timeouts"]) + 1
        returns = [part.sum() for part in np.split(arrays["rewards"], ends)[:-1]]
        assert len(returns) > 3
        return 1_000 / (max(returns) - min(returns))

    def test_iql_scales_those_of_hopper_by_the_range_of_returns(self, source):
        assert self.scale(source, algo="iql") == pytest.approx(self.expected(), rel=1e-3)

    def test_whole_episodes_count_also_where_few_rows_are_kept(self, source):
        assert self.scale(source, algo="iql", subsample=0.25) == pytest.approx(self.expected(), rel=1e-3)

    def test_synthetic_rewards_are_scaled_too(self, source):
        scaled, plain = (source.rows(config(algo, "synther"))[0] for algo in ("iql", "td3bc"))
        columns = plain.spec.rewards
        expected = self.expected() * plain.rows[:, columns]
        torch.testing.assert_close(scaled.rows[:, columns], expected, rtol=1e-4, atol=1e-4)

    @pytest.mark.parametrize("changes", [{}, {"algo": "iql", "dataset": MAZE}])
    def test_others_are_left_as_they_are(self, source, changes):
        of = config(**changes)
        rows, _ = source.rows(of)
        assert torch.equal(rows.rows[:, rows.spec.rewards].squeeze(1), torch.tensor(source.dataset(of).rewards))

    @pytest.mark.parametrize("ends", [[], [60], [60, 121]])
    def test_without_returns_that_differ_there_is_no_scale(self, tmp_path, ends):
        arrays = dict(offline_stand_ins.collected("Hopper-v5", 200))
        arrays |= {"rewards": np.ones(200), "terminals": np.zeros(200), "timeouts": np.isin(np.arange(200), ends)}
        write(tmp_path / f"{HOPPER}.hdf5", arrays, {"command": "", "recipe": {}})
        with pytest.raises(ValueError, match=f"dataset: {HOPPER} needs two episodes with different returns"):
            DataSource(tmp_path, CPU).rows(config("iql"))
        assert len(DataSource(tmp_path, CPU).rows(config())[0]) > 100


@pytest.mark.parametrize("name", AUGMENTATIONS)
def test_augmentation_reaches_the_batches(source, name):
    plain, _ = source.rows(config())
    changed, _ = source.rows(config(augment=name))
    assert torch.equal(changed.rows, plain.rows)  # what is held stays as it is
    found, without = (rows.draw(4, 32, rng=torch.Generator().manual_seed(0)) for rows in (changed, plain))
    expected = AUGMENTATIONS[name](without, plain.spec, _after_drawing(4, 32))
    assert torch.equal(found, expected)
    assert not torch.equal(found, without)


def _after_drawing(*size):
    rng = torch.Generator().manual_seed(0)
    torch.rand(size, generator=rng, dtype=torch.float64)
    return rng


def test_a_missing_set_says_how_to_make_it(source):
    with pytest.raises(FileNotFoundError, match=r"make_datasets\.py hopper-random` to generate hopper-random-regen"):
        source.rows(config(dataset="hopper-random-regen"))


def test_a_result_is_compared_with_the_current_data(source, folder, tmp_path):
    path = tmp_path / "result.json"
    for content in ({}, {"dataset_digest": load(HOPPER, folder=folder).digest()}):
        path.write_text(json.dumps(content))
        source.check_same(path, config())
    path.write_text(json.dumps({"dataset_digest": "0"}))
    with pytest.raises(ValueError, match=f"another version of {HOPPER} .got digest .*, expected"):
        source.check_same(path, config())
    source.check_same(path, config(dataset="walker2d-medium-regen"))  # which is not there to be held against
