"""Packaging; what the package needs stands in requirements.txt."""

import re
from pathlib import Path

from setuptools import setup

HERE = Path(__file__).parent


def requirements(name):
    """The lines of a requirements file without their comments."""
    lines = (re.sub(r"(^|\s)#.*", "", line).strip() for line in (HERE / name).read_text().splitlines())
    return [line for line in lines if line]


setup(
    name="tupe-fairseq",
    version=re.search(r'__version__ = "(.+)"', (HERE / "tupe_fairseq/__init__.py").read_text()).group(1),
    description="Untied positional encoding (TUPE) for fairseq: pre-training and fine-tuning on GLUE",
    long_description=(HERE / "README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    license="MIT",
    license_files=["LICENSE", "ATTRIBUTION.md"],
    packages=["tupe_fairseq"],
    python_requires=">=3.9",
    install_requires=requirements("requirements.txt"),
    extras_require={
        "hf": requirements("requirements-hf.txt"),
        "dev": requirements("requirements-dev.txt"),
        "benchmark": requirements("requirements-benchmark.txt"),
    },
)
