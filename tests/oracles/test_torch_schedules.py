"""Orders of gpipe, 1f1b and interleaved are those that torch.distributed.pipelining really runs.

torch's single-stage schedules are run, a rank at a time, on a stage that only writes down what it is asked to do: no
process group, no tensors. Their `pipeline_order` (for drawings) is no oracle: in 2.13 the one of Schedule1F1B starts the
last rank with micro-batch 1 instead of 0. ScheduleInterleaved1F1B executes its `pipeline_order`, here without idle slots.
"""

import types

import pytest
from rows import rows

from sim.schedules import build_order

torch = pytest.importorskip("torch")
pipelining = pytest.importorskip("torch.distributed.pipelining.schedules")

ALONE = [(1, 1), (1, 4), (2, 2), (2, 3), (3, 3), (3, 7), (4, 4), (4, 8), (4, 9), (5, 16), (8, 8), (8, 24)]
# Equal for every m that p divides, m = p included (Megatron-LM of 2021 ran all forwards first in that one case).
CHUNKED = [(p, v, p * rounds) for p in (2, 3, 4, 8) for v in (2, 3, 4) for rounds in (1, 2, 3, 5)]
ONE_STAGE = {  # torch refuses fewer micro-batches than ranks for 1F1B but not for GPipe
    "gpipe": ("GPipe", [*ALONE, (2, 1), (4, 3), (8, 2)]),
    "1f1b": ("1F1B", ALONE),
}
SEVERAL_STAGES = {
    "interleaved": ("Interleaved1F1B", CHUNKED),
    "zb_interleaved": ("InterleavedZeroBubble", CHUNKED),
    "breadth_first": ("LoopedBFS", [*CHUNKED, (3, 2, 4), (4, 2, 7)]),
    "zb_v": ("ZBVZeroBubble", [(p, 2, m) for p in (2, 3, 4, 8) for m in (p, 2 * p - 1, 2 * p, 3 * p + 1, 5 * p)]),
    "dualpipe_v": ("DualPipeV", [(p, 2, 2 * p + more) for p in (1, 2, 3, 4, 8) for more in (0, 1, 2, 9)]),
}


class NotingStage:
    """A pipeline stage that computes nothing and notes every forward and backward."""

    submod = None
    device = "cpu"
    output_chunks = ()

    def __init__(self, rank, num_ranks):
        self.stage_index, self.num_stages, self.is_last = rank, num_ranks, False
        self.done = []

    def forward_one_chunk(self, microbatch, *args, **kwargs):
        self.done.append(f"{self.stage_index}F{microbatch}")

    def backward_one_chunk(self, microbatch, **kwargs):
        self.done.append(f"{self.stage_index}B{microbatch}")

    def no_messages(self, microbatch):
        return []

    get_fwd_recv_ops = get_fwd_send_ops = get_bwd_recv_ops = get_bwd_send_ops = no_messages

    def clear_runtime_states(self):
        pass

    def perform_reduce_grad(self, scale):
        pass


def run_torch(schedule, rank, num_ranks, num_microbatches):
    stage = NotingStage(rank, num_ranks)
    runner = schedule(stage, num_microbatches)
    runner._stage_forward_initialized = True  # no shapes to exchange
    runner.step()
    return stage.done


def ours(name, p, v, m):
    return [[str(action) for action in row] for row in build_order(name, p, v, m).actions]


@rows("name", ONE_STAGE)
def test_one_stage_a_rank(name):
    theirs, sizes = ONE_STAGE[name]
    for p, m in sizes:
        run = [run_torch(getattr(pipelining, f"Schedule{theirs}"), rank, p, m) for rank in range(p)]
        assert ours(name, p, 1, m) == run, (p, m)


def torch_rows(schedule, p, v, m):
    """The `pipeline_order` of a schedule with v stages a rank, without idle slots; pairs as one action after the other."""
    wave = schedule in ("ScheduleZBVZeroBubble", "ScheduleDualPipeV")

    def stage(rank, chunk):
        index = (chunk + 1) * p - 1 - rank if wave and chunk % 2 else chunk * p + rank
        return types.SimpleNamespace(
            num_stages=p * v, group_size=p, group_rank=rank, stage_index=index, submod=torch.nn.Identity()
        )

    def flat(actions):
        for action in actions:
            if action is not None:
                yield from (map(str, action.sub_actions) if action.sub_actions else [str(action)])

    made = getattr(pipelining, schedule)([stage(0, chunk) for chunk in range(v)], m)
    return [list(flat(made.pipeline_order[rank])) for rank in range(p)]


@rows("name", SEVERAL_STAGES)
def test_several_stages_a_rank(name):
    theirs, sizes = SEVERAL_STAGES[name]
    for size in sizes:
        assert ours(name, *size) == torch_rows(f"Schedule{theirs}", *size), size


def test_every_schedule_of_torch_is_compared():
    names = {name for name in vars(pipelining) if name.startswith("Schedule")}
    assert names == {f"Schedule{theirs}" for theirs, _ in (*ONE_STAGE.values(), *SEVERAL_STAGES.values())}
