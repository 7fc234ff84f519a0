"""What a user writes to upsample an .npz file of transitions with the published SynthER code.

    cd path/to/SynthER
    python upsample_with_synther.py real.npz synthetic.npz 100000 0 "Trainer.train_num_steps = 100000" ...

The published script reads data sets that D4RL has registered. For other files its README advises to start from the
classes used here. Arguments after the seed change its settings. `speed/by_hand.py` times this file.
"""

import sys
from pathlib import Path
from types import SimpleNamespace

import gin
import numpy as np
import torch
import wandb
from synther.diffusion.elucidated_diffusion import Trainer
from synther.diffusion.train_diffuser import SimpleDiffusionGenerator
from synther.diffusion.utils import construct_diffusion_model

KEYS = ("observations", "actions", "rewards", "next_observations", "terminals")
source, target, rows, seed = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
gin.parse_config_files_and_bindings(["config/resmlp_w1024_denoiser.gin"], sys.argv[5:])
torch.manual_seed(seed)
wandb.init(mode="disabled")
real = np.load(source)
inputs = torch.from_numpy(np.column_stack([real[key].astype(np.float32) for key in KEYS]))
env = SimpleNamespace(
    observation_space=SimpleNamespace(shape=real["observations"].shape[1:]),
    action_space=SimpleNamespace(shape=real["actions"].shape[1:]),
)
trainer = Trainer(
    construct_diffusion_model(inputs=inputs),
    torch.utils.data.TensorDataset(inputs),
    results_folder=Path(target).parent,
    use_gpu=False,
)
trainer.train()
generator = SimpleDiffusionGenerator(env=env, ema_model=trainer.ema.ema_model)
np.savez_compressed(target, **dict(zip(KEYS, generator.sample(rows), strict=True)))
