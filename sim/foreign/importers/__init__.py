"""Importers: foreign configurations in, scenarios out. Nothing in them is executed, nothing is downloaded.

`imported` tells a file's kind and calls its reader; readers take `keys`, account for them in a `ledger`, and fill in
`defaults` openly. A package a family: `huggingface`, `megatron` (with `shell` below it), `torchtitan`, `nemo` (with
Megatron-Bridge), `recipes` of trainers; `python` reads what a Python file sets.

>>> from sim.foreign.importers import import_file
>>> imported = import_file("config.json")            # doctest: +SKIP
>>> imported.scenario(), imported.ledger.ignored     # doctest: +SKIP
"""

from sim.foreign.importers.defaults import Given
from sim.foreign.importers.imported import KINDS, Imported, import_file, import_text
from sim.foreign.importers.ledger import Ledger, LedgerEntry

__all__ = ["KINDS", "Given", "Imported", "Ledger", "LedgerEntry", "import_file", "import_text"]
