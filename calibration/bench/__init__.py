"""Micro-benchmarks in torch: the same code on CUDA with NCCL and on a CPU with gloo. torch loads when they run."""
