"""Links followed through a step carry what the step puts on them, when it does."""

import numpy as np
import pytest
import simpy

from sim import load_scenario, simulate
from sim.engines.link_history import CAUSES, link_history
from sim.engines.wire import Message, Wire
from sim.errors import SpecError
from sim.report.simulation import draw_links
from sim.traffic.streams import Stream, Traffic

SMALL = ["plan.pp=4", "plan.dp=3", "training.global_batch_size=48"]
WIDE = [*SMALL, "plan.tp=16", "plan.zero_stage=1", "stack.overlap_p2p=true", "cluster.network.routing=ecmp"]


@pytest.fixture(scope="module", params=[SMALL, WIDE], ids=["tp in a node", "tp over two"])
def followed(request, scenarios):
    return simulate(load_scenario(scenarios / "gpt-1t-3072-a100.yaml", request.param), links=True)


def test_no_byte_is_lost_on_the_way(followed):
    counted = {}  # both directions of a level, from the order's messages
    for row in followed.levels:
        counted[row["level"]] = counted.get(row["level"], 0.0) + row["mean_utilisation"] / 2
    for name, (mean, most) in followed.history.levels.items():
        assert mean.mean() == pytest.approx(counted[name], rel=0.02)
        assert (most >= mean - 1e-12).all()
        assert most.max() <= 1 + 1e-9


def test_messages_are_those_of_the_plan(followed):
    plan = followed.scenario.plan
    rows = {row["kind"]: row for row in followed.history.kinds}
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
    history = link_history(messages, traffic, 4.0, bins=4)
    forward, gradients = history.kinds
    assert forward["seconds"] == dict(zip(CAUSES, (0.5, 2.0, 0.0, 1.0, 0.0, 0.25), strict=True))
    assert gradients["seconds"] == dict(zip(CAUSES, (0.0, 1.0, 0.0, 1.0, 1.0, 0.0), strict=True))
    # Bytes are spread over a message's time: 8/3 a second of the first, 2 of the second.
    (use,) = history.links.values()
    np.testing.assert_allclose(use * 8.0, [8 / 3, 8 / 3 + 2, 8 / 3 + 2, 0.0])


def test_a_link_on_which_flows_come_and_go_never_carries_more_than_it_can():
    """Alone for a second, then beside another: drawn at the pace it had, not at its average."""
    link = np.array([0])
    long, short = (
        Stream(0.0, s, 0.0, link, np.ones(1), np.array([s]), 1.0, kind, s)
        for s, kind in ((3.0, "forward"), (1.0, "backward"))
    )
    environment = simpy.Environment()
    none = np.zeros(0, dtype=int)
    traffic = Traffic(OneLink(), np.ones(1), (long, short), none, none, none, none)
    wire = Wire.over(environment, traffic)
    wire.move(0, 3.0)
    environment.run(1.0)
    wire.move(1, 1.0)
    environment.run()
    history = link_history(wire.messages, traffic, 4.0, bins=8)
    (use,) = history.links.values()
    np.testing.assert_allclose(use, np.ones(8))
    assert [len(each.pieces) for each in wire.messages] == [0, 3]


def test_the_figure_is_written_where_links_were_followed(tmp_path, scenarios):
    scenario = load_scenario(scenarios / "gpt-1t-3072-a100.yaml", SMALL)
    draw_links(simulate(scenario, links=True), tmp_path / "links.png")
    assert (tmp_path / "links.png").stat().st_size > 20_000
    with pytest.raises(SpecError, match="add --links"):
        draw_links(simulate(scenario, contention=True), tmp_path / "none.png")
