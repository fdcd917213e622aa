"""Measured training runs from a CSV as scenarios: what a row says, and by which rule the rest was filled in.

The columns are those of a table of published runs: `id, gpu, num_gpus, layers, hidden, heads, seq_len,
global_batch_seqs, micro_batch_seqs, tp, pp, dp, measured_value, measured_unit` and others that may be empty. A row that
cannot be modelled keeps its place with the reason.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from calibration.readers.machines import cluster_of
from calibration.readers.stacks import stack_of
from sim.errors import FlopcastError, SpecError
from sim.specs import Profile, Scenario, build_scenario, load_preset
from sim.specs.presets import load_file_as_preset
from sim.work.flops import hardware_flop, layer_forward_flop, model_flop
from sim.work.params import total_params

REQUIRED = ("gpu", "num_gpus", "layers", "hidden", "heads", "seq_len", "measured_value", "measured_unit")
"""Columns a file must have."""

UNITS = (
    "iteration_s",
    "tokens_per_s_per_gpu",
    "tokens_per_s",
    "samples_per_s",
    "samples_per_s_per_gpu",
    "tflops_per_gpu",
)

LARGEST = 10**8
"""Whole numbers beyond it (layers, tokens of a sequence, GPUs) are slips of the pen."""

STEP_TIMES = (1e-6, 1e7)
"""A measurement that makes a step shorter or longer than this is in another unit than it says. [s]"""

_ABOUT_THE_MEASUREMENT = {
    "id", "source_locator", "verified", "measured_value", "measured_unit", "flops_convention",
}  # fmt: skip
"""Columns that do not change what is simulated: rows that differ in these alone share their scenarios."""

Row = Mapping[str, str]


class Unmodelled(Exception):
    """Why a row has no scenario."""


@dataclass(frozen=True, slots=True)
class Run:
    """One measured run.

    scenario : None where the row cannot be modelled.
    choices : scenarios that differ in what the row leaves open and its authors tuned; the fastest that fits counts.
    measured : in `unit`.
    skipped : why there is no scenario.
    inferred : what the row does not say, and the rule that filled it in.
    family : source lineage and model, what cross-validation leaves out together.
    sweep : runs of one sweep differ in their layout only.
    """

    id: str
    source: str
    gpu: str
    framework: str
    measured: float
    unit: str
    choices: tuple[Scenario, ...] = ()
    skipped: str | None = None
    inferred: tuple[str, ...] = ()
    family: str = ""
    sweep: str = ""
    precision: str = ""
    convention: str = ""
    dense: bool = True

    @property
    def scenario(self) -> Scenario | None:
        """The first choice."""
        return self.choices[0] if self.choices else None

    def in_unit(self, step_time_s: float, scenario: Scenario) -> float:
        """A step time in the unit of the measurement, by the FLOP convention of its source."""
        training, gpus = scenario.training, scenario.plan.num_gpus
        return {
            "iteration_s": lambda: step_time_s,
            "tokens_per_s_per_gpu": lambda: training.tokens_per_step / step_time_s / gpus,
            "tokens_per_s": lambda: training.tokens_per_step / step_time_s,
            "samples_per_s": lambda: training.global_batch_size / step_time_s,
            "samples_per_s_per_gpu": lambda: training.global_batch_size / step_time_s / gpus,
            "tflops_per_gpu": lambda: step_flop(self.convention, scenario) / step_time_s / gpus / 1e12,
        }[self.unit]()

    def step_time_s(self, scenario: Scenario) -> float:
        """The measurement as a step time. [s]"""
        value = self.in_unit(1.0, scenario)
        return self.measured if self.unit == "iteration_s" else value / self.measured


def step_flop(convention: str, scenario: Scenario) -> float:
    """FLOPs of a step as the source of a FLOP rate counts them. [FLOP]

    hardware, megatron2021 : 4/3 of the model's under full recomputation, the whole attention (Narayanan et al. 2021).
    8*N, 6*N : a multiple of parameters and tokens, no attention (BigScience).
    causal attention halved : model FLOPs with half of the attention.
    model, and everything else : model FLOPs, the whole attention.
    """
    model, training, plan = scenario.model, scenario.training, scenario.plan
    said = convention.lower()
    if "8*n" in said or "6*n" in said:
        factor = 8.0 if plan.recompute == "full" or "6*n" not in said else 6.0
        return factor * total_params(model) * training.tokens_per_step
    if "megatron2021" in said or said.startswith(("hardware", "paper formula")):
        return hardware_flop(model, training, plan.replace(recompute="full"))
    if "causal attention halved" in said:
        one, none = (
            layer_forward_flop(model, training.global_batch_size, s) / s for s in (training.sequence_length, 1)
        )
        return model_flop(model, training) - 1.5 * model.num_layers * (one - none) * training.sequence_length
    return model_flop(model, training)


def read_training_runs(path: Path, profile: str | None = None) -> list[Run]:
    """Every row of a CSV of measured runs, in order.

    Parameters
    ----------
    path : Path
    profile : str, optional
        Profile for all runs, a preset's name or a YAML file; default: the one of each run's GPU.

    Raises
    ------
    SpecError
        The file cannot be read, lacks a column that every row needs, or has no rows; there is no such profile.
    """
    chosen = None if profile is None else _profile(profile)
    known: dict[Any, Any] = {}
    rows = enumerate(read_rows(path, REQUIRED), start=1)
    return [read_run(row, f"row {number}", chosen, known) for number, row in rows]


def read_rows(path: Path, required: Sequence[str]) -> list[dict[str, str]]:
    """The rows of a CSV with a header; cells that a row lacks are empty, cells beyond the header are dropped.

    Raises
    ------
    SpecError
        The file cannot be read, lacks a required column, or has no rows.
    """
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(file)
            columns = [name.strip() for name in reader.fieldnames or []]
            reader.fieldnames = columns
            rows = list(reader)
    except UnicodeDecodeError as error:
        raise SpecError(f"cannot read {path}: it is not UTF-8 ({error}); save it as CSV UTF-8") from None
    except (OSError, csv.Error) as error:
        raise SpecError(f"cannot read {path}: {getattr(error, 'strerror', None) or error}") from None
    missing = [name for name in required if name not in columns]
    if missing:
        raise SpecError(
            f"{path} lacks the column{'s' * (len(missing) > 1)} {', '.join(missing)}; "
            f"it has {', '.join(columns) or 'none'}"
        )
    if not rows:
        raise SpecError(f"{path} has a header and no rows")
    return [{key: (value or "").strip() for key, value in row.items() if isinstance(key, str)} for row in rows]


def _profile(name: str) -> dict[str, Any]:
    """A profile's data by name or YAML file, once it is known to be sound."""
    file = name.endswith((".yaml", ".yml"))
    data = load_file_as_preset(Path(name)) if file else load_preset("profiles", name)
    Profile.read(data, f"profile {name}")
    return data


