"""Fits to transitions that are read in blocks: windows, their place in the training, faults of the stream."""

import threading
from collections.abc import Callable, Iterator

import gymnasium as gym
import numpy as np
import pytest
import torch
from numpy.testing import assert_array_equal
from torch import Tensor

from synther_replay import DiffusionGenerator, GeneratorConfig, Transitions, TransitionSpec
from synther_replay.data.codec import TransitionCodec
from synther_replay.data.stream import ArrayRows, RowStream
from synther_replay.files import open_file, write
from synther_replay.model.windows import Windows, WindowSupply

SPEC = TransitionSpec.from_spaces(gym.spaces.Box(-np.inf, np.inf, (3,)), gym.spaces.Box(-1, 1, (2,)))
CONFIG = GeneratorConfig.tiny(width=32, depth=1, steps=60, batch_size=32, average_every=10, patience=None)


def rows_of(n: int, seed: int = 0) -> Tensor:
    rng = torch.Generator().manual_seed(seed)
    rows = torch.randn(n, SPEC.dim, generator=rng)
    rows[:, SPEC.actions] = rows[:, SPEC.actions].tanh()
    rows[:, SPEC.terminated] = (rows[:, SPEC.terminated] > 2).float()
    return rows


class Stream:
    """Rows in blocks of 100; counts how often they are read, and calls `before` with the number of each block."""

    def __init__(self, rows: Tensor, before: Callable[[int], None] = lambda block: None) -> None:
        self.spec, self.rows, self.before, self.passes, self.blocks_read = SPEC, rows, before, 0, 0

    def count(self) -> int:
        return len(self.rows)

    def blocks(self) -> Iterator[Transitions]:
        self.passes += 1
        for block in self.rows.split(100):
            self.before(self.blocks_read)
            self.blocks_read += 1
            yield Transitions(SPEC, block)


def new_generator() -> DiffusionGenerator:
    return DiffusionGenerator(SPEC, CONFIG, device="cpu", seed=3)


def drawn(generator: DiffusionGenerator) -> Tensor:
    return generator.sample(200).rows


def no_reader() -> bool:
    return not any("synther-windows" in thread.name for thread in threading.enumerate())


def test_a_stream_that_fits_in_one_window_gives_the_model_of_the_rows_in_memory():
    rows, streamed, in_memory = rows_of(1_000), new_generator(), new_generator()
    report = streamed.fit(Stream(rows), window=1_000)
    assert report.rows == 1_000
    assert report.loss == in_memory.fit(Transitions(SPEC, rows)).loss
    assert_array_equal(drawn(streamed), drawn(in_memory))


def test_empty_blocks_are_passed_over():
    rows, full, gaps = rows_of(300), new_generator(), new_generator()
    stream = Stream(rows)
    blocks = [part for block in stream.blocks() for part in (Transitions(SPEC, rows[:0]), block)]
    stream.blocks = lambda: iter(blocks)
    assert gaps.fit(stream).loss == full.fit(Stream(rows)).loss


def test_a_window_that_could_have_too_few_rows_is_refused():
    with pytest.raises(ValueError, match=r"window: expected .*64"):
        new_generator().fit(Stream(rows_of(300)), window=63)


def test_a_window_for_rows_in_memory_is_refused():
    with pytest.raises(ValueError, match="window: applies to a stream"):
        new_generator().fit(rows_of(300), window=100)


def test_windows_are_random_samples_that_together_are_the_stream():
    rows = rows_of(4_000)
    rows[:, 0] = torch.arange(4_000)
    windows = Windows(Stream(rows), 1_000, seed=0)
    found = [windows.read(k, lambda block: None)[:, 0] for k in range(windows.number)]
    assert windows.number == 4
    assert torch.equal(torch.cat(found).sort().values, rows[:, 0])
    for window in found:
        assert 850 < len(window) < 1_150
        assert abs(float(window.mean()) - 2_000) < 200  # not a part of the stream, a sample of it


def test_statistics_cover_the_range_of_all_rows():
    rows = rows_of(2_000)
    rows[1_234, 1], rows[77, 1] = 30.0, -40.0
    for seed in range(4):
        first, extremes = Windows(Stream(rows), 500, seed=seed).first()
        assert_array_equal(extremes.amin(0), rows.amin(0))
        assert_array_equal(extremes.amax(0), rows.amax(0))
        assert 400 < len(first) < 600  # without the extremes, which are no sample
        codec = TransitionCodec(SPEC)
        codec.fit(first.rows[None], extremes[None])
        assert codec.statistics["clip_high"][0, 0, 1] >= 30
    assert Windows(Stream(rows), 2_000, seed=0).first()[1] is None  # one window: the rows are all there are


def test_later_windows_take_part_in_the_training():
    """60 steps of 32 rows are 8 draws of each of 240 rows: three windows of 80 rows, and the pass of the first."""
    stream = Stream(rows_of(800))
    new_generator().fit(stream, window=80)
    assert stream.passes == 3
    assert no_reader()


