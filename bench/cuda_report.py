#!/usr/bin/env python3
"""Runs all checks of CUDA on the GPU of this machine, and writes one report in Markdown.

    python3 bench/cuda_report.py                  on the GPU
    python3 bench/cuda_report.py --test-device    a short run of every part on the test device, without a GPU

The parts are the tests of `.ci/cuda --gpu`, the workloads of the crate pellucid-bench beside PyTorch (eager mode and
`torch.compile(mode="reduce-overhead")`) on the same GPU, and compute-sanitizer with the tests of the kernels. A part
whose program is not installed is omitted, and the report contains the reason. The exit status is 1 if a part fails.
"""
import argparse
import datetime
import json
import os
import pathlib
import platform
import re
import shlex
import shutil
import signal
import site
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]
WORKLOADS = "W1,W2,W3,W3a,W3b,W4,W5,W6,W6b,W7,W8,W9,W10,W11"
# The tools execute a kernel much slower, so only these tests of the kernels run under them.
SANITIZED_TESTS = ["matmul", "conv", "attention", "reduce", "row", "scan", "sort", "scatter", "gather"]


def output_of(command):
    """Returns the output of a short command, or None if it is missing or fails."""
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
        return done.stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None


def library_path():
    """Returns the library search path with the folders of NVRTC and cuBLASLt that the system does not search: those of
    NVIDIA's packages for Python and of the CUDA Toolkit. The packages are first, because PyTorch was built for their
    versions."""
    packages = [*site.getsitepackages(), site.getusersitepackages()]
    folders = [folder for path in packages for folder in sorted(pathlib.Path(path).glob("nvidia/*/lib"))]

    def with_libraries(folders):
        return [str(folder) for folder in folders
                if any(folder.glob("libnvrtc.so*")) or any(folder.glob("libcublasLt.so*"))]

    toolkit = with_libraries([pathlib.Path("/usr/local/cuda/lib64")])
    return os.pathsep.join(filter(None, [*with_libraries(folders), os.environ.get("LD_LIBRARY_PATH"), *toolkit]))


class Report:
    """The report, and whether a part has failed. It is written after every part."""

    def __init__(self, path):
        self.path = pathlib.Path(path)
        self.lines = []
        self.failed = False

    def add(self, *lines):
        self.lines += lines

    def write(self):
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.write_text("\n".join(self.lines))

    def run(self, command, timeout, variables=None):
        """Runs a command and adds it with its status and time. Returns the output and the exit status."""
        print("$", shlex.join(command), file=sys.stderr, flush=True)
        begun = time.monotonic()
        try:
            # All processes of the command are one group, so that none of them outlives it.
            process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                       errors="replace", env={**os.environ, **(variables or {})},
                                       start_new_session=True)
            try:
                output, status = process.communicate(timeout=timeout)[0], process.returncode
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                output, status = process.communicate()[0], None
            except BaseException:
                os.killpg(process.pid, signal.SIGKILL)
                raise
        except OSError as error:
            output, status = str(error), 127
        self.failed |= status != 0
        ended = f"ended with {status}" if status is not None else "exceeded its time"
        shown = " ".join([*(f"{name}={value}" for name, value in (variables or {}).items()), shlex.join(command)])
        self.add(f"`{shown}` {ended} after {time.monotonic() - begun:.0f} s.", "")
        if status != 0:
            self.add("```text", *output.splitlines()[-20:], "```", "")
        self.write()
        return output, status


