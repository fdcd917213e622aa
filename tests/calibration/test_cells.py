"""Columns of tables of runs: fields by their paths and short names, names of machines and frameworks, notes that set nothing."""

import re
from pathlib import Path

import pytest

from flopcast_calibration.readers.cells import (
    ABOUT_THE_RUN,
    ALIASES,
    FACTS,
    check_columns,
    named_in,
    override_cells,
)
from flopcast_calibration.readers.described import framework_name, machine_of, model_named
from flopcast_calibration.readers.training_runs import (
    family_of,
    read_rows,
    read_run,
    read_training_runs,
    unread_columns,
)
from flopcast_validation.run import runs_tables
from sim.errors import SpecError
from sim.estimate import estimate
from sim.specs import ClusterSpec, GpuSpec, StackSpec, load_preset, preset_names
from sim.specs.base import file_name
from sim.specs.loading import SECTIONS, resolve
from sim.specs.yaml12 import load_yaml
from sim.work.sums import hardware_flop, model_flop

GIB = 2**30
NAMES = load_yaml(Path(__file__).parent / "names.yaml")
FULL = {"layers", "hidden", "heads", "kv_heads", "ffn_hidden", "vocab", "gated_mlp"}


def test_short_columns_stand_for_fields():
    wrong = [short for short, path in ALIASES.items() if check_columns([path]) or short not in ABOUT_THE_RUN]
    assert wrong == []
    assert all(path.partition(".")[2] in SECTIONS[path.partition(".")[0]].model_fields for path in ALIASES.values())


def test_names_of_machines(run_row):
    wrong = {}
    for gpu, memory, node, gigabytes, profile in NAMES["machines"]:
        cluster, found = machine_of(run_row(gpu=gpu, gpu_mem_gb=memory, gpus_per_node=""), [])
        spec = ClusterSpec.read(resolve({**cluster, "num_nodes": 1}, "cluster"), gpu)
        close = spec.gpu.memory_bytes == pytest.approx(gigabytes * 1e9, rel=0.09)  # GB or GiB, or a bit of either
        if (cluster["node"]["preset"], found, close) != (node, profile, True):
            wrong[gpu] = cluster["node"]["preset"], found, spec.gpu.memory_bytes
    assert wrong == {}
    entries = [
        entry for entry in FACTS["gpus"] if not any(named_in(gpu, entry["name"]) for gpu, *_ in NAMES["machines"])
    ]
    assert entries == [], "say in names.yaml how a table writes them"
    for gpu in ("", "TPU v4", "A10G", "RTX A1000", "MI250", "P100"):
        assert read_run(run_row(gpu=gpu), "").skipped.startswith(f"unknown GPU {gpu!r}; known: V100"), gpu


def test_links(run_row):
    wrong = {}
    for link, gbits in NAMES["links"].items():
        run = read_run(run_row(inter_node_link=link), "")
        rate = run.scenario.cluster.inter_node_bandwidth_bytes_per_s * 8e-9
        if rate != pytest.approx(gbits, rel=1e-5) or any("network as in" in line for line in run.inferred):
            wrong[link] = rate
    for link in ("", "InfiniBand", "0 Gb/s per node", "8x 0 Gb/s", "... Gb/s per node", "1.2.3"):
        if not any(
            line.startswith("network as in node preset dgx-a100-80gb: ")
            for line in read_run(run_row(inter_node_link=link), "").inferred
        ):
            wrong[link] = "said to be inferred"
    assert wrong == {}
    slow, fast = (read_run(run_row(inter_node_link=f"4x 100 Gb/s {name}"), "") for name in ("Omni-Path", "HDR"))
    # Four cards a node and the mean of three published all-reduces: about 7 GB/s a node.
    cluster = slow.scenario.cluster
    assert 5e9 < cluster.network_efficiency * cluster.inter_node_bandwidth_bytes_per_s * 8 < 10.6e9
    assert fast.scenario.cluster.network_efficiency is None


def test_names_of_frameworks():
    assert {said: framework_name(said) for said in NAMES["frameworks"]} == NAMES["frameworks"]
    assert set(FACTS["frameworks"].values()) <= set(preset_names("frameworks"))


