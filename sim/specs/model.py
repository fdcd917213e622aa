"""The model: a decoder by its shape: GPT-like, Llama-like, with experts, windows, or layers without attention."""

from __future__ import annotations

from functools import cached_property
from itertools import cycle, islice
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from pydantic import Field, NonNegativeInt, PositiveInt

from sim.specs.base import Spec, divisor_near

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

LayerType = Literal[
    "full_attention",
    "sliding_attention",
    "chunked_attention",
    "mamba2",
    "gated_delta_net",
    "kimi_delta_attention",
    "none",
]
"""What mixes the tokens of a layer, in Hugging Face's words where it has any."""
LARGEST = 10**17
"""Parameters of a model, a hundred thousand times those of any that is spoken of."""
MlpType = Literal["dense", "sparse", "none"]
"""A layer's MLP: one for all tokens, experts, or none. Hugging Face's words."""
ATTENTION = ("full_attention", "sliding_attention", "chunked_attention")
RECURRENT = ("mamba2", "gated_delta_net", "kimi_delta_attention")
"""Layer types with softmax attention, and those that carry a state along the sequence."""


class LayerKind(NamedTuple):
    """A kind of layers: what mixes its tokens, and its MLP."""

    mixer: LayerType
    mlp: MlpType

    @property
    def attends(self) -> bool:
        """Whether it has softmax attention, of whatever reach."""
        return self.mixer in ATTENTION

    @property
    def recurs(self) -> bool:
        """Whether it carries a state along the sequence."""
        return self.mixer in RECURRENT

    @property
    def sparse(self) -> bool:
        """Whether it has experts."""
        return self.mlp == "sparse"


class RecurrentWidths(NamedTuple):
    """Columns of the projections of a layer that carries a state, all heads together.

    values : what the state gives.
    gates : beside what is mixed: the output's gate, steps, decays, one or several a head.
    mixed : what the convolution mixes: values and twice the keys.
    narrow : of the projections to one head's width and up again, the columns of the two together, or 0.
    """

    values: int
    gates: int
    mixed: int
    narrow: int


