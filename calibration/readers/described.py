"""What the short columns of a row are as fields of a scenario: its machine, model, framework and layout.

Columns may be named like fields (plan.tp, model.head_dim) or shortly (tp, gpu, layers). Nothing is read out of notes,
and a name that is not known is refused or said to be unknown.
"""

from __future__ import annotations

import re
from calendar import month_name
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from itertools import product
from typing import Any

from flopcast_calibration.readers.cells import ALIASES, FACTS, Row, Unmodelled, named_in, nested, whole, with_fields
from sim.errors import SpecError
from sim.specs import ModelSpec, load_preset, preset_names
from sim.specs.frameworks import date_of, framework_named, lineage
from sim.specs.presets import model_preset, raw_preset
from sim.work.sums import total_params

UNKNOWN = "unknown"
BEFORE_FLASH = "2022"
"""Version of an unknown framework from before flash attention."""
SINCE_FLASH = "2025"
"""Version of one since then: what a table holds has been run, and most of it before the kernels of the latest torch."""
_NEEDED = {"num_layers", "hidden_size", "num_heads", "vocab_size"}
"""Fields that describe a model by themselves; the others have defaults."""
_OF_MODELS = ("ffn_hidden", "gated_mlp", *(short for short, path in ALIASES.items() if path.startswith("model.")))

Data = dict[str, Any]
"""A scenario's sections, as a file has them."""


def described(row: Row) -> tuple[Data, list[str]]:
    """The row's fields of a scenario, and the rules by which names became fields; what it does not know is left out.

    It raises Unmodelled or SpecError where the row cannot be modelled, a name is unknown, or a value breaks a rule.
    """
    if row.get("unmodelled"):
        raise Unmodelled(str(row["unmodelled"]))
    inferred: list[str] = list(row.get("inferred", ()))
    stated = nested(row)
    found: Data = {}
    for short, path in ALIASES.items():
        _same(row, short, path, stated)
    framework = stack_of(row, stated, inferred)
    found |= {"stack": {**framework, **_kernel(row, framework)}, "training": _short(row, "training")}
    if isinstance(row.get("cluster"), Mapping):
        found["profile"] = row.get("profile")
    else:
        found["cluster"], found["profile"] = machine_of(row, inferred)
    model = dict(stated.get("model", {}))
    if any(row.get(short) for short in _OF_MODELS) or not model.keys() >= _NEEDED:
        model = found["model"] = with_fields(_model(row, model, inferred), model)
    model.setdefault("name", str(row.get("model_name") or "model"))
    found["plan"] = _plan(row, framework["framework"], model, stated.get("plan", {}), inferred)
    return {**with_fields(found, stated), "model": model}, inferred


def _same(row: Row, short: str, path: str, stated: Mapping[str, Any]) -> None:
    """Refuse a short column and a field's that say different things."""
    section, _, name = path.partition(".")
    if row.get(short) and path in row and name in stated.get(section, {}):
        value = stated[section][name]
        text = ("n", "y")[value] if isinstance(value, bool) else str(value)
        if text.lower() != str(row[short]).lower():
            raise Unmodelled(f"{path} = {row[path]} and {short} = {row[short]} contradict each other; leave one empty")


def stack_of(row: Row, stated: Mapping[str, Any], inferred: list[str]) -> dict[str, str]:
    """The stack by its framework's name, or an unknown framework of the run's time."""
    own = stated.get("stack", {})
    if isinstance(own, str) or own.keys() & {"framework", "preset"}:
        return {"framework": own.get("framework", "") if isinstance(own, Mapping) else own}
    said = str(row.get("framework", ""))
    name = framework_name(said)
    version, dated = own.get("version"), ""
    if version is None:
        version, dated = version_by_source(row)
    if name is not None:
        inferred.append(f"framework {name} {version or 'latest'}: {said}{dated}")
        return {"framework": name, "version": str(version or "latest")}
    why = f"priced as others of its time{dated}"
    if version is None:
        precision = str(stated.get("training", {}).get("precision") or row.get("precision", ""))
        version, signs = version_of_unknown(str(row.get("gpu", "")), precision)
        why = f"before flash attention, by {signs}" if signs else "priced as one with flash attention"
    inferred.append(f"framework {UNKNOWN} {version}: an unknown framework, {why}")
    return {"framework": UNKNOWN, "version": str(version)}


