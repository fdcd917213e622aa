"""End long verbs at random moments: what they leave must be whole or gone, and the next run must answer as ever.

    python -m tests.fuzz.kills --moments 20 --seed 1
    python -m tests.fuzz.kills --signal INT --only "search -o"

Half of the moments are spread over the verb's length, half fall while it writes: after something has appeared in its
folder. With INT and TERM it is also looked at how the verb takes its leave.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from flopcast_calibration.measurement import read_journal
from sim.errors import FlopcastError
from sim.files import UNFINISHED
from sim.specs.yaml12 import parse_yaml
from tests.fuzz.long_verbs import ENDS, LONG_VERBS, ROOT, LongVerb, without_time

OLD = b"# what was there before\n"
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "100", "NO_COLOR": "1"}
LEFT = {"KILL": (-9,), "INT": (130, -2), "TERM": (143, -15)}
"""Exit codes of a process that a signal ended; as a number below zero where Python had no say yet."""
LONGEST_S = 600
_FRAME = re.compile(r'File "(.+?)", line \d+, in (\S+)')
_MAINS = (ROOT / "sim" / "__main__.py", ROOT / "sim" / "cli.py")
_PACKAGES = (ROOT / "sim", ROOT / "calibration", ROOT / "validation")


@dataclass(frozen=True)
class Ended:
    """A verb that ran to its end, or was ended: exit code, what it printed, its files by their names, how long it ran."""

    code: int
    out: str
    err: str
    files: dict[str, bytes]
    seconds: float


def undisturbed(verb: LongVerb, folder: Path) -> Ended:
    """What comes of a verb in a folder that has what it reads."""
    begun = time.monotonic()
    run = subprocess.run(
        verb.command, cwd=folder, env=ENVIRONMENT, capture_output=True, text=True, timeout=LONGEST_S, check=False
    )
    return Ended(run.returncode, run.stdout, run.stderr, _files(folder), time.monotonic() - begun)


def ended(verb: LongVerb, folder: Path, how: int, after_s: float, writing: bool) -> Ended:
    """What comes of a verb that gets a signal so long after it began or, if `writing`, after a file of its appears."""
    there, begun = _names(folder), time.monotonic()
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        process = subprocess.Popen(
            verb.command, cwd=folder, env=ENVIRONMENT, stdout=out, stderr=err, start_new_session=True,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a background job would not hear it
        )  # fmt: skip
        while writing and process.poll() is None and _names(folder) == there:
            time.sleep(0.0005)
        time.sleep(after_s)
        process.send_signal(how)
        process.wait(timeout=LONGEST_S)
        _let_go(process.pid)
        out.seek(0)
        err.seek(0)
        return Ended(process.returncode, out.read(), err.read(), _files(folder), time.monotonic() - begun)


def _let_go(session: int) -> None:
    """Wait for what a verb started; whoever does not end by itself is a fault."""
    until = time.monotonic() + 30
    while True:
        try:
            os.killpg(session, 0)
        except (ProcessLookupError, PermissionError):
            return
        if time.monotonic() > until:
            os.killpg(session, signal.SIGKILL)
            raise AssertionError("processes that it started go on after it")
        time.sleep(0.02)


def faults(verb: LongVerb, before: dict[str, bytes], whole: Ended, stopped: Ended, how: str) -> Iterator[str]:
    """What is wrong with what a verb left that was ended.

    before : its folder before it began.
    whole : the same verb undisturbed.
    """
    pythons = _before_main(stopped.err)
    if stopped.code not in (whole.code, *LEFT[how]) and not pythons:
        yield f"exit code {stopped.code}: {stopped.err[-300:]}"
    if "Traceback" in stopped.err and not pythons:
        yield f"traceback: {stopped.err[-600:]}"
    for name, data in stopped.files.items():
        if Path(name).name.startswith(UNFINISHED) or data == before.get(name):
            continue
        if how == "INT" and name in verb.so_far:
            if "plan" not in parse_yaml(data.decode(), name):
                yield f"{name} is no scenario"
        elif not name.startswith(verb.written):
            yield f"{name} is not known"
        elif not _is_whole(verb, name, data, whole.files.get(name)):
            yield f"{name} is neither what was there nor whole ({len(data):,} bytes)"
    for name in before:
        if name not in stopped.files:
            yield f"{name} is gone"


def _before_main(err: str) -> bool:
    """Whether an interrupt met Python while it started: the first traceback of one shows nothing that `main` called.

    Python answers for itself until `main` has set up a handler. It may even go on after such an interrupt, without what
    it was about to find out about installed packages, so nothing is promised of what comes then.
    """
    for traceback in err.split("Traceback (most recent call last):")[1:]:
        if "KeyboardInterrupt" in traceback:
            frames = [(Path(file), name) for file, name in _FRAME.findall(traceback)]
            begun = next((i for i, (file, name) in enumerate(frames) if name == "main" and file in _MAINS), len(frames))
            return not any(file.is_relative_to(package) for file, _ in frames[begun + 1 :] for package in _PACKAGES)
    return False


def faults_of_rerun(verb: LongVerb, whole: Ended, again: Ended) -> Iterator[str]:
    """What is wrong with a run that goes on after one that was ended."""
    if again.code != whole.code:
        yield f"asked again it leaves with {again.code}: {again.err[-300:]}"
    for name in sorted({*whole.files, *again.files}):
        mine = again.files.get(name)
        if mine is None:
            yield f"asked again it does not write {name}"
        elif Path(name).name.startswith(UNFINISHED):
            yield f"asked again it leaves {name}"
        elif not _is_whole(verb, name, mine, whole.files.get(name)):
            yield f"asked again it writes another {name}"
    if not verb.measures and without_time(again.out) != without_time(whole.out):
        yield "asked again it prints something else"


def _is_whole(verb: LongVerb, name: str, data: bytes, wanted: bytes | None) -> bool:
    """Whether a file is what the verb writes undisturbed, as far as two runs write the same."""
    ending = Path(name).suffix
    if ending in ENDS and not ENDS[ending](data):
        return False
    if verb.measures:
        return ending != ".jsonl" or _is_journal(data)
    if wanted is None:
        return False
    if ending in (".png", ".parquet"):
        return data == wanted
    return without_time(data.decode()) == without_time(wanted.decode())


def _is_journal(data: bytes) -> bool:
    with tempfile.NamedTemporaryFile(suffix=".jsonl") as file:
        file.write(data)
        file.flush()
        try:
            read_journal(Path(file.name))
        except FlopcastError:
            return False
    return True


def _names(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


def _files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def tried(verb: LongVerb, moments: int, seed: int, how: str) -> Iterator[tuple[int, str | None]]:
    """(moment, fault) of a verb ended so often; None where there is none."""
    rng = random.Random(f"{seed} {verb.name}")
    with tempfile.TemporaryDirectory() as place:
        verb.lay_out(Path(place))
        whole = undisturbed(verb, Path(place))
        if whole.code:
            yield -1, f"undisturbed it leaves with {whole.code}: {whole.err[-500:]}"
            return
    for moment in range(moments):
        writing = bool(verb.written) and moment % 2 == 1
        after_s = rng.random() ** 2 * 0.2 * whole.seconds if writing else rng.random() * whole.seconds
        if how == "INT" and moment % 4 == 0:
            after_s, writing = rng.random() * 0.1, False  # while it loads
        with tempfile.TemporaryDirectory() as place:
            folder = Path(place)
            verb.lay_out(folder)
            if moment % 4 > 1 and not verb.measures and verb.name != "anchor":
                for name in verb.written:
                    if Path(name).suffix:
                        (folder / name).write_bytes(OLD)
            before = _files(folder)
            try:
                stopped = ended(verb, folder, getattr(signal, f"SIG{how}"), after_s, writing)
                found = [*faults(verb, before, whole, stopped, how)]
                found += faults_of_rerun(verb, whole, undisturbed(verb, folder))
            except AssertionError as error:
                found = [str(error)]
        when = f"{after_s:.3f} s after {'it began to write' if writing else 'it began'}"
        yield moment, f"{when}: {'; '.join(found)}" if found else None


def main() -> int:
    """End verbs, print faults; 1 where there are any."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--moments", type=int, default=20, help="Of each verb.")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--signal", choices=tuple(LEFT), default="KILL")
    parser.add_argument("--only", action="append", choices=tuple(LONG_VERBS), help="These verbs; may be repeated.")
    options = parser.parse_args()
    total = wrong = 0
    for name in options.only or LONG_VERBS:
        begun, bad, number = time.monotonic(), 0, 0
        for number, fault in tried(LONG_VERBS[name], options.moments, options.seed, options.signal):
            total += 1
            if fault:
                bad += 1
                print(f"  {name}, moment {number}, {fault}", flush=True)
        wrong += bad
        print(f"{name}: {number + 1} moments, {bad} faults, {time.monotonic() - begun:.0f} s", flush=True)
    print(f"{total} moments of {len(options.only or LONG_VERBS)} verbs, {wrong} faults")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