def test_a_row_is_of_the_time_that_its_framework_or_source_names(run_row):
    for framework, source, version in NAMES["versions"]:
        row = run_row(framework=framework, source=source, precision="bf16")
        assert read_run(row, "").scenario.stack.version == version, (framework, source)
    stated = run_row(**{"framework": "Megatron-LM (2022)", "stack.version": "2024-01"})
    assert read_run(stated, "").scenario.stack.version == "2024-01"


def test_names_of_models():
    assert {name: model_named(name) for name in NAMES["models"]} == NAMES["models"]


def test_every_name_stands_for_something_of_ours():
    for entry in FACTS["gpus"]:
        assert entry["node"] in preset_names("nodes")
        assert entry["profile"] in [*preset_names("profiles"), "datasheet"]
        gpu = entry.get("gpu", {})
        changes = {key: value for key, value in gpu.items() if key != "preset"}
        GpuSpec.read({**load_preset("gpus", gpu.get("preset", "a100-sxm-80gb")), **changes}, "")
    assert all(
        {file_name(name) for name in ClusterSpec.model_fields} >= each["set"].keys() for each in FACTS["links"].values()
    )
    assert all(fields.keys() <= StackSpec.model_fields.keys() for fields in FACTS["kernels"].values())
    for word, lineage in FACTS["lineages"].items():
        assert family_of({"source": f"The {word.title()} paper", "model_name": "X"}) == f"{lineage} / x"


def test_kernels_have_a_column(run_row):
    stacks = {kernel: read_run(run_row(kernel=kernel), "").scenario.stack for kernel in ("torch", "flash_attention2")}
    assert {kernel: stack.attention for kernel, stack in stacks.items()} == {
        "torch": "math",
        "flash_attention2": "flash",
    }
    assert "kernel 'magic' is not one of torch, " in read_run(run_row(kernel="magic"), "").skipped


def test_notes_set_nothing(runs_file, run_row):
    said = "natural routing; recompute norm,act; attention/norm kernel: torch; LoRA rank 16; vp=4 ONE layer; NVFP4"
    plain, noted = read_training_runs(runs_file([run_row(), run_row(notes=said)]))
    assert noted.choices is plain.choices
    (named,) = unread_columns(runs_file([run_row(notes=said)]))
    assert named.startswith("notes, which are for people")
    assert unread_columns(runs_file([run_row()])) == []


def test_a_field_s_column_says_it(run_row):
    paths = {"stack.attention": "math", "plan.recompute": "per_op", "cluster.node.gpu.memory": "90 GB"}
    (scenario,) = read_run(run_row(recompute="", **paths), "").choices
    assert (scenario.stack.attention, scenario.plan.recompute) == ("math", "per_op")
    assert scenario.cluster.gpu.memory_bytes == 90e9
    # What a column says is not inferred.
    said = {"plan.recompute": "per_op", "stack.framework": "torchtitan", "stack.version": "2025-06"}
    inferred = read_run(run_row(recompute="", framework="", **said), "").inferred
    assert not any(line.startswith(("recompute", "framework")) for line in inferred)
    # The path of a field that has a column of its own fills that one where it is empty.
    row = {**run_row(tp="", dp="", sequence_parallel=""), "plan.tp": "4", "plan.sequence_parallel": "true"}
    by_path = read_run(row, "").scenario
    assert (by_path.plan.tp, by_path.plan.dp, by_path.plan.sequence_parallel) == (4, 2, True)
    assert read_run({**run_row(framework="NeMo"), "stack.version": "24.10"}, "").scenario.stack.packed_masters


def test_columns_that_nothing_reads_are_named(tmp_path):
    path = tmp_path / "runs.csv"
    path.write_text("gpu,micro_batch_seq,plan.tp,stack.attention,colour\n1,2,3,4,5\n")
    assert unread_columns(path) == ["micro_batch_seq; did you mean 'micro_batch_seqs'?", "colour"]
    for column, says in (("stak.attention", "no section 'stak'"), ("stack.atention", "did you mean 'attention'")):
        with pytest.raises(SpecError, match=says):
            check_columns([column])


