"""A profile for a GPU of which only the datasheet is known, from what GPUs that were measured have in common.

How close multiplies come to the peak falls as GPUs grow faster than their power: on V100 to B300 the share of peak of
long training follows the watts for each FLOP/s as a power law. Where somebody published what single multiplies reach,
that counts instead. All else is the mean of GPUs that were measured. Attention is an exception on graphics cards, whose
kernels are A100's: the exponentials between their multiplies take as many clocks, beside which multiplies of slower
matrix units take longer. What multiplies reach of that law with another maker's libraries is set on training runs,
where there are any.
"""

from __future__ import annotations

import copy
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sim.specs.yaml12 import load_yaml

if TYPE_CHECKING:
    from sim.specs.hardware import GpuSpec

TABLE = Path(__file__).parent.parent / "presets" / "datasheet.yaml"
NAME = "datasheet"
"""The profile's name in scenarios."""


@cache
def shipped_table() -> dict[str, Any]:
    """What measured GPUs have in common, `presets/datasheet.yaml`."""
    table: dict[str, Any] = load_yaml(TABLE)
    return table


def datasheet_profile(gpu: GpuSpec, table: dict[str, Any] | None = None) -> dict[str, Any]:
    """The data of a profile for this GPU.

    Parameters
    ----------
    gpu : GpuSpec
    table : dict, optional
        As `presets/datasheet.yaml` has it, which is the default.
    """
    table = table or shipped_table()
    data: dict[str, Any] = copy.deepcopy(table["profile"])
    data["name"], data["gpu"] = NAME, gpu.name
    law = table["power_law"]
    made: dict[str, Any] = next((each for each in table.get("makers", ()) if gpu.name.startswith(each["gpus"])), {})
    data["gemm"]["alignment"] = made.get("alignment", data["gemm"].get("alignment", {}))
    watts = watts_per_flop_per_s(gpu)
    if watts is not None:
        reached = law["max_efficiency"] * (watts / law["at"]) ** law["exponent"]
        data["gemm"]["max_efficiency"] = round(min(1.0, made.get("share", 1.0) * reached), 3)
    alone = table.get("multiplies", {}).get(gpu.name)
    if alone is not None:
        data["gemm"]["max_efficiency"] = alone
    for each in table.get("kin", ()):
        if gpu.name.startswith(tuple(each["gpus"])):
            data["attention"] = _attention_of_kin(gpu, each)
    data["provenance"] = {
        "method": "peaks and bandwidths of the datasheet, shares of them as on GPUs that were measured",
        "of_datasheet": True,
    }
    return data


def _attention_of_kin(gpu: GpuSpec, kin: dict[str, Any]) -> dict[str, float]:
    """Attention of a GPU that runs a measured one's kernels, at its own ratio of matrix units to all others."""
    found = dict(kin["attention"])
    ratio = gpu.peak("bf16") / gpu.peak("fp32") / kin["matrix_over_fp32"]
    for name in ("forward_efficiency", "backward_efficiency"):
        found[name] = round(1.0 / (1.0 + (1.0 / found[name] - 1.0) * ratio), 3)
    return found


def watts_per_flop_per_s(gpu: GpuSpec) -> float | None:
    """Power over the 16-bit peak; None where either is not known. [W s/FLOP]"""
    peak = next((gpu.peak_flop_per_s[name] for name in ("bf16", "fp16") if name in gpu.peak_flop_per_s), None)
    return None if peak is None or gpu.max_power_w is None else gpu.max_power_w / peak
