"""Noise and faults of whole scenarios; messages that share links are never faster for it, and no loss is counted twice."""

import pytest

from sim import estimate, load_scenario
from sim.errors import FlopcastError, SpecError
from sim.pricing.layouts import cost_model
from sim.schedules import get_schedule, schedule_names
from sim.simulate import simulate
from sim.specs.hardware import LevelSpec, NetworkSpec
from sim.work.sums import total_params

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
    # Drawn noise, even none, takes the place of the wait for the slowest GPU.
    alike = small.replace(cluster=small.cluster.replace(gpu_spread=0.0))
    assert simulate(small, jitter=0.0).mean_s == simulate(alike).mean_s < 0.999 * answer.mean_s


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


CORE = LevelSpec(ports=8000)


def on_tree(scenario, oversubscription=1.0, routing="adaptive", rails=True):
    leaf = LevelSpec(ports=40, below=2, oversubscription=oversubscription)
    network = NetworkSpec(levels={"leaf": leaf, "core": CORE}, rail_optimised=rails, routing=routing)
    return scenario.replace(cluster=scenario.cluster.replace(network=network))


@pytest.mark.parametrize("name", [name for name in schedule_names()[::3] if not get_schedule(name).asynchronous])
def test_no_schedule_with_a_flush_is_refused(small, name):
    chosen = get_schedule(name)
    chunks = chosen.chunks if isinstance(chosen.chunks, int) else 2 if chosen.interleaves else 1
    chunks = 16 if name == "modular" else chunks  # a layer each
    slices = 2 if "slices" in chosen.options else 1
    plan = small.plan.replace(schedule=name, num_chunks=chunks, sequence_slices=slices)
    asked = on_tree(small.replace(plan=plan), 4.0)
    alone, played = estimate(asked).step_time_s, simulate(asked, contention=True).mean_s
    assert alone * (1 - 1e-9) <= played < 1.2 * alone


def test_a_fabric_measured_in_use_does_not_pay_twice(small):
    """Its own efficiencies are 14 % of the cards; links still carry what the profile's network reaches."""
    slow = small.replace(cluster=small.cluster.replace(network_efficiency=0.14, network_shared_efficiency=0.14))
    assert cost_model(slow).fabric.best_share == small.profile.network.efficiency
    assert simulate(slow, contention=True).mean_s == pytest.approx(estimate(slow).step_time_s, rel=1e-9)


def test_gradients_of_experts_cross_nodes_by_every_card(scenarios):
    """A GPU's experts have their copies at the same place of other nodes, so their rings use its own card in full.

    Everything else is in rings over all replicas, of which a node's eight cards carry one together.
    """
    settings = ["plan.pp=1", "plan.num_chunks=1", "plan.tp=1", "plan.ep=8", "plan.dp=32", "plan.schedule=1f1b"]
    settings += ["training.global_batch_size=32", "plan.pipeline_layout=", "plan.sequence_parallel=false"]
    asked = load_scenario(scenarios / "qwen3-235b-a22b-256-h100.yaml", settings)
    carried = {(row["level"], row["direction"]): row["bytes"] for row in simulate(asked, contention=True).levels}
    model, width = asked.model, 4 + 2  # gradients reduced in fp32, weights gathered in bf16
    experts = model.num_layers * 3 * model.hidden_size * model.expert_intermediate_size * model.num_experts
    others = total_params(model) - experts
    sent = width * (experts / 8 * 3 / 4 + others * 31 / 32 / 8)
    assert asked.stack.gradient_precision == "fp32"
    assert carried["nic", "up"] == pytest.approx(32 * sent, rel=1e-9)


@pytest.mark.parametrize(
    "name",
    [
        "gpt3-175b-4096-a100",
        "korthikanti-2022/22b-selective",
        "megatron-2019-1.2b-1-v100",
        pytest.param("x160-38640-a100", marks=pytest.mark.thorough),
    ],
)
def test_a_group_does_not_meet_itself(scenarios, name):
    """Collectives that compute waits for and those beside it, on one GPU or on many, one after the other; but for the
    moments at which two kinds meet on a card."""
    scenario = load_scenario(scenarios / f"{name}.yaml")
    alone = estimate(scenario).step_time_s
    assert simulate(scenario, contention=True).mean_s == pytest.approx(alone, rel=1e-4)
