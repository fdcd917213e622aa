"""`python -m flopcast_validation`: every published table shipped with flopcast against its prediction."""

from flopcast_validation.run import report

for line in report():
    print(line)
