"""What a user writes to upsample an .npz file of transitions with SDV's TVAE: `speed/by_hand.py` times it.

python upsample_with_sdv.py real.npz synthetic.npz 100000 0
"""

import sys

import numpy as np
import pandas as pd
import torch
from sdv.metadata import Metadata
from sdv.single_table import TVAESynthesizer

source, target, rows, seed = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
np.random.seed(seed)
torch.manual_seed(seed)
real = {key: values.reshape(len(values), -1) for key, values in np.load(source).items()}
columns = {f"{key} {i}": values[:, i] for key, values in real.items() for i in range(values.shape[1])}
table = {"transitions": pd.DataFrame(columns)}
model = TVAESynthesizer(Metadata.detect_from_dataframes(table), enable_gpu=False)
model.fit(table)
sampled = model.sample(rows)["transitions"]
parts = {key: sampled.filter(regex=f"^{key} ").to_numpy(np.float32) for key in real}
for key in ("rewards", "terminals"):
    parts[key] = parts[key][:, 0]
np.savez(target, **parts)
