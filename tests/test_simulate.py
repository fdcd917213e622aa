"""Noise and faults of whole scenarios, and the command that asks for them."""

import pytest

from sim import estimate, load_scenario
from sim.errors import FlopcastError, SpecError
from sim.simulate import simulate

SMALL = ["plan.pp=4", "plan.dp=3", "training.global_batch_size=48"]


@pytest.fixture(scope="module")
def small(scenarios):
    return load_scenario(scenarios / "gpt-1t-3072-a100.yaml", SMALL)


def test_with_nothing_wrong_it_is_the_estimate(small):
    answer = simulate(small)
    assert answer.step_times_s == (estimate(small).step_time_s,)
    assert answer.to_dict()["added_s"] == 0.0
    unfolded = simulate(small, unfold=True)
    assert unfolded.step_times_s[0] == pytest.approx(answer.step_times_s[0], rel=1e-12)


def test_a_narrow_tree_and_slow_or_lost_links_cost_time(small):
    sound = simulate(small, contention=True).mean_s
    slow = [simulate(small, slow_links=[f"{share}@node3"]).mean_s for share in (0.5, 0.1, 0.02)]
    assert sound < slow[0] < slow[1] < slow[2]
    # By the profile a send fills 43 of the 96 % of a card that are ever reached: the others have room for one or two.
    lost = [simulate(small, links_down=[f"node3.nic{card}" for card in range(few)]).mean_s for few in (1, 5)]
    assert sound == pytest.approx(lost[0], rel=1e-9)
    assert lost[1] > sound
    assert simulate(small, slow_links=["1@node3"]).mean_s == pytest.approx(sound, rel=1e-12)


def test_a_straggler_holds_up_the_step_wherever_it_is(small):
    one_rank, one_gpu = (simulate(small, stragglers=[text]) for text in ("1.2@rank2", "1.2@gpu50"))
    assert one_rank.mean_s == one_gpu.mean_s  # rank 2 is GPUs 48 … 71; the others of its replica set no pace
    assert one_rank.mean_s > one_rank.noiseless_s * 1.1
    everywhere = simulate(small, stragglers=[f"1.2@rank{rank}" for rank in range(4)])
    assert one_rank.mean_s < everywhere.mean_s < 1.2 * everywhere.noiseless_s
    assert simulate(small, stragglers=["1.2@gpu50", "1.2@gpu80"]).pipelines == 2  # replicas 0 and 1, on two ranks


@pytest.mark.parametrize(("name", "chunks"), [("zb_h2", 1), ("zb_v", 2), ("pipedream_2bw", 1)])
def test_schedules_whose_steps_overlap_take_no_jitter(small, name, chunks):
    overlapping = small.replace(plan=small.plan.replace(schedule=name, num_chunks=chunks))
    for unfold in (False, True):
        with pytest.raises(FlopcastError, match=f"{name}.*lets steps overlap.*--unfold"):
            simulate(overlapping, jitter=0.05, unfold=unfold)


@pytest.mark.parametrize(
    ("question", "says"),
    [
        ({"jitter": -0.1}, "from 0 to 1, such as 0.02"),
        ({"jitter": float("nan")}, "jitter nan"),
        ({"seeds": 0}, "0 seeds: give a whole number from 1"),
        ({"seed": -1}, "seed -1"),
        ({"stragglers": ["1.2@rank4"]}, "pipeline ranks 0 to 3"),
        ({"stragglers": ["1.2@gpu96"]}, "96 are among 0 to 95"),
        ({"stragglers": ["1.2@node3"]}, "rankR .pipeline rank 0 to 3. or gpuG .0 to 95."),
        ({"stragglers": ["-1@rank1"]}, "1 or more times as long, not -1"),
        ({"stragglers": ["nan@rank1"]}, "such as 1.2@rank17"),
        ({"stragglers": ["rank1"]}, "such as 1.2@rank17"),
        ({"slow_links": ["2@node1"]}, "not a share of its bandwidth"),
        ({"slow_links": ["0@node1"]}, "--link-down node1"),
        ({"slow_links": ["0.5@nod1"]}, "unknown link 'nod1'"),
        ({"links_down": ["node1"]}, "GPU 8 cannot reach GPU"),
        ({"contention": True, "unfold": True}, "leave out --unfold"),
        ({"contention": True, "stragglers": ["1.2@gpu50", "1.2@gpu80"]}, "slow a pipeline rank instead"),
    ],
)
def test_what_is_wrong_with_a_question(small, question, says):
    with pytest.raises(SpecError, match=says):
        simulate(small, **question)


def test_a_link_of_a_node_that_the_plan_leaves_idle_is_said_to_change_nothing(small):
    answer = simulate(small, slow_links=["0.5@gpu99.nic", "0.9@leaf0"], links_down=["node12", "node3.nic1"])
    idle = [note.split()[0] for note in answer.assumptions if "does not use" in note]
    assert idle == ["gpu99.nic", "node12"]
    assert any("does not fit in memory" in note for note in answer.assumptions)
