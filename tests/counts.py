"""Counts of parts of a model by themselves, as tests ask for them: all are sums over its operations."""

from sim.specs import StackSpec
from sim.work.layers import head_operations, layer_operations
from sim.work.operations import Block, Cause
from sim.work.pieces import Cut
from sim.work.recompute import NOTHING
from sim.work.sums import (
    block_works,
    forward_flop,
    held_blocks,
    layer_bytes,
    model_blocks,
    model_layers,
    params,
)


def layer_work(model, stack, cut, kind=None, recompute=NOTHING):
    """The work of one layer."""
    return block_works(Block(layer=layer_operations(model, stack, cut, kind)), stack, (recompute,))[0]


def head_work(model, stack, cut):
    """The work of the head."""
    return block_works(Block(head_operations(model, stack, cut)), stack)[0]


def layer_activation_bytes(model, stack, cut, recompute=NOTHING, kind=None):
    """What one layer keeps for the backward. [bytes]"""
    return layer_bytes(layer_operations(model, stack, cut, kind), recompute)


def core_operation(model, stack, cut, kind=None):
    """The operation of scores, softmax and values."""
    return next(each for each in layer_operations(model, stack, cut, kind) if each.module == "core_attn")


def attention_core(model, stack, cut, kind=None):
    """The work of scores, softmax and values."""
    return block_works(Block((core_operation(model, stack, cut, kind),)), stack)[0]


def attention_core_bytes(model, stack, cut):
    """What the attention core keeps besides queries, keys, values and its output. [bytes]"""
    own = ("probabilities", "row statistics")
    return sum(each.nbytes for each in core_operation(model, stack, cut).kept if each.name in own)


def layer_forward_flop(model, batch, sequence, kind=None, packed=None, cause=None):
    """Forward FLOPs of one layer, all or those of one cause. [FLOP]"""
    stack, cut = StackSpec(kernel_launch_s=0.0), Cut(1, batch, sequence, False, packed=packed)
    return forward_flop(layer_operations(model, stack, cut, kind), cause=cause)


def layers_forward_flop(model, batch, sequence):
    """Forward FLOPs of all layers, modules of multi-token prediction included. [FLOP]"""
    return sum(count * forward_flop(block.operations) for count, block in model_blocks(model, batch, sequence)[2:])


def logits_flop(model, batch, sequence):
    """Forward FLOPs of the output projection. [FLOP]"""
    return forward_flop(model_blocks(model, batch, sequence)[1][1].operations)


def mixer_core_flop(model, batch, sequence, kind=None):
    """Forward FLOPs of what mixes the tokens of a layer. [FLOP]"""
    layers = model_layers(model, batch, sequence)
    return forward_flop(next(layer for _, each, layer in layers if each == (kind or each)), cause=Cause.ATTENTION)


def embedding_params(model):
    """Parameters of the embedding."""
    return params(held_blocks(model)[0].operations)


def head_params(model):
    """Parameters of the head, without a table that is the embedding's."""
    return params(held_blocks(model)[1].operations) - model.tied_embeddings * model.vocab_size * model.hidden_size


def layer_expert_params(model):
    """Parameters of the experts of one layer."""
    return max(params(layer, experts=True) for _, _, layer in model_layers(model))