def read_run(
    row: Row, where: str, profile: Mapping[str, Any] | None = None, known: dict[Any, Any] | None = None
) -> Run:
    """One row; a row that cannot be modelled says why.

    Parameters
    ----------
    row : mapping
        Cells by column.
    where : str
        What to call a row without an id.
    profile : mapping, optional
        A profile's data; default: the one of the row's GPU.
    known : dict, optional
        What came of earlier rows; rows that differ only in their measurement share their scenarios.
    """
    name = row.get("id") or where
    run = Run(
        id=name,
        source=row.get("source", ""),
        gpu=row.get("gpu", ""),
        framework=row.get("framework", ""),
        measured=float("nan"),
        unit=row.get("measured_unit", ""),
        family=family_of(row),
        sweep=sweep_of(row),
        precision=row.get("precision", "") or "bf16",
        convention=row.get("flops_convention", ""),
        dense=not _moe(row),
    )
    try:
        run = replace(run, measured=_number(row, "measured_value"))
        if run.unit not in UNITS:
            raise Unmodelled(f"measured_unit {run.unit!r} is not one of {', '.join(UNITS)}")
        choices, inferred = _known_scenarios(row, profile, {} if known is None else known)
        run = replace(run, choices=choices, inferred=inferred)
        _check_measurement(run, choices[0])
    except (Unmodelled, FlopcastError) as error:
        return replace(run, choices=(), inferred=(), skipped=reason(error))
    return run