_MONTHS = month_name[1:]
_DATES = (
    (re.compile(r"\bcore[ _]?[rv]?0\.(\d\d?)\b", re.I), "core_r0.{0}"),
    (re.compile(r"(?<![\d.-])(20[12]\d)-?(0[1-9]|1[0-2])(?!\d)"), "{0}-{1}"),
    (re.compile(rf"\b({'|'.join(_MONTHS)}) (20[12]\d)\b"), "{1}-{0}"),
    (re.compile(r"\barXiv:(\d\d)(\d\d)\.\d{4,5}"), "20{0}-{1}"),
    (re.compile(r"(?<![\d.])(2\d)\.(0[1-9]|1[0-2])(?!\d)"), "{0}.{1}"),
    (re.compile(r"(?<![\w.])(20[12]\d)(?![\w.])"), "{0}"),
)
"""How names of frameworks, papers and pages hold a release or a date, and how `stack.version` writes it."""


def version_by_source(row: Row) -> tuple[str | None, str]:
    """The version of the framework that its name, the source or its locator dates the run to, and the words that do."""
    for cell in ("framework", "source", "source_locator"):
        text = str(row.get(cell, ""))
        for words, date in FACTS["dates"].items():
            if named_in(text, words):
                return str(date), f", dated by {words}"
        for pattern, written in _DATES:
            found = pattern.search(text)
            if found:
                parts = (f"{_MONTHS.index(each) + 1:02}" if each in _MONTHS else each for each in found.groups())
                return written.format(*parts), f", dated by {found[0]}"
    return None, ""


def framework_name(said: str) -> str | None:
    """The framework that a table calls so, or None."""
    try:
        return framework_named(said)
    except SpecError:
        return next((known for words, known in FACTS["frameworks"].items() if named_in(said, words)), None)


def version_of_unknown(gpu: str, precision: str) -> tuple[str, str]:
    """The version that an unknown framework is taken for, and what says that it is from before flash attention."""
    signs = [sign for sign, applies in (("V100", "V100" in gpu), ("fp16", precision == "fp16")) if applies]
    return BEFORE_FLASH if signs else SINCE_FLASH, ", ".join(signs)


def _kernel(row: Row, stack: Mapping[str, str]) -> Data:
    """The stack's fields of a kernel of attention and norm, in the words of a framework that has an option for it."""
    said, known = row.get("kernel", ""), FACTS["kernels"]
    framework = str(stack.get("framework", ""))
    for name, own in FACTS["kernels_of"].items():
        there = name in dict(lineage(framework)) and said in own["kernels"]
        if there and date_of(stack.get("version", ""), framework) >= date_of(str(own["since"]), name):
            return dict(own["kernels"][said])
    if said:
        _one_of("kernel", said, known, "; columns such as stack.attention say the same")
    found: Data = known.get(said, {})
    return found


def _short(row: Row, section: str) -> Data:
    """The fields of a section that short columns give."""
    paths = ((short, path.partition(".")) for short, path in ALIASES.items() if row.get(short))
    return {name: _READ.get(short, whole)(row, short) for short, (part, _, name) in paths if part == section}


def _one_of(key: str, said: str, known: Collection[str], more: str = "") -> str:
    if said not in known:
        raise Unmodelled(f"{key} {said!r} is not one of {', '.join(known)}{more}")
    return said


def _yes(row: Row, key: str) -> bool | None:
    """A cell of y or n; None where it is empty."""
    said = str(row.get(key, "")).lower()
    if said not in ("", "y", "n"):
        raise Unmodelled(f"{key} = {row[key]!r} is neither y nor n")
    return None if not said else said == "y"


