"""What goes through a step's micro-batches: torch's pipelines, and a plain loop for layers that FSDP gathers anew."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining import schedules as torch_schedules

from flopcast_validation.job.configs import GptShape
from flopcast_validation.job.model import Place, build_part, loss_of
from sim.schedules import build_order

#: Our name -> torch's class, and whether it takes several stages a rank. A new schedule is one line.
SCHEDULES: dict[str, tuple[Any, bool]] = {
    "gpipe": (torch_schedules.ScheduleGPipe, False),
    "1f1b": (torch_schedules.Schedule1F1B, False),
    "interleaved": (torch_schedules.ScheduleInterleaved1F1B, True),
    "breadth_first": (torch_schedules.ScheduleLoopedBFS, True),
    "zb_interleaved": (torch_schedules.ScheduleInterleavedZeroBubble, True),
    "zb_v": (torch_schedules.ScheduleZBVZeroBubble, True),
}
Event = tuple[str, int, int, float, float]
"""(F, B, I or W, stage, micro-batch, begin, end) [s]"""


class PlainStage:
    """The whole model, forward and backward of one micro-batch at a time.

    torch's pipeline stages keep FSDP's gradients whole until the last micro-batch, and with them the weights that were
    gathered; a plain backward reduces and frees them each time, as training without a pipeline does.
    """

    stage_index = 0

    def __init__(self, submod: nn.Module, microbatches: int) -> None:
        self.submod, self.microbatches = submod, microbatches
        self._losses: dict[int, Tensor] = {}

    def forward_one_chunk(self, microbatch: int, inputs: Tensor, targets: Tensor) -> Tensor:
        """The loss."""
        loss = self._losses[microbatch] = loss_of(self.submod(inputs), targets)
        return loss.detach()

    def backward_one_chunk(self, microbatch: int) -> None:
        """Its gradients, added to what is there."""
        (self._losses.pop(microbatch) / self.microbatches).backward()

    def backward_weight_one_chunk(self, microbatch: int) -> None:
        """No order splits the backward of a single stage."""
        raise NotImplementedError


class PlainRunner:
    """One micro-batch after the other, as schedule 1f1b has it on one rank."""

    def __init__(self, stage: PlainStage) -> None:
        self.stage = stage

    def step(self, inputs: Tensor, *, target: Tensor, losses: list[Tensor], return_outputs: bool = False) -> None:
        """All of a step; the micro-batches' losses are added to `losses`."""
        pieces = zip(inputs.chunk(self.stage.microbatches), target.chunk(self.stage.microbatches), strict=True)
        for microbatch, (some, wanted) in enumerate(pieces):
            losses.append(self.stage.forward_one_chunk(microbatch, some, wanted))
            self.stage.backward_one_chunk(microbatch)


def build_stages(shape: GptShape, place: Place, here: torch.device) -> tuple[list[Any], Any]:
    """This rank's stages of a configuration, and what runs them."""
    cut = place.cut
    num_stages = cut.pp * cut.num_chunks
    share = shape.num_layers // num_stages
    parts = {
        index: build_part(shape, range(index * share, (index + 1) * share), cut, here, place)
        for index, rank in enumerate(home_of_stages(place))
        if rank == place.pp
    }
    if cut.zero_stage == 3:
        plain = PlainStage(parts[0], cut.microbatches)
        return [plain], PlainRunner(plain)
    group = place.along("pp").get_group()
    stages = [PipelineStage(part, index, num_stages, here, group=group) for index, part in parts.items()]
    make, takes_several = SCHEDULES[cut.schedule]
    return stages, make(stages if takes_several else stages[0], cut.microbatches, loss_fn=loss_of)


def home_of_stages(place: Place) -> list[int]:
    """Which pipeline rank holds each stage."""
    cut = place.cut
    home: list[int] = build_order(cut.schedule, cut.pp, cut.num_chunks, cut.microbatches).rank_of_stage.tolist()
    return home


def trace(stage: Any, events: list[Event], moment: Callable[[], Any] = time.perf_counter) -> None:
    """Have the stage note when each forward and backward begins and ends, by `moment`.

    By the host's clock the end is when it has launched them: waiting there would undo the overlap that is measured.
    """

    def noting(kind: str, call: Callable[..., Any], microbatch: int, *args: Any, **kwargs: Any) -> Any:
        begin = moment()
        result = call(microbatch, *args, **kwargs)
        kind = "I" if kind == "B" and not kwargs.get("full_backward", True) else kind
        events.append((kind, stage.stage_index, microbatch, begin, moment()))
        return result

    stage.forward_one_chunk = partial(noting, "F", stage.forward_one_chunk)
    stage.backward_one_chunk = partial(noting, "B", stage.backward_one_chunk)
    stage.backward_weight_one_chunk = partial(noting, "W", stage.backward_weight_one_chunk)
