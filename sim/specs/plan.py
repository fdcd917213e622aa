"""The parallel plan: how the model and the batch are cut over the GPUs, and how layers are dealt to stages.

What `recompute_modules` names stands for modules that operations and collectives of `sim.work` carry. Megatron-Core
with Transformer Engine runs the norm before a multiply inside that multiply's module, so that it goes with `attn` and
`mlp`; the norms before latent attention and before experts are modules of their own [1]_.

.. [1] NVIDIA/Megatron-LM:megatron/core/models/gpt/gpt_layer_specs.py, get_gpt_layer_with_transformer_engine_submodules.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any, Literal, Self

from pydantic import Field, NonNegativeInt, PositiveInt

from sim.errors import nearest
from sim.specs.base import Spec, divisor_near

if TYPE_CHECKING:
    from sim.specs.model import ModelSpec


ROUTED = ("moe_router", "moe_preprocess", "moe_dispatch", "experts", "moe_act", "shared_experts")
"""Modules of operations of a layer of experts, between its norm and its residual."""

RECOMPUTE_MODULES: Mapping[str, tuple[str, ...]] = {
    "core_attn": ("core_attn",),
    "layernorm": ("attn_layernorm", "moe_layernorm"),
    "mla_up_proj": ("mla_up_proj",),
    "mlp": ("mlp",),
    "moe": ROUTED,
    "moe_act": ("moe_act",),
    "shared_experts": ("shared_experts",),
}
"""What a layer may recompute, by name, and the modules of operations that run again.

layernorm, mla_up_proj and moe_act only throw their output away, which the multiplies that read it get back before their
backward; the others run again from their input (NVIDIA/Megatron-LM:megatron/core/transformer/transformer_config.py,
recompute_modules).
"""

GRAPH_MODULES: Mapping[str, tuple[str, ...]] = {
    "attn": ("attn", "attn_layernorm", "core_attn", "mla_up_proj"),
    "mlp": ("mlp", "mlp_residual"),
    "moe_router": ("moe_layernorm", "moe_router", "shared_experts"),
    "moe_preprocess": ("moe_preprocess",),
    "mamba": ("mamba",),
}
"""Parts of a layer that may be a CUDA graph, by name, and the modules of operations in each.

The router's holds the norm before it and experts that every token goes through; what follows the host's wait for the
numbers of tokens is launched kernel by kernel (NVIDIA/Megatron-LM:docs/user-guide/features/cuda_graph.md). Megatron-
Core's `moe`, for experts that drop what exceeds a fixed number of tokens, has no counterpart: none are dropped here.
"""


def what_is_missing(model: ModelSpec, module: str) -> str:
    """What a model would need to have a module of RECOMPUTE_MODULES; empty where it has that."""
    needs = {
        "moe": (model.num_experts, "experts"),
        "moe_act": (model.num_experts, "experts"),
        "shared_experts": (model.shared_expert_intermediate_size, "shared experts"),
        "mla_up_proj": (model.key_value_rank, "latent attention"),
        "mlp": (model.has("dense"), "layers without experts"),
    }
    there, what = needs.get(module, (True, ""))
    return "" if there else what


def wrong_names(field: str, names: Sequence[str], known: Collection[str]) -> Iterator[str]:
    """Yield what is wrong with names that are not known, with the name that is meant, or that stand twice."""
    for name in names:
        if name not in known:
            yield f"{field} has no {name!r}{nearest(name, known)}"
        if names.count(name) > 1:
            yield f"{field} names {name!r} twice; keep one"


MEGATRON_ORDER = "tp-cp-dp-pp"
"""Megatron-LM's, which keeps the most talkative group in a node."""
_REPEATED = re.compile(r"\(([^()]*)\)\*(\d+)|([EtmL|])\*(\d+)")
_MOST_LETTERS = 100_000


def layout_stages(layout: str) -> tuple[str, ...]:
    """The letters of each stage of a pipeline layout, repetitions written out.

    Raises ValueError: another letter, or a repetition that is no repetition.
    """
    text = re.sub(r"[\s,]", "", layout)
    while (found := _REPEATED.search(text)) is not None:
        inner, times = found[1] if found[1] is not None else found[3], int(found[2] or found[4])
        if len(text) + len(inner) * times > _MOST_LETTERS:
            raise ValueError(f"pipeline_layout {layout[:60]!r} has more than {_MOST_LETTERS:,} letters")
        text = text[: found.start()] + inner * times + text[found.end() :]
    strange = next((letter for letter in text if letter not in "EtmL|"), None)
    if strange is not None:
        raise ValueError(
            f"pipeline_layout {layout!r}: {strange!r} is none of E (embedding), t (layer), m (multi-token prediction), "
            "L (head and loss), | (next stage), or of (...)*n"
        )
    return tuple(text.split("|"))