_SCHEDULES: dict[str, str] = FACTS["schedules"]
_READ: dict[str, Callable[[Row, str], Any]] = {
    "precision": lambda row, key: _one_of(key, row[key], FACTS["precisions"]),
    "recompute": lambda row, key: _one_of(key, row[key], ("none", "selective", "per_op", "full")),
    "schedule": lambda row, key: _SCHEDULES[_one_of(key, str(row[key]).lower(), _SCHEDULES)],
    "sequence_parallel": _yes,
    "zero_stage": lambda row, key: int(_one_of(key, str(row[key]), ("0", "1", "2", "3", "hybrid3"))[-1]),
}
"""How short columns are read that hold no whole number."""


def machine_of(row: Row, inferred: list[str]) -> tuple[Data, str]:
    """The cluster but for its size, and the profile, by the names of GPU and link.

    A GPU that flopcast does not know is a SpecError.
    """
    gpu = str(row.get("gpu", ""))
    known = FACTS["gpus"]
    alike = [entry for entry in known if named_in(gpu, entry["name"])]
    memory = re.search(r"(\d+)GB", gpu.replace(" ", ""))
    given = memory[1] if memory else str(row.get("gpu_mem_gb", ""))
    size = float(given) if given.replace(".", "", 1).isdecimal() else 1e8
    fitting = [entry for entry in alike if entry.get("memory", (0, 1e9))[0] <= size < entry.get("memory", (0, 1e9))[1]]
    if not fitting:
        listed = ", ".join(dict.fromkeys(entry["name"] for entry in known))
        raise SpecError(f"unknown GPU {gpu!r}; known: {listed}")
    found, node = fitting[0], str(fitting[0]["node"])
    described: Data = {"preset": node}
    if "gpu" in found:
        described["gpu"] = found["gpu"]
    if row.get("gpus_per_node"):
        described["gpus_per_node"] = whole(row, "gpus_per_node")
    else:
        inferred.append(f"gpus_per_node {load_preset('nodes', node)['gpus_per_node']}: as in node preset {node}")
    if size == 1e8 and len({entry["node"] for entry in alike}) > 1:
        inferred.append(f"node preset {node}: the row does not say which of the {gpu}'s variants")
    cluster: Data = {"name": gpu, "node": described}
    link = str(row.get("inter_node_link", ""))
    width = int(described.get("gpus_per_node") or load_preset("nodes", node)["gpus_per_node"])
    gbits = network_gbits(link, width)
    if gbits:
        cluster["inter_node_bandwidth"] = f"{gbits:.6g} Gbit/s"
    elif whole(row, "num_gpus", 1) > width and "cluster.inter_node_bandwidth" not in row:
        inferred.append(f"network as in node preset {node}: {f'no rate in {link!r}' if link else 'the row gives none'}")
    for words, entry in FACTS["links"].items():
        if named_in(link, words):
            cluster |= entry["set"]
            inferred += [f"{name} {value}: {entry['because']}" for name, value in entry["set"].items()]
    return cluster, str(found["profile"])


def network_gbits(link: str, width: int) -> float | None:
    """Rate of the network a GPU and direction from a cell such as "8x HDR 200 Gb/s InfiniBand". [Gbit/s]

    A rate per node that follows a number of cards is one card's: "4x 200 Gbit/s RDMA per node".

    width : GPUs of a node.
    """
    whole_node = re.search(r"(?<!\dx )(?<![\d.])(\d+(?:\.\d+)?)\s*(G|T)b(?:it)?(?:/s|ps)(?:\s+\w+)? per node", link)
    if whole_node:
        return float(whole_node[1]) * (1000 if whole_node[2] == "T" else 1) / width or None
    cards = re.findall(r"(\d+)x[^,]*?(?<![\d.])(\d+(?:\.\d+)?)\s*Gb(?:it)?(?:/[sS]|ps)", link)
    return max((float(count) * float(rate) / width for count, rate in cards), default=0.0) or None


def model_named(name: str) -> str | None:
    """The model preset of this name, or the only one that begins so, however it is written; None if there is none."""
    try:
        return model_preset(name)
    except SpecError:
        plain = {each: _plain(each) for each in preset_names("models")}
        wanted = _plain(name)
        alike = [each for each, written in plain.items() if wanted and written.startswith(wanted)]
        exact = [each for each in alike if plain[each] == wanted]
        return exact[0] if exact else alike[0] if len(alike) == 1 else None


