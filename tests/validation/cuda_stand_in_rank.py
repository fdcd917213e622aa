"""flopcast_validation.job.train on GPUs that the CPU stands in for: a module of a job, imported by each rank."""

import cuda_stand_in

from flopcast_validation.job import train

cuda_stand_in.install()


def run(job):
    """Train, and ask torch.cuda for what a GPU needs."""
    answer = train.run(job)
    assert {"set_device", "synchronize"} <= set(cuda_stand_in.asked), cuda_stand_in.asked
    return answer
