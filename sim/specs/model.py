"""The model: a decoder-only transformer, GPT-like or Llama-like, by its shape."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, PositiveInt, model_validator

from sim.specs.base import Spec, divisor_near


class ModelSpec(Spec):
    """A decoder-only transformer.

    The defaults describe a GPT: multi-head attention, a two-matrix MLP of four times the hidden size, learned
    positions, biases, LayerNorm, tied embeddings. Llama is `gated_mlp`, `num_kv_heads`, `position: rotary`,
    `norm: rmsnorm`, `bias: false`, `tied_embeddings: false`.
    """

    name: str = "model"
    num_layers: PositiveInt
    hidden_size: PositiveInt
    num_heads: PositiveInt
    vocab_size: PositiveInt
    """Rows of the embedding, padding included (Megatron pads GPT-2's 50,257 to 51,200)."""

    num_kv_heads: PositiveInt
    """Key/value heads: fewer than num_heads is grouped-query attention. Default: num_heads."""
    head_dim: PositiveInt
    """Default: hidden_size / num_heads."""
    intermediate_size: PositiveInt
    """Width of the MLP. Default: 4 hidden_size."""
    gated_mlp: bool = False
    """SwiGLU and kin: two input matrices instead of one."""

    position: Literal["learned", "rotary", "none"] = "learned"
    max_sequence_length: PositiveInt = 2048
    """Rows of the learned position embedding; with rotary positions a limit only."""
    norm: Literal["layernorm", "rmsnorm"] = "layernorm"
    norm_bias: bool
    """Norms have a bias beside their weight. Default: true for layernorm, false for rmsnorm."""
    norms_per_layer: Literal[1, 2, 4] = 2
    """2: before attention and before the MLP; 1: one that both read, which then run in parallel (Phi, Falcon-7B);
    4: also after each of them (Gemma 2)."""
    query_key_norm: Literal["none", "head", "all"] = "none"
    """Norms of queries and keys: one weight a head's dimension, shared by the heads (Qwen3), or one a column of all
    heads (OLMo 2)."""
    embedding_norm: bool = False
    """A norm after the embedding (BLOOM)."""
    bias: bool = True
    """Biases in the linear layers."""
    qkv_bias: bool
    """Bias in the query/key/value projection (Qwen has it without the others). Default: bias."""
    attention_output_bias: bool
    """Bias in the attention's output projection. Default: bias."""
    mlp_bias: bool
    """Biases in the MLP (GPT-J has them without the others). Default: bias."""
    head_bias: bool = False
    """Bias in the output projection to the vocabulary (Phi)."""
    tied_embeddings: bool = True
    """Input embedding and output projection share their weights."""
    dropout: float = Field(default=0.0, ge=0.0, lt=1.0)
    """Dropout on attention probabilities and on both residual branches: costs mask memory and bandwidth."""

    @model_validator(mode="before")
    @classmethod
    def _derive(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        data = dict(data)
        hidden, heads = data.get("hidden_size"), data.get("num_heads")
        if data.get("num_kv_heads") is None and heads is not None:
            data["num_kv_heads"] = heads
        if data.get("intermediate_size") is None and isinstance(hidden, int):
            data["intermediate_size"] = 4 * hidden
        if data.get("head_dim") is None and isinstance(hidden, int) and isinstance(heads, int) and heads > 0:
            if hidden % heads:
                raise ValueError(
                    f"hidden_size {hidden} is not divisible by num_heads {heads}; give head_dim, "
                    f"or use {divisor_near(hidden, heads)} heads"
                )
            data["head_dim"] = hidden // heads
        for name in ("qkv_bias", "attention_output_bias", "mlp_bias"):
            if data.get(name) is None:
                data[name] = data.get("bias", True)
        if data.get("norm_bias") is None:
            data["norm_bias"] = data.get("norm", "layernorm") == "layernorm"
        return data

    @model_validator(mode="after")
    def _check(self) -> ModelSpec:
        if self.num_heads % self.num_kv_heads:
            raise ValueError(
                f"num_heads {self.num_heads} must be a multiple of num_kv_heads {self.num_kv_heads}; "
                f"use {divisor_near(self.num_heads, self.num_kv_heads)} key/value heads"
            )
        return self

    def _derived(self) -> set[str]:
        rules = {
            "num_kv_heads": self.num_kv_heads == self.num_heads,
            "intermediate_size": self.intermediate_size == 4 * self.hidden_size,
            "head_dim": self.head_dim * self.num_heads == self.hidden_size,
            "qkv_bias": self.qkv_bias == self.bias,
            "attention_output_bias": self.attention_output_bias == self.bias,
            "mlp_bias": self.mlp_bias == self.bias,
            "norm_bias": self.norm_bias == (self.norm == "layernorm"),
        }
        return {name for name, derived in rules.items() if derived}
