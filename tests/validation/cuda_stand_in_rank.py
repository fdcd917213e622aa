"""flopcast_validation.job.rank on GPUs that the CPU stands in for: `python -m cuda_stand_in_rank MODULE JOB_FILE OUT_FILE`."""

import sys

import cuda_stand_in

if __name__ == "__main__":
    cuda_stand_in.main("rank", *sys.argv[1:])
