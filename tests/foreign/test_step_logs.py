"""Logs of every framework that is read: small ones in the forms that the frameworks print, and damaged ones."""

import gzip
from pathlib import Path

import pytest
from facts import wrong_facts
from rows import rows

from sim import SpecError, load_scenario
from sim.check import measure
from sim.foreign.importers import Given, import_text
from sim.foreign.logs import read_log, seconds_of

LOGS = Path(__file__).parent / "logs"
SCENARIO = "scenarios/korthikanti-2022/22b-selective.yaml"
"""Of which the logs could be: 4 sequences of 2,048 on 8 GPUs, 1.1 s a step."""
FORMS = (
    # file, source, values after the warm-up, of warm-up, a note
    ("megatron.log", "Megatron-LM", 11, 1, ""),
    ("bridge.log", "Megatron-LM", 4, 1, "3 values of another batch than 4 are left out."),
    ("megatron_deepspeed.log", "Megatron-LM", 7, 1, ""),
    ("torchtitan.log", "torchtitan", 5, 1, "times of day"),
    ("nemo2.log", "NeMo", 9, 1, ""),
    ("nemo1.log", "NeMo", 9, 1, ""),
    ("deepspeed.log", "DeepSpeed", 5, 1, ""),
    ("deepspeed_pipeline.log", "DeepSpeed", 7, 1, ""),
    ("deepspeed_breakdown.log", "DeepSpeed", 7, 1, ""),
    ("trl.log", "progress bar", 9, 1, "smooths"),
    ("trainer_state.json", "Hugging Face", 1, 0, "one value of the whole run"),
    ("wandb_history.csv", "W&B", 9, 1, "_timestamp is set over _step."),
    ("wandb_iteration_time.csv", "W&B", 9, 1, "the column gpt-22b - iteration-time"),
)


@pytest.fixture(scope="module")
def scenario():
    return load_scenario(SCENARIO)


@rows("name, source, values, warm_up, note", FORMS)
def test_every_form_is_read(name, source, values, warm_up, note, scenario):
    logged = read_log(LOGS / name)
    measured = measure(seconds_of(logged, scenario, LOGS / name))
    assert logged.source == source
    assert (measured.values, measured.warm_up, measured.interrupted) == (values, warm_up, 0)
    assert measured.seconds == pytest.approx(1.1, rel=0.003)
    assert any(note in each for each in logged.notes) == bool(note)


TIMES = (
    ("_step,_timestamp\n1,10\n2,12\n3,14\n2,40\n3,42\n", [2.0, 2.0, 2.0]),  # after step 3 the job started again
    ("_step,throughput(tps)\n1,1024\n2,512\n", [1.0, 2.0]),  # of one GPU, which takes 1,024 tokens a step
    ("_step,samples_per_sec\n1,4\n2,8\n", [1.0, 0.5]),
    (" 10%|#  | 10/100 [00:05<00:45,  2.00it/s]\n", [0.5]),
)


@rows("text, seconds", TIMES)
def test_clocks_and_rates_are_times_of_steps(text, seconds, scenario, tmp_path):
    (tmp_path / "log").write_text(text)
    assert seconds_of(read_log(tmp_path / "log"), scenario, tmp_path / "log") == seconds


def test_all_forms_are_here():
    assert {name for name, *_ in FORMS} == {path.name for path in LOGS.iterdir()}


def test_other_tokens_than_the_run_has_are_refused(scenario):
    longer = load_scenario(SCENARIO, ["training.sequence_length=4096", "model.max_sequence_length=4096"])
    with pytest.raises(SpecError, match=r"1,02\d tokens a step on each GPU, and the scenario says 2,048 \(4 sequences"):
        seconds_of(read_log(LOGS / "torchtitan.log"), longer, LOGS / "torchtitan.log")
    other = load_scenario(SCENARIO, ["training.global_batch_size=8"])
    with pytest.raises(SpecError, match=r"steps of 4 sequences, .* 8; .* -s training\.global_batch_size=4"):
        seconds_of(read_log(LOGS / "megatron.log"), other, LOGS / "megatron.log")


