"""`flopcast validate steps`: train Hugging Face's models on one GPU for real, and write what their steps took.

The models have the shapes of published ones and random weights: a step takes as long whatever they know. What is
written is a table that `validate --runs` reads, a run a row, so that any GPU can say how far predictions are from it.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

import typer

from flopcast_calibration.bench.timing import nvidia_smi
from sim.specs.yaml12 import load_yaml


@dataclass(frozen=True, slots=True)
class Run:
    """A model, and how it is trained.

    family : `model_type` of its Hugging Face configuration: llama, qwen2, qwen3_moe or gpt2.
    model : its sizes and what its family has, in columns of `validate --runs`; experts are each ffn_hidden wide.
    kernels : columns that say which steps are one kernel.
    mixed : weights, gradients and optimizer in fp32, multiplies in bf16 (autocast); else all of them are bf16.
    attention : `attn_implementation` of transformers: sdpa or eager.
    adapter_rank : of LoRA's adapters on all linears of the layers; 0 trains all weights.
    experts : `experts_implementation` of transformers: grouped_mm, or eager, one expert after the other.
    liger : whether Liger's fused kernels replace transformers' own.
    """

    shape: str
    family: str
    model: Mapping[str, Any]
    kernels: Mapping[str, Any]
    seq_len: int = 2048
    micro_batch: int = 1
    micro_batches: int = 1
    mixed: bool = False
    recompute: bool = False
    attention: str = "sdpa"
    compiled: bool = False
    adapter_rank: int = 0
    experts: str = "grouped_mm"
    liger: bool = False


SUITE = Path(__file__).parent / "published" / "steps" / "suite.yaml"


def suite() -> Iterator[Run]:
    """Runs that differ in one thing at a time; the first is quick."""
    data = load_yaml(SUITE)
    for run in data["runs"]:
        sizes = dict(data["shapes"][run["shape"]])
        family = sizes.pop("family")
        model = {"model.tied_embeddings": False, **data["families"][family], **sizes}
        kernels = data["kernels"]["liger" if run.get("liger") else family if family == "gpt2" else "others"]
        yield Run(family=family, model=model, kernels={} if run.get("compiled") else kernels, **run)


def steps(
    *,
    out: Path,
    quick: bool = False,
    timed: Annotated[int, typer.Option(min=1, help="Timed steps of a run.")] = 10,
    only: str = "",
) -> None:
    """Train Hugging Face's models on this GPU for real, and write what a step took as a table for `validate --runs`.

    Needs torch with a GPU, transformers and peft. Ctrl-C keeps what was measured.

    out --out -o : Table to write; runs that it holds are not run again.
    quick : One run of a small model.
    only : Runs whose name has these letters.
    """
    import pandas as pd
    import torch

    from sim.errors import SpecError

    if not torch.cuda.is_available():
        raise SpecError("torch sees no CUDA device; `validate steps` trains on a GPU")
    kept = read_rows(out)
    for run in islice(suite(), 1 if quick else None):
        name = name_of(run)
        if name in kept or only not in name:
            continue
        kept[name] = {"id": name, **_facts(), **_of_run(run), **_measured(run, timed)}
        typer.echo(f"{name}: {kept[name]['measured_value'] or kept[name]['unmodelled']} s, {kept[name]['peak_gb']} GB")
        pd.DataFrame(kept.values()).to_csv(out, index=False, lineterminator="\r\n")


def name_of(run: Run) -> str:
    """Short and unique."""
    words = [run.shape, f"{run.seq_len}x{run.micro_batch}x{run.micro_batches}", "mixed" if run.mixed else "bf16"]
    words += ["experts in a loop"] * (run.experts == "eager") + ["liger"] * run.liger
    words += [run.attention] * (run.attention != "sdpa") + ["recompute"] * run.recompute + ["compiled"] * run.compiled
    return " ".join([*words, *([f"lora{run.adapter_rank}"] if run.adapter_rank else [])])


def read_rows(path: Path) -> dict[str, dict[str, Any]]:
    """Rows of a table that was written before, by id; none where there is no table."""
    import pandas as pd

    if not path.exists():
        return {}
    rows = pd.read_csv(path, dtype=str, keep_default_na=False).to_dict("records")
    return {row["id"]: row for row in rows}


def _facts() -> dict[str, Any]:
    """What machine and which libraries."""
    import torch
    import transformers

    made = {"source": f"flopcast validate steps, transformers {transformers.__version__}"}
    machine = {"gpu": torch.cuda.get_device_name(0), "num_gpus": 1}
    return {**made, **machine, "framework": "pytorch", "stack.version": torch.__version__}


def _of_run(run: Run) -> dict[str, Any]:
    """The run in the columns of `validate --runs`: short names, and fields of a scenario by their paths."""
    wide = run.mixed and not run.adapter_rank  # weights, gradients and moments in fp32, multiplies in bf16
    grouped = {"eager": "loop"}.get(run.experts, "grouped")
    return {
        "model_name": run.shape,
        **run.model,
        "seq_len": run.seq_len,
        "global_batch_seqs": run.micro_batch * run.micro_batches,
        "micro_batch_seqs": run.micro_batch,
        "precision": "bf16",
        "training.master_precision": "fp32" if run.mixed else "none",
        "training.moment_precision": "fp32" if run.mixed else "bf16",
        "training.adapter_rank": run.adapter_rank or "",
        "stack.gradient_precision": "fp32" if wide else "bf16",
        "stack.fp32_shards": wide,
        "stack.autocast": wide,
        "zero_stage": 3 if wide else 0,
        "recompute": "full" if run.recompute else "none",
        "stack.peft_adapters": ("autocast" if run.mixed else "fp32") if run.adapter_rank else "",
        "stack.attention": "math" if run.attention == "eager" else "",
        "stack.expert_multiplies": grouped if run.model.get("experts") else "",
        "stack.compiled": run.compiled,
        **run.kernels,
    }


def _measured(run: Run, timed: int) -> dict[str, Any]:
    """Median time of a step, and the peaks of memory."""
    import torch

    torch.cuda.reset_peak_memory_stats()
    row: dict[str, Any] = dict.fromkeys(
        ("measured_value", "measured_unit", "spread", "outcome", "peak_gb", "unmodelled"), ""
    )
    try:
        begin = time.perf_counter()
        step = _prepared(run)
        for _ in range(4):
            step()
        torch.cuda.synchronize()
        warm_s = time.perf_counter() - begin
        seconds = [_timed(step) for _ in range(timed)]
        in_use = nvidia_smi("memory.used").partition(" ")[0]  # of "5120 MiB", CUDA's context included
        kernels = _kernel_seconds(step)
    except torch.OutOfMemoryError:
        return {**row, "outcome": "oom", "unmodelled": "out of memory"}
    except Exception as error:
        return {**row, "unmodelled": f"{type(error).__name__}: {str(error).splitlines()[0][:200]}"}
    finally:
        step = None
        gc.collect()
        torch.cuda.empty_cache()
        torch.compiler.reset()
    median = statistics.median(seconds)
    peaks = {name: _gb(getattr(torch.cuda, f"max_memory_{name}")()) for name in ("allocated", "reserved")}
    return {
        **row,
        "measured_value": f"{median:.5f}",
        "measured_unit": "iteration_s",
        "spread": f"{(max(seconds) - min(seconds)) / median:.3f}",
        "outcome": "ok",
        "peak_gb": peaks["allocated"],
        "peak_counts": "allocated",
        "reserved_gb": peaks["reserved"],
        "device_gb": _gb(int(in_use) * 2**20) if in_use.isdigit() else "",
        "warm_up_s": f"{warm_s:.1f}",
        **kernels,
    }


def _timed(step: Callable[[], Any]) -> float:
    from flopcast_validation.job.machine import now

    begin = now("cuda")
    step()
    return now("cuda") - begin


def _kernel_seconds(step: Callable[[], Any]) -> dict[str, Any]:
    """What the GPU did in a step: seconds of its kernels by sort, their number, and the attention kernel's name."""
    import pandas as pd
    import torch
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA, ProfilerActivity.CPU]) as found:
        step()
        torch.cuda.synchronize()
    on_gpu = (event for event in found.events() if event.device_type == torch.autograd.DeviceType.CUDA)
    rows = [(_sort_of(event.name), event.name[:60], event.self_device_time_total / 1e6)
            for event in on_gpu if not event.is_user_annotation]  # fmt: skip
    kernels = pd.DataFrame(rows, columns=["kind", "name", "seconds"])
    sums, names = kernels.groupby("kind").seconds.sum(), kernels.name[kernels.kind == "attention"].unique()
    times = {f"{kind}_s": f"{sums.get(kind, 0.0):.5f}" for kind in ("gemm", "attention", "optimizer", "rest")}
    return {**times, "kernels": len(kernels), "attention_kernels": "; ".join(names)}


