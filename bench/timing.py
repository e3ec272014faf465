"""Timing of PyTorch workloads, as in src/harness.rs: two warm-up calls and 0.3 s, then calls until BUDGET_S (2) seconds
are spent.
"""
import json
import os
import statistics
import time


def measure(body):
    """Returns the microseconds of each call."""
    start, calls = time.perf_counter(), 0
    while calls < 2 or (time.perf_counter() - start < 0.3 and calls < 500):
        body()
        calls += 1
    budget, times = float(os.environ.get("BUDGET_S", "2")), []
    start = time.perf_counter()
    while len(times) < 5 or (time.perf_counter() - start < budget and len(times) < 3000):
        before = time.perf_counter_ns()
        body()
        times.append((time.perf_counter_ns() - before) / 1e3)
    return times


def print_line(name, body, threads, peer="torch", inner=1):
    """Times a workload, of which the body makes `inner` runs, and prints its JSON line."""
    times = [time / inner for time in measure(body)]
    quarters = statistics.quantiles(times, n=4)
    print(json.dumps({
        "peer": peer, "workload": name, "median_us": round(statistics.median(times), 3),
        "min_us": round(min(times), 3), "n": len(times), "p25_us": round(quarters[0], 3),
        "p75_us": round(quarters[2], 3), "threads": threads,
    }), flush=True)


def print_unsupported(name, peer, reason):
    """Prints the JSON line of a workload that does not run."""
    print(json.dumps({"peer": peer, "workload": name, "unsupported": reason}), flush=True)