def reason(error: Exception) -> str:
    """An error as the reason in a table: one line of bounded length, whatever a cell held."""
    text = " ".join(str(error).split())
    return text if len(text) <= 400 else f"{text[:300]} …"


def _check_measurement(run: Run, scenario: Scenario) -> None:
    seconds = run.step_time_s(scenario)
    if not STEP_TIMES[0] <= seconds <= STEP_TIMES[1]:
        raise Unmodelled(
            f"measured_value = {run.measured:g} {run.unit} makes a step of {seconds:.2g} s; check value and unit"
        )


def _known_scenarios(
    row: Row, profile: Mapping[str, Any] | None, known: dict[Any, Any]
) -> tuple[tuple[Scenario, ...], tuple[str, ...]]:
    key = tuple(item for item in row.items() if item[0] not in _ABOUT_THE_MEASUREMENT)
    if key not in known:
        try:
            known[key] = _scenarios(row, profile)
        except (Unmodelled, FlopcastError) as error:
            known[key] = Unmodelled(reason(error))
    if isinstance(known[key], Unmodelled):
        raise known[key]
    return known[key]


def _number(row: Row, key: str) -> float:
    try:
        value = float(row.get(key, ""))
    except ValueError:
        raise Unmodelled(f"{key} = {row.get(key, '')!r} is not a number") from None
    if not 0 < value < float("inf"):
        raise Unmodelled(f"{key} = {value:g} is not a positive number")
    return value


def _whole(row: Row, key: str, default: int | None = None) -> int:
    if not row.get(key):
        if default is None:
            raise Unmodelled(f"{key} is empty")
        return default
    value = _number(row, key)
    if value > LARGEST:
        raise Unmodelled(f"{key} = {value:g} is too large to be meant; at most {LARGEST:,}")
    if value != int(value):
        raise Unmodelled(f"{key} = {row[key]} is not a whole number")
    return int(value)


def _moe(row: Row) -> bool:
    return (row.get("experts") or "0").strip() not in ("", "0", "1", "1.0", "0.0")


def _scenarios(row: Row, profile: Mapping[str, Any] | None) -> tuple[tuple[Scenario, ...], tuple[str, ...]]:
    """The row's scenario, or one for each way to fill in what its authors tuned and it does not say."""
    inferred: list[str] = []
    _refuse(row)
    model = _model(row, inferred)
    gpus = _whole(row, "num_gpus")
    cluster, own_profile, found = cluster_of(row, gpus)
    inferred += found
    plan = _plan(row, gpus, inferred)
    precision = _precision(row, inferred)
    batch = _batch(row, plan, inferred)
    stack, found = stack_of(row, plan)
    inferred += found
    training = {"global_batch_size": batch, "sequence_length": _whole(row, "seq_len"), "precision": precision}
    rest = {"cluster": cluster, "stack": stack, "training": training, "profile": profile or own_profile}
    scenarios, first = [], None
    for choice in _open_choices(row, plan, model, training, inferred):
        try:
            scenarios.append(_dealt({**rest, "name": model["name"], "model": model, "plan": choice}, inferred))
        except FlopcastError as error:
            first = first or error
    if not scenarios:
        assert first is not None
        raise first
    return tuple(scenarios), tuple(dict.fromkeys(inferred))


def _dealt(data: dict[str, Any], inferred: list[str]) -> Scenario:
    """The scenario; where layers do not divide over the stages, embedding and head take a layer's place."""
    uneven = f"{data['model']['num_layers']} layers do not divide over the stages"
    stages = data["plan"].get("pp", 1) * data["plan"].get("num_chunks", 1)
    layers = data["model"]["num_layers"]
    for both, extra in (
        ({}, 0),
        ({"head_as_layer": True}, 1),
        ({"embedding_as_layer": True, "head_as_layer": True}, 2),
    ):
        if (layers + extra) % stages == 0:
            scenario = build_scenario({**data, "plan": {**data["plan"], **both}}, where="layout")
            if extra:
                inferred.append(f"{' and '.join(both)}: {uneven}".replace("_as_layer", " as a layer"))
            return scenario
    scenario = build_scenario({**data, "plan": {**data["plan"], "uneven_layers": True}}, where="layout")
    inferred.append(f"some stages hold a layer more: {uneven}")
    return scenario


