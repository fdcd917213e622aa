"""The model and the training in Megatron-LM's options: shape, latent attention, kinds of layers, experts, batch."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from sim.foreign.exporters.account import Options, exporter_table
from sim.foreign.importers.huggingface.layer_kinds import shortest
from sim.foreign.importers.keys import table
from sim.specs.model import LayerKind, ModelSpec
from sim.specs.training import TrainingSpec

KIND = "megatron-lm"
_SIZES = ("num_layers", "hidden_size", "num_heads", "intermediate_size", "head_dim")


def say_model(options: Options) -> None:
    """Options of the model; what Megatron-LM has no model for is refused."""
    scenario, account = options.account.scenario, options.account
    model, known = scenario.model, table("megatron")
    options.group("Model")
    for field in _SIZES:
        if field != "head_dim" or not model.key_value_rank:
            options.say(known["fields"][field][0], getattr(model, field), field=f"model.{field}")
    if not model.key_value_rank:
        _heads(options, model)
    positions = {ours: theirs for theirs, ours in reversed(known["positions"].items())}
    options.say("position-embedding-type", positions[model.position], field="model.position")
    if model.position == "rotary":
        account.ask("--rotary-base", "the model's rope_theta (Llama 3: 500000, Qwen 3: 1000000); the default is 10000")
    if model.rotary_scaled:
        account.leave("model.rotary_scaled", "no argument stretches rotary positions as YaRN does")
    longest = max(model.max_sequence_length, scenario.training.sequence_length)
    options.say("max-position-embeddings", longest, field="model.max_sequence_length")
    if longest != model.max_sequence_length:
        account.decide(
            "model.max_sequence_length", f"at least --seq-length: {longest:,}; rotary positions have no table"
        )
    options.say("normalization", {"rmsnorm": "RMSNorm", "layernorm": "LayerNorm"}[model.norm], field="model.norm")
    options.tell("model.gated_mlp", "swiglu")
    account.ask("--norm-epsilon", "the model's epsilon (Llama 3: 1e-5, Qwen: 1e-6); the default is 1e-5")
    for name in ("hidden-dropout", "attention-dropout"):
        options.say(name, model.dropout, field="model.dropout")
    _vocabulary(options, model)
    _biases(options, model)
    _norms(options, model)
    _latent(options, model)
    _layers(options, model)
    _experts(options, model)
    if model.num_mtp_layers and is_hybrid(model):
        why = "its modules in a hybrid model are blocks of a pattern of their own"
        account.refuse("model.num_mtp_layers", why, "--set model.num_mtp_layers=0")
    elif model.num_mtp_layers and model.position == "learned":
        why = "its modules of multi-token prediction need rotary positions or none"
        account.refuse("model.num_mtp_layers", why, "--set model.num_mtp_layers=0")
    elif model.num_mtp_layers:
        options.say("mtp-num-layers", model.num_mtp_layers, field="model.num_mtp_layers")


def is_hybrid(model: ModelSpec) -> bool:
    """Whether its layers are blocks of a pattern: mixers or MLPs, one each."""
    return any(kind.mixer in ("mamba2", "none") or kind.mlp == "none" for kind in model.layer_kinds)


def marks_text(marks: Sequence[bool]) -> str:
    """Marks of layers as Megatron-LM's lists: `([0]*3+[1]*58)`."""
    letters = ["1" if mark else "0" for mark in marks]
    piece = shortest(letters)
    if 1 < len(piece) < len(letters) and len(letters) % len(piece) == 0:
        return f"([{','.join(piece)}]*{len(letters) // len(piece)})"
    runs = [(letter, len(list(same))) for letter, same in groupby(letters)]
    return f"({'+'.join(f'[{letter}]*{times}' for letter, times in runs)})"


def _heads(options: Options, model: ModelSpec) -> None:
    options.account.cover("model.num_kv_heads", "model.value_head_dim")
    if model.num_kv_heads != model.num_heads:
        options.say("group-query-attention", field="model.num_kv_heads")
        options.say("num-query-groups", model.num_kv_heads, field="model.num_kv_heads")
    if model.value_head_dim != model.head_dim:
        why = "its values have as many columns as queries and keys, but in latent attention"
        options.account.refuse("model.value_head_dim", why, f"--set model.value_head_dim={model.head_dim}")


