"""Fits: for each cost function of `sim.costs` the function that finds its parameters in measurements."""

from calibration.fit.kernels import (
    AttentionPoint,
    GemmPoint,
    LaunchPoint,
    MemoryPoint,
    fit_attention,
    fit_gemm,
    fit_launch,
    fit_memory,
)
from calibration.fit.links import (
    LINK_PRIOR,
    LOOPBACK_PRIOR,
    AllReducePoint,
    CopyPoint,
    PairPoint,
    SendPoint,
    fit_all_reduce,
    fit_copy,
    fit_hidden_share,
    fit_p2p,
)
from calibration.fit.solve import Fit, bootstrap, fit_to, unseen_error

__all__ = [
    "LINK_PRIOR",
    "LOOPBACK_PRIOR",
    "AllReducePoint",
    "AttentionPoint",
    "CopyPoint",
    "Fit",
    "GemmPoint",
    "LaunchPoint",
    "MemoryPoint",
    "PairPoint",
    "SendPoint",
    "bootstrap",
    "fit_all_reduce",
    "fit_attention",
    "fit_copy",
    "fit_gemm",
    "fit_hidden_share",
    "fit_launch",
    "fit_memory",
    "fit_p2p",
    "fit_to",
    "unseen_error",
]
