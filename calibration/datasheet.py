"""What GPUs that were measured have in common: `sim/presets/datasheet.yaml`, from the shipped profiles.

facts/datasheet.yaml says which profiles count, and what is known of GPUs that have none.
Run as `python -m flopcast_calibration.datasheet`.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from sim.files import write_text
from sim.specs.hardware import GpuSpec
from sim.specs.presets import TABLE, load_preset, watts_per_flop_per_s
from sim.specs.yaml12 import load_yaml
from sim.units import parse

FACTS: dict[str, Any] = load_yaml(Path(__file__).parent / "facts" / "datasheet.yaml")
GPUS: dict[str, str] = FACTS["gpus"]
"""Profile -> the GPU that it was made on."""
SECTIONS = ("gemm", "attention", "memory", "nvlink", "network")
GENERATION = {"hidden_at", "operations", "versions", "measured_flop", "measured_length", "alignment"}
"""What is of one GPU or its kernels, or is filled in from another place."""
OF_SOME = {"half_columns"}
"""What only profiles of GPUs have whose papers tell heads of other widths, or 8 bits, apart."""


def table(without: Collection[str] = ()) -> dict[str, Any]:
    """The table of all measured GPUs, but for the profiles of `without` and their siblings."""
    siblings = FACTS["siblings"]
    left = {*without, *(name for name, kin in siblings.items() if kin in without), *map(siblings.get, without)}
    profiles = {name: load_preset("profiles", name) for name in GPUS if name not in left}
    of_means = [data for name, data in profiles.items() if name not in siblings]
    profile = {section: _means([data[section] for data in of_means]) for section in SECTIONS}
    for section in ("nvlink", "network"):
        profile[section]["operations"] = {"all_to_all": _means([_all_to_all(data[section]) for data in of_means])}
    profile["gemm"]["alignment"] = load_preset("profiles", FACTS["unaligned"])["gemm"]["alignment"]
    watts = []
    for name in profiles:
        gpu = GpuSpec.read(load_preset("gpus", GPUS[name]), name)
        found = watts_per_flop_per_s(gpu if gpu.max_power_w else gpu.replace(max_power_w=FACTS["power_w"][name]))
        assert found is not None, name
        watts.append(found)
    reached = [float(data["gemm"]["max_efficiency"]) for data in profiles.values()]
    exponent, level = np.polyfit(np.log(watts), np.log(reached), 1)
    at = float(np.exp(np.mean(np.log(watts))))
    law = {
        "at": float(f"{at:.4g}"),
        "max_efficiency": round(float(np.exp(level + exponent * np.log(at))), 4),
        "exponent": round(float(exponent), 4),
    }
    kin = [{**each, "attention": _means([load_preset("profiles", each["of"])["attention"]])} for each in FACTS["kin"]]
    measured = FACTS["multiplies"]
    multiplies = {"source": measured["source"]} | {
        name: _share_of_peak(name, tflops) for name, tflops in measured["tflops"].items()
    }
    return {"power_law": law, "makers": FACTS["makers"], "multiplies": multiplies, "kin": kin, "profile": profile}


def _share_of_peak(name: str, tflops: Sequence[float]) -> float:
    """Share of a GPU's 16-bit peak that these multiplies reach in the mean, at most all of it.  [1]"""
    peaks = GpuSpec.read(load_preset("gpus", name.lower()), name).peak_flop_per_s
    peak = max(value for kind, value in peaks.items() if kind in ("bf16", "fp16"))
    return round(min(1.0, _geometric(tflops) * 1e12 / peak), 3)


def _all_to_all(link: dict[str, Any]) -> dict[str, Any]:
    """A link's values for all-to-alls; those of its all-reduces where they are not told apart."""
    own = link.get("operations", {}).get("all_to_all")
    names = ("efficiency", "base_latency", "hop_latency", "half_volume", "exponent")
    return own or {name: link[name] for name in names}


def _means(sections: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Geometric mean of every value that all have, in its unit; where one is zero the arithmetic mean."""
    found: dict[str, Any] = {}
    for name in sections[0]:
        if name not in GENERATION and all(name in section for section in sections):
            found[name] = _mean([section[name] for section in sections])
    for name in sorted(OF_SOME):
        told = [section[name] for section in sections if name in section]
        found |= {name: _mean(told)} if told else {}
    return found


def _mean(values: Sequence[Any]) -> Any:
    unit = next((str(value).split()[-1] for value in values if isinstance(value, str)), "")
    if not unit:
        return float(f"{_geometric([float(value) for value in values]):.3g}")
    base = "s" if unit.endswith("s") else "bytes"
    mean = _geometric([parse(value, base) for value in values])
    return f"{mean * 1e6:.3g} us" if base == "s" else f"{mean / 1e6:.3g} MB"


def _geometric(values: Sequence[float]) -> float:
    return float(np.exp(np.mean(np.log(values))) if min(values) > 0 else np.mean(values))


def main() -> None:
    """Write the table."""
    head = (
        "# What GPUs that were measured have in common, for those of which only the datasheet is known.\n"
        "# Written by python -m flopcast_calibration.datasheet.\n"
        'source: "geometric means of the shipped profiles (V100, A100, H100, B200). The share of peak of multiplies is '
        'a power law of power over 16-bit peak [W s/FLOP], through those and B300"\n'
    )
    text = yaml.safe_dump(table(), sort_keys=False, width=120)
    write_text(TABLE, head + text)


if __name__ == "__main__":
    main()
