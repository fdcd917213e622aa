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

SIZES = [(1, 1), (1, 4), (2, 2), (2, 3), (3, 3), (3, 7), (4, 4), (4, 8), (4, 9), (5, 16), (8, 8), (8, 24)]
CHUNKED = [(p, v, p * rounds) for p in (2, 3, 4, 8) for v in (2, 3, 4) for rounds in (1, 2, 3, 5)]


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


@rows(("name", "schedule"), [("gpipe", "ScheduleGPipe"), ("1f1b", "Schedule1F1B")])
@rows(("p", "m"), SIZES)
def test_one_stage_a_rank(name, schedule, p, m):
    theirs = [run_torch(getattr(pipelining, schedule), rank, p, m) for rank in range(p)]
    assert ours(name, p, 1, m) == theirs


# torch refuses fewer micro-batches than ranks for 1F1B but not for GPipe.
@rows(("p", "m"), [(2, 1), (4, 3), (8, 2)])
def test_gpipe_with_fewer_microbatches_than_ranks(p, m):
    assert ours("gpipe", p, 1, m) == [run_torch(pipelining.ScheduleGPipe, rank, p, m) for rank in range(p)]


def torch_rows(schedule, p, v, m, **given):
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


# Equal for every m that p divides, m = p included (Megatron-LM of 2021 ran all forwards first in that one case).
@rows(("p", "v", "m"), CHUNKED)
def test_interleaved(p, v, m):
    assert ours("interleaved", p, v, m) == torch_rows("ScheduleInterleaved1F1B", p, v, m)


@rows(("p", "v", "m"), CHUNKED)
def test_interleaved_zero_bubble(p, v, m):
    assert ours("zb_interleaved", p, v, m) == torch_rows("ScheduleInterleavedZeroBubble", p, v, m)


@rows(("p", "v", "m"), [*CHUNKED, (3, 2, 4), (4, 2, 7)])
def test_looped_breadth_first(p, v, m):
    assert ours("breadth_first", p, v, m) == torch_rows("ScheduleLoopedBFS", p, v, m)


@rows(("p", "m"), [(p, m) for p in (2, 3, 4, 8) for m in (p, 2 * p - 1, 2 * p, 3 * p + 1, 5 * p)])
def test_zb_v(p, m):
    assert ours("zb_v", p, 2, m) == torch_rows("ScheduleZBVZeroBubble", p, 2, m)


@rows(("p", "m"), [(p, 2 * p + more) for p in (1, 2, 3, 4, 8) for more in (0, 1, 2, 9)])
def test_dual_pipe_v(p, m):
    assert ours("dualpipe_v", p, 2, m) == torch_rows("ScheduleDualPipeV", p, 2, m)


def test_every_schedule_of_torch_is_compared():
    names = {name for name in vars(pipelining) if name.startswith("Schedule")}
    compared = {"GPipe", "1F1B", "Interleaved1F1B", "InterleavedZeroBubble", "LoopedBFS", "ZBVZeroBubble", "DualPipeV"}
    assert names == {f"Schedule{name}" for name in compared}
