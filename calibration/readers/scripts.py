"""What a table of runs leaves out and its authors' public code says."""

from __future__ import annotations

from typing import Any

from calibration.readers.csv_values import Row


def said_by_scripts(row: Row) -> tuple[Row, dict[str, Any], list[str]]:
    """The row with cells that its source's scripts fill, what they say of the stack, and the rules used."""
    if "Zero Bubble" not in row.get("source", ""):
        return row, {}, []
    return _zero_bubble(row)


def _zero_bubble(row: Row) -> tuple[Row, dict[str, Any], list[str]]:
    """Qi et al. 2023, arXiv:2401.10241; their repository is sail-sg/zero-bubble-pipeline-parallelism.

    examples/pretrain_zbh1.sh: sequences of 1,024, fp16 (Megatron-LM sums gradients in fp32 for bf16 only), a
    SentencePiece tokenizer, no flash attention. 32,000 tokens is that library's usual vocabulary, and what the models'
    names leave for a tied embedding beside their layers: 27,000 to 33,600 fit 1.5, 14.6 and 28.3 billion parameters.
    That the scores were kept is also what the memory says that the paper measured.

    megatron/core/pipeline_parallel/zb_schedules.py posts sends and waits for what it receives only. Megatron-LM's 1F1B
    waits for its sends, and its interleaved schedule does not (megatron/arguments.py, overlap_p2p_comm); a later script
    of theirs, examples/pretrain_zero_bubble.sh, makes it wait, but in the paper a further chunk a rank costs no more
    across nodes, where sends are slow, than within one.
    """
    inferred = []
    for cell, value in {"vocab": "32000", "precision": "fp16"}.items():
        if not row.get(cell):
            row = {**row, cell: value}
            inferred.append(f"{cell} {value}: the authors' scripts")
    overlapped = row.get("schedule", "").lower() not in ("", "1f1b")
    stack = {
        "attention": "math",
        "causal_attention": False,
        "gradient_precision": "fp16",
        "overlap_p2p": overlapped,
    }
    inferred.append("attention math, gradient_precision fp16: the authors' scripts")
    inferred.append(f"overlap_p2p {str(overlapped).lower()}: the authors' code, by the schedule")
    return row, stack, inferred