def test_windows_come_at_their_share_of_the_training():
    rows = rows_of(800)
    windows = Windows(Stream(rows), 80, seed=3)
    with WindowSupply(windows, 3 * 8 * 80, encode=lambda window: window) as supply:
        shares = [share for share in np.linspace(0, 1, 31) if supply.due(share) is not None]
    assert shares == pytest.approx([10 / 30, 20 / 30], abs=1 / 30)
    with WindowSupply(windows, 2 * 8 * 80, encode=lambda window: window) as supply:
        assert torch.equal(supply.due(0.5), windows.read(1, lambda block: None))
    with WindowSupply(windows, 10, encode=lambda window: window) as supply:  # fewer draws than the first window allows
        assert supply.due(1.0) is None


def test_equal_seeds_give_equal_models():
    rows, one, two = rows_of(900), new_generator(), new_generator()
    one.fit(Stream(rows), window=100)
    two.fit(Stream(rows, before=lambda block: threading.Event().wait(0.001)), window=100)  # a slower disk
    assert_array_equal(drawn(one), drawn(two))


@pytest.mark.parametrize("block", [3, 12])
def test_an_error_of_the_stream_leaves_the_generator_as_it_was(block):
    """Block 3 is read before the training, block 12 while it goes on."""
    generator = new_generator()
    generator.fit(Stream(rows_of(800)), window=80)
    state = generator.state_dict()

    def fail(number: int) -> None:
        if number == block:
            raise OSError("disk is gone")

    with pytest.raises(OSError, match="disk is gone"):
        generator.fit(Stream(rows_of(800, seed=1), fail), window=80, from_scratch=True)
    assert no_reader()
    assert torch.equal(generator.state_dict()["trainer"]["average"], state["trainer"]["average"])
    assert_array_equal(drawn(generator), drawn(_loaded(state)))


def _loaded(state: dict) -> DiffusionGenerator:
    generator = new_generator()
    generator.load_state_dict(state)
    return generator


def test_a_fit_that_ends_early_stops_reading():
    released = threading.Event()
    stream = Stream(rows_of(800), before=lambda block: block < 9 or released.wait(0.2))
    generator = new_generator()

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    job = generator.begin(stream, window=80)
    job.engine.trainer(0)._set_rates = interrupt  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        job.run()
    assert no_reader()
    assert stream.blocks_read < 8 + 4


def test_a_stream_that_changes_is_refused():
    stream = Stream(rows_of(800))
    windows = Windows(stream, 80, seed=0)
    stream.rows = rows_of(700)
    with pytest.raises(ValueError, match="800 rows at first, now it has 700"):
        windows.first()


def test_invalid_streams_are_refused_at_the_door():
    rows = rows_of(800)
    with pytest.raises(ValueError, match="stream"):
        new_generator().fit(Stream(rows), condition=torch.zeros(800))
    with pytest.raises(ValueError, match="stream"):
        DiffusionGenerator(SPEC, CONFIG, device="cpu", stack=2).fit(Stream(rows))
    with pytest.raises(ValueError, match="window"):
        new_generator().fit(Stream(rows), window=3)
    with pytest.raises(ValueError, match="at least 32 rows"):
        new_generator().fit(Stream(rows[:5]))
    other = TransitionSpec.from_spaces(gym.spaces.Box(-1, 1, (1,)), gym.spaces.Box(-1, 1, (2,)))
    with pytest.raises(ValueError, match="spec"):
        DiffusionGenerator(other, CONFIG, device="cpu").fit(Stream(rows))
    with pytest.raises(TypeError, match="stream"):
        new_generator().fit(rows)
    rows[500, 2] = torch.nan
    with pytest.raises(ValueError, match="finite"):
        new_generator().fit(Stream(rows), window=80)


def test_array_rows_read_a_memory_mapped_file(tmp_path):
    rows = rows_of(800)
    np.save(tmp_path / "rows.npy", rows.numpy())
    stream = ArrayRows(SPEC, np.load(tmp_path / "rows.npy", mmap_mode="r"))
    assert isinstance(stream, RowStream)
    mapped, other = new_generator(), new_generator()
    mapped.fit(stream, window=80)
    other.fit(Stream(rows), window=80)
    assert_array_equal(drawn(mapped), drawn(other))
    with pytest.raises(ValueError, match="array"):
        ArrayRows(SPEC, np.zeros((10, 3)))


@pytest.mark.parametrize("suffix", ["hdf5", "parquet", "npz"])
def test_files_are_streams(tmp_path, suffix):
    rows, path = rows_of(800), tmp_path / f"rows.{suffix}"
    write(path, Transitions(SPEC, rows))
    file = open_file(path)
    assert isinstance(file, RowStream)
    generator = DiffusionGenerator(file.spec, CONFIG, device="cpu", seed=3)
    assert generator.fit(file, window=80).rows == 800
    assert len(generator.sample(10)) == 10