def describe_machine(report, is_test_device, torch_python):
    """Adds the device, the driver, the date, and the versions."""
    fields = "name,driver_version,compute_cap,memory.total"
    gpu = output_of(["nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader"]) or "unknown: no nvidia-smi"
    # A line for each GPU, in one row of the table.
    gpu = gpu.replace("\n", "; ")
    if is_test_device:
        gpu = "the test device, which runs kernels on the CPU"
    torch = "import torch; print(torch.__version__, torch.version.cuda)"
    processor = next((line.split(":")[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name")),
                     platform.machine()) if os.path.exists("/proc/cpuinfo") else platform.machine()
    rows = [
        ("date", datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M UTC")),
        ("commit", output_of(["git", "describe", "--always", "--dirty"]) or "unknown"),
        ("device, driver, compute capability, memory", gpu),
        ("processor", f"{processor}, {os.cpu_count()} cores"),
        ("compiler", output_of(["rustc", "--version"]) or "unknown"),
        ("PyTorch, its CUDA", output_of([torch_python, "-c", torch]) or "not installed"),
    ]
    report.add("| | |", "| --- | --- |", *(f"| {name} | {value} |" for name, value in rows), "")


def run_tests(report, is_test_device):
    """Runs the device tests and adds a table of the test programs."""
    report.add("## Tests", "")
    if is_test_device:
        command = [".ci/cuda", "--with", "cargo", "test", "--workspace", "--all-features", "--test", "graphs"]
    else:
        command = [".ci/cuda", "--gpu"]
    output, _ = report.run(command, 2 * 3600)
    rows, program = [], ""
    for line in output.splitlines():
        if found := re.search(r"Running (\S+)", line):
            program = found[1]
        elif found := re.match(r"test result: \S+ (\d+) passed; (\d+) failed; .* finished in (\S+)s", line):
            rows.append(f"| `{program}` | {found[1]} | {found[2]} | {found[3]} |")
    report.add("| test program | passed | failed | seconds |", "| --- | --- | --- | --- |", *rows, "")
    failed = sorted(set(re.findall(r"^test (\S+) \.\.\. FAILED", output, re.MULTILINE)))
    if failed:
        report.add("Failed tests: " + ", ".join(f"`{name}`" for name in failed) + ".", "")


def run_workloads(report, arguments, torch_python):
    """Times the workloads, beside PyTorch if it is installed, and adds a table."""
    report.add("## Workloads", "")
    # On the test device, the artefacts of the tests are used again. With an example, dependencies have equal features.
    features = ["--workspace", "--all-features", "--example", "mnist"]
    options = features if arguments.test_device else ["--release", "-p", "pellucid-bench", "--features", "cuda"]
    report.run(["cargo", "build", *options, "--bin", "pellucid-bench"], 2 * 3600)
    target = json.loads(output_of(["cargo", "metadata", "--no-deps", "--format-version", "1"]))["target_directory"]
    program = [f"{target}/{'debug' if arguments.test_device else 'release'}/pellucid-bench"]
    program += ["--device", "cuda", "--only", arguments.only]
    if arguments.test_device:
        program = [".ci/cuda", "--with", *program]
    has_torch = output_of([torch_python, "-c", "import torch"]) is not None
    if has_torch:
        peer = "cpu" if arguments.test_device else "cuda"
        vs = f"{torch_python} bench/torch_workloads.py {{}} --device {peer}"
        program += ["--rounds", str(arguments.rounds), "--vs", vs]
    else:
        report.add("PyTorch is not installed, so there are no times of it.", "")
    output, _ = report.run(program, 2 * 3600, {"BUDGET_S": "0.01"} if arguments.test_device else None)
    lines = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
    if arguments.test_device:
        report.add("The test device does not measure a GPU, and PyTorch runs on the CPU.", "")
    report.add("Lower quartiles in µs. A ratio is Pellucid's time to PyTorch's, as the median over the rounds.", "",
               "| workload | variant | Pellucid | PyTorch | its µs | ratio | least | most |",
               "| --- | --- | --- | --- | --- | --- | --- | --- |")
    for line in lines:
        name, variant = line.get("workload", ""), line.get("variant") or "eager"
        if "unsupported" in line:
            report.add(f"| {name} | {variant} | {line['unsupported']} | | | | | |")
        elif "ratio" in line:
            report.add(f"| {name} | {variant} | {line['ours_p25_us']} | {line['peer']} | {line['theirs_p25_us']} | "
                       f"{line['ratio']} | {line['least']} | {line['most']} |")
        elif "p25_us" in line:
            report.add(f"| {name} | {variant} | {line['p25_us']} | | | | | |")
    report.add("")


def kernel_tests(report):
    """Builds the tests of the kernels, and returns the path of the program."""
    command = ["cargo", "test", "--workspace", "--all-features", "--test", "kernels", "--no-run"]
    output, _ = report.run([*command, "--message-format=json"], 3600)
    messages = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
    programs = [m["executable"] for m in messages if m.get("executable") and m["target"]["name"] == "kernels"]
    return programs[-1] if programs else None


def run_sanitizer(report, is_test_device):
    """Runs the tests of the kernels under compute-sanitizer, and adds the last lines of its output."""
    report.add("## compute-sanitizer", "")
    sanitizer = shutil.which("compute-sanitizer", path=os.environ["PATH"] + ":/usr/local/cuda/bin")
    if is_test_device:
        report.add("Not run: it needs a GPU. The test device checks memory and races itself.", "")
        return
    if sanitizer is None:
        report.add("Not run: compute-sanitizer is not installed.", "")
        return
    program = kernel_tests(report)
    if program is None:
        return
    for tool in ["memcheck", "racecheck", "synccheck"]:
        # Errors of calls that the backend expects are no faults of kernels.
        command = [sanitizer, "--tool", tool, "--report-api-errors", "no", "--error-exitcode", "9", program,
                   "--test-threads", "1", *SANITIZED_TESTS]
        output, _ = report.run(command, 2 * 3600, {"PELLUCID_REQUIRE_CUDA": "1"})
        report.add(*(f"- {tool}: {line.strip('= ')}" for line in output.splitlines() if "SUMMARY" in line), "")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--test-device", action="store_true", help="a short run on the test device")
    parser.add_argument("--only", help="the workloads", default=None)
    parser.add_argument("--rounds", type=int, default=None, help="the rounds of workloads and PyTorch in turn")
    parser.add_argument("--torch", default=sys.executable, help="the Python program that has PyTorch")
    parser.add_argument("--out", default="target/cuda-report.md", help="the file of the report")
    arguments = parser.parse_args()
    arguments.only = arguments.only or ("W1,W3/captured" if arguments.test_device else WORKLOADS)
    arguments.rounds = arguments.rounds or (1 if arguments.test_device else 3)
    if shutil.which("cargo") is None:
        sys.exit("cargo is not installed: https://rustup.rs")
    if not arguments.test_device:
        os.environ["LD_LIBRARY_PATH"] = library_path()
    report = Report(arguments.out)
    report.add("# CUDA", "", f"Written by `{' '.join(['python3', *sys.argv])}`.", "")
    describe_machine(report, arguments.test_device, arguments.torch)
    run_tests(report, arguments.test_device)
    run_workloads(report, arguments, arguments.torch)
    run_sanitizer(report, arguments.test_device)
    report.write()
    print(f"{arguments.out} is written")
    return 1 if report.failed else 0


if __name__ == "__main__":
    sys.exit(main())
