"""Rows of the embedding in Megatron-LM's arguments: the tokenizer's words, padded as Megatron-LM and its kin do."""

from __future__ import annotations

from sim.foreign.importers.keys import UNKNOWN, Arguments, table
from sim.foreign.importers.ledger import Section, short

KIND = "megatron"
_GUESS = "the embedding's size is a guess, because the tokenizer's vocabulary is not known"


def read_vocabulary(arguments: Arguments, model: Section, tp: int) -> None:
    """The field `vocab_size`: what the arguments say, or what is known of the tokenizer that they name, or a guess that
    says so."""
    for name in ("padded-vocab-size", "pad-vocab-size-to"):
        padded = arguments.whole(name)
        if padded is not None:
            model.took("vocab_size", padded, f"--{name}")
            arguments.has("vocab-size", "make-vocab-size-divisible-by", "extra-vocab-size")
            return
    words, note, sure = _words(arguments)
    extra = arguments.whole("extra-vocab-size", least=0)
    multiple = (arguments.whole("make-vocab-size-divisible-by") or 128) * tp
    if extra is not None:  # Pai-Megatron-Patch pads by so many rows, and by nothing else
        rows, how = words + extra, f"{note}: {words:,}, and --extra-vocab-size {extra:,}"
    else:
        rows = -(-words // multiple) * multiple
        how = f"{note}: {words:,}, to a multiple of {multiple:,}"
    if sure:
        model.took("vocab_size", rows, how)
    else:
        model.assume("vocab_size", rows, f"{_GUESS} ({how}); --set model.vocab_size=N")


def _words(arguments: Arguments) -> tuple[int, str, bool]:
    """(words, what says so, whether it does)."""
    known = table(KIND)
    kind, patched = arguments.text("tokenizer-type"), arguments.text("patch-tokenizer-type")
    said = arguments.whole("vocab-size")
    if said is not None:
        # The null tokenizer has one word more, the end of a text.
        return said + (kind == "NullTokenizer"), "--vocab-size", True
    named = [_value(arguments, name) for name in known["tokenizer_names"]]
    for name in filter(None, named):
        number = _of_name(name)
        if number is not None:
            return number, f"the tokenizer {short(name, 50)}", True
    patch = known["patched_vocabularies"].get(patched)
    if isinstance(patch, dict):  # one name for several: which it is, the rows beside it tell
        patch = patch.get(int((arguments.raw("extra-vocab-size") or ["0"])[0]))
    if patch is not None:
        return int(patch), f"--patch-tokenizer-type {patched}", True
    if kind in known["vocabularies"]:
        return known["vocabularies"][kind], f"--tokenizer-type {kind}", True
    if kind is None and patched is None and not any(named):
        words = known["vocabularies"]["GPT2BPETokenizer"]
        return words, "no --tokenizer-type: GPT-2's, Megatron-LM's default", True
    what = patched or kind or "the tokenizer"
    words = known["guesses"]["pieces" if "entencePiece" in what else "others"]
    return words, f"{short(what)} is taken to have", False


def _value(arguments: Arguments, name: str) -> str | None:
    """An argument's value that may be partly unknown, as a path may be; it stays to be listed."""
    values = arguments.raw(name)
    return values[0] if values else None


def _of_name(name: str) -> int | None:
    """Words of a tokenizer by its name, or by the folder it lies in."""
    tokenizers: dict[int, list[str]] = table("tokenizers")["words"]
    parts = [part.lower() for part in name.rstrip("/").split("/") if part and UNKNOWN not in part]
    for place in range(len(parts) - 1, max(-1, len(parts) - 4), -1):
        plain = parts[place].removesuffix(".model").removesuffix(".json").removesuffix("-hf")
        plain = "/".join(parts[place - 1 : place + 1]) if plain == "tokenizer" else plain
        fits = [
            (len(known), int(number))
            for number, names in tokenizers.items()
            for known in names
            if plain == known or (known.endswith("*") and plain.startswith(known[:-1]))
        ]
        if fits:
            return max(fits)[1]
    return None
