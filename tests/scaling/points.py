"""Made-up runs in the shape of a published sweep: 245 of a known law with a little noise."""

import tempfile
from pathlib import Path

import numpy as np

from sim.scaling.loss_laws import BESIROGLU, power_sum_loss


def write_points(path):
    rng = np.random.default_rng(5)
    params, tokens = 10 ** rng.uniform(7.6, 10.2, 240), 10 ** rng.uniform(9.6, 11.5, 240)
    tokens = np.maximum(tokens, params)
    params, tokens = np.append(params, np.full(5, 8e9)), np.append(tokens, np.full(5, 5e8))  # too few tokens to count
    loss = power_sum_loss(params, tokens, BESIROGLU) * np.exp(0.003 * rng.standard_normal(len(params)))
    lines = [f"{n:.6g},{d:.6g},{value:.6g}" for n, d, value in zip(params, tokens, loss, strict=True)]
    path.write_text("\n".join(["params,tokens,loss", *lines]) + "\n")


FOLDER = tempfile.TemporaryDirectory()
POINTS = Path(FOLDER.name) / "points.csv"
write_points(POINTS)
