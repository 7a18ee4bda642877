# SPDX-License-Identifier: GPL-2.0
"""rdma-core's own tests of verbs and of the RDMA CM, through pyverbs, as one case each.

A test may be skipped only if lib/rdma-core-skips lists it.
"""

import fnmatch
import json
import os
import shutil

import harness
import testbed
from harness import Failure, Skip

FILES = (
    "test_addr",
    "test_atomic",
    "test_cq",
    "test_cq_events",
    "test_cqex",
    "test_device",
    "test_flow",
    "test_fork",
    "test_mr",
    "test_odp",
    "test_parent_domain",
    "test_pd",
    "test_qp",
    "test_qpex",
    "test_rdmacm",
    "test_relaxed_ordering",
    "test_rss_traffic",
    "test_shared_pd",
    "test_srq",
    "test_tag_matching",
)
# Files that 65.0 has and 56.1 lacks.
LATER_FILES = ("test_buf",)

HERE = os.path.dirname(os.path.abspath(__file__))
RUNNER = os.path.join(HERE, "../lib/rdma_core_tests.py")
SKIPS = os.path.join(HERE, "../lib/rdma-core-skips")
INSTALLED = "/opt/rdma-core/tests"
FOLDER = "/tmp/rdma-core"

bed = testbed.Bed()


def _files():
    return FILES + tuple(name for name in LATER_FILES if os.path.exists(f"{INSTALLED}/{name}.py"))


def _prepare():
    """Copies the tests, except those for the devices of one vendor, which crash on others or need
    them."""
    os.makedirs(f"{FOLDER}/tests")
    # For the tests of huge pages.
    bed.here.machine.run("sysctl -q vm.nr_hugepages=32")
    for name in os.listdir(INSTALLED):
        if not name.startswith("test_") or name[:-3] in _files():
            shutil.copy(f"{INSTALLED}/{name}", f"{FOLDER}/tests")
    # Replaces the package's own __init__, which would import every file.
    with open(f"{FOLDER}/tests/__init__.py", "w", encoding="ascii"):
        pass


def _options():
    return f"--dev {bed.here.device} --port 1 --gid {bed.here.gid_index()} -v"


class _File:
    """The results of a file, which runs when its first result is requested."""

    def __init__(self, name):
        self._name = name
        self._results = None

    def result(self, test):
        if self._results is None:
            self._run()
        return self._results.get(test, {"status": "error", "reason": self._end})

    def _run(self):
        self._results = {}
        path = f"/tmp/{self._name}.json"
        command = f"cd {FOLDER} && python3 {RUNNER} {path} {self._name} -- {_options()}"
        end = bed.here.machine.try_run(command, 600)
        shutil.copy(path, harness.OUT)
        self._end = f"python ended with {end.status} before this test"
        with open(path, encoding="utf-8") as lines:
            for line in lines:
                result = json.loads(line)
                # A test with subtests may report more than once; the worst result counts.
                if result["test"] not in self._results or result["status"] in ("fail", "error"):
                    self._results[result["test"]] = result


def _expected_skips():
    with open(SKIPS, encoding="utf-8") as lines:
        for line in lines:
            if line.strip() and not line.startswith("#"):
                test, reason, why = (field.strip() for field in line.split("|", 2))
                yield test, reason, why


def _judge(file, test):
    result = file.result(test)
    short = test.removeprefix("tests.")
    if result["status"] == "ok":
        return
    if result["status"] == "skip":
        for pattern, reason, why in _expected_skips():
            if fnmatch.fnmatchcase(short, pattern) and reason in result["reason"]:
                raise Skip(f"{result['reason']} [{why}]")
        raise Failure(f"skipped, and that is not expected: {result['reason']}")
    raise Failure(f"{result['status']}: {result['reason']}")


def run():
    """Runs the suite."""
    _prepare()
    command = f"cd {FOLDER} && python3 {RUNNER} - {' '.join(_files())} -- {_options()}"
    listed = bed.here.machine.run(command, 120).split()
    files = {name: _File(name) for name in _files()}
    for test in listed:
        if not test.startswith("tests."):
            continue
        name = test.split(".")[1]
        harness.declare(test.removeprefix("tests."), 660, _judge, files[name], test)
    return bed.run()
