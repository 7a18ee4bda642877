# SPDX-License-Identifier: GPL-2.0
"""The mutation check: seeds bugs into copies of the core, and has the simulation find each of them.

docs/testing.md has more.
"""

import argparse
import concurrent.futures
import os
import queue
import re
import shutil
import subprocess
import sys
import time
import tomllib

from .root import TOP, in_root

MUTANTS = os.path.join(TOP, "selftests/mutants/mutants.toml")
CORE = "drivers/rrxe/core"
# The simulation, and what it is built from.
PARTS = (CORE, "selftests/testkit", "selftests/simulation")

# Number of seeds within which the simulation must find each bug, and for a bug with the key
# `by = "efficiency"` the number of seeds of its flows through a bottleneck.
SEEDS = {"correctness": 20_000, "efficiency": 1_000}

# Optimized for build time: the first few seeds find most bugs. Seeds of flows have many packets.
WORKSPACE = f"""[workspace]
resolver = "2"
members = {list(PARTS)}

[profile.dev]
opt-level = 0
debug = false
incremental = true

[profile.efficiency]
inherits = "dev"
opt-level = 1
"""

# Options of cargo, and folders and options of the program.
MODES = {
    "correctness": ([], "debug", []),
    "efficiency": (["--profile", "efficiency"], "efficiency", ["--efficiency"]),
}


def parse(arguments):
    """Parses the command line."""
    parser = argparse.ArgumentParser(prog="selftests/run mutants", description=__doc__)
    parser.add_argument("--only", metavar="WORDS", help="only mutants whose description contains this text")
    parser.add_argument("--check", action="store_true", help="only checks that each text occurs once")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)), metavar="N", help="mutants at a time (CPUs)")
    parser.add_argument("--out", default=os.path.join(TOP, "out/mutants"), help="folder for builds and logs (out/mutants)")
    return parser.parse_args(arguments)


def run(*command, **options):
    """Runs a command in the build root."""
    return subprocess.run(in_root(*command), text=True, check=False, **options)


def workspace_package():
    """Returns the workspace's [workspace.package] section."""
    with open(os.path.join(TOP, "Cargo.toml"), encoding="utf-8") as file:
        return re.search(r"^\[workspace\.package\]\n(?:.+\n)+", file.read(), re.M).group()


def prepare(folder):
    """Creates a separate workspace with copies of the core and the simulation."""
    for part in PARTS:
        copy = os.path.join(folder, part)
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(os.path.join(TOP, part), copy, ignore=shutil.ignore_patterns("tests"))
    # The dependencies of the core's tests are not needed.
    manifest = os.path.join(folder, CORE, "Cargo.toml")
    with open(manifest, encoding="utf-8") as file:
        text = re.sub(r"^\[dev-dependencies\]\n(?:.+\n)*", "", file.read(), flags=re.M)
    with open(manifest, "w", encoding="utf-8") as file:
        file.write(re.sub(r"^\[\[test\]\]\n(?:.+\n)*", "", text, flags=re.M))
    with open(os.path.join(folder, "Cargo.toml"), "w", encoding="utf-8") as file:
        file.write(WORKSPACE + "\n" + workspace_package())


def read(folder, mutant):
    """Returns the path and the text of the file that a mutant changes, and an error message."""
    path = os.path.join(folder, CORE, mutant["file"])
    with open(path, encoding="utf-8") as file:
        text = file.read()
    found = text.count(mutant["find"])
    wrong = None if found == 1 else f"its text occurs {found} times in {mutant['file']}"
    return path, text, wrong


def mutate(folder, mutant):
    """Applies the substitution. Returns an error message, or None."""
    path, text, wrong = read(folder, mutant)
    if not wrong:
        with open(path, "w", encoding="utf-8") as file:
            file.write(text.replace(mutant["find"], mutant["replace"]))
    return wrong


def check_texts(mutants):
    """Prints each mutant that does not fit the core. Returns exit status 0 if all fit."""
    wrong = [(mutant["breaks"], read(TOP, mutant)[2]) for mutant in mutants]
    wrong = [(breaks, why) for breaks, why in wrong if why]
    for breaks, why in wrong:
        print(f"selftests/mutants/mutants.toml: {breaks}: {why}", file=sys.stderr)
    return 1 if wrong else 0


def simulate(folder, mutant, log):
    """Builds and runs the simulation. Returns (caught, words); caught is None on build errors."""
    mode = mutant.get("by", "correctness")
    profile, built, options = MODES[mode]
    with open(log, "w", encoding="utf-8") as file:
        target = os.path.join(folder, "target")
        build = ["cargo", "build", "--quiet", "--offline", "-p", "rrxe_simulation", *profile]
        if run("env", f"CARGO_TARGET_DIR={target}", *build, cwd=folder, stdout=file, stderr=file).returncode:
            return None, "it does not compile"
    program = os.path.join(target, built, "simulate")
    # The seed that found it last finds it again, unless the simulation has changed.
    first = mutant.get("seed")
    ranges = ([] if first is None else [f"{first}..{first + 1}"]) + [f"0..{SEEDS[mode]}"]
    for seeds in ranges:
        command = [program, *options, "--seeds", seeds, "--jobs", "1", "--failures", "1"]
        done = run(*command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        with open(log, "a", encoding="utf-8") as file:
            file.write(done.stdout)
        caught = re.search(r"^seed (\d+): (.*)", done.stdout, re.M)
        if caught:
            return True, f"seed {caught.group(1)}: {caught.group(2)}"
    return False, f"not found by {SEEDS[mode]} seeds"


def main(arguments):
    """Returns exit status 0 if the simulation finds every bug."""
    args = parse(arguments)
    with open(MUTANTS, "rb") as file:
        mutants = tomllib.load(file)["mutant"]
    chosen = [mutant for mutant in mutants if not args.only or args.only in mutant["breaks"]]
    if args.check:
        return check_texts(chosen)
    folders = queue.Queue()
    for number in range(args.jobs):
        folders.put(os.path.join(args.out, str(number)))

    def check(mutant):
        folder = folders.get()
        started = time.monotonic()
        try:
            prepare(folder)
            wrong = mutate(folder, mutant)
            name = re.sub(r"\W+", "-", mutant["breaks"])[:60]
            caught, words = (None, wrong) if wrong else simulate(folder, mutant, os.path.join(args.out, f"{name}.txt"))
        finally:
            folders.put(folder)
        return mutant, caught, words, time.monotonic() - started

    os.makedirs(args.out, exist_ok=True)
    found = 0
    with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
        for mutant, caught, words, seconds in pool.map(check, chosen):
            name = re.sub(r"\W+", "-", mutant["breaks"])
            if caught:
                found += 1
                print(f"test {name} ... ok\n    {words} ({seconds:.0f} s)", flush=True)
            else:
                print(f"test {name} ... FAILED, {words}", flush=True)
    print(f"mutants: {found} of {len(chosen)} found")
    return 0 if found == len(chosen) else 1
