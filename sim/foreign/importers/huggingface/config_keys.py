"""Keys of Hugging Face's `config.json`. What a file leaves out is as its model's class in transformers has it, which
stands in presets/importers/huggingface_defaults.yaml: the answer does not depend on what is installed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sim.foreign.importers.keys import Keys, reason_to_ignore, table
from sim.foreign.importers.ledger import Ledger

KIND = "huggingface"


class ConfigKeys(Keys):
    """The keys of a config, with those of the model's class behind them.

    inside : whether it is a model's part of a larger config. There, transformers leaves out every key that is as the
        class has it, sizes too (LLaVA's text_config may say no more than the vocabulary). At the top of a file it
        writes them all, and a size that is missing there was lost: it is refused, not taken for the class's.
    """

    def __init__(self, data: Mapping[str, Any], ledger: Ledger, label: str = "", *, inside: bool = False) -> None:
        super().__init__(data, ledger, KIND, label)
        self.inside = inside
        self._own = ""
        self._defaults: dict[str, Any] = {}

    def fall_back_on(self, defaults: Mapping[str, Any]) -> None:
        """Take keys that the file leaves out from here; one that it says in another word, or as null, it does not."""
        groups = [*table(KIND)["fields"].values(), *table(KIND)["alike"]]
        said = {name for group in groups if any(name in self._data for name in group) for name in group}
        self._defaults = {key: value for key, value in defaults.items() if key not in said | self._data.keys()}

    def __contains__(self, key: str) -> bool:
        return self.raw(key) is not None

    def raw(self, key: str) -> Any:
        """A value as it stands, or as the class has it, without taking it."""
        return self._data.get(key, self._defaults.get(key))

    def states(self, key: str) -> bool:
        """Whether the file itself says a key, be it null."""
        return key in self._data

    def put(self, key: str, value: Any) -> None:
        """Say a key that stands elsewhere in the file."""
        self._data[key] = value

    def of_class(self, *names: str) -> bool:
        """Whether one of these is not in the file but the class has it."""
        return any(name in self._defaults for name in names)

    def forget(self, *names: str) -> None:
        """Leave out, without a word, what the class has for these."""
        for name in names:
            self._defaults.pop(name, None)

    def take(self, *names: str) -> tuple[str, Any]:
        """(key, value) of the first of several names for the same thing; the class's where the file has none."""
        said = any(name in self._data for name in names)
        usual = next(((name, self._defaults[name]) for name in names if name in self._defaults), None)
        self.forget(*names)
        found = super().take(*names)
        if said or usual is None:
            return found
        key, value = usual
        if value or key == "tie_word_embeddings":  # what is off, or none, changes nothing
            self.ledger.assume(f"{self.label}{key}", value, "default of the model's class in transformers")
        return key, value

    def section(self, name: str) -> ConfigKeys:
        """The keys of a mapping inside; none where there is no such mapping."""
        plain = super().section(name)
        found = ConfigKeys(plain.rest(), self.ledger, plain.label, inside=self.inside)
        found._own = f"{self._own}{name}."
        return found

    def reason(self, key: str) -> tuple[str, bool]:
        """Why a key is left out, and whether it matters; around which model its model stands says nothing of it."""
        asked = (name.removeprefix(self.label) for name in self._asked)
        return reason_to_ignore(self.kind, f"{self._own}{key}", (f"{self._own}{name}" for name in asked))

    def needed(self, *names: str, least: int = 1) -> int:
        """A whole number that the file must say, unless it is a part of a larger config."""
        if not self.inside:
            self.forget(*names)
        return super().needed(*names, least=least)
