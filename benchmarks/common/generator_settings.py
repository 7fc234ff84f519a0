"""Generator settings of a run: presets, larger budgets of some data sets, and options of the command line."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from synther_replay import GeneratorConfig

PRESETS = ("paper", "fast", "tiny")  # names that both GeneratorConfig and RetrainSchedule have
GENERATOR_PRESETS = (*PRESETS, "offline")
# The paper doubles the width of the generator on these data sets. Preset `offline` trains longer instead: on
# halfcheetah-medium-expert, IQL gains from more training steps and not from width.
_LARGE_BUDGET_DATASETS = ("halfcheetah-medium-expert", "hopper-medium", "hopper-medium-expert")
_LARGE_BUDGET: dict[str, dict[str, Any]] = {"paper": {"width": 2048}, "offline": {"steps": 100_000}}


def build_generator_config(preset: str, changes: Mapping[str, Any], dataset: str = "") -> GeneratorConfig:
    """Build the generator settings of a run, without a time limit: results must not depend on the machine's speed.

    Args:
        preset: One of `GENERATOR_PRESETS`.
        changes: Options that override the preset.
        dataset: Name of the data set; some data sets get a larger network or more training steps.
    """
    extra = _LARGE_BUDGET.get(preset, {}) if dataset.rpartition("-")[0] in _LARGE_BUDGET_DATASETS else {}
    return GeneratorConfig.of({"preset": preset, "max_seconds": None, **extra, **changes}, name="--set")
