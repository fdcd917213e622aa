"""The software stack: what differs between generations of training frameworks, described rather than fudged."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal, get_args

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt, model_validator

from sim.specs.base import Spec
from sim.specs.plan import GRAPH_MODULES, wrong_names
from sim.specs.profile import FlashVersion

KERNELS = {name if name in ("cudnn", "efficient", "flex") else f"flash-{name}": name for name in get_args(FlashVersion)}
"""Fused attention kernels as people name them -> flash_version."""
INTERLEAVED = "interleaved"
"""Value of an overlap that works only where ranks hold several chunks."""


class StackSpec(Spec):
    """What a framework of a given year fuses, overlaps and stores."""

    name: str = "stack"
    """What answers call it."""
    framework: str = ""
    """The framework whose rules filled in what is not stated; `flopcast presets list frameworks` names them."""
    version: str = ""
    """Version of the framework: a date (2024-07), a release by year and month (24.07), a tag (v2.4), or latest."""
    nvls: bool = True
    """NCCL (since 2.17 of March 2023) may let NVLink's switches add what all-reduces send, where the profile knows that
    they do. Recipes turn its NCCL_NVLS_ENABLE off to save memory."""
    compiled: bool = False
    """Layers go through a compiler (torch.compile, XLA); without it a framework that counts on it runs kernels one by
    one. Where a framework's rules do not tell what compiling fuses, an answer says that it changes next to nothing."""
    attention: Literal["math", "flash"] = "flash"
    """math keeps the sequence × sequence scores in memory; flash never writes them, and skips the masked half. A kernel
    by its name is flash with that flash_version: flash-1, flash-2, flash-3, flash-4, cudnn, efficient, flex."""
    flash_version: FlashVersion = "2"
    """Fused attention kernel: a generation of FlashAttention, cudnn, efficient, PyTorch's memory-efficient kernel
    (xFormers'), or flex, its FlexAttention, which Triton compiles. A profile that measured it apart prices it apart.
    Each pads heads to the columns that it has kernels for."""
    masked_attention: bool = False
    """The fused attention kernel reads a mask of all scores: it computes the hidden half too, of keys and values that
    are repeated for every head of queries."""
    fp8_attention: bool = False
    """The fused attention kernel multiplies in 8 bits where linears multiply in 8 or 4 (Transformer Engine's
    fp8_dot_product_attention). Its multiplies go at twice the rate, its exponentials do not."""
    fused_norm: bool = True
    """Norms in one kernel per direction, instead of one per arithmetic step in fp32."""
    persistent_norm: bool = True
    """Norm kernels read each row once; older ones read it again to normalise and to reduce the weights' gradient."""
    fused_softmax: bool = True
    """Scale, mask and softmax in one kernel (math attention only)."""
    fp32_softmax: bool = False
    """Scale, mask and softmax, one by one, work in fp32 between two casts (Megatron-LM's attention_softmax_in_fp32,
    which its query-key layer scaling turns on)."""
    fused_bias_activation: bool = True
    """Bias and activation, and bias, dropout and residual addition, in one kernel each."""
    fp8_activation_inputs: bool = False
    """A gated activation keeps its inputs in 8 bits for the backward (DeepSeek-V3; Megatron-Core's
    activation_func_fp8_input_store)."""
    fused_activation: bool = True
    """The activation in one kernel per direction, instead of a GELU written out step by step, whose products keep both
    their factors (Hugging Face's gelu_new of 2020)."""
    fused_linears: bool = True
    """Queries, keys and values are one matrix, and so are gate and up, as Megatron's are. Otherwise each is a linear of
    its own, autograd adds their gradients of the common input, and modules are PyTorch's own (transformers)."""
    fused_rotary: bool = True
    """Rotary positions in one kernel per direction, instead of one per arithmetic step."""
    fused_scaled_rotary: bool = True
    """The fused rotary kernel also scales what it rotates, where the model's rotary positions do. Latent attention has
    a kernel of its own."""
    fused_cross_entropy: bool = True
    """The loss in one kernel per direction, instead of one per arithmetic step."""
    loss_width: PositiveFloat | None = None
    """Bytes of every logit when the loss's backward begins and nothing holds the 16-bit logits any more. Default: those
    of a loss that works in place, as Megatron-LM's, beside 16-bit logits that are held: 2, or 6 where it is unfused."""
    vocab_parallel_loss: bool = True
    """The loss works on each tensor-parallel rank's share of the vocabulary, instead of on gathered logits."""
    vocab_multiple: PositiveInt = Field(1, le=1_000_000)
    """The head multiplies as many rows as the vocabulary padded to a multiple of this times tp (Megatron-LM's
    make_vocab_size_divisible_by, 128)."""
    chunked_loss: bool = False
    """The loss multiplies, scores and drops the logits in pieces, which are never in memory together (Hsu et al. 2024,
    arXiv:2410.10989, section 3.2)."""
    copies_pieces: bool = False
    """Tensor-parallel collectives gather and scatter along the first dimension, and copy the pieces of sequences into
    place (torch.cat of torch.chunk in PyTorch's functional collectives)."""
    regather_sequence: bool = True
    """Under sequence parallelism inputs of linears are kept cut and gathered again in the backward (Korthikanti et al.
    2022, section 4.2.2), instead of kept whole."""
    autocast: bool = False
    """Weights lie in fp32, and torch.autocast casts them and the inputs of linears to 16 bits at every use. What
    comes from weights that no linear multiplies, the residual stream and the norms, is in fp32."""
    fused_casts: bool = True
    """Casts to fp8 happen inside the kernels before, as in Transformer Engine, instead of in passes of their own."""
    fused_gradient_accumulation: bool = True
    """Weight gradients are added to the main gradients inside the matrix multiply, not in a kernel of their own."""
    fused_gradient_cast: bool = True
    """16-bit gradients are added to fp32 main gradients in one kernel, where the multiply does not add them, instead of
    being cast in a kernel before."""
    drops_gradients: bool = False
    """Gradients are dropped before a step and made anew by its backward (PyTorch's zero_grad, set_to_none), instead of
    kept in buffers. Without accumulation they take the place of the activations that go."""
    fused_optimizer: bool = True
    """One multi-tensor kernel for the update, instead of copies, unscaling and the update one after another."""
    update_temporaries: NonNegativeInt = 0
    """fp32 numbers of every parameter that an update holds for a moment beside state, weight and gradient: one where
    PyTorch's foreach Adam takes the roots of all second moments at once (pytorch/pytorch:torch/optim/adam.py,
    _multi_tensor_adam, exp_avg_sq_sqrt), or where ZeRO casts a shard's gradients in one piece (deepspeedai/DeepSpeed:
    deepspeed/runtime/zero/stage_1_and_2.py, step, single_grad_partition), none where a fused kernel does all."""
    update_group_params: PositiveFloat | None = None
    """Parameters of a GPU that ZeRO stage 3 updates at a time, which bounds what an update holds for a moment
    (DeepSpeed's sub_group_size, 1e9). Default: all at once."""
    packed_masters: bool = False
    """The optimizer keeps, beside bf16 weights, only those 16 bits that fp32 masters have more (Apex's distributed
    Adam, store_param_remainders)."""
    offload_masters: bool = True
    """fp32 masters lie in host memory too, where plan.optimizer_offload keeps moments there; otherwise they stay on the
    GPU, to which 32-bit weights come back."""
    updates_on_host: bool = True
    """What plan.optimizer_offload keeps in host memory is updated there, by the CPU; else it only waits there and comes
    to the GPU for every update, when activations are gone, and goes back (prime-rl's optim_cpu_offload)."""
    overlap_optimizer_offload: bool = False
    """Gradients go to the host, and weights come back, while the CPU updates others (Megatron-Core's
    overlap_cpu_optimizer_d2h_h2d), instead of before and after."""
    cpu_update_share: float = Field(default=0.24, gt=0, le=1)
    """Share of its part of the host memory's bandwidth that an update on the CPU reaches."""
    parallel_save: bool = True
    """GPUs that hold the same write a part of it each to a checkpoint (Megatron-Core's ckpt-fully-parallel-save,
    PyTorch's distributed checkpoints); else the first of them writes all of it."""
    gradient_precision: Literal["fp16", "bf16", "fp32"] = "fp32"
    """Number format in which main gradients are kept and reduced."""
    p2p_scatter_gather: bool = True
    """Each tensor-parallel rank sends its share of the pipeline activations over its own card, and the receivers
    gather over NVLink (Narayanan et al. 2021, section 4.1). Implied by sequence parallelism."""
    keeps_sent_activations: bool = False
    """What a pipeline stage has sent stays in its memory until the backward, which needs nothing of it (Korthikanti et
    al. 2022, appendix B: Megatron-LM before it let go of them)."""
    overlap_p2p: bool | Literal["interleaved"] = False
    """Pipeline sends overlap with compute: always, never, or where ranks hold several chunks (interleaved), as
    Megatron-LM's overlap_p2p_comm has it, whose 1F1B waits for its sends (megatron/training/arguments.py)."""
    overlap_grad_reduce: bool = False
    """The data-parallel gradient reduction starts during the last micro-batch's backward."""
    reduce_waited_for: bool = False
    """An update waits for its own gradients' sum in schedules without flush. Only the backward before it runs beside
    that sum (PyTorch's DistributedDataParallel, whose backward ends with it). Otherwise the update is made with the sum
    of the update before."""
    sums_at_last_flush: bool = False
    """Where a pipeline drains several times a step (plan.microbatches_per_flush), only the last drain sums gradients,
    and weights stay gathered (NeMo AutoModel's defer_fsdp_grad_sync). Otherwise every drain sums them, and FSDP gathers
    weights again, as in torch.distributed.pipelining."""
    overlap_param_gather: bool = False
    """ZeRO's weight gathers overlap with compute."""
    overlap_tp_backward: bool = False
    """The tensor-parallel reduction of the input gradient overlaps with the weight-gradient matrix multiply."""
    async_tensor_parallel: bool = False
    """Under sequence parallelism a multiply runs in pieces of the sequence, each as soon as it has arrived from the
    other tensor-parallel GPUs, and its results go back piece by piece while the next are multiplied (Transformer
    Engine's user buffers, Megatron-Core's tp_comm_overlap; PyTorch's enable_async_tensor_parallel), instead of after
    the gather and before the scatter. Within NVLink; not for routed experts, latent attention and the head."""
    gathers_per_layer: PositiveInt = 1
    """Collectives in which ZeRO stage 3 gathers a layer: one flat buffer, or one a tensor."""
    max_reuse_params: PositiveFloat | None = None
    """Parameters used in between below which weights that ZeRO stage 3 gathered for recomputation stay for the
    gradients; otherwise they are gathered a third time (DeepSpeed's stage3_max_reuse_distance, 1e9). Default: all of a
    layer stay."""
    slice_s: NonNegativeFloat = 0.0
    """Host time a rank that every gather and reduction of ZeRO stage 3 spends on cutting its buffer into a list of
    slices, one for each rank, and on a copy kernel for each; zero where collectives work on one buffer. Lists cost the
    GPU passes through its memory besides: a gather fills its buffer with zeros and copies what arrived into it, a
    reduction copies what it sends. [s]"""
    fp32_shards: bool = False
    """ZeRO stage 3 keeps weights and gradients in fp32 and casts what it gathers (PyTorch's FSDP), so that there are
    no 16-bit weights beside the optimizer's."""
    fp32_frozen: bool = False
    """Where adapters train a model, its own frozen weights lie in fp32 shards too, as they were loaded, even if one GPU
    has all of them; otherwise they are 16-bit."""
    transposes_frozen: bool = False
    """Frozen weights that multiply in 8 bits as they lie are there once, by rows, and every backward writes them out
    by columns: 8-bit multiplies of Hopper and Ada read both operands along what they sum over (Transformer Engine's
    nvte_is_non_tn_fp8_gemm_supported; Megatron-Core's disable_parameter_transpose_cache)."""
    peft_adapters: Literal["no", "fp32", "autocast", "16-bit"] = "no"
    """Adapters as Hugging Face's PEFT puts them into transformers' models: one beside each matrix of queries, keys,
    values, gate and up, and in fp32 (autocast_adapter_dtype). Outside autocast all that goes through them is too.
    16-bit: they are cast as the model is, by DeepSpeed or by PEFT before autocast_adapter_dtype."""
    adapter_stall_s: NonNegativeFloat = 0.0
    """Host time of a forward, or one run again, through a linear with adapters while the GPU waits: the host reads back
    where each adapter's tokens begin, and has launched nothing when it knows. [s]"""
    fp8_gathers: bool = False
    """Where multiplies are in 8 bits, the layers' weights lie in these alone (fp8_param_gather), and ZeRO stage 3
    gathers them so. Otherwise Transformer Engine, whose casts are fused, keeps what it casts beside 16-bit weights."""
    overlap_context: bool = True
    """Context parallelism sends keys and values round a ring while it computes attention (Megatron-Core's cp_comm_type
    p2p), instead of gathering them first. Each rank sends over its own card, where a gather uses all of a node's."""
    context_by_heads: bool = False
    """Context parallelism gives each rank the whole sequence of some heads for the attention, in all-to-alls before it
    and after it (DeepSpeed-Ulysses: Jacobs et al. 2023, arXiv:2309.14509; Megatron-Core's cp_comm_type a2a), instead of
    passing keys and values round or gathering them."""
    balanced_context: bool = True
    """Context-parallel ranks hold a piece from each end of the sequence, so that causal attention keeps all of them
    equally busy, instead of consecutive pieces, whose last rank attends to everything."""
    fused_experts: bool = False
    """What lies between experts' grouped multiplies (first bias, activation, the token's weight, casts) happens
    inside their kernels, and each is one launch however many experts there are (cuDNN's kernels in CuTe DSL,
    Transformer Engine's NVTE_CUTEDSL_FUSED_GROUPED_MLP with mxfp8 on Blackwell), instead of in kernels of its own."""
    expert_multiplies: Literal["library", "grouped", "loop"] = "library"
    """How the experts of a GPU multiply. library: one multiply an expert, which a library launches (Transformer
    Engine's GroupedLinear). grouped: one kernel for all (PyTorch's grouped_mm, CUTLASS). loop: Python visits one expert
    after the other (Hugging Face's models before transformers 5)."""
    fused_weighting: bool = True
    """One kernel computes the activation of experts and multiplies it by the token's weight, and keeps its input alone.
    Otherwise what the weight multiplies is kept too, for the router's gradient. For gated experts fused_bias_activation
    decides."""
    overlap_experts: bool = False
    """Tokens go to their experts and back during the computation of another micro-batch (DeepSeek's DualPipe;
    Megatron-Core's overlap_moe_expert_parallel_comm), instead of while it waits: under schedules interleaved and
    dualpipe, and 1f1b without a pipeline, in passes that have another micro-batch beside them; never where whole layers
    run again."""
    overlap_shared_experts: bool = False
    """What every token goes through beside its experts is computed while tokens travel, on a CUDA stream of its own
    (NeMo AutoModel), instead of before or after."""
    checkpoints_stop_early: bool = False
    """A layer that runs again whole stops as soon as all that its backward reads is there (PyTorch's checkpoints
    without reentrance, early_stop): what experts give is not sent home again, nor added up. Linears that save their
    input after they have multiplied, as Transformer Engine's do, run nevertheless."""
    fused_router: bool = False
    """Routers score and choose in fused kernels (Megatron-Core's moe_router_fusion), instead of kernel by kernel in 30
    launches more."""
    expert_dispatcher: Literal["alltoall", "allgather", "deepep", "hybridep"] = "alltoall"
    """What carries tokens to experts: alltoall, NCCL, a copy for every expert, laid out before it leaves and again
    where it arrives; allgather, NCCL, every token to every GPU with experts (Megatron-LM's default); deepep and
    hybridep, kernels that send a token once to every GPU that has experts of it, over the network once to an NVLink
    domain, and copy it there (Megatron-Core's moe_flex_dispatcher_backend)."""
    dispatcher_sms: PositiveInt | None = None
    """Streaming multiprocessors that deepep and hybridep take from compute beside them. Default: Megatron-Core's, 20
    and 16."""
    tensor_launches: NonNegativeInt = 0
    """Kernels that an update launches for every tensor of parameters by itself: without ZeRO it takes at least so many
    launches a tensor, however small a GPU's share of it is."""
    elementwise_rate: float = Field(default=1.0, gt=0.0, le=1.0)
    """Share of the profile's measured memory efficiency that this framework's elementwise kernels reach. Before PyTorch
    vectorised them (1.5, 2020) they moved one 16-bit number a thread."""
    kernel_launch_s: NonNegativeFloat
    """Host time a kernel: Python, autograd and driver. Hidden unless the GPU's kernels are shorter. Default:
    that of the named stack or framework, or of megatron-core. [s]"""
    backward_launch_s: NonNegativeFloat
    """Host time a kernel in the backward, which autograd runs without Python. Default: kernel_launch. [s]"""
    collective_launch_s: NonNegativeFloat
    """Host time a collective: the framework's bookkeeping, events and NCCL's enqueue. Default: kernel_launch. [s]"""
    counted_launches: bool = False
    """Host work beside the launches of kernels is counted on its own, as it was set on Megatron-Core's published runs:
    a dispatcher's, that of each expert in a grouped multiply, that around modules that run again, and that of packed
    sequences which are taken one by one. Otherwise the launches' times above include it."""
    bound_to_cpus: bool = True
    """Each process runs on the CPUs next to its GPU and has its memory there (numactl, srun --cpu-bind), and so
    launches in the times above, instead of twice as long."""
    cuda_graphs: Literal["none", "scoped", "full_iteration"] = "none"
    """full_iteration: forward and backward of a whole step are launched as CUDA graphs, whose kernels wait for the host
    no more than 2 us each (profile.host.graph_launch, where it was measured), and no forward is set up on its own.
    scoped: of every layer the modules of cuda_graph_scope are one graph forward and one backward; all else is launched
    kernel by kernel."""
    cuda_graph_scope: tuple[str, ...] = ()
    """Modules of a layer that scoped CUDA graphs hold, by Megatron-Core's names: attn, mlp, moe_router, moe_preprocess,
    mamba. Experts themselves are none of them: the host must know how many tokens come before it launches them."""
    step_setup_s: NonNegativeFloat = 0.0
    """Host time once a step while the GPU waits: the data loader, the optimizer's Python, logging. [s]"""
    forward_setup_s: NonNegativeFloat = 0.0
    """Host time before each forward of a chunk while the GPU waits: the batch, masks, timers that synchronise. [s]"""
    fitted_families: tuple[str, ...] = ()
    """Families of training runs (lineage, or lineage / model) that set a value; validation marks their runs."""
    framework_memory_bytes: NonNegativeFloat = 3e9
    """CUDA context, libraries' workspaces and NCCL buffers per GPU; an allowance, not a measurement. [bytes]"""
    fragmentation: float = Field(default=0.03, ge=0.0, lt=1.0)
    """Share of activation memory lost to the allocator; an allowance, not a measurement."""

    NAMES = ("cuda_graph_scope",)
    FOLLOWS = dict.fromkeys(  # launches may also take no time
        ("backward_launch_s", "collective_launch_s"), lambda of: of.get("kernel_launch_s")
    )

    @model_validator(mode="before")
    @classmethod
    def _derive(cls, data: Any) -> Any:
        return named_kernel(data) if isinstance(data, dict) else data

    def mistakes(self) -> Iterator[str]:
        """Yield what breaks a rule of CUDA graphs."""
        names, graphs = self.cuda_graph_scope, self.cuda_graphs
        yield from wrong_names("cuda_graph_scope", names, GRAPH_MODULES)
        if names and graphs != "scoped":
            yield (
                f"cuda_graph_scope {', '.join(names)} needs cuda_graphs: scoped, not {graphs}; set that, or leave the "
                "scope out"
            )
        if graphs == "scoped" and not names:
            yield (
                f"cuda_graphs: scoped needs cuda_graph_scope, the modules that are graphs: {', '.join(GRAPH_MODULES)}"
            )
        if "moe_preprocess" in names and "moe_router" not in names:
            yield "cuda_graph_scope: moe_preprocess follows the router in one graph; add moe_router"

    @property
    def gradient_bytes(self) -> int:
        """Bytes of a main gradient. [bytes]"""
        return 4 if self.gradient_precision == "fp32" else 2

    @property
    def sms_of_dispatcher(self) -> int | None:
        """Streaming multiprocessors that carry tokens to experts; None where NCCL does."""
        usual = {"deepep": 20, "hybridep": 16}.get(self.expert_dispatcher)
        return None if usual is None else self.dispatcher_sms or usual


def named_kernel(data: dict[str, Any]) -> dict[str, Any]:
    """attention: cudnn or flash-3 as the two fields that say so, and a generation that is written as a number."""
    version, core = data.get("flash_version"), data.get("attention")
    if isinstance(version, int) and not isinstance(version, bool):
        data = {**data, "flash_version": str(version)}
    known = isinstance(core, str) and core in KERNELS
    return {**data, "attention": "flash", "flash_version": KERNELS[core]} if known else data


def sends_overlap(stated: bool | str, num_chunks: Any) -> Any:
    """Whether pipeline sends overlap with compute in plans of so many chunks a rank: a bool, or an array over plans.

    stated : as `overlap_p2p` of a stack.
    """
    return num_chunks > 1 if stated == INTERLEAVED else bool(stated)