def test_overrides_win_over_cells(runs_file, run_row):
    path = runs_file([run_row(tp=2, dp=4, sequence_parallel="n")])
    (plain,), (other,) = (read_training_runs(path, None, said) for said in ((), ("plan.tp=4", "plan.dp=2")))
    assert (plain.scenario.plan.tp, other.scenario.plan.tp) == (2, 4)
    for wrong in ("plan.tp", "tp=4", "plan.tpp=4", "plan.tp="):
        with pytest.raises(SpecError, match=r"must look like|has no field"):
            override_cells([wrong])
    # Published rows have as many GPUs as before.
    (row,) = next(table for table in runs_tables() if table.name == "bloomberggpt").rows
    before, after = (read_run({**row, **each}, "").scenario.plan for each in ({}, override_cells(["plan.tp=4"])))
    assert (before.tp, after.tp, after.num_gpus) == (1, 4, before.num_gpus)


def test_shares_of_peak(run_row):
    recomputing = {"recompute": "full", "precision": "bf16"}
    seconds = read_run(run_row(**recomputing), "").scenario
    gpus, peak = seconds.plan.num_gpus, 312e12
    for unit, flop in (
        ("mfu_pct", model_flop(seconds.model, seconds.training)),
        ("hfu_pct", hardware_flop(seconds.model, seconds.training, seconds.plan)),
    ):
        run = read_run(run_row(measured_unit=unit, measured_value=40, **recomputing), "")
        assert run.step_time_s(run.scenario) == pytest.approx(flop / (0.40 * peak * gpus))
        half = read_run(run_row(measured_unit=unit, measured_value=40, peak_tflops=156, **recomputing), "")
        assert half.step_time_s(half.scenario) == pytest.approx(2 * run.step_time_s(run.scenario))


def test_a_known_model_needs_no_sizes_and_gives_way_to_a_row_s(run_row):
    row = {"model_name": "Llama3 70B", "tp": 8, "dp": 1, "zero_stage": 3, **dict.fromkeys(FULL, "")}
    model = read_run(run_row(**row), "").scenario.model
    assert (model.num_layers, model.hidden_size, model.num_kv_heads, model.norm) == (80, 8192, 8, "rmsnorm")
    own = {"layers": 40, "hidden": 8192, "heads": 64, "ffn_hidden": 28672}
    other = read_run(run_row(**{**row, **own}), "").scenario.model
    assert (other.num_layers, other.norm) == (40, "rmsnorm")
    assert "is no model that ships" in read_run(run_row(model_name="Llama 9", layers=""), "").skipped


def test_the_kind_of_a_model_follows_from_its_mlp(run_row):
    gated = read_run(run_row(gated_mlp="y"), "").scenario.model
    assert (gated.position, gated.norm, gated.bias, gated.tied_embeddings) == ("rotary", "rmsnorm", False, False)
    plain = read_run(run_row(model_name="Llama of ours"), "").scenario.model  # the name says nothing
    assert (plain.position, plain.norm, plain.bias, plain.tied_embeddings) == ("learned", "layernorm", True, True)


def test_zero_bubble_memory_says_that_scores_were_kept(measurements):
    """The memory that the paper measured, schedule by schedule: with flash attention it would be a fifth to a half less."""
    measured = {}
    for row in read_rows(measurements / "training_runs.csv", ()):
        said = re.search(r"mem_gb=(\d+)", row["notes"])
        if said and row["source"].startswith("Zero Bubble"):
            measured[int(row["hidden"]), float(row["measured_value"])] = row["schedule"], float(said[1])
    (table,) = (table for table in runs_tables() if table.name == "zero-bubble")
    errors = {}  # one a model and schedule: the memory is the peak over numbers of micro-batches
    for run in (read_run(row, "") for row in table.rows):
        if (run.scenario.model.hidden_size, run.measured) in measured:
            used = max(estimate(run.scenario).memory, key=lambda use: use.total)
            allocated = used.total - used.framework - used.fragmentation  # PyTorch's count knows neither
            schedule, printed = measured[run.scenario.model.hidden_size, run.measured]
            errors[run.scenario.model.hidden_size, schedule] = allocated / GIB / printed - 1
    assert len(errors) >= 12
    assert sum(errors.values()) / len(errors) == pytest.approx(-0.06, abs=0.02)
    assert max(map(abs, errors.values())) < 0.10
