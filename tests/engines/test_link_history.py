"""Messages of a step are those of the plan, and their time goes where it must."""

import numpy as np
import pytest
import simpy

from sim import load_scenario, simulate
from sim.engines.link_history import CAUSES, time_of_messages
from sim.engines.wire import Message, Wire
from sim.traffic.streams import Stream, Traffic

SMALL = ["plan.pp=4", "plan.dp=3", "training.global_batch_size=48"]
WIDE = [*SMALL, "plan.tp=16", "plan.zero_stage=1", "stack.overlap_p2p=true", "cluster.network.routing=ecmp"]


@pytest.fixture(scope="module", params=[SMALL, WIDE], ids=["tp in a node", "tp over two"])
def followed(request, scenarios):
    return simulate(load_scenario(scenarios / "gpt-1t-3072-a100.yaml", request.param), links=True)


def test_messages_are_those_of_the_plan(followed):
    plan = followed.scenario.plan
    rows = {row["kind"]: row for row in followed.messages}
    microbatches = followed.scenario.num_microbatches
    for kind in ("sends forward", "sends backward"):
        assert rows[kind]["messages"] == microbatches * (plan.pp - 1)
    assert rows["gradient reduction"]["messages"] == plan.pp
    assert ("weight gather" in rows) is (plan.zero_stage == 1)
    assert rows["tensor parallel"]["messages"] == 2 * plan.pp * microbatches
    for row in rows.values():
        assert set(row["seconds"]) == set(CAUSES)
        assert min(row["seconds"].values()) >= 0


class OneLink:
    """A machine of one link."""

    class_of_link, levels, gpus_per_node, nics_per_node = np.array([0]), (), 1, 1

    class Cards:
        name, direction, start, count, is_trunk = "nvlink", "up", 0, 1, False

    classes = (Cards(),)

    def __init__(self, bytes_per_s=1.0):
        self.capacity = np.array([bytes_per_s])


def test_time_of_messages_by_hand():
    """Two on one link that each would fill: from 1 to 3 at half speed; the second waited a second for its turn."""
    link = np.array([0])
    one = Stream(0.5, 2.0, 0.25, link, np.ones(1), np.array([8.0]), 1.0, "forward", 8.0)
    other = Stream(0.0, 1.0, 0.0, link, np.ones(1), np.array([4.0]), 1.0, "gradients", 4.0)

    none = np.zeros(0, dtype=int)
    traffic = Traffic(OneLink(8.0), np.ones(1), (one, other), none, none, none, none)
    messages = [Message(0, 0.0, 0.0, 3.0, 2.0), Message(1, 0.0, 1.0, 3.0, 1.0)]
    forward, gradients = time_of_messages(messages, traffic)
    assert forward["seconds"] == dict(zip(CAUSES, (0.5, 2.0, 0.0, 1.0, 0.0, 0.25), strict=True))
    assert gradients["seconds"] == dict(zip(CAUSES, (0.0, 1.0, 0.0, 1.0, 1.0, 0.0), strict=True))


def test_messages_that_meet_go_on_at_half_speed_and_then_at_full():
    """One alone for a second, then beside another on a link that each would fill."""
    link = np.array([0])
    long, short = (
        Stream(0.0, s, 0.0, link, np.ones(1), np.array([s]), 1.0, kind, s)
        for s, kind in ((3.0, "forward"), (1.0, "backward"))
    )
    environment, none = simpy.Environment(), np.zeros(0, dtype=int)
    wire = Wire.over(environment, Traffic(OneLink(), np.ones(1), (long, short), none, none, none, none))
    wire.move(0, 3.0)
    environment.run(1.0)
    wire.move(1, 1.0)
    environment.run()
    assert [(each.stream, each.begin_s, each.end_s) for each in wire.messages] == [(1, 1.0, 3.0), (0, 0.0, 4.0)]
    assert wire.meetings == 2