def _vocabulary(options: Options, model: ModelSpec) -> None:
    """Rows of the embedding: what they are after Megatron-LM's padding."""
    tp = options.account.scenario.plan.tp
    rows = -(-model.vocab_size // tp) * tp
    options.say("padded-vocab-size", rows, field="model.vocab_size")
    if rows != model.vocab_size:
        options.account.decide("model.vocab_size", f"{rows:,} rows, a multiple of tp {tp}")
    if not model.tied_embeddings:
        options.say("untie-embeddings-and-output-weights", field="model.tied_embeddings")


def _biases(options: Options, model: ModelSpec) -> None:
    account = options.account
    names = ("qkv_bias", "attention_output_bias", "mlp_bias")
    if not model.bias:
        options.say("disable-bias-linear", field="model.bias")
        if model.qkv_bias:
            options.say("add-qkv-bias", field="model.qkv_bias")
    for name in names:
        if getattr(model, name) != model.bias and (name != "qkv_bias" or model.bias):
            account.leave(f"model.{name}", "it has biases in all linears, in none, or in queries, keys and values only")


def _norms(options: Options, model: ModelSpec) -> None:
    account = options.account
    if model.norms_per_layer != 2 and account.kind != KIND:
        account.leave(
            "model.norms_per_layer", "no override makes other norms; a recipe's own model has them, as Gemma's"
        )
    elif model.norms_per_layer != 2:
        why = "its layers have two norms, one before attention and one before the MLP"
        account.refuse("model.norms_per_layer", why, "--set model.norms_per_layer=2, another model")
    if model.query_key_norm != "none" or model.key_value_rank:
        options.say("qk-layernorm", field="model.query_key_norm")
    if model.key_value_rank:
        account.decide("model.query_key_norm", "--qk-layernorm norms the latent vectors")
    elif model.query_key_norm == "all":
        account.decide("model.query_key_norm", "--qk-layernorm norms each head by itself")


def _latent(options: Options, model: ModelSpec) -> None:
    if not model.key_value_rank:
        return
    options.say("multi-latent-attention", field="model.key_value_rank")
    options.say("kv-lora-rank", model.key_value_rank, field="model.key_value_rank")
    options.tell("model.query_rank", "q-lora-rank")
    options.say("qk-head-dim", model.head_dim - model.rotary_head_dim, field="model.head_dim")
    options.say("qk-pos-emb-head-dim", model.rotary_head_dim, field="model.rotary_head_dim")
    options.say("v-head-dim", model.value_head_dim, field="model.value_head_dim")


def _layers(options: Options, model: ModelSpec) -> None:
    """What mixes the tokens of each layer."""
    account, kinds = options.account, model.kind_of_layer
    if model.attention_gate and model.key_value_rank:
        account.refuse("model.attention_gate", "its latent attention has none", "--set model.attention_gate=false")
    elif model.attention_gate:
        options.say("attention-output-gate", field="model.attention_gate")
    if model.attention_sinks:
        options.say("softmax-type", "learnable", field="model.attention_sinks")
    mixers = [kind.mixer for kind in kinds]
    strange = next((mixer for mixer in mixers if mixer in ("chunked_attention", "kimi_delta_attention")), None)
    if strange is not None:
        account.refuse("model.layer_types", f"it has no {strange}", "--set model.layer_types=[full_attention]")
    elif is_hybrid(model):
        _pattern(options, model, kinds)
    elif {"sliding_attention", "gated_delta_net"} <= {*mixers}:
        why = "it has no model with both windows and a state along the sequence"
        account.refuse("model.layer_types", why, "--set model.layer_types=[full_attention]")
    elif "sliding_attention" in mixers:
        options.say("window-size", f"{model.sliding_window - 1},0", field="model.sliding_window")
        if len({*mixers}) > 1:
            marks = marks_text([mixer == "sliding_attention" for mixer in mixers])
            options.say("window-attn-skip-freq", marks, field="model.layer_types")
    elif "gated_delta_net" in mixers:
        options.say("experimental-attention-variant", "gated_delta_net", field="model.layer_types")
        marks = marks_text([mixer == "gated_delta_net" for mixer in mixers])
        options.say("linear-attention-freq", marks, field="model.layer_types")
        for field, (argument, _) in table("megatron")["states"]["gated_delta_net"].items():
            options.say(argument, getattr(model, field), field=f"model.{field}")


def _pattern(options: Options, model: ModelSpec, kinds: Sequence[LayerKind]) -> None:
    """A hybrid model: one block a letter."""
    account, letters = options.account, exporter_table(KIND)["letters"]
    pattern = [_letter(kind, letters) for kind in kinds]
    if None in pattern:
        layer = pattern.index(None)
        blocks, (mixer, mlp) = " ".join(sorted(letters)), kinds[layer]
        why = f"its hybrid models are made of single blocks, {blocks}, and layer {layer} is {mixer} with MLP {mlp}"
        account.refuse(
            "model.layer_types", why, "write mixers and MLPs as layers of their own, with none for the other"
        )
        return
    options.say("is-hybrid-model", field="model.layer_types")
    options.say("hybrid-override-pattern", "".join(letter or "" for letter in pattern), field="model.layer_types")
    options.say("spec", *exporter_table(KIND)["hybrid_spec"])
    if "M" in pattern:
        options.say("mamba-num-heads", model.linear_num_heads, field="model.linear_num_heads")
        for field, (argument, _) in table("megatron")["states"]["mamba2"].items():
            options.say(argument, getattr(model, field), field=f"model.{field}")
    if model.linear_conv_kernel != 4 and "M" in pattern:
        account.leave("model.linear_conv_kernel", "the convolution of its Mamba layers sees 4 tokens")


def _letter(kind: LayerKind, letters: dict[str, str]) -> str | None:
    block = kind.mixer if kind.mlp == "none" else kind.mlp if kind.mixer == "none" else ""
    return letters.get(block)


def _experts(options: Options, model: ModelSpec) -> None:
    if not model.num_experts:
        return
    options.group("Experts")
    options.account.ask("--moe-router-load-balancing-type", "how the router balances its experts")
    options.say("num-experts", model.num_experts, field="model.num_experts")
    for field, names in table("megatron")["expert_fields"].items():
        value = getattr(model, field)
        groups = field in ("num_expert_groups", "expert_groups_per_token")
        if value and (not groups or model.num_expert_groups > 1):
            options.say(names[0], value, field=f"model.{field}")
    if model.experts_per_token == 1:
        options.say("moe-router-pre-softmax")  # its softmax of one number would be 1
    options.tell("model.shared_expert_gate", "moe-shared-expert-gate")
    options.tell("model.expert_latent_size", "moe-latent-size")
    marks = [kind.sparse for kind in model.kind_of_layer]
    if not all(marks) and not is_hybrid(model):
        fields = ("model.mlp_layer_types", "model.num_dense_layers")
        options.say("moe-layer-freq", marks_text(marks), fields=fields)


def say_training(options: Options) -> None:
    """Options of training; what Megatron-LM cannot do is refused."""
    scenario = options.account.scenario
    training = scenario.training
    options.group("Training")
    options.say("micro-batch-size", scenario.plan.microbatch_size, field="plan.microbatch_size")
    options.say("global-batch-size", training.global_batch_size, field="training.global_batch_size")
    options.say("seq-length", training.sequence_length, field="training.sequence_length")
    _budget(options, training)
    _precision(options, training)
    _optimizer(options, training)
    if training.adapter_rank and options.account.kind != KIND:
        options.account.leave("training.adapter_rank", "an object, which an override does not make; peft of the recipe")
    elif training.adapter_rank:
        why = "pretrain_gpt.py trains all weights"
        options.account.refuse("training.adapter_rank", why, "--set training.adapter_rank=0, or Megatron-Bridge's peft")
    if training.expert_capacity_factor is not None and scenario.model.num_experts:
        factor = training.expert_capacity_factor
        options.say("moe-expert-capacity-factor", factor, field="training.expert_capacity_factor")
        options.tell("training.pad_to_capacity", "moe-pad-expert-input-to-capacity")


def _budget(options: Options, training: TrainingSpec) -> None:
    """Steps where the tokens make whole ones, else samples."""
    account, tokens = options.account, training.tokens
    if tokens is None:
        account.ask("train-iters or train-samples", "the scenario has no training.tokens")
    elif tokens % training.tokens_per_step == 0:
        options.say("train-iters", int(tokens // training.tokens_per_step), field="training.tokens")
    else:
        samples = max(1, round(tokens / training.sequence_length))
        options.say("train-samples", samples, field="training.tokens")
        if samples * training.sequence_length != tokens:
            account.decide("training.tokens", f"{samples * training.sequence_length:,}: whole sequences")


def _precision(options: Options, training: TrainingSpec) -> None:
    account, known = options.account, exporter_table(KIND)["precisions"]
    if training.precision not in known:
        account.refuse("training.precision", f"it has {', '.join(known)}", "--set training.precision=nvfp4, or mxfp8")
        return
    for name, value in known[training.precision].items():
        options.say(name, *([] if value is True else [value]), field="training.precision")
    if training.precision == "fp8":
        _recipe(options, training)
    if training.high_precision_layers:
        end = training.high_precision_layers // 2
        options.say("first-last-layers-bf16", field="training.high_precision_layers")
        for where, number in (("start", training.high_precision_layers - end), ("end", end)):
            options.say(f"num-layers-at-{where}-in-bf16", number, field="training.high_precision_layers")
    _gradients(options, training)


def _recipe(options: Options, training: TrainingSpec) -> None:
    """Scales of fp8: its default, delayed ones, go neither with layers in 16 bits nor with outputs thrown away."""
    discarded = {"moe_act", "layernorm"} & {*options.account.scenario.plan.recompute_modules}
    if training.high_precision_layers or discarded:
        options.say("fp8-recipe", "tensorwise", field="training.precision")
    else:
        options.account.decide("training.precision", "delayed scales, its default fp8 recipe")


def _gradients(options: Options, training: TrainingSpec) -> None:
    """Say the precision of summed gradients. Its default is fp32 beside bf16, and fp16 beside fp16."""
    account, kept = options.account, options.account.scenario.stack.gradient_precision
    usual = {"fp32": "fp32", "fp16": "fp16"}.get(training.precision, "fp32")
    if kept == "fp32" and usual == "fp16":
        options.say("accumulate-allreduce-grads-in-fp32", field="stack.gradient_precision")
    elif kept == "bf16" and training.precision not in ("fp32", "fp16"):
        options.say("grad-reduce-in-bf16", field="stack.gradient_precision")
    elif kept != usual:
        account.leave("stack.gradient_precision", f"{usual} with training.precision {training.precision}")


_STATES = ("moment_precision", "second_moment_precision", "master_precision")


def _optimizer(options: Options, training: TrainingSpec) -> None:
    account, plan = options.account, options.account.scenario.plan
    account.cover(*(f"training.{each}" for each in ("optimizer", *_STATES)))
    name = training.optimizer
    if name == "adafactor":
        account.refuse("training.optimizer", "it has adam, sgd and muon", "--set training.optimizer=adam")
        return
    if name == "muon":
        options.say("optimizer", "dist_muon" if plan.zero_stage else "muon", field="training.optimizer")
        options.say("ckpt-format", "torch")  # the only one that its Muon can save
    else:
        options.say("optimizer", name, field="training.optimizer")
    less = [each for each in _STATES if getattr(training, each) not in ("fp32", None)]
    if less and (name != "adam" or not plan.zero_stage or not plan.reshard_after_forward):
        why = "only Adam under the distributed optimizer (ZeRO) keeps states in fewer bits"
        for each in less:
            account.refuse(f"training.{each}", why, f"--set training.{each}=fp32")
        return
    if training.master_precision == "none":
        why = "its optimizer keeps masters beside 16-bit weights"
        account.refuse("training.master_precision", why, "--set training.master_precision=fp16")
    if training.moment_precision == "int8":
        why = "its moments are in fp32, bf16, fp16 or fp8"
        account.refuse("training.moment_precision", why, "--set training.moment_precision=fp8")
    if less or plan.optimizer_offload:
        options.say("use-precision-aware-optimizer")
    first = training.moment_precision
    if {"moment_precision", "second_moment_precision"} & {*less}:
        options.say("exp-avg-dtype", first, field="training.moment_precision")
        second = training.second_moment_precision or first
        options.say("exp-avg-sq-dtype", second, field="training.second_moment_precision")
    if "master_precision" in less:
        options.say("main-params-dtype", training.master_precision, field="training.master_precision")