def layout_of(layers: Sequence[int], mtps: int = 0) -> str:
    """The shortest pipeline layout of stages of so many layers: `Et*3|(t*4|)*14t*3mL`.

    layers : of each stage, in the order that a micro-batch goes through them. The first has the embedding, the last
        the head, and before it modules of multi-token prediction.
    """
    stages = [f"t*{count}" if count > 2 else "t" * count for count in layers]
    stages[0] = f"E{stages[0]}"
    last = f"{stages.pop()}{'m' * mtps}L"
    runs = [(stage, len(list(same))) for stage, same in groupby(stages)]
    return "".join(f"({stage}|)*{times}" if times > 1 else f"{stage}|" for stage, times in runs) + last


LAYERED = ("breadth_first", "modular")
"""Schedules in which one rank alone may hold several chunks: layered gradient accumulation."""
UPDATES_EACH_MICROBATCH = ("pipedream",)
"""Schedules that update weights after every micro-batch, so that no gradient is added to another."""
DEFAULT_RECOMPUTE_MODULES = ("core_attn",)
"""What selective recomputation runs again where nothing else is said (Korthikanti et al. 2022, section 5)."""


def reshards(stated: bool | str, pp: Any) -> Any:
    """Whether ZeRO stage 3 drops gathered weights after a forward, on so many pipeline ranks: a bool, or an array.

    stated : as `reshard_after_forward` of a plan.
    """
    return pp == 1 if stated == "default" else bool(stated)


