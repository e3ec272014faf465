#!/usr/bin/env python3
"""Measures the CPU seconds (user) of builds: five small programs, after the library was built.

    bench/compile_times.py            prints one line for each program: the least of three builds

Run it from the root of the repository, on an idle machine.
"""

import os
import pathlib
import resource
import subprocess

PROGRAMS = ["autograd", "classifier", "graph_trainer", "optimizers", "transformer"]


def build(name: str) -> float:
    """Builds an example and returns the CPU seconds of the build."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    command = ["cargo", "build", "--quiet", "--release", "--package", "pellucid-bench", "--example", name]
    subprocess.run(command, check=True)
    return resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before


def main() -> None:
    for program in PROGRAMS:
        name = f"compile_{program}"
        source = pathlib.Path("bench/examples") / f"{name}.rs"
        build(name)
        seconds = []
        for _ in range(3):
            os.utime(source)
            seconds.append(build(name))
        print(f"{program:16} {min(seconds):5.2f} s")


if __name__ == "__main__":
    main()
