"""Launch scripts of a grammar, run by bash itself where no other program is found: what we read is what it sets, or asked
for."""

import random
import shutil
import subprocess

import pytest

from sim.errors import SpecError
from sim.foreign.importers import Given, import_text
from sim.foreign.importers.shell.expansion import reckon

BASH = shutil.which("bash")
NAMES = ("TP", "A", "B")
LAUNCH = (
    "torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 8 --hidden-size 1024 --num-attention-heads 16 "
    "--seq-length 1024 --max-position-embeddings 1024 --micro-batch-size 1 --global-batch-size 64 --bf16 "
    "--vocab-size 32000 --tensor-model-parallel-size $TP"
)
SIMPLE = (
    "{n}={w}", "export {n}={w}", ": ${{{n}:={w}}}", "(({n}=4))", ": $((++{n}))",
    "unset {n}; {n}=1", "eval {n}={w}", "X[1]=4; X[0]={w}; {n}=${{X[0]}}", "X=({w} 8 2); X[1]=4; {n}=${{X[1]}}",
    "{n}=4", "{n}=8", "read {n} <<< 4", "{n}=8 true", "declare {n}=8",
    "declare -i {n}=2; {n}+=2", "X=({w} 8); {n}=$((${{#X[@]}} * 2))",
)  # fmt: skip
BLOCKS = (
    "{b}\n{c}", "if {t}; then\n{b}\nelse\n{c}\nfi", "( {b} )", "{{ {b}; }} &\nwait", "{{ {b}; }}",
    "{f}() {{\n{b}\n{out}\n{c}\n}}\n{f}", "{f}() {{\nlocal {n}=8\n{b}\n}}\n{f}",
    "function {f} {{\nif {t}; then return; fi\n{b}\n}}\n{f} 4", "{f}() (\n{b}\n)\n{f}", "{f}() {{ {b}; }}; unset -f {f}",
    "{t} && {{ {b}; }}", "{t} || {{ {b}; }}", "for i in 1 2; do\n{b}\n{loop}\n{c}\ndone", "true | {{ {b}; }}",
    "case $A in 2) {b};; *) {c};; esac", "while {t}; do\n{b}\nbreak\ndone", "{f}() {{ declare -g {n}=8; }}; {f}",
    "{f}() {{ {b}; {out}; }}; {f} || {{ {c}; }}", "( {b}\nexit 1 ) || {{ {c}; }}",
    "{f}() {{ if {t}; then return 1; fi; }}; {f} && {{ {b}; }}",
)  # fmt: skip


def block(rng, depth):
    """Commands that set some of the names, nested so deep."""
    values = {
        "n": rng.choice(NAMES), "w": rng.choice(["2", "4", "8", "$A", "${B}", "$((A*2))", "${A:-4}"]),
        "t": rng.choice(["true", "false", "[ $A == 2 ]", "[[ $TP -gt 2 ]]", "((A > 2))"]),
        "f": f"f{rng.randrange(1000)}", "out": rng.choice(["return", "true", "return 1"]),
        "loop": rng.choice(["break", "continue", "true"]),
    }  # fmt: skip
    if depth == 0:
        return rng.choice(SIMPLE).format(**values)
    return rng.choice(BLOCKS).format(b=block(rng, depth - 1), c=block(rng, depth - 1), **values)


def by_bash(script):
    """What bash leaves in TP."""
    asked = [BASH, "--norc", "-c", f'{script}\necho "=$TP"']
    ran = subprocess.run(asked, capture_output=True, text=True, timeout=10, env={"PATH": "/nowhere"}, check=False)
    return ran.stdout.rpartition("=")[2].strip()


@pytest.mark.skipif(BASH is None, reason="no bash to compare with")
def test_scripts_set_what_bash_sets_or_are_asked_about():
    same = asked = 0
    for seed in range(150):
        rng = random.Random(seed)
        script = "\n".join(["TP=2", "A=2", "B=4", *(block(rng, rng.randrange(3)) for _ in range(rng.randrange(1, 5)))])
        real = by_bash(script)
        if real not in ("1", "2", "4", "8"):  # which cut no model here
            continue
        try:
            read = import_text(f"{script}\n{LAUNCH}\n", "run.sh", Given(cluster="superpod-h100")).data
        except SpecError:
            asked += 1
        else:
            assert str(read["plan"].get("tp", 1)) == real, script
            same += 1
    assert 2 * same > 3 * asked


def a_sum(rng, depth):
    """A sum as scripts have it, of names, numbers and what is in brackets."""
    if depth == 0:
        return rng.choice(["A", "B", "7", "-3", "2", "0", "-12", "5"])
    one, other, third = (a_sum(rng, rng.randrange(depth)) for _ in range(3))
    sign = rng.choice(["+", "-", "*", "/", "%", "/", "%", "<", ">=", "==", "!=", "&&", "||"])
    form = rng.choice(["{0} {1} {2}"] * 5 + ["({0} {1} {2})", "-({0})", "!({0})", "{0} > 1 ? {2} : {3}"])
    return form.format(one, sign, other, third)


@pytest.mark.skipif(BASH is None, reason="no bash to compare with")
def test_sums_come_to_what_bash_makes_of_them():
    """Above all quotients of negative numbers, and what they leave; of what we do not read there is none."""
    texts = [a_sum(random.Random(seed), 3) for seed in range(400)]
    asked = "\n".join(["A=-7 B=3", *(f"(echo $(({text}))) 2> /dev/null || echo" for text in texts)])
    real = subprocess.run([BASH, "--norc"], input=asked, capture_output=True, text=True, check=True).stdout.split("\n")
    ours = []
    for text in texts:
        try:
            ours.append(str(reckon(text, {"A": -7, "B": 3})))
        except ValueError:
            ours.append("")
    wrong = [row for row in zip(texts, ours, real, strict=False) if row[1] not in ("", row[2])]
    assert not wrong
    assert ours.count("") < 150
