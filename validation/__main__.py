"""`python -m validation`: every published table shipped with flopcast against its prediction."""

from validation.run import report

for line in report():
    print(line)
