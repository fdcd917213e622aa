"""Names that folders are installed under: of `calibration` and `validation`, others have packages too."""

from setuptools import find_packages, setup

FOLDERS = {
    "sim": "sim",
    "flopcast": "sim/flopcast",  # what people import
    "flopcast_calibration": "calibration",
    "flopcast_validation": "validation",
}

setup(
    packages=[
        name + package.removeprefix(folder)
        for name, folder in FOLDERS.items()
        for package in find_packages(include=[folder, f"{folder}.*"], exclude=["sim.flopcast"])
    ]
    + ["flopcast", "sim.scenarios"],
    package_dir=FOLDERS | {"sim.scenarios": "scenarios"},  # data alone: README's commands find theirs
)
