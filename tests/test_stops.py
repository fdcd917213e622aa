"""Long verbs ended half way, and files damaged, a few of each; `python -m tests.fuzz.kills` and `.damage` try hundreds."""

import json
import os
import signal

import pytest

from flopcast_calibration.measurement import Journal, Measurement, read_journal
from sim.commands.exit_codes import INTERRUPTED, run_to_the_end
from sim.errors import ProfileError, SpecError
from sim.files import UNFINISHED, put, read_text, sealed, write_text
from tests.fuzz import damage, kills
from tests.fuzz.long_verbs import LONG_VERBS, SHORT


@pytest.mark.parametrize(("name", "how"), [*zip(SHORT, ["KILL", "INT"], strict=True)])
def test_what_is_ended_leaves_whole_files_and_goes_on(name, how):
    assert [fault for _, fault in kills.tried(LONG_VERBS[name], 2, 7, how) if fault] == []


INTERRUPTED_AT = """Traceback (most recent call last):
  File "<frozen runpy>", line 88, in _run_code
  File "{root}/{file}", line 1, in {name}
  File "{root}/{last}", line 1, in <module>
KeyboardInterrupt
"""


@pytest.mark.parametrize(
    ("file", "name", "last", "promised"),
    [
        (".venv/lib/site-packages/_finder.py", "<module>", ".venv/lib/site-packages/other.py", False),
        ("sim/__main__.py", "<module>", "sim/__init__.py", False),
        ("sim/__main__.py", "main", ".venv/lib/site-packages/other.py", False),
        ("sim/__main__.py", "main", "sim/cli.py", True),
    ],
)
def test_a_traceback_counts_from_what_main_calls(file, name, last, promised):
    stopped = kills.Ended(1, "", INTERRUPTED_AT.format(root=kills.ROOT, file=file, name=name, last=last), {}, 0.1)
    whole = kills.Ended(0, "", "", {}, 1.0)
    assert bool([*kills.faults(LONG_VERBS["export"], {}, whole, stopped, "INT")]) == promised


def test_an_interrupt_while_a_class_is_made_is_one():
    def make():
        try:
            raise KeyboardInterrupt
        except KeyboardInterrupt as error:
            raise RuntimeError("Error calling __set_name__ on an instance") from error

    assert run_to_the_end(make) == INTERRUPTED


@pytest.mark.parametrize("kind", damage.SAVED)
def test_what_is_damaged_is_not_believed(kind):
    pytest.importorskip("pyarrow")
    assert [(what, fault) for what, fault in damage.faults(kind, 12, 3) if fault] == []


def test_a_name_stands_for_a_whole_file(tmp_path):
    path = tmp_path / "answer.txt"
    path.write_text("old")

    def fail(place):
        place.write_text("half")
        assert path.read_text() == "old"
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        put(path, fail)
    assert [each.name for each in tmp_path.iterdir()] == ["answer.txt"]
    path.chmod(0o640)
    write_text(path, "new")
    assert (path.read_text(), path.stat().st_mode & 0o777) == ("new", 0o640)


def test_what_a_killed_process_left_is_cleared_up_and_nothing_else(tmp_path):
    child = os.fork()
    if child == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)
    left = [tmp_path / f"{UNFINISHED}{process}-{name}" for process, name in
            ((child, "a.txt"), (child, "b.txt"), (os.getppid(), "a.txt"))]  # fmt: skip
    for each in left:
        each.write_text("half")
    write_text(tmp_path / "a.txt", "whole")
    assert [each.exists() for each in left] == [False, True, True]


def test_links_are_followed_and_devices_written_to(tmp_path):
    real, link = tmp_path / "real.txt", tmp_path / "link.txt"
    real.write_text("old")
    link.symlink_to(real)
    write_text(link, "new")
    assert link.is_symlink()
    assert real.read_text() == "new"
    with pytest.raises(SpecError, match="No space left on device"):
        write_text("/dev/full", "more")
    write_text("/dev/null", "more")
    for target in (tmp_path, tmp_path / "no" / "such", tmp_path / ("n" * 300)):
        with pytest.raises(SpecError, match="cannot write"):
            write_text(target, "more")
    write_text(tmp_path / ("n" * 255), "a long name")


def test_a_sealed_text_may_be_changed_by_who_takes_out_the_seal(tmp_path):
    path = tmp_path / "mine.yaml"
    write_text(path, sealed("a: 1\n"))
    assert read_text(path).endswith("a: 1\n")
    path.write_text(path.read_text().replace("\n", "\r\n"))  # as an editor may, which changes nothing
    assert read_text(path).endswith("a: 1\n")
    path.write_text(sealed("a: 1\n").replace("a: 1", "a: 2"))
    with pytest.raises(SpecError, match="take out its first line"):
        read_text(path)
    path.write_text(path.read_text().partition("\n")[2])
    assert read_text(path) == "a: 2\n"


def test_lines_of_a_journal_are_what_was_measured_or_refused(tmp_path):
    path = tmp_path / "mine.jsonl"
    Journal(path, {"device": "cpu"}).add(Measurement("gemm", {"m": 8, "n": 8, "k": 8}, 1.5e-5))
    text = path.read_text()
    path.write_text(text.replace("1.5e-05", "1.6e-05"))
    with pytest.raises(ProfileError, match=r"line 2 .*checksum"):
        read_journal(path)
    lines = [json.loads(line) for line in text.splitlines()]
    for each in lines:  # as another program writes it
        del each["checksum"]
    path.write_text("".join(json.dumps(each) + "\n" for each in lines))
    assert read_journal(path).measurements[0].time_s == 1.5e-5
