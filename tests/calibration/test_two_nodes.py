"""Two "nodes" on this machine, over a network slowed on purpose: the fit finds what it was slowed to."""

import os
import shlex
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from flopcast_calibration.measurement import read_journal
from sim.specs import Profile
from sim.specs.presets import load_file_as_preset

pytest.importorskip("torch")
ROOT = Path(__file__).parents[2]
HERE = Path(__file__).parent
CARD_BYTES_PER_S = 100e6


def run_on_two_nodes(folder, latency_s, bytes_per_s):
    """One rank a node, each started by a torchrun of its own; the profile that came out of it."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    out = folder / "mine.yaml"
    network = f"{8 * 8 * CARD_BYTES_PER_S / 1e6:.0f} Mbit/s"  # of a node of eight
    ask = [
        *["calibrate", "run", "--device", "cpu", "--quick", "--draws", "1", "--force", "--network"],
        network,
        "-o",
        str(out),
    ]
    # What torchrun tells the ranks of two nodes, without its agents.
    told = {
        "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": port,
    }  # fmt: skip
    shaped = {"SHAPED_LATENCY_S": str(latency_s), "SHAPED_BYTES_PER_S": str(bytes_per_s)}
    environment = {**os.environ, **told, **shaped, "PYTHONPATH": str(ROOT), "GLOO_SOCKET_IFNAME": "lo"}
    rank = shlex.join([sys.executable, str(HERE / "shaped_ranks.py"), *ask])
    command = ["sh", "-c", f"RANK=1 {rank} & RANK=0 {rank}; code=$?; wait; exit $code"]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "network " in result.stdout
    assert {item.shape["num_nodes"] for item in read_journal(out.with_suffix(".jsonl")).measurements} == {2}
    return Profile.read(load_file_as_preset(out), "mine")


@pytest.mark.thorough
def test_latency_and_bandwidth_of_a_slowed_network_are_found(tmp_path):
    latency_s, bytes_per_s = 8e-3, 60e6
    network = run_on_two_nodes(tmp_path, latency_s, bytes_per_s).network
    assert network.hop_latency_s == pytest.approx(latency_s, rel=0.15)
    assert network.efficiency * CARD_BYTES_PER_S == pytest.approx(bytes_per_s, rel=0.15)
    assert network.p2p_efficiency * CARD_BYTES_PER_S == pytest.approx(bytes_per_s, rel=0.15)
