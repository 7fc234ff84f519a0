"""Frames of the pixel benchmark: archive, stacks at the starts of episodes, shifts by whole pixels."""

import numpy as np
import pytest
import torch

pytest.importorskip("PIL")
from synther_replay.benchmarks.pixels.archive import FIRST, LAST, MID, Archive
from synther_replay.benchmarks.pixels.codec import CodecSettings, decode, encode, signal_to_noise
from synther_replay.benchmarks.pixels.frames import PAD, LiveStack, Stacks, stack_numbers

SIDE = 16
CPU = torch.device("cpu")


def scene(count, seed=0):
    """A bright square that moves over a textured background, ``(count, SIDE, SIDE, 3)``."""
    frames = np.repeat(np.random.default_rng(seed).integers(0, 120, (1, SIDE, SIDE, 3), np.uint8), count, 0)
    for number, frame in enumerate(frames):
        frame[4:8, number % (SIDE - 4) : number % (SIDE - 4) + 4] = (250, 180, 90)
    return frames


def episode(steps, seed=0, terminated=False, frames=None):
    rng = np.random.default_rng(seed)
    frames = scene(steps + 1, seed) if frames is None else frames
    actions, rewards = rng.uniform(-1, 1, (steps, 2)).astype("f4"), rng.uniform(0, 1, steps).astype("f4")
    about = {"seed": seed}
    return Archive.of_episode(encode(frames, CodecSettings(speed=10)), actions, rewards, terminated, about)


class TestCodec:
    def test_best_quality_is_nearly_lossless(self):
        frames = scene(6)
        decoded = decode(encode(frames, CodecSettings(quality=100, speed=10)))
        assert decoded.shape == frames.shape and decoded.dtype == np.uint8
        assert np.abs(decoded.astype(int) - frames).max() <= 3

    def test_lower_quality_is_smaller_and_still_close(self):
        frames = scene(12)
        fine, coarse = (encode(frames, CodecSettings(quality=quality, speed=8)) for quality in (90, 40))
        assert len(coarse) < len(fine) < frames.nbytes
        assert 20 < signal_to_noise(frames, decode(coarse)) < signal_to_noise(frames, decode(fine))

    def test_one_frame(self):
        assert decode(encode(scene(1), CodecSettings())).shape == (1, SIDE, SIDE, 3)

    def test_equal_frames_have_no_noise(self):
        assert signal_to_noise(scene(2), scene(2)) == float("inf")

    @pytest.mark.parametrize(("name", "value"), [("quality", 101), ("speed", -1), ("colours", "4:1:1")])
    def test_bad_settings_are_refused(self, name, value):
        with pytest.raises(ValueError, match=f"{name}: expected"):
            CodecSettings(**{name: value})


class TestArchive:
    def test_fields_are_those_of_vd4rl(self):
        archive = episode(4, terminated=True)
        assert archive.step_type.tolist() == [FIRST, MID, MID, MID, LAST]
        assert archive.discount.tolist() == [1, 1, 1, 1, 0]
        assert not archive.action[0].any() and archive.reward[0] == 0
        assert len(archive) == len(archive.reward) == len(archive.action) == 5

    def test_comes_back_as_it_was_written(self, tmp_path):
        whole = Archive.joined([episode(3), episode(5, seed=1)], {"task": "any", "episodes": 2})
        whole.write(tmp_path / "data" / "any.npz")
        again = Archive.read(tmp_path / "data" / "any.npz")
        assert again.about == whole.about and len(again) == 10
        for name in ("frames", "frame_bytes", "lengths", "action", "reward", "discount", "step_type"):
            np.testing.assert_array_equal(getattr(again, name), getattr(whole, name))
        assert again.starts().tolist() == [0] * 4 + [4] * 6

    def test_frames_of_all_episodes_are_decoded_in_order(self):
        one, other = episode(3), episode(5, seed=1)
        whole = Archive.joined([one, other], {})
        expected = np.concatenate([one.decoded(), other.decoded()])
        np.testing.assert_array_equal(whole.decoded(threads=2), expected)
        assert signal_to_noise(np.concatenate([scene(4), scene(6, 1)]), expected) > 20

    def test_returns(self):
        one, other = episode(3), episode(5, seed=1)
        expected = [one.reward.sum(), other.reward.sum()]
        np.testing.assert_allclose(Archive.joined([one, other], {}).returns(), expected, rtol=1e-6)

    def test_a_damaged_file_is_refused(self, tmp_path):
        path = tmp_path / "any.npz"
        episode(3).write(path)
        path.write_bytes(path.read_bytes()[:-40])
        with pytest.raises(ValueError, match=r"any.npz: not an archive of episodes"):
            Archive.read(path)

    def test_arrays_that_do_not_fit_together_are_refused(self, tmp_path):
        archive = episode(3)
        object.__setattr__(archive, "reward", archive.reward[:-1])
        archive.write(tmp_path / "any.npz")
        with pytest.raises(ValueError, match="arrays do not fit together"):
            Archive.read(tmp_path / "any.npz")


