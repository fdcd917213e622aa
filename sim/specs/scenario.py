"""A scenario: one complete question, and the rules between its parts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Self

from sim.errors import ProfileError, SpecError
from sim.specs.base import Spec, divisor_near
from sim.specs.hardware import ClusterSpec
from sim.specs.model import ModelSpec
from sim.specs.plan import ParallelPlan, what_is_missing
from sim.specs.profile import Profile
from sim.specs.stack import StackSpec
from sim.specs.training import TrainingSpec

NO_PLAN = "no plan was given"
"""What a scenario without a plan assumes, until a search finds one."""


class Scenario(Spec):
    """A question: which model, on which cluster, divided how, trained with what."""

    name: str = "scenario"
    """What answers call it. Default: the file's name."""
    description: str = ""
    """What is asked and where its values are from, in words."""
    model: ModelSpec
    """What is trained."""
    cluster: ClusterSpec
    """The machine it is trained on; a plan may use a part of it."""
    plan: ParallelPlan
    """How model and batch are cut over the GPUs. Default: open, as with no fields in it, for a search to find."""
    training: TrainingSpec
    """Batch, sequence, precision and optimizer."""
    stack: StackSpec
    """What the framework fuses, overlaps and stores. Default: megatron-core."""
    profile: Profile
    """What the GPU and its links really reach. Default: the shipped profile of the cluster's GPU."""
    assumed: tuple[str, ...] = ()
    """What the description left open and how it was filled in; shown with every answer."""

    def __repr__(self) -> str:
        """One line."""
        plan, cluster = self.plan, self.cluster
        return (
            f"<Scenario {self.name}: {self.model.name} on {plan.num_gpus:,} × {cluster.gpu.name} ({cluster.name}), "
            f"tp {plan.tp} · pp {plan.pp} · dp {plan.dp}>"
        )

    def mistakes(self) -> Iterator[str]:
        """Yield everything that breaks a rule between sections, as one text."""
        of_model = *self._divided(), *self._multiples(), *self._stages(), *self._parts(), *self._adapters()
        if found := "\n".join([*of_model, *self._recomputed(), *self._offloading(), *self._limits()]):
            yield found
        self.cluster.gpu.peak(self.training.peak_precision)
        if self.profile.gpu not in self.cluster.gpu.name:
            raise ProfileError(
                f"profile {self.profile.name!r} was made for {self.profile.gpu}, and says nothing of the cluster's "
                f"{self.cluster.gpu.name}; choose a profile of that GPU (flopcast presets list profiles), or "
                "profile=datasheet. Only where both have the same chip, take its values all the same with "
                f"-s profile.gpu={self.cluster.gpu.name}"
            )

    def _divided(self) -> Iterator[str]:
        """Numbers that must divide others and do not."""
        model, plan, length = self.model, self.plan, self.training.sequence_length
        shared, tp = model.shared_expert_intermediate_size, plan.tp
        dense, attends = model.has("dense"), any(kind.attends for kind in model.layer_kinds)
        linear = max(1, model.linear_num_key_heads)
        with_sequence = plan.cp * (tp if plan.sequence_parallel else 1)
        cp = "plan.cp (times plan.tp under sequence parallelism)"
        sequence, slices = "training.sequence_length", plan.sequence_slices
        by_heads = attends and plan.cp > 1 and self.stack.context_by_heads
        rules = (  # (whether one applies, divisor, its name, dividend, its name)
            (attends, tp, "plan.tp", model.num_heads, "model.num_heads"),
            (model.linear_num_heads > 0, tp, "plan.tp", linear, "model.linear_num_key_heads"),
            (dense, tp, "plan.tp", model.intermediate_size, "model.intermediate_size"),
            (model.num_experts > 0, plan.ep, "plan.ep", model.num_experts, "model.num_experts"),
            (plan.etp > 1, plan.etp, "plan.etp", model.expert_intermediate_size, "model.expert_intermediate_size"),
            (shared > 0, tp, "plan.tp", shared, "model.shared_expert_intermediate_size"),
            (attends and model.num_kv_heads > tp, tp, "plan.tp", model.num_kv_heads, "model.num_kv_heads"),
            (plan.sequence_parallel, tp, "plan.tp", length, sequence),
            (slices > 1, slices, "plan.sequence_slices", length, sequence),
            (plan.cp > 1, with_sequence, cp, length, sequence),
            (by_heads, tp * plan.cp, "plan.tp · plan.cp (stack.context_by_heads)", model.num_heads, "model.num_heads"),
        )
        for applies, value, inner, total, outer in rules:
            if applies and total % value:
                nearest = divisor_near(total, value)
                yield f"{inner} = {value} must divide {outer} = {total}; nearest that does: {nearest}"

    def _multiples(self) -> Iterator[str]:
        """Numbers that must be multiples of others and are not."""
        plan, heads, batch = self.plan, self.model.num_kv_heads, self.training.global_batch_size
        if heads < plan.tp and plan.tp % heads:
            yield f"plan.tp = {plan.tp} must be a multiple of model.num_kv_heads = {heads} to replicate them"
        replica = plan.dp * plan.microbatch_size
        per_flush, count = plan.microbatches_per_flush, self.num_microbatches
        if batch % replica:
            yield (
                f"training.global_batch_size = {batch} must be a multiple of plan.dp · plan.microbatch_size = "
                f"{plan.dp} · {plan.microbatch_size} = {replica}; nearest: {max(1, round(batch / replica)) * replica}"
            )
        elif per_flush is not None and count % per_flush:
            yield (
                f"plan.microbatches_per_flush = {per_flush} must divide the {count} micro-batches of a step; nearest "
                f"that does: {divisor_near(count, per_flush)}"
            )

    def _stages(self) -> Iterator[str]:
        """Layers that cannot be dealt to the stages, with all that would help in this scenario."""
        model, plan, stages = self.model, self.plan, self.plan.num_stages
        dealt = model.num_layers + plan.embedding_as_layer + plan.head_as_layer
        product = f"plan.pp · plan.num_chunks = {plan.pp} · {plan.num_chunks} = {stages}"
        if plan.pipeline_layout and plan.schedule == "modular" and stages != model.num_layers:
            yield (
                f"schedule 'modular' holds one layer a stage, but plan.pipeline_layout has {stages} stages "
                f"for {model.num_layers} layers; leave it out, or set plan.schedule to breadth_first"
            )
        elif plan.pipeline_layout:
            letters = "".join(plan.stages_of_layout)
            for letter, name, number in (
                ("t", "num_layers", model.num_layers),
                ("m", "num_mtp_layers", model.num_mtp_layers),
            ):
                if (held := letters.count(letter)) != number:
                    yield (
                        f"plan.pipeline_layout has {held} {letter}, but model.{name} is {number}; write {number}, or "
                        f"change model.{name}"
                    )
        elif plan.schedule == "modular":
            yield from self._one_layer_a_stage(dealt)
        elif plan.uneven_layers and dealt < stages:
            yield f"{dealt} layers cannot fill {product} stages; lower plan.num_chunks or plan.pp to {dealt} stages"
        elif dealt % stages and not plan.uneven_layers:
            extra = "" if dealt == model.num_layers else " (embedding or head counted as layers)"
            nearest = divisor_near(dealt, stages)
            remedies = [f"nearest that does: {nearest} stage{'s' if nearest > 1 else ''}", *self._counted_otherwise()]
            if dealt > stages:
                remedies.append("plan.uneven_layers: true (some stages then hold a layer more)")
            yield f"{product} must divide the {dealt} layers{extra}; {'; or '.join(remedies)}"

    def _one_layer_a_stage(self, dealt: int) -> Iterator[str]:
        """Chunks of a modular pipeline that are not those of one layer a stage, dealt round the ranks."""
        plan, chunks = self.plan, -(-dealt // self.plan.pp)
        shared = plan.uneven_layers and plan.num_stages == self.model.num_layers  # with the embedding, or the head
        if plan.pp > dealt:
            yield f"schedule 'modular' deals {dealt} layers to plan.pp = {plan.pp} ranks; lower plan.pp to {dealt}"
        elif plan.num_chunks != chunks and not shared:
            yield (
                f"schedule 'modular' holds one layer a stage: {dealt} layers dealt round plan.pp = {plan.pp} ranks are "
                f"{chunks} chunks, not plan.num_chunks = {plan.num_chunks}; set plan.num_chunks to {chunks}"
            )

    def _counted_otherwise(self) -> list[str]:
        """Whether counting embedding and head as layers or not makes the stages divide them, by the fewest changes."""
        plan, names = self.plan, ("head_as_layer", "embedding_as_layer")
        for changed in (names[:1], names[1:], names):
            settings = {name: not getattr(plan, name) for name in changed}
            dealt = self.model.num_layers + sum({**{name: getattr(plan, name) for name in names}, **settings}.values())
            if dealt % plan.num_stages == 0:
                words = " and ".join(f"plan.{name}: {str(value).lower()}" for name, value in settings.items())
                return [f"{words} ({dealt} layers)"]
        return []

    def _parts(self) -> Iterator[str]:
        """Experts and vocabularies that are dealt or cut, and cannot be."""
        model, plan, load = self.model, self.plan, self.training.expert_load
        for name, degree in (("ep", plan.ep), ("etp", plan.etp)):
            if degree > 1 and not model.num_experts:
                yield f"plan.{name} = {degree}, but model {model.name!r} has no experts; set plan.{name} to 1"
        if plan.etp > 1 and model.num_experts and model.mlp_bias:
            # NVIDIA/Megatron-LM:megatron/core/transformer/transformer_config.py, __post_init__.
            yield (
                f"plan.etp = {plan.etp}, but the experts of model {model.name!r} have biases, with which they are not "
                "cut (Megatron-Core's rule); set plan.etp to 1, or model.mlp_bias to false"
            )
        wrong = [f"plan.{name}" for name in ("embedding_as_layer", "head_as_layer") if getattr(plan, name)]
        wrong += ["model.num_mtp_layers"] * bool(model.num_mtp_layers)
        if plan.vocabulary_over_stages and wrong:
            yield (
                "plan.vocabulary_over_stages gives every stage a share of the embedding and of the head, which "
                f"{wrong[0]} puts on one stage; leave one out"
            )
        if load and len(load) != model.num_experts:
            yield (
                f"training.expert_load has {len(load)} numbers, but model {model.name!r} {model.num_experts} experts; "
                "give one for each"
            )
        if model.num_experts and plan.tp > 1 and not plan.sequence_parallel:
            yield (
                f"plan.tp = {plan.tp} with a mixture of experts needs plan.sequence_parallel: each GPU routes its own "
                "share of the tokens (Megatron-LM's rule); set it to true, or plan.tp to 1"
            )

    def _limits(self) -> Iterator[str]:
        """Numbers that exceed what there is."""
        model, plan, training, cluster, gpu = self.model, self.plan, self.training, self.cluster, self.cluster.gpu
        in_stage = -(-model.num_layers // plan.num_stages)
        for name, value, most, of in (
            ("training.high_precision_layers", training.high_precision_layers, model.num_layers, "layers"),
            ("plan.offloaded_layers", plan.offloaded_layers, model.num_layers, "layers"),
            ("plan.recompute_num_layers", plan.recompute_num_layers, in_stage, "layers of a stage"),
            ("stack.dispatcher_sms", self.stack.dispatcher_sms, gpu.num_sms, f"multiprocessors of {gpu.name}"),
        ):
            if value is not None and value > most:
                yield f"{name} = {value} exceeds the {most} {of}; lower it to {most}"
        if plan.num_gpus > cluster.num_gpus:
            replicas = cluster.num_gpus // (plan.tp * plan.cp * plan.pp)
            remedy = f"lower plan.dp to {replicas}" if replicas else "cut the model into fewer parts (tp, cp, pp)"
            degrees = {name: getattr(plan, name) for name in ("tp", "cp", "pp", "dp") if name != "cp" or plan.cp > 1}
            yield (
                f"the plan needs {' · '.join(degrees)} = {' · '.join(map(str, degrees.values()))} = {plan.num_gpus} "
                f"GPUs, but cluster {cluster.name!r} has {cluster.num_gpus}; {remedy} or raise cluster.num_nodes to "
                f"{-(-plan.num_gpus // cluster.node.gpus_per_node)}; a search leaves the file's plan out with -s plan="
            )
        if model.position == "learned" and training.sequence_length > model.max_sequence_length:
            yield (
                f"training.sequence_length = {training.sequence_length} exceeds the model's "
                f"{model.max_sequence_length} learned positions; raise model.max_sequence_length"
            )

    def _adapters(self) -> Iterator[str]:
        """Adapters of no linear of the model."""
        model, training, kinds = self.model, self.training, self.model.layer_kinds
        attends, recurs = (any(getattr(kind, name) for kind in kinds) for name in ("attends", "recurs"))
        has_mlp = model.has("dense") or model.has("sparse")
        there = dict.fromkeys(("linear_qkv", "linear_proj"), attends) | dict.fromkeys(("in_proj", "out_proj"), recurs)
        there |= dict.fromkeys(("linear_fc1", "linear_fc2"), has_mlp)
        if training.adapter_rank and not any(there[name] for name in training.adapter_targets):
            yield (
                f"training.adapter_targets: model {model.name!r} has no {' and no '.join(training.adapter_targets)}; "
                f"it has {', '.join(name for name, found in there.items() if found)}"
            )

    def _offloading(self) -> Iterator[str]:
        """What offloading needs to know of the host and the node does not say."""
        plan, node, measured, optimizer = self.plan, self.cluster.node, self.profile.host, self.training.optimizer
        offloaded, updated = plan.optimizer_offload, plan.optimizer_offload and self.stack.updates_on_host
        what = f"plan.offloaded_layers = {plan.offloaded_layers}" if plan.offloaded_layers else ""
        what = f"plan.optimizer_offload = {offloaded:g}" if offloaded else what
        copies = measured.to_host_bytes_per_s and measured.to_device_bytes_per_s
        if updated and optimizer not in ("adam", "sgd"):
            yield (
                f"{what}: updates on the host are Adam's or SGD's, not {optimizer}'s; set it to 0, or "
                "training.optimizer to adam"
            )
            return
        for name, example, known in (
            ("host_link_bandwidth", "64 GB/s (PCIe Gen5 x16)", node.host_link_bandwidth_bytes_per_s or copies),
            (
                "host_memory_bandwidth",
                "76.8 GB/s (a GPU's share)",
                node.host_memory_bandwidth_bytes_per_s or not updated,
            ),
        ):
            if what and not known:
                yield (
                    f"{what} needs to know the host, but node {node.name!r} has no {name}; add to cluster.node, for "
                    f"example, {name}: {example}, or set the plan's to 0"
                )

    def _recomputed(self) -> Iterator[str]:
        """What the plan recomputes and the model does not have, or CUDA graphs hold."""
        model, plan, scope = self.model, self.plan, self.stack.cuda_graph_scope
        for name in plan.recompute_modules:
            if what := what_is_missing(model, name):
                yield f"plan.recompute_modules has {name}, but model {model.name!r} has no {what}; leave {name} out"
        # NVIDIA/Megatron-LM:megatron/core/transformer/transformer_config.py, __post_init__.
        if "moe" in plan.recompute_modules and "moe_router" in scope:
            yield (
                "plan.recompute_modules has moe, which would run again the CUDA graph of moe_router; leave one of the "
                "two out"
            )
        if plan.recompute == "full" and scope:
            yield (
                f"plan.recompute: full does not go with CUDA graphs of {', '.join(scope)}; recompute modules "
                "(recompute: selective), or set stack.cuda_graphs to none or full_iteration"
            )

    @property
    def is_open(self) -> bool:
        """Whether no plan was given: the one there is stands for none."""
        return NO_PLAN in self.assumed

    def require_plan(self) -> Self:
        """Self, if it has a plan.

        Raises SpecError: it is open.
        """
        if self.is_open:
            raise SpecError(
                f"scenario {self.name!r} has no plan: flopcast search finds the best (in Python sim.search(scenario)."
                "best[0].scenario), or give plan.tp, plan.pp, plan.dp and so on"
            )
        return self

    def replace(self, **changes: Any) -> Self:
        """Return the scenario with fields changed; one that is given a plan no longer leaves its plan open."""
        if "plan" in changes and self.is_open:
            changes = {"assumed": tuple(each for each in self.assumed if each != NO_PLAN), **changes}
        return super().replace(**changes)

    @property
    def num_microbatches(self) -> int:
        """Micro-batches that go through each pipeline in a step."""
        return self.training.global_batch_size // (self.plan.dp * self.plan.microbatch_size)

    @property
    def flushes(self) -> int:
        """How often each pipeline drains in a step."""
        return self.num_microbatches // (self.plan.microbatches_per_flush or self.num_microbatches)

    @property
    def num_forwards(self) -> int:
        """Forwards of each stage in a step: of micro-batches, or of their slices."""
        return self.num_microbatches * self.plan.sequence_slices
