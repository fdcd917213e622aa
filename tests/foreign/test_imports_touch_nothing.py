"""Nothing in a foreign file is executed, nothing is fetched, and no file is opened but the one given and those beside it
that it names: an audit hook of the interpreter sees every attempt."""

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
PROGRAM = """
import json, os, random, sys
from contextlib import suppress
from pathlib import Path
from sim.errors import FlopcastError
from sim.foreign.importers import Given, import_file
import numpy.ma, tree_sitter, tree_sitter_bash

folder = Path(sys.argv[1])
sys.path.append("tests")
from grammars.writing import KINDS, write
files = []
for number, kind in enumerate(KINDS * 4):
    own, text, _, options = write(kind, random.Random(number))
    (folder / str(number)).mkdir()
    (folder / str(number) / own).write_text(text)
    files.append((folder / str(number) / own, Given(**options)))
traps = {
    "run.sh": 'source /etc/passwd; . ../outside.sh; touch $(dirname $0)/made; eval "touch made"; pretrain_gpt.py --num-layers 2',
    "recipe.py": "import os; os.system('touch made'); open('/etc/passwd').read(); from torchtitan.config import JobConfig",
    "axolotl.yaml": "base_model: ../../outside\\nsequence_len: 8\\nmicro_batch_size: 1\\ndeepspeed: /etc/hosts\\nadapter: lora",
    "config.json": '{"model_type": "llama", "_name_or_path": "/etc/passwd", "auto_map": {"AutoConfig": "evil.Config"}}',
}
for name, text in traps.items():
    (folder / name).write_text(text)
    files.append((folder / name, Given()))
seen = []
inside = tuple(map(os.path.realpath, (folder, "sim", sys.prefix, sys.base_prefix)))
watching = False

def hook(event, arguments):
    if watching and event == "open":
        path = os.path.realpath(str(arguments[0]))
        if not path.startswith(inside) or (arguments[2] or 0) & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
            seen.append([event, path])
    elif watching and event.startswith(("subprocess", "os.system", "os.exec", "os.spawn", "os.fork", "os.posix_spawn",
                                        "socket", "urllib", "http", "ftplib", "shutil", "os.remove", "os.rename", "os.mkdir")):
        seen.append([event, str(arguments)[:80]])

sys.addaudithook(hook)
read = 0
for path, given in files:
    watching = True
    with suppress(FlopcastError):
        import_file(path, given)
        read += 1
    watching = False
print(json.dumps({"seen": seen, "read": read, "files": len(files), "made": (folder / "made").exists()}))
"""


def test_nothing_is_run_fetched_or_opened_elsewhere(tmp_path):
    folder = tmp_path / "given"
    folder.mkdir()
    (tmp_path / "outside.sh").write_text("export TP=4")
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(folder)], cwd=ROOT, capture_output=True, text=True, check=True
    )
    found = json.loads(done.stdout)
    assert found["seen"] == []
    assert not found["made"]
    assert found["read"] >= found["files"] - 4