class ParallelPlan(Spec):
    """How one training step is spread over tp · cp · pp · dp GPUs."""

    tp: PositiveInt = 1
    """Tensor parallel degree: each matrix is cut over tp GPUs."""
    cp: PositiveInt = 1
    """Context parallel degree: each sequence is cut over cp GPUs, which exchange keys and values."""
    pp: PositiveInt = 1
    """Pipeline parallel degree: the layers are cut over pp ranks."""
    dp: PositiveInt = 1
    """Data parallel degree: the batch is cut over dp replicas."""
    placement: str = MEGATRON_ORDER
    """Order in which the dimensions lie over the GPUs, the one whose neighbours sit closest first: tp-cp-dp-pp, or
    another order of these four. tp-cp-pp-dp (Megatron's use-tp-pp-dp-mapping) has pipeline ranks closer than
    replicas."""
    ep: PositiveInt = 1
    """Expert parallel degree: experts are dealt over ep of the tp · cp · dp GPUs that hold the same layers; it takes no
    GPUs of its own."""
    etp: PositiveInt = 1
    """Expert tensor parallel degree: GPUs over which each expert's matrices are cut. It is 1 (experts are whole) or tp,
    so that ep · etp GPUs hold the experts of a layer (Megatron-Core's expert-tensor-parallel-size)."""
    microbatch_size: PositiveInt = 1
    """Sequences that go through the pipeline together."""
    schedule: str = "1f1b"
    """Order in which a pipeline rank works; `flopcast presets list schedules` names them."""
    num_chunks: PositiveInt = 1
    """Model chunks a rank holds (virtual stages); more than 1 needs an interleaved schedule."""
    microbatch_group: PositiveInt | None = None
    """Micro-batches that visit a chunk one after the other in schedule interleaved, from pp to all. Default: pp."""
    microbatches_per_flush: PositiveInt | None = None
    """Micro-batches after which the pipeline drains and begins anew, without an update, until the step's are done; each
    drain sums gradients (torchtitan's training.local_batch_size in micro-batches, where a step accumulates several).
    Default: the pipeline drains once a step."""
    sequence_slices: PositiveInt = 1
    """Parts of each sequence that go through the pipeline one after the other (schedule seq1f1b)."""
    recompute: Literal["none", "selective", "per_op", "full"] = "none"
    """Activations that are recomputed in the backward. selective: the modules of recompute_modules; per_op: the cheap
    kernels and every other multiply, which torchtitan calls selective; full: whole layers."""
    recompute_modules: tuple[str, ...] = ()
    """Modules of a layer that selective recomputation runs again, by Megatron-Core's names: core_attn, layernorm,
    mla_up_proj, mlp, moe, moe_act, shared_experts. Default: core_attn where recompute is selective."""
    recompute_method: Literal["uniform", "block"] = "uniform"
    """Layers that full recomputation runs again. uniform: all, by groups of recompute_num_layers whose inputs are kept;
    block: so many of every stage, and the others not."""
    recompute_num_layers: PositiveInt = 1
    """Layers that full recomputation runs again together (uniform), or of every virtual stage (block)."""
    sequence_parallel: bool = False
    """Cut norms and dropouts along the sequence over the tensor-parallel group (Korthikanti et al. 2022)."""
    zero_stage: Literal[0, 1, 2, 3] = 0
    """What data parallelism shards: 1 the optimizer state, 2 gradients too, 3 weights too. Through a pipeline gradients
    stay whole until they are summed once a step, after a stage's last backward, as in torch.distributed.pipelining.
    Layered schedules shard them as they go."""
    sharding_group: PositiveInt | None = None
    """GPUs among which ZeRO shards; such groups hold copies of each other's shards and sum their gradients (hybrid
    sharding, HSDP; Megatron-Core's num-distributed-optimizer-instances). Neighbours, so that a group of a node's GPUs
    gathers over NVLink. Experts are sharded over what expert parallelism leaves of the group and its tensor-parallel
    twins. Default: all that hold the same part of the model."""
    reshard_after_forward: bool | Literal["default"] = True
    """Whether ZeRO stage 3 drops a layer's gathered weights after its forward and gathers them again for its backward
    (FSDP2's fully_shard, torchtitan's fsdp_reshard_after_forward). False keeps them until the backward; with a pipeline
    until the last micro-batch's: then it moves what stage 1 does. True gathers a pipeline's weights for every
    micro-batch, unless its schedule is layered. "default" is torchtitan's: true without a pipeline, false with one.
    What the head gathers is always kept."""
    offloaded_layers: NonNegativeInt = 0
    """Layers of the model whose activations wait in host memory for the backward. They are copied while other layers
    compute; what takes longer than that lengthens the step."""
    optimizer_offload: float = Field(default=0.0, ge=0, le=1)
    """Share of the optimizer's state that is kept in host memory and updated by the CPU (Megatron-Core's
    optimizer-offload-fraction, DeepSpeed's offload_optimizer). Gradients are copied out, weights back."""
    embedding_as_layer: bool = False
    """Count the embedding as one layer when layers are dealt to stages (Llama 3, Megatron-LM)."""
    head_as_layer: bool = False
    """Count the output head as one layer when layers are dealt to stages."""
    vocabulary_over_stages: bool = False
    """Cut the embedding and the head by vocabulary over all stages, instead of giving them to the first and the last
    one (Yeung et al. 2024, "Balancing Pipeline Parallelism with Vocabulary Parallelism", arXiv:2411.05288). What the
    stages exchange for it counts as hidden beside their layers, as the paper runs it, and under 1F1B every stage keeps
    one micro-batch more."""
    uneven_layers: bool = False
    """Let some stages hold a layer more than others where the stages do not divide the layers."""
    pipeline_layout: str = ""
    """What each of the pp · num_chunks stages holds, in the order that a micro-batch goes through them, in Megatron's
    letters: E the embedding, t a layer, m multi-token prediction, L the head and its loss, | between stages, *n and
    (...)*n for repetitions: Et*4|(t*4|)*14tmL. Empty, as -s plan.pipeline_layout= leaves it, is the default.
    Default: layers are dealt evenly."""

    NAMES = ("recompute_modules",)
    FOLLOWS = {  # noqa: RUF012
        "recompute_modules": lambda of: DEFAULT_RECOMPUTE_MODULES if of.get("recompute") == "selective" else None,
        "pipeline_layout": lambda of: "",
    }

    def replace(self, **changes: Any) -> Self:
        """Return the plan with fields changed, without options that its new recomputation or sharding does not have.

        Experts that are cut stay cut, over the new tensor-parallel group.
        """
        if self.etp > 1:
            changes = {"etp": changes.get("tp", self.tp), **changes}
        left, stage, mode = [], changes.get("zero_stage", self.zero_stage), changes.get("recompute", self.recompute)
        if stage != self.zero_stage:
            left += ["sharding_group"] * (stage == 0) + ["reshard_after_forward"] * (stage < 3)
        if mode != self.recompute:
            left += [] if mode == "selective" else ["recompute_modules"]
            left += [] if mode == "full" else ["recompute_method", "recompute_num_layers"]
        return super().replace(**{name: type(self).model_fields[name].default for name in left} | changes)

    def mistakes(self) -> Iterator[str]:
        """Yield what breaks a rule between fields of the plan."""
        yield from self._mistakes_of_recompute()
        if sorted(self.placement.split("-")) != sorted(MEGATRON_ORDER.split("-")):
            yield (
                f"placement {self.placement!r} must name each of tp, cp, dp and pp once, the one whose neighbours sit "
                f"closest first, such as {MEGATRON_ORDER} or tp-cp-pp-dp"
            )
        if self.num_chunks > 1 and self.pp == 1 and self.schedule not in LAYERED:
            yield (
                f"num_chunks {self.num_chunks} needs a pipeline; set pp above 1, or num_chunks to 1 with schedule "
                f"1f1b: on one rank only {' and '.join(LAYERED)} hold several"
            )
        if self.microbatches_per_flush is not None and self.pp == 1:
            yield (
                f"microbatches_per_flush {self.microbatches_per_flush} needs a pipeline, which pp 1 has not; set pp "
                "above 1, or leave it out"
            )
        if self.sequence_parallel and self.tp == 1:
            yield "sequence_parallel has no effect with tp 1; set tp above 1 or sequence_parallel to false"
        if self.reshard_after_forward is False and self.zero_stage < 3:
            yield (
                f"reshard_after_forward: false needs zero_stage 3, which gathers weights for a forward, not "
                f"{self.zero_stage}; set that, or leave it out"
            )
        if self.sharding_group is not None:
            yield from self._mistakes_of_sharding(self.sharding_group)
        if self.pipeline_layout:
            yield from self._mistakes_of_layout()
        yield from self._mistakes_of_experts()

    def _mistakes_of_experts(self) -> Iterator[str]:
        if self.etp not in (1, self.tp):
            yield (
                f"etp {self.etp} must be 1 (experts are whole) or tp = {self.tp} (cut like all other matrices); set it "
                f"to one of these, or tp to {self.etp}"
            )
        width, degree = self.tp * self.cp * self.dp, self.ep * self.etp
        if width % degree and self.etp == 1:
            yield (
                f"ep {self.ep} must divide tp · cp · dp = {width}, the GPUs that hold the same layers; "
                f"nearest that does: {divisor_near(width, self.ep)}"
            )
        if width % degree:
            yield (
                f"ep · etp = {self.ep} · {self.etp} = {degree} must divide tp · cp · dp = {width}, the GPUs that hold "
                f"the same layers; nearest ep that does: {divisor_near(width // self.etp, self.ep)}, or set etp to 1"
            )

    def _mistakes_of_layout(self) -> Iterator[str]:
        stages, said = self.stages_of_layout, f"pipeline_layout {self.pipeline_layout!r}"
        if len(stages) != self.num_stages:
            yield (
                f"{said} has {len(stages)} stages, but pp · num_chunks = {self.pp} · {self.num_chunks} = "
                f"{self.num_stages}; write one more than there are |, or change pp or num_chunks"
            )
        order = "".join(stages)
        wrong = (
            "begin with one E" if order.count("E") != 1 or order[0] != "E"
            else "end with one L" if order.count("L") != 1 or order[-1] != "L"
            else "have its m behind all t" if "t" in order.partition("m")[2]
            else ""
        )  # fmt: skip
        if wrong:
            yield f"{said} must {wrong}: E, then layers t, then m where there are such modules, then L"
        empty = next((place for place, stage in enumerate(stages) if not stage), None)
        if empty is not None:
            yield f"{said}: stage {empty} holds nothing; give it a layer, or leave its | out"
        names = ("uneven_layers", "embedding_as_layer", "head_as_layer", "vocabulary_over_stages")
        given = [name for name in names if getattr(self, name)]
        if given:
            yield f"{given[0]} deals layers evenly, but {said} says where they are; leave one of them out"

    def _mistakes_of_recompute(self) -> Iterator[str]:
        names, mode = self.recompute_modules, self.recompute
        yield from wrong_names("recompute_modules", names, RECOMPUTE_MODULES)
        if names and mode != "selective":
            yield (
                f"recompute_modules {', '.join(names)} need recompute: selective, not {mode}; set that, or leave the "
                "modules out"
            )
        if mode != "full" and (self.recompute_num_layers > 1 or self.recompute_method != "uniform"):
            yield (
                f"recompute_num_layers and recompute_method need recompute: full, not {mode}; set that, or leave them "
                "out"
            )

    def _mistakes_of_sharding(self, size: int) -> Iterator[str]:
        if not self.zero_stage:
            yield f"sharding_group {size} needs ZeRO: set zero_stage to 1, 2 or 3, or leave the group out"
        if self.num_replicas % size:
            yield (
                f"sharding_group {size} must divide dp · cp = {self.num_replicas}, the GPUs that hold the same part of "
                f"the model; nearest that does: {divisor_near(self.num_replicas, size)}"
            )
        if self.tp * size % (self.ep * self.etp):
            cut, within = f" · etp {self.etp}" * (self.etp > 1), self.tp * size
            yield (
                f"sharding_group {size} with ep {self.ep}{cut}: the experts of a layer lie inside a sharding group, so "
                f"ep{cut} must divide tp · sharding_group = {within}; nearest{' ep' * bool(cut)} that does: "
                f"{divisor_near(within // self.etp, self.ep)}"
            )

    @property
    def recompute_words(self) -> str:
        """What is recomputed, in a word.

        `moe_act+layernorm` where selective recomputation runs other modules again than usual, `2 layers` of every
        virtual stage that runs so many again, whole.
        """
        if self.recompute == "selective" and self.recompute_modules != DEFAULT_RECOMPUTE_MODULES:
            return "+".join(self.recompute_modules)
        if self.recompute_method == "block":
            return f"{self.recompute_num_layers} layer{'s' * (self.recompute_num_layers > 1)}"
        return self.recompute if self.recompute_num_layers == 1 else f"full by {self.recompute_num_layers}"

    @property
    def stages_of_layout(self) -> tuple[str, ...]:
        """The letters of each stage of `pipeline_layout`."""
        return layout_stages(self.pipeline_layout)

    @property
    def num_gpus(self) -> int:
        """GPUs the plan uses."""
        return self.tp * self.cp * self.pp * self.dp

    @property
    def num_replicas(self) -> int:
        """GPUs that hold the same part of the model: their gradients are summed and ZeRO shards over them."""
        return self.dp * self.cp

    @property
    def num_expert_replicas(self) -> int:
        """GPUs that hold the same experts, or parts of them: their gradients are summed and ZeRO shards over them."""
        return self.tp * self.cp * self.dp // (self.ep * self.etp)

    @property
    def num_stages(self) -> int:
        """Virtual pipeline stages over all ranks."""
        return self.pp * self.num_chunks


