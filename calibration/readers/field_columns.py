"""Columns of a table that are fields of a scenario: by their path, such as stack.attention, or by a short name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from flopcast_calibration.readers.csv_values import Row, Unmodelled
from sim.errors import SpecError, nearest
from sim.specs.base import file_name
from sim.specs.loading import SECTIONS
from sim.specs.yaml12 import parse_yaml

CELLS = {
    "model.num_layers": "layers",
    "model.hidden_size": "hidden",
    "model.num_heads": "heads",
    "model.num_kv_heads": "kv_heads",
    "model.vocab_size": "vocab",
    "model.num_experts": "experts",
    "model.experts_per_token": "topk",
    "training.global_batch_size": "global_batch_seqs",
    "training.sequence_length": "seq_len",
    "training.precision": "precision",
    "plan.tp": "tp",
    "plan.cp": "cp",
    "plan.pp": "pp",
    "plan.dp": "dp",
    "plan.ep": "ep",
    "plan.microbatch_size": "micro_batch_seqs",
    "plan.num_chunks": "vp_stages",
    "plan.zero_stage": "zero_stage",
    "plan.sequence_parallel": "sequence_parallel",
}
"""Fields whose columns have names of their own."""

ABOUT_THE_RUN = {
    "id", "source", "source_locator", "verified", "gpu", "gpu_mem_gb", "num_gpus", "gpus_per_node", "inter_node_link",
    "model_name", "ffn_hidden", "gated_mlp", "recompute", "schedule", "framework", "measured_value", "measured_unit",
    "flops_convention", "peak_tflops", "notes", "unmodelled", "doubtful", "offloaded_layers", "outcome", "kernel",
    "peak_gb", "peak_counts", "peak_rank",
    *CELLS.values(),
}  # fmt: skip
"""Columns that are read beside fields of a scenario.

unmodelled : why flopcast cannot predict the run.
offloaded_layers : all, where every layer's activations wait in host memory.
doubtful : recompute or micro_batch_seqs, where the run may have had another than the row states: one that fits counts.
"""

Fields = dict[str, dict[str, Any]]
"""By section, fields of a scenario as a file has them."""


def check_columns(columns: Iterable[str]) -> list[str]:
    """The columns that nothing reads, each with the name that it may have meant.

    Raises
    ------
    SpecError
        A column is a path, but not of a scenario's field.
    """
    unread = []
    for column in columns:
        section, dot, field = column.partition(".")
        if not dot:
            if column not in ABOUT_THE_RUN:
                meant = nearest(column, ABOUT_THE_RUN)
                unread.append(f"{column}{meant if 'did you mean' in meant else ''}")
            continue
        if section not in SECTIONS:
            raise SpecError(f"column {column!r}: no section {section!r} of a scenario{nearest(section, SECTIONS)}")
        names = {name for each in SECTIONS[section].model_fields for name in (each, file_name(each))} | {"preset"}
        if field.partition(".")[0] not in names:
            raise SpecError(f"column {column!r}: {section} has no field {field!r}{nearest(field, names)}")
    return unread


def with_field_columns(row: Row) -> tuple[Row, Fields]:
    """The row with cells that fields' columns fill, and the fields of the other such columns.

    Raises
    ------
    SpecError
        A cell is not YAML.
    Unmodelled
        A field and its short column say different things.
    """
    fields: Fields = {}
    for column, text in row.items():
        if "." not in column or not text:
            continue
        if column in CELLS:
            said, short = {"true": "y", "false": "n"}.get(text.lower(), text), CELLS[column]
            if row.get(short, said) not in ("", said):
                raise Unmodelled(f"{column} = {text} and {short} = {row[short]} contradict each other; leave one empty")
            row = {**row, short: said}
            continue
        if column in ("plan.schedule", "plan.recompute"):  # in the words of scenarios, which are laid over the table's
            row = {**row, column.partition(".")[2]: text}
        *path, name = column.split(".")
        section: dict[str, Any] = fields
        for part in path:
            section = section.setdefault(part, {})
        section[name] = text if column == "stack.version" else parse_yaml(text, f"column {column}")
    return row, fields


def override_cells(overrides: Iterable[str]) -> dict[str, str]:
    """Cells that stand for overrides such as "plan.tp=4", to be laid over every row.

    Raises
    ------
    SpecError
        One is not field=value, or of no field.
    """
    cells: dict[str, str] = {}
    for override in overrides:
        path, equals, text = override.partition("=")
        if not equals or "." not in path or not text.strip():
            raise SpecError(f"override {override!r} must look like stack.attention=math (field=value)")
        cells[path.strip()] = text.strip()
    check_columns(cells)
    short = {CELLS[path]: "" for path in cells if path in CELLS}  # the row's own cell gives way
    return {**short, **cells}


def with_fields(data: Mapping[str, Any], fields: Mapping[str, Any]) -> dict[str, Any]:
    """A scenario's data with fields laid over it; a preset's name becomes a section that differs from the preset."""
    merged = dict(data)
    for name, value in fields.items():
        below = merged.get(name)
        if isinstance(value, Mapping):
            below = {"preset": below} if isinstance(below, str) else below if isinstance(below, Mapping) else {}
            value = with_fields(below, value)
        merged[name] = value
    return merged