def _mixture_begun(name: str, sizes: Mapping[str, Any]) -> str | None:
    """The only mixture whose name, without its sizes, a name begins with, and whose layers and width the row states.

    Tables add what a run was for ("DeepSeekV3 (tokendrop)"), and few sizes do not describe a mixture.
    """
    found = []
    for each in preset_names("models"):
        family = "".join(word for word in each.split("-") if not re.fullmatch(r"a?[\d.]+b", word))
        model = load_preset("models", each)
        same = all(model.get(field) == sizes.get(field) for field in ("num_layers", "hidden_size"))
        if same and model.get("num_experts") and _plain(name).startswith(_plain(family)):
            found.append(each)
    return found[0] if len(found) == 1 else None


def _plain(name: str) -> str:
    return re.sub(r"[\W_]", "", name.lower())


def _model(row: Row, stated: Mapping[str, Any], inferred: list[str]) -> Data:
    """The model: its preset where its name is one's, with the row's own sizes; else of the row's sizes and its kind."""
    name = str(row.get("model_name") or "model")
    sizes = _short(row, "model")
    if sizes.get("num_experts") == 1:
        del sizes["num_experts"]
    sparse = bool(sizes.get("num_experts"))
    preset = (model_named(name) or _mixture_begun(name, sizes)) if row.get("model_name") else None
    base = dict(load_preset("models", preset)) if preset else {}
    if sparse and row.get("layers") and not base.get("num_experts"):
        base = {}
    gated = _yes(row, "gated_mlp")
    if base:
        inferred.append(f"what the row does not say of the model: as in model preset {preset}")
        if "key_value_rank" in base:
            sizes.pop("num_kv_heads", None)
    else:
        for needed in ("layers", "hidden", "heads"):
            if not row.get(needed) and ALIASES[needed].partition(".")[2] not in stated:
                also = f", and {name} is no model that ships (flopcast presets list models)"
                raise Unmodelled(f"{needed} is empty{also if needed == 'layers' else ''}")
        base = _kind(row, {**sizes, **stated}, sparse, gated, inferred)
    found = {**base, "name": name, **sizes}
    if row.get("ffn_hidden"):
        width = "expert_intermediate_size" if found.get("num_experts") else "intermediate_size"
        found[width] = whole(row, "ffn_hidden")
    if gated is not None:
        found["gated_mlp"] = gated
    return found


def _kind(row: Row, sizes: Mapping[str, Any], sparse: bool, gated: bool | None, inferred: list[str]) -> Data:
    """What a row leaves open of a model that is no preset's: layers like Llama's if their MLP is gated, else GPT's."""
    if gated is None:
        gated = sparse
        inferred.append(f"gated_mlp {'y' if gated else 'n'}: the row does not say")
    if sparse and "experts_per_token" not in sizes:
        raise Unmodelled("topk is empty")
    if int(sizes["hidden_size"]) % int(sizes["num_heads"]) and "head_dim" not in sizes:
        raise Unmodelled(f"hidden = {sizes['hidden_size']} is not divisible by heads = {sizes['num_heads']}")
    if not row.get("ffn_hidden") and not {"intermediate_size", "expert_intermediate_size"} & sizes.keys():
        if gated or sparse:
            raise Unmodelled("ffn_hidden is empty for a gated MLP")
        inferred.append(f"ffn_hidden {4 * int(sizes['hidden_size'])}: four times hidden")
    llama = {"position": "rotary", "norm": "rmsnorm", "bias": False, "tied_embeddings": False}
    gpt = {"position": "learned", "norm": "layernorm", "bias": True, "tied_embeddings": True}
    kind = {"gated_mlp": gated, **(llama if gated or sparse else gpt)}
    width = {"intermediate_size": whole(row, "ffn_hidden")} if row.get("ffn_hidden") else {}
    counted = _by_count(row, {**kind, **width, **sizes})
    kind |= counted
    told = {"gated_mlp", *counted}
    listed = ", ".join(f"{name} {value}" for name, value in kind.items() if name not in told).replace("_", " ")
    inferred.append(f"{listed}: as {'Llama' if gated or sparse else 'GPT'}'s, by its MLP")
    if sparse:
        kind["dropout"] = 0.0
        inferred.append("no shared experts, every layer with experts: the row names no model that ships")
    if counted:
        inferred.append(f"kv_heads {kind['num_kv_heads']}, tied embeddings {kind['tied_embeddings']}: by params_b")
    elif "num_kv_heads" not in sizes:
        kind["num_kv_heads"] = sizes["num_heads"]
        inferred.append(f"kv_heads {sizes['num_heads']}: one for each head")
    if "vocab_size" not in sizes:
        kind["vocab_size"] = 32000 if gated else 51200
        inferred.append(f"vocab {kind['vocab_size']}: the row gives none")
    return kind