def num_stages_of(num_layers: int, plan: ParallelPlan) -> int:
    """Virtual stages of a model of so many layers: pp · num_chunks, or in a modular pipeline no more than layers
    are dealt, one a stage, so that the last round over the ranks may be incomplete (Lamy-Poirier 2021,
    arXiv:2106.02679).
    """
    if plan.schedule != "modular" or plan.pipeline_layout:
        return plan.num_stages
    return min(plan.num_stages, num_layers + plan.embedding_as_layer + plan.head_as_layer)


def layers_of_stages(num_layers: int, plan: ParallelPlan) -> tuple[int, ...]:
    """Layers of each of the stages (`num_stages_of`), in the order that a micro-batch goes through them: as the plan's
    layout says, or evenly.

    Under `embedding_as_layer` and `head_as_layer` the first and the last stage have a layer less; under
    `uneven_layers` some have one more.
    """
    if plan.pipeline_layout:
        return tuple(stage.count("t") for stage in plan.stages_of_layout)
    stages = num_stages_of(num_layers, plan)
    share, rest = divmod(num_layers + plan.embedding_as_layer + plan.head_as_layer, stages)
    # The rest goes to the stages from the second on: the first has the embedding, the last the head.
    layers = [share + ((stage - 1) % stages < rest) for stage in range(stages)]
    layers[0] -= plan.embedding_as_layer
    layers[-1] -= plan.head_as_layer
    return tuple(layers)
