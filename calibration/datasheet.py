"""What GPUs that were measured have in common: `sim/presets/datasheet.yaml`, from the shipped profiles.

Run as `python -m flopcast_calibration.datasheet`.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
import yaml

from sim.files import write_text
from sim.specs.hardware import GpuSpec
from sim.specs.presets import TABLE, load_preset, watts_per_flop_per_s
from sim.units import parse

GPUS = {
    "v100-sxm3": "v100-sxm3-32gb",
    "a100": "a100-sxm-80gb",
    "h100": "h100-sxm-80gb",
    "b200": "b200-sxm-180gb",
    "b300": "b300-sxm-270gb",
}
"""Profile -> the GPU that it was made on. H200 is not among them, as its chip is H100's."""
POWER_W = {"v100-sxm3": 450.0}
"""Board power of GPUs whose preset states none, here a DGX-2H's V100, by NVIDIA's announcement of the DGX-2H. [W]"""
SIBLINGS = {"b300": "b200", "h200": "h100"}
"""Profiles that hold mostly the values of another: they count in the law, not in the means."""
MAKERS = [
    {
        "gpus": "MI",
        "maker": "AMD",
        "share": 0.63,
        "alignment": {},
        "source": "set on AMD's runs of MLPerf Training v6.0 on eight MI355X and eight MI350X in MXFP4: Llama 3.1 8B, "
        "and adapters of Llama 2 70B",
    }
]
"""Makers of GPUs none of which was measured: how their names begin, who they are, what multiplies reach of the law's
share, and what those of unaligned sizes reach of that: EleutherAI/cookbook's on MI250X are as fast as aligned ones,
within 2 %."""
UNALIGNED = "a100"
"""The profile whose unaligned multiplies are as those of GPUs that were not measured: most of its bounds were."""
KIN = [
    {
        "gpus": ["RTX-", "A10-", "A40-", "L4-", "L40-", "L40S-", "GB10-"],
        "of": "a100",
        "matrix_over_fp32": 8.0,
        "source": "FlashAttention-2 is written for the matrix instructions that A100 shares with the Ampere, Ada and "
        "Blackwell of graphics cards; Hopper and the Blackwell of data centres have others. A100's units do 2,048 "
        "FLOP a clock in a multiprocessor, eight times what the 128 lanes of these cards do in fp32",
    }
]
"""GPUs none of which was measured, whose attention kernels run as on one that was: how their names begin, and the ratio
of peaks in 16 and 32 bits at which their matrix units do as much a clock in a multiprocessor as those of that one."""
MULTIPLIES = {
    "H20-96GB": (141.9,),
    "L40S-48GB": (269.2,),
    "RTX-A6000-48GB": (123.3,),
    "RTX-3090-24GB": (76.3, 76.7, 76.6),
    "RTX-4090-24GB": (170.1, 173.3, 162.4, 163.1),
    "RTX-5090-32GB": (236.0, 242.2),
    "RTX-PRO-6000-96GB": (418.0, 368.4),
    "RTX-PRO-6000-SERVER-96GB": (409.4,),
    "T4-16GB": (41.9, 42.7),
}
"""Best single multiplies of PyTorch in 16 bits that people measured on GPUs without training runs, each machine's one.
[TFLOP/s]"""
MULTIPLIES_SOURCE = (
    "zzc0721/torch-performance-test-data:database.md and issue 160: the best of square matrices of 1,024 to 10,240; "
    "GeForce cards boost beyond the clock of their printed peak, which is not counted"
)
SECTIONS = ("gemm", "attention", "memory", "nvlink", "network")
GENERATION = {"hidden_at", "operations", "versions", "measured_flop", "measured_length", "alignment"}
"""What is of one GPU or its kernels, or is filled in from another place."""
OF_SOME = {"half_columns"}
"""What only profiles of GPUs have whose papers tell heads of other widths, or 8 bits, apart."""


def table(without: Collection[str] = ()) -> dict[str, Any]:
    """The table of all measured GPUs, but for the profiles of `without` and their siblings."""
    left = {
        *without,
        *(name for name, kin in SIBLINGS.items() if kin in without),
        *(SIBLINGS.get(n, n) for n in without),
    }
    profiles = {name: load_preset("profiles", name) for name in GPUS if name not in left}
    of_means = [data for name, data in profiles.items() if name not in SIBLINGS]
    profile = {section: _means([data[section] for data in of_means]) for section in SECTIONS}
    for section in ("nvlink", "network"):
        profile[section]["operations"] = {"all_to_all": _means([_all_to_all(data[section]) for data in of_means])}
    profile["gemm"]["alignment"] = load_preset("profiles", UNALIGNED)["gemm"]["alignment"]
    watts = []
    for name in profiles:
        gpu = GpuSpec.read(load_preset("gpus", GPUS[name]), name)
        found = watts_per_flop_per_s(gpu if gpu.max_power_w else gpu.replace(max_power_w=POWER_W[name]))
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
    kin = [{**each, "attention": _means([load_preset("profiles", str(each["of"]))["attention"]])} for each in KIN]
    reached_alone = {name: _share_of_peak(name, tflops) for name, tflops in MULTIPLIES.items()}
    multiplies = {"source": MULTIPLIES_SOURCE, **reached_alone}
    return {"power_law": law, "makers": MAKERS, "multiplies": multiplies, "kin": kin, "profile": profile}


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
