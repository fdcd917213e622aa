"""Loss as a function of model and data size: the forms that the published laws take.

N is parameters, D tokens, C = 6 N D floating-point operations, losses are nats per token. Every function takes
floats or NumPy arrays. Constants are in `published`, the best use of a budget in `allocation`.

After Erdil and Schneider-Joseph 2024, "Data movement limits to frontier model training", arXiv:2411.01137. Only its
abstract was read: utilisation falls beyond about 1e28 FLOP in three months, and beyond about 1e31 nothing trains. What
stands here is our own derivation of both walls for dense models, not the paper's model; its figures are drawn with
ours, and ours come out within a factor of ten of them.

Which traffic hides is told by intensities, after Lamy-Poirier 2021, "Layered gradient accumulation and modular pipeline
parallelism", arXiv:2106.02679. Only the abstract was read; the body is reconstructed, checked by calculation, and not
verified against the paper's tables. Conventions: 16-bit numbers, bytes sent and received together, full recomputation
(8 FLOPs a parameter and token). An intensity is FLOPs done for each byte moved; traffic hides where it is at least the
GPU's peak over the link's bandwidth (both directions together), and else adds that ratio over the intensity to the
compute time.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sim.errors import SpecError, require_positive
from sim.work.operations import Number

FLOP_PER_PARAM_TOKEN = 6.0
"""Forward and backward, without recomputation and attention scores (Kaplan et al. 2020, section 2.1)."""


@dataclass(frozen=True, slots=True)
class PowerSum:
    """L = irreducible + (a N^-alpha + b D^-beta)^gamma."""

    irreducible: float
    a: float
    alpha: float
    b: float
    beta: float
    gamma: float = 1.0


def power_sum_loss(params: Number, tokens: Number, form: PowerSum) -> Number:
    """Loss of `params` trained on `tokens` different tokens.  [nats/token]

    With gamma = 1 this is Hoffmann et al. 2022, equation 2; with irreducible = 0, beta = 1 and gamma = alpha_D it is
    Kaplan et al. 2020, equation 1.5.
    """
    require_positive(params=params, tokens=tokens)
    params, tokens = np.asarray(params, dtype=float), np.asarray(tokens, dtype=float)
    return form.irreducible + (form.a * params**-form.alpha + form.b * tokens**-form.beta) ** form.gamma


def _best_ratio(form: PowerSum) -> float:
    """G of Hoffmann et al. 2022, equation 4; gamma > 0 does not move the optimum."""
    return float((form.alpha * form.a / (form.beta * form.b)) ** (1 / (form.alpha + form.beta)))


def optimal_params(flop: Number, form: PowerSum) -> Number:
    """Parameters that lose least for `flop` = 6 N D: G (C/6)^(beta/(alpha+beta)) [1]_.

    .. [1] Hoffmann et al. 2022, arXiv:2203.15556, equation 4.
    """
    require_positive(flop=flop)
    power = form.beta / (form.alpha + form.beta)
    return _best_ratio(form) * (np.asarray(flop, dtype=float) / FLOP_PER_PARAM_TOKEN) ** power


def flop_for_loss(loss: Number, form: PowerSum) -> Number:
    """Least compute that reaches `loss`.  [FLOP]

    At the optimum a N^-alpha + b D^-beta = (a G^-alpha + b G^beta) (C/6)^-(alpha beta/(alpha+beta)), solved for C.
    """
    require_positive(loss=loss)
    loss = np.asarray(loss, dtype=float)
    if (loss <= form.irreducible).any():
        raise SpecError(
            f"no budget reaches a loss of {float(loss.min()):g}: the irreducible loss is {form.irreducible:g}; "
            f"ask for more, such as {form.irreducible + 0.1:.3g}"
        )
    best = _best_ratio(form)
    numerator = form.a * best**-form.alpha + form.b * best**form.beta
    power = (form.alpha + form.beta) / (form.alpha * form.beta)
    return FLOP_PER_PARAM_TOKEN * (numerator / (loss - form.irreducible) ** (1 / form.gamma)) ** power


def tokens_for_loss(loss: float, params: float, form: PowerSum) -> float:
    """Tokens on which a model of `params` parameters reaches `loss`."""
    require_positive(loss=loss, params=params)
    reducible = max(loss - form.irreducible, 0.0) ** (1 / form.gamma)
    left = reducible - form.a * params**-form.alpha
    if left <= 0:
        floor = form.irreducible + (form.a * params**-form.alpha) ** form.gamma
        least = f"{(form.a / reducible) ** (1 / form.alpha):.3g}" if reducible > 0 else None
        remedy = f"or take more than {least} parameters" if least else "no model goes below the irreducible loss"
        raise SpecError(
            f"{params:.3g} parameters reach no loss of {loss:g} on any number of tokens; they tend to {floor:.4g}. "
            f"Ask for more than that, {remedy}"
        )
    return float((form.b / left) ** (1 / form.beta))


TOKENS_PER_PARAM = 20.0
"""Compute-optimal data by the usual reading of Hoffmann et al. 2022; C = 120 N²."""
PUBLISHED_WALLS = {"utilisation falls": 1e28, "infeasible": 1e31}
"""Erdil and Schneider-Joseph 2024, abstract, for three months. [FLOP]"""
THREE_MONTHS_S = 0.25 * 365.25 * 86400
LEAST_MICROBATCH = 256.0
"""Shortest that is priced. Assumption. [tokens]"""
HEAD = 128
"""Hidden units of an attention head, which tensor parallelism does not cut. Assumption."""


@dataclass(frozen=True, slots=True)
class Growth:
    """How many layers models have: `layers` at `params`, growing as a power of it.

    Default: GPT-3's 96 at 175 billion, of constant proportions as they grow, so N^(1/3). Assumption.
    """

    layers: float = 96.0
    params: float = 175e9
    exponent: float = 1 / 3

    def num_layers(self, params: Number) -> Number:
        """Layers of a model of `params` parameters; not rounded, as curves want."""
        return self.layers * (np.asarray(params, dtype=float) / self.params) ** self.exponent

    def hidden_size(self, params: Number) -> Number:
        """h of N = 12 l h²."""
        return np.sqrt(np.asarray(params, dtype=float) / (12 * self.num_layers(params)))


def optimal_shape(flop: Number) -> tuple[Number, Number]:
    """Parameters and tokens of a compute-optimal run at 20 tokens a parameter."""
    require_positive(flop=flop)
    params = np.sqrt(np.asarray(flop, dtype=float) / (FLOP_PER_PARAM_TOKEN * TOKENS_PER_PARAM))
    return params, TOKENS_PER_PARAM * params


def latency_bound_time(
    params: Number, tokens: Number, batch_tokens: Number, layer_latency_s: Number, num_layers: Number
) -> Number:
    """Least time of a run, however many GPUs: steps · layers · latency.  [s]

    layer_latency_s : time that one layer's forward and backward cannot go below. [s]
    """
    require_positive(
        params=params, tokens=tokens, batch_tokens=batch_tokens, layer_latency_s=layer_latency_s, num_layers=num_layers
    )
    return np.asarray(tokens, dtype=float) / batch_tokens * num_layers * layer_latency_s


def latency_wall(
    duration_s: Number, batch_tokens: Number, layer_latency_s: Number, growth: Growth | None = None
) -> Number:
    """Largest compute-optimal run that latency lets finish in `duration_s`.  [FLOP]

    Solves (20 N / batch) · layers(N) · latency = duration for N; C = 120 N².
    """
    growth = growth or Growth()
    require_positive(duration_s=duration_s, batch_tokens=batch_tokens, layer_latency_s=layer_latency_s)
    latency = np.asarray(layer_latency_s, dtype=float)
    left = np.asarray(duration_s, dtype=float) * batch_tokens / (TOKENS_PER_PARAM * latency * growth.layers)
    params = (left * growth.params**growth.exponent) ** (1 / (1 + growth.exponent))
    return FLOP_PER_PARAM_TOKEN * TOKENS_PER_PARAM * params**2


def needed_intensity(peak_flop_per_s: Number, bandwidth_bytes_per_s: Number) -> Number:
    """FLOPs a byte above which traffic hides; the bandwidth counts both directions.  [FLOP/byte]"""
    require_positive(peak_flop_per_s=peak_flop_per_s, bandwidth_bytes_per_s=bandwidth_bytes_per_s)
    return np.asarray(peak_flop_per_s, dtype=float) / bandwidth_bytes_per_s


def data_parallel_intensity(tokens_per_microbatch: Number, microbatches: Number = 1) -> Number:
    """Intensity of the gradient's all-reduce: 6 FLOPs a token over 8 bytes, both a parameter.  [FLOP/byte]

    Layered accumulation reduces a layer when all its `microbatches` are done, so all of them hide it; the usual order
    hides it behind the last one only: give 1.
    """
    return 0.75 * np.asarray(microbatches, dtype=float) * tokens_per_microbatch


def pipeline_intensity(hidden_size: Number, layers_per_stage: Number = 1) -> Number:
    """Intensity of sends between stages; a modular stage has one layer and sends the most.  [FLOP/byte]"""
    return 12.0 * np.asarray(hidden_size, dtype=float) * layers_per_stage


def tensor_intensity(hidden_size: Number, tp: Number, recompute_collectives: bool = False) -> Number:
    """Intensity of four all-reduces a layer, six where recomputation repeats them; infinite for tp = 1.  [FLOP/byte]"""
    with np.errstate(divide="ignore"):
        return (2.0 if recompute_collectives else 3.0) * np.asarray(hidden_size, dtype=float) / (np.asarray(tp) - 1.0)


def pipeline_bubble(pp: Number, microbatches: Number, chunks: Number = 1) -> Number:
    """Idle over busy time of a pipeline that fills and drains once: (pp − 1)/(chunks · microbatches).

    Modular pipelines hold one layer a chunk: chunks = layers/pp, so pp (pp − 1)/(microbatches · layers).
    """
    return (np.asarray(pp, dtype=float) - 1) / (np.asarray(chunks, dtype=float) * microbatches)


@dataclass(frozen=True, slots=True)
class IdealGpu:
    """A GPU and its links; bandwidths count both directions. Default: H100 with 400 Gbit/s each and NVLink of 8."""

    peak_flop_per_s: float = 989e12
    memory_bandwidth_bytes_per_s: float = 3.35e12
    nvlink_bandwidth_bytes_per_s: float = 900e9
    nvlink_domain: int = 8
    network_bandwidth_bytes_per_s: float = 100e9


def best_utilisation(
    num_gpus: Number, params: float, batch_tokens: float, machine: IdealGpu | None = None, growth: Growth | None = None
) -> Number:
    """Share of peak that the best cut of a dense model over `num_gpus` can reach, were kernels perfect; 0 if none fits.

    Every split into data, modular pipeline and tensor parallelism by powers of two is priced: compute stretched by the
    bubble, by tensor-parallel traffic (exposed; beyond the NVLink domain at the network's rate), by whatever of the
    data-parallel and pipeline traffic exceeds the compute that hides it, and by reading the weights from memory for
    each micro-batch. Micro-batches may be shorter than a sequence, down to LEAST_MICROBATCH tokens; heads, of 128,
    are not cut.
    """
    require_positive(num_gpus=num_gpus, params=params, batch_tokens=batch_tokens)
    machine, growth = machine or IdealGpu(), growth or Growth()
    hidden, layers = float(growth.hidden_size(params)), float(growth.num_layers(params))
    tp, pp, microbatch = np.meshgrid(
        _powers_of_two(hidden / HEAD), _powers_of_two(layers), LEAST_MICROBATCH * _powers_of_two(128)
    )
    dp = np.asarray(num_gpus, dtype=float)[..., np.newaxis, np.newaxis, np.newaxis] / (tp * pp)
    microbatches = batch_tokens / (dp * microbatch)
    peak = machine.peak_flop_per_s
    network = needed_intensity(peak, machine.network_bandwidth_bytes_per_s)
    nvlink = needed_intensity(peak, machine.nvlink_bandwidth_bytes_per_s)
    inside = np.minimum(tp, machine.nvlink_domain)
    tensor = nvlink / tensor_intensity(hidden, inside) + network / tensor_intensity(hidden, tp / inside)
    data = np.where(dp > 1, network / data_parallel_intensity(microbatch, microbatches), 0.0)
    sends = np.where(pp > 1, network / pipeline_intensity(hidden), 0.0)
    weights = needed_intensity(peak, machine.memory_bandwidth_bytes_per_s) / microbatch
    exposed = sum(np.maximum(part - 1, 0.0) for part in (data, sends, weights))
    stretch = 1 + pipeline_bubble(pp, microbatches, layers / pp) + tensor + exposed
    possible = (dp >= 1) & (microbatches >= pp)
    return np.where(possible, 1 / stretch, 0.0).max(axis=(-3, -2, -1))


def _powers_of_two(most: float) -> Number:
    return 2.0 ** np.arange(int(np.log2(max(most, 1.0))) + 1)


def utilisation_in_time(flop: float, batch_tokens: float, duration_s: float = THREE_MONTHS_S) -> tuple[float, float]:
    """Utilisation and number of GPUs of the smallest cluster that does a compute-optimal run in `duration_s`.

    (0, inf) where no cluster does: more GPUs only wait more.
    """
    machine, growth = IdealGpu(), Growth()
    params, _ = optimal_shape(flop)
    least = flop / (machine.peak_flop_per_s * duration_s)
    gpus = np.maximum(least * np.geomspace(1, 1e4, 400), 1.0)
    # Each rank has a micro-batch, and heads are not cut: a batch feeds no more GPUs than that.
    fed = batch_tokens / LEAST_MICROBATCH * float(growth.hidden_size(params)) / HEAD
    for some in np.array_split(gpus[gpus <= fed], 16):
        share = best_utilisation(some, float(params), batch_tokens, machine, growth)
        enough = np.flatnonzero(some * share >= least)
        if len(enough):
            return float(share[enough[0]]), float(some[enough[0]])
    return 0.0, float("inf")


def require_possible(flop: float, duration_s: float, batch_tokens: float, layer_latency_s: float) -> None:
    """Refuse a compute-optimal run that latency alone makes longer than `duration_s`."""
    wall = float(latency_wall(duration_s, batch_tokens, layer_latency_s))
    if flop > wall:
        params, tokens = optimal_shape(flop)
        time = float(latency_bound_time(params, tokens, batch_tokens, layer_latency_s, Growth().num_layers(params)))
        raise SpecError(
            f"{flop:.3g} FLOP cannot finish in {duration_s / 86400:.0f} days at a batch of {batch_tokens:.3g} tokens "
            f"and {layer_latency_s * 1e6:g} µs a layer: latency alone takes {time / 86400:.0f} days. The most is "
            f"{wall:.2g} FLOP; or raise the batch to {batch_tokens * time / duration_s:.3g} tokens"
        )