def _by_count(row: Row, model: Data) -> Data:
    """Tied tables and key-value heads with which a model has the row's `params_b`, to one of its last digit.

    Fewer than three digits are a name (13B), and a count that several models have, or none, tells nothing.
    """
    said = str(row.get("params_b") or "")
    decimals = len(said.partition(".")[2])
    if len(said.replace(".", "").strip("0")) < 3 or model.get("num_experts") or "vocab_size" not in model:
        return {}
    heads = int(model["num_heads"])
    shared = [count for count in range(1, heads + 1) if heads % count == 0]
    fitting = []
    for tied, count in product((False, True), [model["num_kv_heads"]] if "num_kv_heads" in model else shared):
        open_ = {"tied_embeddings": tied, "num_kv_heads": count}
        with suppress(SpecError, ValueError):
            counted = total_params(ModelSpec.model_validate({"name": "counted", **model, **open_}))
            if abs(counted / 1e9 - float(said)) <= 10.0**-decimals:
                fitting.append(open_)
    return fitting[0] if len(fitting) == 1 else {}


def _plan(row: Row, framework: str, model: Mapping[str, Any], stated: Mapping[str, Any], inferred: list[str]) -> Data:
    """The layout that the short columns give."""
    found = _short(row if model.get("num_experts") else {**row, "ep": ""}, "plan")
    habits = raw_preset("frameworks", framework).get("layouts", {}) if framework in preset_names("frameworks") else {}
    if found.get("recompute") == "selective" and "selective_is" in habits:
        found["recompute"] = habits["selective_is"]
        inferred.append(f"recompute {found['recompute']}: what the framework calls selective ({habits['source']})")
    if row.get("offloaded_layers") == "all":
        found["offloaded_layers"] = model.get("num_layers", 0)
    if row.get("num_gpus"):
        found["dp"] = _replicas(row, {**found, **stated})
    if row.get("zero_stage") == "hybrid3":
        node = whole(row, "gpus_per_node", 8)
        whole_plan = {"dp": 1, "cp": 1, **found, **stated}
        sharing = int(whole_plan["dp"]) * int(whole_plan["cp"])
        if sharing > node and sharing % node == 0:
            found["sharding_group"] = node
            inferred.append(f"sharding_group {node}: hybrid sharding, taken to be within a node")
    return found


def _replicas(row: Row, plan: Mapping[str, Any]) -> int:
    """Replicas of the GPUs that tp, pp and cp leave."""
    gpus = whole(row, "num_gpus")
    if "tp" not in plan and plan.get("zero_stage") != 3 and gpus > 1:
        raise Unmodelled("the parallel layout is not given (tp is empty)")
    model_parallel = int(plan.get("tp", 1)) * int(plan.get("pp", 1)) * int(plan.get("cp", 1))
    if gpus % model_parallel:
        raise Unmodelled(f"tp · pp · cp = {model_parallel} does not divide num_gpus = {gpus}")
    dp = int(plan.get("dp", gpus // model_parallel))
    if dp * model_parallel != gpus:
        raise Unmodelled(f"tp · cp · pp · dp = {dp * model_parallel} is not num_gpus = {gpus}")
    return dp