@pytest.mark.parametrize("time", ["0.0", "-1100.2", "nan"])
def test_times_that_cannot_be_are_refused(time, tmp_path):
    path = tmp_path / "broken.log"
    path.write_text((LOGS / "megatron.log").read_text().replace("(ms): 1104.4", f"(ms): {time}"))
    with pytest.raises(SpecError, match=r"line \d+ says .* ms, which no step can have"):
        read_log(path)


def test_a_long_and_damaged_log_is_read_line_by_line(tmp_path, scenario):
    """A hundred thousand lines in a gzip file, with bytes that are no text and a line without an end among them."""
    path = tmp_path / "long.log.gz"
    lines = (LOGS / "nemo2.log").read_bytes().splitlines(keepends=True)
    noise = b"\xff\xfe not text\n" * 100_000 + b"------ arguments ------\n" + b"x" * 3_000_000
    path.write_bytes(gzip.compress(b"".join(lines[:5]) + noise + b"\n" + b"".join(lines[5:]), 1))
    assert measure(seconds_of(read_log(path), scenario, path)).values == 9
    cut = tmp_path / "cut.log.gz"
    cut.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(SpecError, match="not a whole gzip file"):
        read_log(cut)


@rows(
    "name, make, message",
    (
        ("a folder", lambda path: path.mkdir(), "is a folder"),
        ("nothing", lambda path: None, "cannot read"),
        ("no steps", lambda path: path.write_text("loss 1.0\nloss 0.9\n"), "no step times in a known form"),
        ("one step", lambda path: path.write_text("_step,_timestamp\n1,5.0\n"), "fewer than two steps"),
        ("no steps counted", lambda path: path.write_text("loss,_runtime\n1,5.0\n"), "export _step too"),
    ),
)
def test_what_is_no_log_is_refused(name, make, message, tmp_path):
    path = tmp_path / name.replace(" ", "-")
    make(path)
    with pytest.raises(SpecError, match=message):
        read_log(path)


PRINTED = [  # values as Megatron-LM prints them in place of those of the log, facts
    ({}, {"plan.tp": 8, "plan.microbatch_size": 4, "plan.recompute": "selective", "training.precision": "fp16", "model.num_layers": 48}),
    ({"exp_avg_dtype": "torch.bfloat16", "use_precision_aware_optimizer": True}, {"training.moment_precision": "bf16"}),
    ({"optimizer_cpu_offload": True, "optimizer_offload_fraction": 0.5}, {"plan.optimizer_offload": 0.5}),
    ({"recompute_granularity": "full", "recompute_method": "block", "recompute_num_layers": 2}, {"plan.recompute": "full", "plan.recompute_method": "block", "plan.recompute_num_layers": 2}),
    ({"recompute_granularity": "selective", "recompute_modules": "['core_attn', 'layernorm']"}, {"plan.recompute_modules": ["core_attn", "layernorm"]}),
    ({"fp16": False, "bf16": True, "fp8": "hybrid", "fp8_recipe": "mxfp8"}, {"training.precision": "mxfp8"}),
    ({"attention_backend": "AttnBackend.flash"}, {"stack.attention": "flash"}),
]  # fmt: skip


@rows(("values", "facts"), PRINTED)
def test_printed_arguments_are_a_scenario(values, facts):
    """All arguments that there are, of which those of pictures, T5 and experts are defaults of other models."""
    lines = (LOGS / "megatron.log").read_text().splitlines()
    lines = [line for line in lines if line.split(" .")[0].strip() not in values]
    end = next(number for number, line in enumerate(lines) if "end of arguments" in line)
    lines[end:end] = [f"  {name} {'.' * 20} {value}" for name, value in values.items()]
    imported = import_text("\n".join(lines), "train.log", Given(cluster="superpod-h100"))
    assert imported.kind == "megatron"
    assert not wrong_facts(imported.scenario(), facts)