class TestStacks:
    def test_the_first_frame_is_repeated_at_the_start_of_each_episode(self):
        starts = torch.tensor([0, 0, 0, 0, 4, 4, 4])
        expected = [[0, 0, 0], [0, 0, 1], [0, 1, 2], [1, 2, 3], [4, 4, 4], [4, 4, 5], [4, 5, 6]]
        assert stack_numbers(starts).tolist() == expected

    def test_images_are_the_frames_oldest_first_with_channels_last_in_memory(self):
        frames = scene(5)
        stacks = Stacks(frames, np.zeros(5, int), CPU)
        image = stacks.images(torch.tensor([1, 4]), torch.zeros(2, 2, dtype=torch.long))
        assert image.shape == (2, 9, SIDE, SIDE) and image.is_contiguous(memory_format=torch.channels_last)
        for row, numbers in enumerate([(0, 0, 1), (2, 3, 4)]):
            expected = np.concatenate([frames[n].transpose(2, 0, 1) for n in numbers])
            np.testing.assert_array_equal(image[row].numpy(), expected)

    @pytest.mark.parametrize("shift", [(3, 0), (0, -4), (-2, 1)])
    def test_shifts_move_whole_pixels_and_repeat_the_edge(self, shift):
        frames = scene(1)
        image = Stacks(frames, np.zeros(1, int), CPU).images(torch.tensor([0]), torch.tensor([shift]))
        wide = np.pad(frames[0], ((PAD, PAD), (PAD, PAD), (0, 0)), mode="edge")
        top, left = PAD + shift[0], PAD + shift[1]
        expected = wide[top : top + SIDE, left : left + SIDE].transpose(2, 0, 1)
        np.testing.assert_array_equal(image[0, :3].numpy(), expected)

    def test_random_shifts_reach_all_sides_and_repeat_with_the_seed(self):
        frames = np.zeros((1, SIDE, SIDE, 3), np.uint8)
        frames[0, 8, 8] = 255
        stacks = Stacks(frames, np.zeros(1, int), CPU)

        def drawn():
            return stacks.shifted(torch.zeros(400, dtype=torch.long), torch.Generator().manual_seed(0))

        images = drawn()
        assert torch.equal(images, drawn())
        places = images[:, 0].flatten(1).argmax(1)
        assert {int(place) // SIDE for place in places} == set(range(8 - PAD, 8 + PAD + 1))
        assert {int(place) % SIDE for place in places} == set(range(8 - PAD, 8 + PAD + 1))

    def test_a_running_episode_is_seen_as_a_recorded_one(self):
        frames = scene(4)
        recorded = Stacks(frames, np.zeros(4, int), CPU)
        live = LiveStack(frames[0])
        for number in range(4):
            if number:
                live.add(frames[number])
            expected = recorded.images(torch.tensor([number]), torch.zeros(1, 2, dtype=torch.long))
            assert torch.equal(live.image(), expected)
