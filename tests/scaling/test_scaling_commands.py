"""`flopcast scaling`: tables with their numbers, JSON with stable keys, refusals."""

import json
from functools import partial
from pathlib import Path

from rows import refusals, rows
from typed import answered

from sim.errors import SpecError

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "training-time.md"


ask = partial(answered, "scaling")


def read(*arguments):
    return json.loads(ask(*arguments, "--json"))


QUESTIONS = [
    ("optimal", "--budget", "5.76e23"),
    ("optimal", "--loss", "2.1"),
    ("optimal", "--budget", "1e24", "--unique-tokens", "100B"),
    ("model", "70B", "--tokens", "1.4T", "--loss", "1.95"),
    ("batch", "llama3-405b", "--tokens", "15.6T", "--batch", "16M"),
]
IDS = [" ".join(question[:2]) for question in QUESTIONS]


@rows("question", QUESTIONS, ids=IDS)
def test_every_question_fits_a_terminal_and_has_json(question):
    printed = ask(*question)
    assert all(len(line) <= 80 for line in printed.splitlines())
    assert "…" not in printed  # no number is cut
    assert read(*question)


def test_laws_say_how_far_they_were_checked():
    assert "differ by a factor of 28" in ask("batch", "llama3-405b", "--tokens", "15.6T")
    assert "28-fold" in PAGE.read_text()
    shown = " ".join(ask("laws").split())
    assert "reconstructed, not read" in shown
    assert "2085 ± 1293" in shown


test_mistakes_say_what_to_type = refusals(SpecError, lambda words: ask(*words), [
    (("optimal",), "give either --budget"),
    (("optimal", "--budget", "lots"), "budget = 'lots' is not a number; write it as 2.1, 70B"),
    (("optimal", "--budget", "-1e20"), "budget = -1e+20"),
    (("optimal", "--budget", "10"), "too small for kaplan-2020"),
    (("optimal", "--budget", "1e23", "--loss", "1.9"), "give either --budget"),
    (("optimal", "--loss", "1.75"), "besiroglu-2024: no budget reaches a loss of 1.75: the irreducible loss is 1.8172"),
    (("optimal", "--loss", "2", "--unique-tokens", "1B"), "goes with --budget"),
    (("model", "gpt3-175"), "did you mean 'gpt3-175b'"),
    (("model", "--", "-5B"), "parameters = -5e+09"),
    (("batch", "70B", "--loss", "nan"), "loss = 'nan'"),
    (("optimal", "--loss", "1e-30"), "0.1 to 20.0 nats a token"),
])  # fmt: skip
