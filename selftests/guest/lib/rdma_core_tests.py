#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
"""Runs test files of rdma-core, and writes the result of each test as a line of JSON.

rdma_core_tests.py OUTPUT FILE… -- OPTIONS…: the options are those of rdma-core's run_tests.py. If
OUTPUT is `-`, the names are only listed. This is a separate program so that a crash of pyverbs does
not lose other results (56.1 crashes with Python 3.13 at the interpreter's exit).
"""

import json
import multiprocessing
import os
import sys
import unittest


class Result(unittest.TextTestResult):
    """Writes each result immediately, because the process may not survive to the end."""

    output = None

    def _write(self, test, status, reason=""):
        json.dump({"test": test.id(), "status": status, "reason": reason}, self.output)
        self.output.write("\n")
        self.output.flush()

    def addSuccess(self, test):
        super().addSuccess(test)
        self._write(test, "ok")

    def addSkip(self, test, reason):
        super().addSkip(test, reason)
        self._write(test, "skip", reason)

    def addFailure(self, test, err):
        super().addFailure(test, err)
        self._write(test, "fail", str(err[1]))

    def addError(self, test, err):
        super().addError(test, err)
        self._write(test, "error", f"{err[0].__name__}: {err[1]}")


def _flatten(suite):
    for item in suite:
        if isinstance(item, unittest.TestSuite):
            yield from _flatten(item)
        else:
            yield item


def main():
    """Loads the files, then lists or runs their tests."""
    # Newer Pythons start a server instead, to which a test's result cannot be passed.
    multiprocessing.set_start_method("fork")
    output, *rest = sys.argv[1:]
    split = rest.index("--")
    files, options = rest[:split], rest[split + 1 :]
    sys.argv[1:] = options
    sys.path.insert(0, os.path.join(os.getcwd(), "tests"))
    sys.path.insert(0, os.getcwd())
    from args_parser import parser

    parser.parse_args()
    suite = unittest.defaultTestLoader.loadTestsFromNames([f"tests.{name}" for name in files])
    if output == "-":
        for test in _flatten(suite):
            print(test.id())
        sys.stdout.flush()
        return 0
    with open(output, "w", encoding="utf-8") as Result.output:
        good = unittest.TextTestRunner(verbosity=2, resultclass=Result).run(suite).wasSuccessful()
    return 0 if good else 1


if __name__ == "__main__":
    status = main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)
