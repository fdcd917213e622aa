"""What files of every kind say, and what their tools do with it (`said.yaml`): once it was read wrongly, or easily would be.
What is left out of them is said to be."""

import json
from pathlib import Path

import pytest
from facts import wrong_facts
from grammars.writing import BASES, SMALL, with_keys
from rows import rows

from sim.errors import SpecError
from sim.foreign.importers import Given, import_text
from sim.specs.yaml12 import load_yaml

GROUPS = load_yaml(Path(__file__).with_name("said.yaml"))
SAID = [(name, *row, *[{}][len(row) - 2 :]) for name, group in GROUPS.items() for row in group["rows"]]


def imported(name, more):
    """A file of a group that says more than that."""
    small = (
        {"kind": name, "data": SMALL[name], "given": {"cluster": "superpod-h100", "gpus": 8}} if name in SMALL else {}
    )
    group = {"name": "c.json", "kind": None, "given": {}, "text": "", **small, **GROUPS[name]}
    if "base" in group:
        group["data"] = with_keys(BASES[group["base"]], group.get("more", {}))
    if "data" in group:
        text = json.dumps(with_keys(group["data"], more))
    else:
        text = group["text"] + ("\n" if "\n" in group["text"] else " " * bool(group["text"])) + more
    return import_text(text, group["name"], Given(**group["given"]), kind=group["kind"])


@rows(("name", "more", "meant", "left"), SAID)
def test_a_file_is_read_as_its_tool_reads_it(name, more, meant, left):
    if isinstance(meant, str):
        with pytest.raises(SpecError, match=meant):
            imported(name, more)
        return
    found = imported(name, more)
    assert not wrong_facts(found.scenario(), meant)
    for key, why in left.items():
        assert any(entry.name == key and why in entry.note for entry in found.ledger.ignored), key


PROVIDER = """
model: {{_target_: megatron.bridge.models.{}, tensor_model_parallel_size: 1, expert_model_parallel_size: 8, seq_length: 4096}}
train: {{train_iters: 100, global_batch_size: 512, micro_batch_size: 4}}
mixed_precision: bf16_with_mxfp8_mixed
"""


def test_a_field_stands_in_one_line_of_the_account_and_a_provider_is_a_model():
    given = Given(gpus=8, cluster="superpod-gb200")
    imported = import_text(PROVIDER.format("qwen.Qwen3MoEModelProvider30B_A3B"), "config.yaml", given)
    read, filled = ({entry.name for entry in each} for each in (imported.ledger.read, imported.ledger.defaulted))
    assert "training.precision" in read - filled
    assert "plan.zero_stage" not in filled  # left to the framework's rules, which shard
    scenario = imported.scenario()
    assert (scenario.model.name, scenario.plan.zero_stage, scenario.training.precision) == ("qwen3-30b-a3b", 1, "mxfp8")
    with pytest.raises(SpecError, match=r"model\._target_ 'GPTModelProvider' is none of the models"):
        import_text(PROVIDER.format("gpt_provider.GPTModelProvider"), "config.yaml", given)


def test_four_bits_are_priced_where_there_are_units_for_them():
    words = "--bf16 --fp4-format e2m1"
    assert imported("megatron_small", words).data["cluster"] == "superpod-b200"
    text = f"{GROUPS['megatron_small']['text']} {words}"
    assert import_text(text, "run.sh", Given(cluster="superpod-gb200")).data["cluster"] == "superpod-gb200"
    assert imported("megatron_small", "--bf16").data["cluster"] == "superpod-h100"
