"""Which plans a framework of a version can run: what its file (presets/frameworks, `plans`) asks of every plan.

A rule is a condition on fields of a plan by their names (`zero_stage < 2 or pp == 1`), and on those of the scenario's
other sections (`training.precision`), with the reason, the nearest plan that keeps it, and its source. A search asks it
of whole columns of plans at once, an estimate and an exporter of one plan.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from sim.specs.frameworks import LATEST, date_of, lineage
from sim.specs.presets import preset_names, raw_preset
from sim.specs.scenario import Scenario

ANY = "any"
"""What a file says in place of rules: its framework's plans are not described, though those of the one it is like are.
The name of another framework there stands for its rules."""


@dataclass(frozen=True, slots=True)
class PlanRule:
    """What a framework asks of a plan.

    field : of the plan, or of the stack (stack.NAME), that breaks it. must : the condition, as the file has it.
    why, nearest : why the framework asks for it, and the nearest plan that it can run; `{tp}` stands for the plan's tp,
        `{copies}` for dp · cp.
    """

    field: str
    must: str
    why: str
    nearest: str
    source: str

    @property
    def names(self) -> frozenset[str]:
        """Fields of the plan in the condition."""
        nodes = ast.walk(_parsed(self.must))
        return frozenset(node.id for node in nodes if isinstance(node, ast.Name)) - _SECTIONS

    @property
    def path(self) -> str:
        """The field as scenario files write it: plan.tp."""
        return self.field if "." in self.field else f"plan.{self.field}"

    def holds(self, scenario: Scenario, plan: Mapping[str, Any]) -> Any:
        """Whether plans keep it: a bool, or an array where a field of `plan` that the condition names is one."""
        return value_of(self.must, plan, scenario)

    def refusal(self, scenario: Scenario, plan: Mapping[str, Any]) -> str:
        """The value that breaks it, and why: "plan.pp = 2: it has no pipelines"."""
        value = plan[self.field] if self.field in plan else getattr(scenario.stack, self.field.partition(".")[2])
        return f"{self.path} = {str(value).lower() if isinstance(value, bool) else value}: {self.words(plan)[0]}"

    def words(self, plan: Mapping[str, Any]) -> tuple[str, str]:
        """(why, nearest) of a plan that breaks it."""
        facts = {**plan, "copies": plan["dp"] * plan["cp"]}
        return self.why.format_map(facts), self.nearest.format_map(facts)


@cache
def plan_rules(framework: str, version: str = "") -> tuple[PlanRule, ...]:
    """What a framework of a version asks of every plan; nothing where its plans are not described here.

    Raises SpecError: the version cannot be read.
    """
    if framework not in preset_names("frameworks"):
        return ()
    return tuple(
        PlanRule(*(str(rule[name]) for name in ("field", "must", "why", "nearest", "source")))
        for rule in _listed(framework)
        if ("since" not in rule or date_of(version, framework) >= date_of(str(rule["since"]), framework))
        and ("until" not in rule or date_of(version, framework) < date_of(str(rule["until"]), framework))
    )


def rules_of_scenario(scenario: Scenario) -> tuple[PlanRule, ...]:
    """Return the rules of the framework that the scenario's stack belongs to."""
    return plan_rules(scenario.stack.framework, scenario.stack.version)


def related(one: str, other: str) -> bool:
    """Whether two frameworks are the same, or their files name one that both are like."""

    roots = [[name, *(each for each, _ in lineage(name))][-1] for name in (one, other)]
    return roots[0] == roots[1]


def framework_words(framework: str, version: str = "") -> str:
    """A framework as it writes itself, with its version where that is not the latest: "Megatron-LM of 2021-01"."""
    known = framework in preset_names("frameworks")
    title = str(raw_preset("frameworks", framework)["title"]) if known else framework
    return title if version in ("", LATEST) else f"{title} of {version}"


def broken_rules(scenario: Scenario, rules: tuple[PlanRule, ...]) -> list[PlanRule]:
    """The rules that a scenario's plan breaks, the first of each field."""
    fields = dict(scenario.plan)
    broken = [rule for rule in rules if not rule.holds(scenario, fields)]
    return list({rule.field: rule for rule in reversed(broken)}.values())[::-1]


def assumed(scenario: Scenario) -> list[str]:
    """Each value of a scenario that its framework is known to be unable to run, and why."""
    stack, fields = scenario.stack, dict(scenario.plan)
    words = framework_words(stack.framework, stack.version)
    broken = broken_rules(scenario, rules_of_scenario(scenario))
    return [f"{words} cannot run {rule.refusal(scenario, fields)}" for rule in broken]


def _listed(framework: str) -> list[dict[str, Any]]:
    """A framework's rules; and those of the one that it is like, of fields that it has none of itself."""
    data = raw_preset("frameworks", framework)
    own = data.get("plans", [])
    if isinstance(own, str):
        return [] if own == ANY else _listed(own)
    if "like" not in data:
        return list(own)
    named = {rule["field"] for rule in own}
    return [*own, *(rule for rule in _listed(data["like"]) if rule["field"] not in named)]


_SECTIONS = frozenset({"model", "training", "stack", "cluster"})
Signs = Mapping[type, Callable[[Any, Any], Any]]
OPERATIONS: Signs = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.In: lambda one, several: np.isin(one, several) if isinstance(one, np.ndarray) else one in several,
    ast.NotIn: lambda one, several: ~np.isin(one, several) if isinstance(one, np.ndarray) else one not in several,
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}


def value_of(text: str, names: Mapping[str, Any], scenario: Scenario, signs: Signs = OPERATIONS) -> Any:
    """What a condition, or a sum of a few numbers, comes to: names stand for these, section.field for a scenario's."""
    return _value(_parsed(text), names, scenario, signs)


@cache
def _parsed(text: str) -> ast.expr:
    return ast.parse(text, mode="eval").body


def _value(node: ast.expr, plan: Mapping[str, Any], scenario: Scenario, signs: Signs) -> Any:
    """What a condition comes to, of names, numbers, comparisons, and, or, not, choices, arithmetic, and the functions
    that names hold only."""

    def of(part: ast.expr) -> Any:
        return _value(part, plan, scenario, signs)

    match node:
        case ast.Constant(value):
            return value
        case ast.Tuple(elements):
            return tuple(map(of, elements))
        case ast.Attribute(ast.Name(section), field):
            return getattr(getattr(scenario, section), field)
        case ast.Name(field):
            return plan[field]
        case ast.UnaryOp(ast.Not(), operand):
            value = of(operand)
            return ~value if isinstance(value, np.ndarray) else not value
        case ast.UnaryOp(ast.USub(), operand):
            return -of(operand)
        case ast.BinOp(left, op, right) | ast.Compare(left, [op], [right]):
            return signs[type(op)](of(left), of(right))
        case ast.BoolOp(op, parts):
            return _joined(isinstance(op, ast.Or), map(of, parts))
        case ast.IfExp(test, then, otherwise):
            return of(then) if of(test) else of(otherwise)
        case ast.Call(ast.Name(function), arguments):
            return plan[function](*map(of, arguments))
    raise TypeError(f"a rule of plans has no {type(node).__name__}: {ast.unparse(node)}")


def _joined(any_of: bool, values: Iterable[Any]) -> Any:
    """`or`, or else `and`, of conditions; no further than they decide it for all plans."""
    so_far: Any = not any_of
    for value in values:
        if not isinstance(value, np.ndarray):
            if bool(value) is any_of:
                return any_of
            continue
        so_far = value | so_far if any_of else value & so_far
        if so_far.all() if any_of else not so_far.any():
            break
    return so_far
