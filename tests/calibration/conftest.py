"""What several tests of logs share."""

import pytest

from flopcast_calibration.readers import read_measurements


@pytest.fixture
def read(tmp_path):
    """The function (text, name, options) -> what is read of a file with that text."""

    def reader(text, name="job.out", **options):
        (tmp_path / name).write_text(text)
        return read_measurements(tmp_path / name, **options)

    return reader