class ModelSpec(Spec):
    """A decoder-only transformer.

    The defaults describe a GPT: multi-head attention, a two-matrix MLP of four times the hidden size, learned
    positions, biases, LayerNorm, tied embeddings. Llama is `gated_mlp`, `num_kv_heads`, `position: rotary`,
    `norm: rmsnorm`, `bias: false`, `tied_embeddings: false`. A mixture of experts has `num_experts` and
    `experts_per_token`; DeepSeek's latent attention has `key_value_rank`.
    """

    name: str = "model"
    """What answers call it."""
    num_layers: PositiveInt = Field(le=100_000)
    """Transformer layers, each attention and an MLP or experts; embedding and head are not among them."""
    hidden_size: PositiveInt
    """Width of the residual stream: numbers that stand for a token between layers."""
    num_heads: PositiveInt
    """Attention heads of a layer: those of the queries."""
    vocab_size: PositiveInt
    """Rows of the embedding, padding included (Megatron pads GPT-2's 50,257 to 51,200)."""

    num_kv_heads: PositiveInt
    """Key/value heads: fewer than num_heads is grouped-query attention. Default: num_heads."""
    head_dim: PositiveInt
    """Columns of a head's queries and keys. Default: hidden_size / num_heads."""
    intermediate_size: PositiveInt
    """Width of the MLP. Default: 4 hidden_size."""
    gated_mlp: bool = False
    """SwiGLU and kin: two input matrices instead of one."""

    value_head_dim: PositiveInt
    """Columns of a head's values. Default: head_dim."""
    key_value_rank: NonNegativeInt = 0
    """Size of the vector a token from which latent attention (DeepSeek) makes keys and values. 0: they come from the
    hidden state itself."""
    query_rank: NonNegativeInt = 0
    """Size of the vector a token from which latent attention makes queries. 0: they come from the hidden state
    itself."""
    rotary_head_dim: NonNegativeInt = 0
    """Part of head_dim that turns with the position under latent attention; all heads share its key."""

    num_experts: NonNegativeInt = 0
    """MLPs of a layer, of which a router picks some for every token. 0: one MLP for all tokens."""
    experts_per_token: NonNegativeInt = 0
    """Experts that a token goes through, shared ones apart."""
    num_expert_groups: PositiveInt = 1
    """Groups of experts. A token's experts are all of a few of them, so that it crosses to few nodes (DeepSeek-V3,
    arXiv:2412.19437, section 2.1.2)."""
    expert_groups_per_token: PositiveInt = 1
    """Groups that a token's experts are of."""
    expert_intermediate_size: PositiveInt
    """Width of one expert. Default: intermediate_size."""
    expert_latent_size: NonNegativeInt = 0
    """Size of the vector a token that experts work on. All experts share one projection to it from the hidden state,
    and one back (LatentMoE: Nemotron 3 Super). 0: experts work on the hidden state itself."""
    shared_expert_intermediate_size: NonNegativeInt = 0
    """Width, all together, of experts that every token goes through besides."""
    shared_expert_gate: bool = False
    """What shared experts give is weighted by a gate, one column of weights (Qwen2-MoE)."""
    num_dense_layers: NonNegativeInt = 0
    """First layers that have an MLP of intermediate_size instead of experts (DeepSeek)."""

    layer_types: tuple[LayerType, ...] = ("full_attention",)
    """What mixes the tokens of each layer; a shorter list repeats. full_attention; sliding_attention, of the last
    sliding_window tokens (Mistral, Gemma, gpt-oss); chunked_attention, inside pieces of attention_chunk_size (Llama 4);
    mamba2, gated_delta_net (Qwen3-Next), kimi_delta_attention, which carry a state along the sequence; none, in models
    whose layers are a mixer or an MLP (Nemotron-H)."""
    mlp_layer_types: tuple[MlpType, ...]
    """The MLP of each layer; a shorter list repeats. dense: one of intermediate_size for all tokens; sparse: experts;
    none. Default: dense, and in a mixture of experts sparse after num_dense_layers."""
    sliding_window: NonNegativeInt = 0
    """Tokens that a token of a layer of sliding_attention sees, itself included."""
    attention_chunk_size: NonNegativeInt = 0
    """Tokens of a piece of the sequence inside which layers of chunked_attention see each other."""
    num_mtp_layers: NonNegativeInt = Field(0, le=1000)
    """Modules of multi-token prediction, each a layer that predicts one token further (DeepSeek-V3): trained with the
    model, and counted in its parameters and FLOPs."""

    linear_num_heads: NonNegativeInt = 0
    """Heads of mamba2, and of the values of gated_delta_net and kimi_delta_attention."""
    linear_head_dim: NonNegativeInt = 0
    """Columns of each of these heads."""
    linear_num_key_heads: NonNegativeInt = 0
    """Heads of keys and queries of gated_delta_net; groups of mamba2, whose heads share their B and C. Default:
    linear_num_heads."""
    linear_key_head_dim: NonNegativeInt = 0
    """Columns of each of these heads: the width of the state (mamba2's state size). Default: linear_head_dim."""
    linear_conv_kernel: NonNegativeInt = 4
    """Tokens that the convolution before the state sees."""
    attention_gate: bool = False
    """A sigmoid gate weights the attention's output. It has as many columns, and is computed beside the queries
    (Qwen3-Next)."""

    position: Literal["learned", "rotary", "none"] = "learned"
    """How positions enter: a table of learned rows (GPT), rotated queries and keys (Llama), or neither."""
    rotary_scaled: bool = False
    """Rotary positions are stretched, and what they rotate is scaled too (YaRN: Peng et al. 2023, arXiv:2309.00071,
    section 3.4)."""
    max_sequence_length: PositiveInt = 2048
    """Rows of the learned position embedding; with rotary positions a limit only."""
    norm: Literal["layernorm", "rmsnorm"] = "layernorm"
    """layernorm subtracts the mean and divides by the deviation (GPT); rmsnorm divides by the root mean square only
    (Llama)."""
    norm_bias: bool
    """Norms have a bias beside their weight. Default: true for layernorm, false for rmsnorm."""
    norms_per_layer: Literal[1, 2, 4] = 2
    """2: before attention and before the MLP; 1: one that both read, which then run in parallel (Phi, Falcon-7B);
    4: also after each of them (Gemma 2)."""
    query_key_norm: Literal["none", "head", "all"] = "none"
    """Norms of queries and keys: one weight for each dimension of a head, shared by the heads (head, Qwen3), or one for
    each column of all heads (all, OLMo 2)."""
    embedding_norm: bool = False
    """A norm after the embedding (BLOOM)."""
    bias: bool = True
    """Biases in the linear layers."""
    qkv_bias: bool
    """Bias in the query/key/value projection (Qwen has it without the others). Default: bias."""
    attention_output_bias: bool
    """Bias in the attention's output projection. Default: bias."""
    attention_sinks: bool = False
    """One learned score a head beside those of the keys (gpt-oss): counted, not priced."""
    mlp_bias: bool
    """Biases in the MLP (GPT-J has them without the others). Default: bias."""
    head_bias: bool = False
    """Bias in the output projection to the vocabulary (Phi)."""
    tied_embeddings: bool = True
    """Input embedding and output projection share their weights."""
    dropout: float = Field(default=0.0, ge=0.0, lt=1.0)
    """Dropout on attention probabilities and on both residual branches: costs mask memory and bandwidth."""

    FOLLOWS = {  # noqa: RUF012
        "num_kv_heads": lambda of: of.get("num_heads"),
        "intermediate_size": lambda of: 4 * of["hidden_size"] if isinstance(of.get("hidden_size"), int) else None,
        "head_dim": lambda of: _head_dim(of),
        "value_head_dim": "head_dim",
        "expert_intermediate_size": "intermediate_size",
        "linear_num_key_heads": "linear_num_heads",
        "linear_key_head_dim": "linear_head_dim",
        "mlp_layer_types": lambda of: ("sparse" if of.get("num_experts") else "dense",),
        **dict.fromkeys(("qkv_bias", "attention_output_bias", "mlp_bias"), lambda of: of.get("bias", True)),
        "norm_bias": lambda of: of.get("norm", "layernorm") == "layernorm",
    }

    def mistakes(self) -> Iterator[str]:
        """Yield what breaks a rule between fields of the model."""
        if self.num_heads % self.num_kv_heads:
            yield (
                f"num_heads {self.num_heads} must be a multiple of num_kv_heads {self.num_kv_heads}; "
                f"use {divisor_near(self.num_heads, self.num_kv_heads)} key/value heads"
            )
        yield from self._mistakes_of_experts()
        yield from self._mistakes_of_latent()
        yield from self._mistakes_of_layers()
        yield from self._mistakes_of_size()

    def _mistakes_of_size(self) -> Iterator[str]:
        """Refuse models whose parameters no whole number of 64 bits counts: a slip of the keyboard, not a model."""
        heads = self.num_heads * (self.head_dim + self.value_head_dim) + 2 * self.num_kv_heads * self.head_dim
        widths = self.intermediate_size + self.num_experts * self.expert_intermediate_size
        widths += self.shared_expert_intermediate_size + heads
        most = self.hidden_size * (3 * self.num_layers * widths + 2 * self.vocab_size + self.max_sequence_length)
        if most > LARGEST:
            yield (
                f"its sizes make a model of some {most:.0e} parameters, more than {LARGEST:.0e}; check hidden_size, "
                "num_layers, intermediate_size, head_dim, num_experts and vocab_size"
            )

    def _mistakes_of_experts(self) -> Iterator[str]:
        needed = "experts_per_token", "shared_expert_intermediate_size", "num_dense_layers", "expert_latent_size"
        given = [name for name in needed if getattr(self, name)]
        if given and not self.num_experts:
            yield f"{given[0]} {getattr(self, given[0])} needs num_experts; set it, or leave it out"
        if self.num_experts and not 1 <= self.experts_per_token <= self.num_experts:
            yield (
                f"experts_per_token {self.experts_per_token} must be 1 to num_experts {self.num_experts}; "
                "models in use have 1 to 8"
            )
        if not self.expert_groups_per_token <= self.num_expert_groups <= max(1, self.num_experts):
            yield (
                f"num_expert_groups {self.num_expert_groups} must be from expert_groups_per_token "
                f"{self.expert_groups_per_token} to num_experts {self.num_experts}"
            )
        if self.shared_expert_gate and not self.shared_expert_intermediate_size:
            yield (
                "shared_expert_gate true needs shared_expert_intermediate_size, the width of what it weights; set it, "
                "or shared_expert_gate to false"
            )
        if self.num_dense_layers >= self.num_layers and self.num_experts:
            yield (
                f"num_dense_layers {self.num_dense_layers} leaves none of the {self.num_layers} layers to experts; "
                "lower it, or leave out num_experts"
            )

    def _mistakes_of_latent(self) -> Iterator[str]:
        if not self.key_value_rank:
            given = [name for name in ("query_rank", "rotary_head_dim") if getattr(self, name)]
            if given:
                yield f"{given[0]} {getattr(self, given[0])} needs key_value_rank (latent attention)"
        elif self.rotary_head_dim >= self.head_dim:
            yield f"rotary_head_dim {self.rotary_head_dim} must be less than head_dim {self.head_dim}"
        elif self.num_kv_heads != self.num_heads:
            yield (
                f"num_kv_heads {self.num_kv_heads} with latent attention, which gives every head keys and values of "
                f"its own; leave it out, or set it to num_heads {self.num_heads}"
            )

    def _mistakes_of_layers(self) -> Iterator[str]:
        for name in ("layer_types", "mlp_layer_types"):
            given = len(getattr(self, name))
            if given > self.num_layers or not given:
                yield (
                    f"{name} names {given} layers, but num_layers is {self.num_layers}; "
                    "give as many, or fewer that repeat"
                )
        kinds = set(self.kind_of_layer)
        if LayerKind("none", "none") in kinds:
            where = self.kind_of_layer.index(LayerKind("none", "none"))
            yield (f"layer {where} has neither a mixer nor an MLP; give it one in layer_types or mlp_layer_types")
        needs = {
            "sliding_attention": ("sliding_window",),
            "chunked_attention": ("attention_chunk_size",),
            **dict.fromkeys(RECURRENT, ("linear_num_heads", "linear_head_dim")),
        }
        for mixer, names in needs.items():
            for name in names:
                if any(kind.mixer == mixer for kind in kinds) and not getattr(self, name):
                    yield f"layer type {mixer} needs {name}; set it, or take {mixer} out of layer_types"
        if any(kind.sparse for kind in kinds) != bool(self.num_experts):
            yield (
                f"mlp_layer_types {'has' if not self.num_experts else 'has no'} sparse, but num_experts is "
                f"{self.num_experts}; layers with experts are sparse, and only they have num_experts"
            )
        if self.linear_num_heads and self.linear_num_heads % self.linear_num_key_heads:
            yield (
                f"linear_num_heads {self.linear_num_heads} must be a multiple of linear_num_key_heads "
                f"{self.linear_num_key_heads}"
            )

    @cached_property
    def kind_of_layer(self) -> tuple[LayerKind, ...]:
        """The kind of every layer, in order."""
        mixers = islice(cycle(self.layer_types), self.num_layers)
        mlps = islice(cycle(self.mlp_layer_types), self.num_layers)
        return tuple(
            LayerKind(mixer, "dense" if layer < self.num_dense_layers and mlp == "sparse" else mlp)
            for layer, (mixer, mlp) in enumerate(zip(mixers, mlps, strict=True))
        )

    @cached_property
    def layer_kinds(self) -> tuple[LayerKind, ...]:
        """The kinds of layers there are, that of multi-token prediction too: the last layer's first, which stands for
        the model where one must."""
        kinds = dict.fromkeys(reversed(self.kind_of_layer))
        return tuple(kinds | {self.mtp_kind: None} if self.num_mtp_layers else kinds)

    @property
    def mtp_kind(self) -> LayerKind:
        """The kind of the layer in a module of multi-token prediction: like the last, but that it attends, and has an
        MLP where layers of the model are one or the other (Qwen3-Next, Nemotron 3)."""
        last = self.kind_of_layer[-1]
        mlps = (kind.mlp for kind in reversed(self.kind_of_layer) if kind.mlp != "none")
        mixer: LayerType = last.mixer if last.attends else "full_attention"
        return LayerKind(mixer, last.mlp if last.mlp != "none" else next(mlps, "dense"))

    def layers_of(self, kind: LayerKind) -> int:
        """How many layers are of a kind."""
        return self.kind_of_layer.count(kind)

    def norms_of(self, kind: LayerKind) -> int:
        """Norms of a layer, before and after its blocks."""
        both = kind.mixer != "none" and kind.mlp != "none"
        return self.norms_per_layer if both else max(1, self.norms_per_layer // 2)

    def reach(self, kind: LayerKind, sequence: float, packed: int | None = None) -> float:
        """Tokens that a token of a layer attends to at most, the mask of what comes after it left aside.

        packed : length of the sequences that are packed into one, if any are.
        """
        limit = {"sliding_attention": self.sliding_window, "chunked_attention": self.attention_chunk_size}
        return min(sequence, limit.get(kind.mixer, sequence), packed or sequence)

    def recurrent_widths(self, kind: LayerKind) -> RecurrentWidths:
        """Columns of the projections of a layer that carries a state."""
        heads = self.linear_num_heads
        values, keys = heads * self.linear_head_dim, self.linear_num_key_heads * self.linear_key_head_dim
        gates = {"mamba2": values + heads, "gated_delta_net": values + 2 * heads}.get(kind.mixer, heads)
        narrow = 2 * self.linear_head_dim if kind.mixer == "kimi_delta_attention" else 0
        return RecurrentWidths(values, gates, values + 2 * keys, narrow)

    @property
    def expert_width(self) -> int:
        """Numbers of a token that experts read and write."""
        return self.expert_latent_size or self.hidden_size

    def has(self, part: str) -> bool:
        """Whether any layer is of this layer type or MLP type."""
        return any(part in kind for kind in self.layer_kinds)


def _head_dim(of: Mapping[str, Any]) -> int | None:
    """Columns of a head, where hidden size and heads are known."""
    hidden, heads = of.get("hidden_size"), of.get("num_heads")
    if not isinstance(hidden, int) or not isinstance(heads, int) or heads <= 0:
        return None
    if hidden % heads and "head_dim" not in of:
        raise ValueError(
            f"hidden_size {hidden} is not divisible by num_heads {heads}; give head_dim, "
            f"or use {divisor_near(hidden, heads)} heads"
        )
    return hidden // heads if hidden % heads == 0 else None
