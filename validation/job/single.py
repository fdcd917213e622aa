"""The plain job: one process, no wrappers, the whole batch at once. Every cut of it must give the same losses."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from calibration.bench.machine import settle
from validation.job.configs import GptShape
from validation.job.model import batch_of, build_part, loss_of
from validation.job.train import SEED, clear, make_optimizers, update


def single_process(shape: GptShape, batch: int, steps: int, device: str = "cpu") -> list[float]:
    """Loss of every step."""
    model = build_part(shape, range(shape.num_layers), SEED).to(device)
    optimizers = make_optimizers([model])
    losses = []
    for step in range(steps):
        inputs, targets = (tensor.to(device) for tensor in batch_of(shape, batch, step))
        clear(optimizers)
        loss = loss_of(model(inputs), targets)
        loss.backward()
        update(optimizers)
        losses.append(loss.item())
    return losses


def main(job_file: str, out: str) -> None:
    """Run what `job_file` describes and write the losses to `out`."""
    job = json.loads(Path(job_file).read_text(encoding="utf-8"))
    settle("cpu")
    losses = single_process(GptShape(**job["shape"]), job["batch"], job["steps"], job["device"])
    Path(out).write_text(json.dumps(losses), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