def _sort_of(kernel: str) -> str:
    """Which sort a kernel is, by its name."""
    low = kernel.lower()
    if low.startswith("triton"):
        return "rest"  # inductor names a kernel after all that it fused, neighbours of attention among them
    if any(word in low for word in ("flash", "fmha", "sdpa", "attention")):
        return "attention"
    if any(word in low for word in ("gemm", "cutlass", "nvjet", "cublas", "splitk", "xmma")):
        return "gemm"
    return "optimizer" if any(word in low for word in ("adam", "multi_tensor")) else "rest"


def _gb(nbytes: float) -> str:
    return f"{nbytes / 1e9:.3f}"


def _prepared(run: Run) -> Callable[[], Any]:
    """The model on the GPU, and the call that makes one step of it."""
    import torch

    torch.backends.cuda.matmul.allow_tf32 = True
    torch.manual_seed(0)
    model = _model(run)
    wanted = [weight for weight in model.parameters() if weight.requires_grad]
    optimizer = torch.optim.AdamW(wanted, lr=1e-5, fused=True)
    ids = torch.randint(0, run.model["vocab"], (run.micro_batches, run.micro_batch, run.seq_len), device="cuda")
    called = torch.compile(model) if run.compiled else model

    def step() -> None:
        for some in ids:
            with torch.autocast("cuda", torch.bfloat16, enabled=run.mixed):
                loss = called(input_ids=some, labels=some, use_cache=False).loss
            (loss / run.micro_batches).backward()
        torch.nn.utils.clip_grad_norm_(wanted, 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def _config(run: Run) -> Any:
    """The shape of a run's model, as transformers has it."""
    import transformers

    known, old = load_yaml(SUITE)["configurations"], run.family == "gpt2"
    names = known["all"] | known["gpt2" if old else "others"] | (known["experts"] if "experts" in run.model else {})
    fields = {name: run.model[column] for name, column in names.items()}
    fields |= {"n_positions": run.seq_len} if old else {"max_position_embeddings": max(8192, run.seq_len)}
    if "experts" in run.model:
        fields |= {"router_aux_loss_coef": 0.0, "experts_implementation": run.experts}
    return getattr(transformers, known["classes"][run.family])(**fields)


def _model(run: Run) -> Any:
    import torch
    import transformers

    config = _config(run)
    config._attn_implementation = run.attention
    dtype = torch.float32 if run.mixed and not run.adapter_rank else torch.bfloat16
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with torch.device("cuda"):
            model = transformers.AutoModelForCausalLM.from_config(config)
    finally:
        torch.set_default_dtype(before)
    model.train()
    if run.liger:
        from liger_kernel.transformers import _apply_liger_kernel_to_instance

        _apply_liger_kernel_to_instance(model=model)
    if run.recompute:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    if run.adapter_rank:
        import peft

        linear = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
        settings = peft.LoraConfig(r=run.adapter_rank, lora_alpha=32, lora_dropout=0.0, target_modules=linear)
        model = peft.get_peft_model(model, settings)
    return model