def _refuse(row: Row) -> None:
    """What flopcast does not model yet."""
    notes, name = row.get("notes", ""), row.get("model_name", "").lower()
    reasons: tuple[tuple[bool, str], ...] = (
        (_moe(row), "mixture of experts is not modelled yet"),
        ("lora" in notes.lower() and "LoRA" in notes, "LoRA trains adapters only, which is not modelled"),
        ("ONE layer" in notes, "a single layer, not a training step"),
        ("nemotron-h" in name or "nemotron_3" in name, "Mamba layers are not modelled"),
        (row.get("zero_stage") == "hybrid3", "sharding inside groups (HSDP) is not modelled yet"),
        ("CPU offload of checkpoints" in notes, "offloading activations to the host is not modelled"),
        ("activation CPU offload=True" in notes, "offloading activations to the host is not modelled"),
        (row.get("precision") in ("nvfp4", "int8"), f"precision {row.get('precision')} is not modelled"),
    )
    for applies, reason in reasons:
        if applies:
            raise Unmodelled(reason)


def _model(row: Row, inferred: list[str]) -> dict[str, Any]:
    name = row.get("model_name") or "model"
    known = name.lower()
    llama = any(word in known for word in ("llama", "nemotron", "qwen", "mistral", "gemma"))
    hidden, heads = _whole(row, "hidden"), _whole(row, "heads")
    gated = row.get("gated_mlp") == "y" or (not row.get("gated_mlp") and llama and "nemotron" not in known)
    if not row.get("gated_mlp"):
        inferred.append(f"gated_mlp {'y' if gated else 'n'}: by the model's name")
    vocabulary = _whole(row, "vocab", 0)
    if not vocabulary:
        vocabulary = 51200 if not llama else (128256 if "3" in known else 32000)
        inferred.append(f"vocab {vocabulary}: by the model's name")
    if not row.get("kv_heads"):
        inferred.append(f"kv_heads {heads}: one for each head")
    mpt = "mpt" in known
    gpt = not llama and not mpt
    sequence = _whole(row, "seq_len")
    model: dict[str, Any] = {
        "name": name,
        "num_layers": _whole(row, "layers"),
        "hidden_size": hidden,
        "num_heads": heads,
        "num_kv_heads": _whole(row, "kv_heads", heads),
        "vocab_size": vocabulary,
        "max_sequence_length": max(2048, sequence),
        "gated_mlp": gated,
        "position": "rotary" if llama else ("none" if mpt else "learned"),
        "norm": "rmsnorm" if llama else "layernorm",
        "bias": gpt,
        "tied_embeddings": gpt or mpt,
        # Megatron-LM's runs until 2023 trained with dropout; NeMo's and Llama's recipes do not.
        "dropout": 0.1 if gpt and _old_megatron(row) else 0.0,
    }
    facts = ("position", "norm", "bias", "tied_embeddings", "dropout")
    inferred.append(f"{', '.join(f'{fact} {model[fact]}' for fact in facts)}: by the model's name".replace("_", " "))
    if hidden % heads:
        raise Unmodelled(f"hidden = {hidden} is not divisible by heads = {heads}")
    if row.get("ffn_hidden"):
        model["intermediate_size"] = _whole(row, "ffn_hidden")
    elif gated:
        raise Unmodelled("ffn_hidden is empty for a gated MLP")
    else:
        inferred.append(f"ffn_hidden {4 * hidden}: four times hidden")
    tp = _whole(row, "tp", 1)
    if vocabulary % tp:
        model["vocab_size"] = -(-vocabulary // (128 * tp)) * 128 * tp
        inferred.append(f"vocab {model['vocab_size']}: {vocabulary} padded so that tp divides it")
    return model


def _old_megatron(row: Row) -> bool:
    framework = row.get("framework", "")
    return framework.startswith(("Megatron-LM", "Megatron-DeepSpeed", "DeepSpeed", "GPT-NeoX", "Alpa"))


def _plan(row: Row, gpus: int, inferred: list[str]) -> dict[str, Any]:
    tp, pp, cp = (_whole(row, key, 1) for key in ("tp", "pp", "cp"))
    if not row.get("tp") and row.get("zero_stage") != "3":
        raise Unmodelled("the parallel layout is not given (tp is empty)")
    inferred += [f"{key} 1: the row gives none" for key in ("tp", "pp", "cp") if not row.get(key)]
    model_parallel = tp * pp * cp
    if gpus % model_parallel:
        raise Unmodelled(f"tp · pp · cp = {model_parallel} does not divide num_gpus = {gpus}")
    dp = _whole(row, "dp", gpus // model_parallel)
    if dp * model_parallel != gpus:
        raise Unmodelled(f"tp · cp · pp · dp = {dp * model_parallel} is not num_gpus = {gpus}")
    zero = row.get("zero_stage", "")
    if not zero and re.search(
        r"NeMo|Megatron-Core|Megatron-Bridge|Aleph Alpha|Meta in-house", row.get("framework", "")
    ):
        zero = "1"
        inferred.append("zero_stage 1: the framework's distributed optimizer")
    elif not zero:
        inferred.append("zero_stage 0: the row gives none")
    if zero not in ("", "0", "1", "2", "3"):
        raise Unmodelled(f"zero_stage {zero!r} is not modelled")
    parallel = row.get("sequence_parallel", "")
    sequence_parallel = tp > 1 and (parallel == "y" or (not parallel and not _old_megatron(row)))
    if not parallel and tp > 1:
        inferred.append(f"sequence_parallel {'y' if sequence_parallel else 'n'}: by the framework")
    plan: dict[str, Any] = {
        "tp": tp, "cp": cp, "pp": pp, "dp": dp, "zero_stage": int(zero or 0), "sequence_parallel": sequence_parallel,
    }  # fmt: skip
    notes = row.get("notes", "")
    if "first and last stage hold one layer fewer" in notes:
        plan |= {"embedding_as_layer": True, "head_as_layer": True}
    return plan


def _precision(row: Row, inferred: list[str]) -> str:
    said = row.get("precision", "")
    if not said:
        inferred.append("precision bf16")
    known = {"": "bf16", "mxfp8": "fp8", "fp16": "fp16", "bf16": "bf16", "fp8": "fp8", "fp32": "fp32"}
    if said not in known:
        raise Unmodelled(f"precision {said!r} is not one of {', '.join(filter(None, known))}")
    return known[said]


def _batch(row: Row, plan: dict[str, Any], inferred: list[str]) -> int:
    if row.get("global_batch_seqs"):
        return _whole(row, "global_batch_seqs")
    if not row.get("micro_batch_seqs"):
        raise Unmodelled("neither global_batch_seqs nor micro_batch_seqs is given")
    batch = _whole(row, "micro_batch_seqs") * int(plan["dp"])
    inferred.append(f"global_batch_seqs {batch}: one micro-batch on each replica")
    return batch


SCHEDULES: dict[str, str] = {
    "": "1f1b",
    "1f1b": "1f1b",
    "gpipe": "gpipe",
    "interleaved": "interleaved",
    "interleaved 1f1b": "interleaved",
    "zb-1p": "zb_h1",
    "zb-h1": "zb_h1",
    "zb-2p": "zb_h2",
    "zb-h2": "zb_h2",
    "zb-v": "zb_v",
    "dualpipe": "dualpipe",
}


def _open_choices(
    row: Row, plan: dict[str, Any], model: dict[str, Any], training: dict[str, Any], inferred: list[str]
) -> Iterator[dict[str, Any]]:
    """The plan with every value of what the row leaves open: micro-batch, chunks, recomputation."""
    replica = training["global_batch_size"] // plan["dp"]
    if replica == 0:
        raise Unmodelled(f"global_batch_seqs = {training['global_batch_size']} is smaller than dp = {plan['dp']}")
    if row.get("micro_batch_seqs"):
        sizes = [_whole(row, "micro_batch_seqs")]
    else:
        sizes = [size for size in (1, 2, 4, 8, 16) if replica % size == 0]
        inferred.append("micro_batch_seqs: the fastest of 1, 2, 4, 8, 16 that fits")
    schedule = row.get("schedule", "").lower()
    nvidia = re.search(r"NeMo|Megatron-Core|Megatron-Bridge|Meta in-house", row.get("framework", ""))
    # Tables of recipes do not say "interleaved" where they leave out the number of chunks.
    if schedule in ("", "1f1b") and nvidia and plan["pp"] > 1 and not row.get("vp_stages"):
        schedule = "interleaved"
        inferred.append("schedule interleaved: the framework's recipes for pipelines")
    elif not schedule and plan["pp"] > 1:
        inferred.append("schedule 1f1b: the row gives none")
    if schedule not in SCHEDULES:
        raise Unmodelled(f"schedule {schedule!r} is not one of {', '.join(filter(None, SCHEDULES))}")
    pp = plan["pp"]
    if row.get("vp_stages"):
        chunks = [_whole(row, "vp_stages") if pp > 1 else 1]
    elif SCHEDULES[schedule] == "interleaved" and pp > 1:
        dealt = model["num_layers"]
        chunks = [count for count in (2, 3, 4, 5, 6, 7, 8, 12) if -dealt % (pp * count) < 3] or [1]
        inferred.append("vp_stages: the fastest of 2, 3, 4, 5, 6, 7, 8, 12 that divides the layers")
    else:
        chunks = [1]
    recompute = row.get("recompute", "")
    if recompute and recompute not in ("none", "selective", "full"):
        raise Unmodelled(f"recompute {recompute!r} is not one of none, selective, full")
    if recompute == "selective" and re.search(r"torchtitan|FSDP2", row.get("framework", "") + row.get("notes", "")):
        recompute = "per_op"
        inferred.append("recompute per_op: what torchtitan calls selective")
    modes = [recompute] if recompute else ["none", "full"]
    if not recompute and nvidia:
        modes = ["none"]
        inferred.append("recompute none: the framework's default")
    elif not recompute:
        inferred.append("recompute: none where it fits, else full")
    for mode in modes:
        for size in sizes:
            for count in chunks:
                if count > 1 and replica // size % pp:
                    continue
                looped = SCHEDULES[schedule] in ("1f1b", "interleaved")
                kind = "interleaved" if count > 1 and looped else SCHEDULES[schedule]
                kind = "1f1b" if kind == "interleaved" and count == 1 else kind
                yield {**plan, "microbatch_size": size, "num_chunks": count, "schedule": kind, "recompute": mode}


_LINEAGE: tuple[tuple[str, str], ...] = (
    ("nemo", "nvidia"), ("dgx cloud", "nvidia"), ("megatron-bridge", "nvidia"), ("mlperf", "nvidia"),
    ("moe-modelzoo", "nvidia"), ("megatron-lm", "megatron"), ("activation recomputation", "megatron"),
    ("bigscience", "bigscience"), ("vtrain", "vtrain"), ("aleph alpha", "aleph alpha"), ("llm-foundry", "llm-foundry"),
    ("zero bubble", "zero bubble"), ("torchtitan", "torchtitan"), ("torchao", "torchtitan"),
)  # fmt: skip


def family_of(row: Row) -> str:
    """Lineage of the source and the model: runs that share a recipe, which cross-validation leaves out together."""
    source = row.get("source", "").lower()
    lineage = next((to for word, to in _LINEAGE if word in source), re.sub(r"\W*\(.*", "", source))
    name = re.sub(r"[^a-z0-9.]", "", row.get("model_name", "").lower()).replace("3.1", "3")
    return f"{lineage} / {name}"


def sweep_of(row: Row) -> str:
    """What a sweep of layouts keeps fixed."""
    fixed = ("source", "gpu", "num_gpus", "model_name", "seq_len", "global_batch_seqs", "precision", "framework")
    return " | ".join(row.get(key, "") for key in fixed)


Rule = Callable[[Row], bool]
