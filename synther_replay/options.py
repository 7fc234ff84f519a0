"""SourceOptions: options that all adapters share, and the `SyntheticSource` built from them; AdjustableOptions."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from synther_replay.common.checks import check_hook, received, whole_number
from synther_replay.common.short_forms import default_preset, expected_names
from synther_replay.config import GeneratorConfig
from synther_replay.data.transitions import Transitions, TransitionSpec
from synther_replay.generator import DiffusionGenerator
from synther_replay.protocols import Generator, RealTransitions, Schedule
from synther_replay.relevance.guidance import Guidance
from synther_replay.relevance.guide import Guide
from synther_replay.relevance.protocol import Relevance
from synther_replay.replay.background import checked_lag, is_background
from synther_replay.replay.mixing import check_real_ratio
from synther_replay.replay.refitting import RefitReport
from synther_replay.replay.schedule import as_schedule
from synther_replay.replay.source import SyntheticSource
from synther_replay.replay.synthetic_rows import check_generator

GeneratorOption = Generator | GeneratorConfig | Mapping[str, Any] | str | None
RelevanceOption = Guidance | Relevance | Callable[[Transitions], Any] | Mapping[str, Any] | str | None
ScheduleOption = Schedule | Mapping[str, Any] | str | int | None


@dataclass(frozen=True, kw_only=True)
class SourceOptions:
    """Validated options of the synthetic part of a buffer; every adapter takes these, under these names.

    One `seed` covers whatever this library draws: the weights and rows of a generator made from settings, which
    synthetic rows a batch holds, and their places in it. What the framework draws follows the framework's seed. A
    generator object that you pass keeps its own.

    Attributes:
        real_ratio: Share of real rows in each batch; 1 is plain replay.
        generator: Settings or a short form of `GeneratorConfig.of`: a preset's name, a mapping of fields, None for the
            device's preset. Or any object with `fit` and `sample`.
        schedule: When to refit and how many rows to generate: a schedule or a short form of `RetrainSchedule.of`: the
            steps between two refits, a preset's name, a mapping of fields, None for the device's preset.
        synthetic_capacity: Maximum number of synthetic rows.
        seed: None: the seed last passed to `torch.manual_seed`.
        on_refit: Called with a `RefitReport` after every refit; if it raises, the refit is undone. It must not refit
            itself. Copies and pickles do not have it. One with ``takes_source = True`` gets the source as second
            argument, too. `RefitLog` is one that logs refits.
        relevance: What generation is guided by, a short form of `Guidance.of`: ``"curiosity"``, ``"return"``,
            ``"reward"``, ``"td_error"``, ``"value"``, a mapping of fields with the key ``"name"``, or a function from
            transitions to scores. None: not guided.
        refit: ``"inline"``: the learner waits for every refit. ``"background"``: it goes on with the rows that it has,
            and takes the new ones `lag` steps after the refit began; it waits there if they are not ready, so that two
            runs of one seed agree. A process computes it on a CPU, a thread with its own stream on a GPU.
        lag: Environment steps from the begin of a refit in the background to the step that takes its rows. None: half
            of the schedule's `every`. No other refit begins in between, so more than `every` is warned of. Only with
            ``refit="background"``.
    """

    real_ratio: float = 0.5
    generator: GeneratorOption = None
    schedule: ScheduleOption = None
    synthetic_capacity: int = 1_000_000
    seed: int | None = None
    on_refit: Callable[[RefitReport], object] | None = None
    relevance: RelevanceOption = None
    refit: str = "inline"
    lag: int | None = None

    def __post_init__(self) -> None:
        """Validate all fields."""
        check_real_ratio(self.real_ratio)
        if not isinstance(self.generator, Generator | GeneratorConfig | Mapping | str | None):
            raise TypeError(
                "generator: expected settings (a GeneratorConfig, a preset's name, a mapping) or an object with fit "
                f"and sample, {received(self.generator)}"
            )
        if not isinstance(self.generator, Generator):
            GeneratorConfig.of(self.generator)
        as_schedule(self.schedule)
        check_hook(self.on_refit)
        guidance = Guidance.of(self.relevance)
        object.__setattr__(self, "relevance", guidance)
        whole_number("synthetic_capacity", self.synthetic_capacity)
        in_background = is_background(self.refit)
        if isinstance(self.generator, Generator):
            guide = None if guidance is None else Guide(guidance, seed=0)
            check_generator(self.generator, guide, in_background=in_background)
        checked_lag(self.lag, self.refit)
        seed = torch.initial_seed() % 2**63 if self.seed is None else whole_number("seed", self.seed, least=0)
        object.__setattr__(self, "seed", seed)

    def __getstate__(self) -> dict[str, Any]:
        """State for pickle and deepcopy, without the hook, as in `SyntheticSource`."""
        return {**vars(self), "on_refit": None}

    def check(self, spec: TransitionSpec) -> None:
        """Raise ValueError if `build` would refuse rows of this spec as too long, for example images."""
        if self.real_ratio < 1.0 and not isinstance(self.generator, Generator):
            GeneratorConfig.of(self.generator).network(spec.dim)  # a column takes at least one code

    def build(
        self, real: RealTransitions, spec: TransitionSpec, device: torch.device | str | None = None
    ) -> SyntheticSource:
        """Build the source on a device; None: the device of the generator, or the GPU if there is one.

        Raises:
            ValueError: The rows are too long for the generator, for example images. With ``real_ratio=1`` any rows are
                accepted, because no generator is built.
        """
        assert self.seed is not None  # set in __post_init__
        return SyntheticSource(
            real,
            self.generator,
            spec=spec,
            real_ratio=self.real_ratio,
            capacity=self.synthetic_capacity,
            schedule=self.schedule,
            device=device,
            seed=self.seed,
            on_refit=self.on_refit,
            relevance=self.relevance,
            refit=self.refit,
            lag=self.lag,
        )


def refuse_unknown(
    cls: type[Any],
    names: Iterable[str],
    *,
    named: type[Any] | None = None,
    elsewhere: Mapping[str, type[Any]] | None = None,
) -> None:
    """Raise `TypeError` for names that neither `cls` nor a class that it extends has as an argument.

    Args:
        cls: The class that got the options.
        names: Their names.
        named: The class that the error names. None: `cls`.
        elsewhere: Classes with other arguments, by the name of the class to use for these.
    """
    known = dict.fromkeys(name for base in cls.__mro__ if "__init__" in vars(base) for name in _arguments(base))
    for name in names:
        if name not in known:
            right = next((other for other, base in (elsewhere or {}).items() if name in _arguments(base)), None)
            hint = expected_names(name, known) if right is None else f"it is one of {right}"
            raise TypeError(f"{(named or cls).__name__}: unknown option {name!r}; {hint}")


def _arguments(cls: type[Any]) -> list[str]:
    """Return the names of the arguments of the constructor that `cls` itself defines."""
    arguments = list(inspect.signature(vars(cls)["__init__"]).parameters.values())[1:]
    return [one.name for one in arguments if one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY)]


def make_generator(value: Any, spec: TransitionSpec, *, device: torch.device, seed: int) -> DiffusionGenerator:
    """Make a generator from a short form."""
    config = GeneratorConfig.of(value, default=default_preset(device))
    return DiffusionGenerator(spec, config, device=device, seed=seed)


SyntheticSource.make_generator = staticmethod(make_generator)


class AdjustableOptions:
    """What can be changed of an adapter's buffer during a run: the share of real rows and the schedule.

    A buffer that was made with ``real_ratio=1`` is plain and stays so: nothing was checked that a generator needs.

    Attributes:
        source: The source; None until rows tell the layout.
    """

    source: SyntheticSource | None
    _options: SourceOptions  # of the source that is not made yet
    _made_with: float | None = None  # the ratio at first; None in files of earlier versions, where it did not change

    @property
    def real_ratio(self) -> float:
        """Share of each batch that is real; can be set during a run if the buffer was made with less than 1."""
        return self._options.real_ratio if self.source is None else self.source.real_ratio

    @real_ratio.setter
    def real_ratio(self, real_ratio: float) -> None:
        real_ratio = check_real_ratio(real_ratio)
        if self._is_plain and real_ratio < 1.0:
            raise ValueError("real_ratio: this buffer was made with 1, as a plain one; make it with less to change it")
        if self.source is None:
            self._options = replace(self._options, real_ratio=real_ratio)
        else:
            self.source.real_ratio = real_ratio

    @property
    def schedule(self) -> ScheduleOption:
        """When to refit; can be set during a run, also in a short form. As given, until rows tell the layout."""
        return self._options.schedule if self.source is None else self.source.schedule

    @schedule.setter
    def schedule(self, schedule: ScheduleOption) -> None:
        if self.source is None:
            self._options = replace(self._options, schedule=schedule)
        else:
            self.source.schedule = schedule

    @property
    def _is_plain(self) -> bool:
        """Whether it was made with 1 and did not load the state of another ratio."""
        return self.real_ratio == 1.0 and self._made_with in (None, 1.0)
