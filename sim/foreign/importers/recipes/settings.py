"""Settings by name: which key of a file holds which field of a scenario or which fact of the run, by its table."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from typing import Any, get_args

from sim.foreign.importers.defaults import Foreign
from sim.foreign.importers.keys import UNKNOWN_KEY, Keys, flat, table
from sim.foreign.importers.ledger import short
from sim.foreign.importers.sources import DEEPEST
from sim.specs.base import Spec
from sim.specs.model import ModelSpec
from sim.specs.plan import ParallelPlan
from sim.specs.stack import StackSpec
from sim.specs.training import TrainingSpec

RECORDS: dict[str, type[Spec]] = {
    "model": ModelSpec,
    "plan": ParallelPlan,
    "training": TrainingSpec,
    "stack": StackSpec,
}
_TEXTS = ("run.model", "run.optimizer", "run.weights")
_NUMBERS = ("run.tokens", "run.batch_tokens")
"""Facts of the run that are no whole numbers. The others: gpus, nodes, gpus_per_node; replicated and sharded, the
degrees of data parallelism; accumulation, the micro-batches a step; batch_per_gpu, the sequences that a GPU takes a
step; steps, those of the whole run; weights, what they are kept in: "16 bits" alone, "32 bits", or "unless sharded",
which is 16 but under accelerate's FSDP and DeepSpeed, which keep a copy in 32."""


_ALL_LEFT = ("steps", "sharded", "gpus_per_node")
"""Facts of which -1 says: as many as are left, or as there are."""


class Settings(Keys):
    """Keys of a recipe: values as the YAML of Python's tools has them, 500_000 a number and `no` false."""

    def flag(self, *names: str) -> bool | None:
        """true or false, or None."""
        key, value = self.take(*names)
        word = str(value).strip().lower()
        if value is None or word in _FLAGS:
            return None if value is None else _FLAGS[word]
        raise self.wrong(key, value, "must be true or false")

    def reason(self, key: str, value: Any = None) -> tuple[str, bool]:
        """Why a key is left out, and whether it matters for speed, which a setting that is off does not. Raises
        SpecError: a degree of parallelism under a name that is not known: without it the plan would be another one."""
        why, matters = super().reason(key)
        unknown = why.startswith(UNKNOWN_KEY)
        if unknown and _DEGREE.search(key) and re.fullmatch(r"0*([2-9]|[1-9]\d+)", str(value)):
            called = table(self.kind).get("called", self.kind)
            raise self.ledger.error(
                f"{key} = {short(value)} splits work over GPUs, and {called} has no such key; take it out and say the "
                "degree by --set plan.tp=N (or cp, pp, ep)"
            )
        off = value is False and not unknown and key not in table(self.kind).get("usually_on", ())
        return why, matters and not off

    def _whole(self, value: Any) -> Any:
        if isinstance(value, str) and re.fullmatch(r"-?\d{1,16}(_\d{1,16}){0,5}", value) and len(value) < 24:
            return int(value)
        return super()._whole(self._number(value))

    def _number(self, value: Any) -> Any:
        if isinstance(value, str) and re.fullmatch(r"-?[\d_]{0,20}\.?\d{0,20}(e[+-]?\d{1,2})?", value, re.IGNORECASE):
            try:
                return float(value.replace("_", ""))
            except ValueError:
                return value
        return value


_DEGREE = re.compile(r"parallel.*(size|degree)$|(size|degree)$.*parallel|_parallelism$|^(tp|pp|cp|ep)_(size|degree)$")
"""Names of degrees of parallelism, whatever tool they are of."""
_FLAGS = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False, "1": True, "0": False}


def flat_keys(data: Mapping[str, Any], file: Foreign, kind: str) -> Settings:
    """Nested settings as keys with dots, such as `model.hidden_size`; empty ones say nothing."""
    said = {name: value for name, value in flat(data, DEEPEST) if value is not None and value not in ("", [], {})}
    return Settings(said, file.ledger, kind)


def parts_of(data: Any, above: str = "") -> Iterator[str]:
    """Dotted names of all mappings in nested settings, empty ones too."""
    for key, value in data.items() if isinstance(data, Mapping) else ():
        if isinstance(value, Mapping):
            yield from (f"{above}{key}", *parts_of(value, f"{above}{key}."))


def rules_of(rule: Any) -> list[Mapping[str, Any]]:
    """A table's setting as its alternatives, each with `keys`."""
    if isinstance(rule, Mapping):
        return [rule]
    return list(rule) if rule and isinstance(rule[0], Mapping) else [{"keys": rule}]


def said_by(keys: Keys, path: str, rule: Mapping[str, Any]) -> tuple[str, Any]:
    """(the key that is there, what it says; None where it says nothing, or leaves it to the run)."""
    names, left = rule["keys"], {str(word).lower(): why for word, why in rule.get("left", {}).items()}
    for name in names:
        why = left.get(str(keys.raw(name)).lower()) if name in keys else None
        if why is not None:
            keys.ledger.ignore(f"{keys.label}{name}", keys.take(name)[1], why, matters=True)
    key = next((name for name in names if name in keys), names[0])
    if "words" in rule:
        wild = key in keys and any("*" in str(word) for word in rule["words"])
        source = f"{key} {short(keys.raw(key))}" if wild else key
        return source, _worded(keys, rule, *names)
    return key, keys.number(*names) if "times" in rule else _typed(keys, path, *names)


def _typed(keys: Keys, path: str, *names: str) -> Any:
    """A value as its field takes it."""
    section, _, name = path.partition(".")
    if path in _TEXTS:
        return keys.text(*names)
    if path in _NUMBERS:
        return keys.number(*names)
    if section == "run":
        return keys.whole(*names, least=-1 if name in _ALL_LEFT else 1)
    annotation = RECORDS[section].model_fields[name].annotation
    parts = (annotation, *get_args(annotation))
    parts += tuple(inner for part in parts for inner in get_args(part))  # of Annotated, inside a union
    if bool in parts:
        return keys.flag(*names)
    if float in parts:
        return keys.number(*names)
    if any(part is str or isinstance(part, str) for part in parts):
        return keys.text(*names)
    least = 0 if RECORDS[section].model_fields[name].default == 0 else 1
    return keys.whole(*names, least=least)


def _worded(keys: Keys, rule: Mapping[str, Any], *names: str) -> Any:
    """What a file's word stands for. A word for null stands for a field that is left to its default."""
    key, value = keys.take(*names)
    if value is None:
        return None
    known, said = {str(word).lower(): ours for word, ours in rule["words"].items()}, str(value).lower()
    said = said if said in known or said not in _FLAGS else str(_FLAGS[said]).lower()
    word = next((word for word in known if word == said or ("*" in word and fnmatchcase(said, word))), None)
    if word in rule.get("near", {}):
        keys.ledger.ignore(key, value, rule["near"][word], matters=True)
    if word is None and said in rule.get("refused", {}):
        raise keys.wrong(key, value, rule["refused"][said])
    if word is None:
        usual = f"must be one of {', '.join(known)}, or flopcast does not know it"
        raise keys.wrong(key, value, rule.get("else", usual))
    return known[word]
