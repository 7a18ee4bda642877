# SPDX-License-Identifier: GPL-2.0
"""The conformance page: statements, the tests that name them, and their results.

Statements are in selftests/conformance/statements. A test names the statements that it tests: a
script in its line `tests`, a host test in the name of its function (`b_08_…`) or in the comment
before it, a guest case in its docstring. Results are taken from the junit.xml of test runs and kept
in selftests/conformance/results.
"""

import argparse
import ast
import glob
import os
import re
import runpy
import sys
import textwrap
import xml.etree.ElementTree as ET

from .root import TOP

FOLDER = os.path.join(TOP, "selftests/conformance")
PAGE = os.path.join(TOP, "docs/conformance.md")

# Columns of the page.
_WIDTH = 100

_ID = re.compile(r"\b([A-L]-\d\d)\b")
_ITEM = re.compile(r"^- \*\*([A-L]-\d\d)\*\* ((?:.|\n  )*)", re.M)
_OWN_ID = re.compile(r"^([a-l])_(\d\d)_")
_RUST_TEST = re.compile(r"((?:^[ \t]*(?:///|#\[|//[^/!]).*\n)+)^[ \t]*(?:pub )?(?:async )?fn (\w+)", re.M)


class Statement:
    """A statement and its tests."""

    def __init__(self, name, chapter, text, marks, group):
        self.name = name
        self.chapter = chapter
        self.text = text
        self.marks = marks
        self.group = group
        self.host, self.scripts, self.guest = [], [], []

    def layers(self):
        """Returns the layers that test it."""
        return [kind for kind in ("host", "scripts", "guest") if getattr(self, kind)]


def statements():
    """Returns all statements: {id: Statement}."""
    found, group = {}, ""
    with open(os.path.join(FOLDER, "statements"), encoding="utf-8") as file:
        for line in file:
            if line.startswith("## "):
                group = line[3:].strip()
            parts = [part.strip() for part in line.split(" | ")]
            if len(parts) >= 3 and _ID.fullmatch(parts[0]):
                found[parts[0]] = Statement(*parts[:3], parts[3].split() if len(parts) > 3 else [], group)
    return found


def _read(path):
    with open(path, encoding="utf-8") as file:
        return file.read()


def script_ids():
    """Returns {script: (ids, its marks)}."""
    found = {}
    for path in sorted(glob.glob(os.path.join(FOLDER, "*.rrx"))):
        text = _read(path)
        ids = [name for line in re.findall(r"^tests (.*)$", text, re.M) for name in line.split()]
        marks = dict(re.findall(r"^(core-only|guest-only) (.*)$", text, re.M))
        found[os.path.basename(path)[:-4]] = (ids, marks)
    return found


def host_ids():
    """Returns {name of a test function of the workspace: ids}."""
    found = {}
    patterns = ("drivers/rrxe/**/*.rs", "selftests/**/*.rs", "provider/src/**/*.rs")
    for pattern in patterns:
        for path in sorted(glob.glob(os.path.join(TOP, pattern), recursive=True)):
            for before, name in _RUST_TEST.findall(_read(path)):
                if "#[test]" not in before:
                    continue
                ids = [i for line in before.splitlines() if line.strip().startswith("//") for i in _ID.findall(line)]
                own = _OWN_ID.match(name)
                if own:
                    ids.insert(0, f"{own.group(1).upper()}-{own.group(2)}")
                if ids:
                    found.setdefault(name, []).extend(i for i in dict.fromkeys(ids) if i not in found.get(name, []))
    return found


def guest_cases():
    """Returns {suite/case: its docstring}."""
    found = {}
    for path in sorted(glob.glob(os.path.join(TOP, "selftests/guest/suites/*.py"))):
        suite = os.path.basename(path)[:-3].replace("_", "-")
        for node in ast.parse(_read(path)).body:
            if isinstance(node, ast.FunctionDef) and node.decorator_list:
                found[f"{suite}/{node.name.replace('_', '-')}"] = ast.get_docstring(node) or ""
    return found


def guest_ids():
    """Returns {suite/case: ids}."""
    found = {case: list(dict.fromkeys(_ID.findall(text))) for case, text in guest_cases().items()}
    return {case: ids for case, ids in found.items() if ids}


def capability_tests():
    """Returns the tests of the device's claims: {claim: tests}."""
    found = runpy.run_path(os.path.join(TOP, "selftests/guest/lib/capabilities.py"))
    return found["TESTS"]


def _check_capabilities():
    """Yields errors in the tests of capabilities (K-10): a test is missing or failed."""
    cases, scripts, ended = guest_cases(), script_ids(), results()
    for claim, tests in capability_tests().items():
        if not tests:
            yield f"nothing tests {claim}"
        for test in tests:
            if test not in cases and test not in scripts:
                yield f"{test}, which is to test {claim}, is no case and no script"
            for name, status in ended.items():
                rest = name.partition("/")[2].removeprefix("conformance/")
                if status == "fail" and name.startswith("guest/") and (rest == test or matches_case(rest, test)):
                    yield f"{test}, which is to test {claim}, failed"


def gather():
    """Returns the statements with their tests, and the errors in the names of statements."""
    known, wrong = statements(), []

    def add(kind, test, ids):
        for name in ids:
            if name in known:
                getattr(known[name], kind).append(test)
            else:
                wrong.append(f"{test} names {name}, which is no statement")

    for test, (ids, _) in script_ids().items():
        add("scripts", test, ids)
    for test, ids in host_ids().items():
        add("host", test, ids)
    for test, ids in guest_ids().items():
        add("guest", test, ids)
    return known, wrong


def results():
    """Returns the kept results of earlier runs: {name: ok, fail or skip}."""
    path = os.path.join(FOLDER, "results")
    if not os.path.exists(path):
        return {}
    lines = (line.split(maxsplit=1) for line in _read(path).splitlines() if not line.startswith("#"))
    return {name: status for status, name in filter(None, lines)}


def take_results(paths):
    """Adds the results of tests that name statements, from JUnit XML files."""
    known = results()
    wanted = set(host_ids())
    cases = set(guest_ids()).union(*capability_tests().values())
    for path in paths:
        for test in ET.parse(path).getroot().iter("testcase"):
            name = f"{test.get('classname')}/{test.get('name')}"
            lane, _, rest = name.partition("/")
            scripted = rest.startswith(("conformance/", "conformance-rxe/"))
            if lane == "host":
                if not scripted and rest.split("::")[-1].split("/")[-1] not in wanted:
                    continue
            elif lane != "guest" or rest.endswith("kernel-log"):
                continue
            elif not scripted and not any(matches_case(rest, case) for case in cases):
                continue
            failed, skipped = test.find("failure") is not None, test.find("skipped") is not None
            known[name] = "fail" if failed else "skip" if skipped else "ok"
    with open(os.path.join(FOLDER, "results"), "w", encoding="utf-8") as file:
        file.write("# SPDX-License-Identifier: GPL-2.0\n#\n")
        file.write("# How the tests ended that name statements: written by selftests/run conformance-table.\n")
        for name, status in sorted(known.items()):
            file.write(f"{status} {name}\n")


def matches_case(rest, case):
    """Returns whether a result belongs to this case or to one of its variants."""
    return rest == case or rest.startswith(case + "-")


def _verdict(found):
    """Summarizes the results of several tests in one word."""
    if not found:
        return "–"
    if "fail" in found:
        return "FAILS"
    return "passes" if "ok" in found else "–"


def _core(statement, ended):
    found = [ended.get(f"host/conformance/{name}") for name in statement.scripts]
    for test in statement.host:
        found += [s for name, s in ended.items() if name.startswith("host/") and re.split(r"::|/", name)[-1] == test]
    return _verdict([status for status in found if status])


def _guest(statement, ended):
    found = [ended.get(f"guest/conformance/{name}") for name in statement.scripts]
    for case in statement.guest:
        found += [s for name, s in ended.items() if name.startswith("guest/") and matches_case(name[6:], case)]
    return _verdict([status for status in found if status])


def _other(statement, ended, known):
    """Returns the result of rdma_rxe."""
    words = []
    ran = False
    for name in statement.scripts:
        status = ended.get(f"guest/conformance-rxe/{name}")
        ids, difference = known.get(name, ([], ""))
        if difference == "not measured":
            continue
        if difference and status in ("ok", "skip"):
            # A script stops at its first difference; its later steps are untested.
            words += [difference] if not ids or statement.name in ids else []
        else:
            ran = ran or status == "ok"
    if words:
        return "; ".join(dict.fromkeys(words))
    return "as stated" if ran else "not measured"


def rxe_differences():
    """Returns {script: (ids, words)}: known differences of rdma_rxe, or why a script is not run."""
    found = {}
    for line in _read(os.path.join(FOLDER, "rdma_rxe")).splitlines():
        name, colon, words = line.partition(":")
        if colon and not line.startswith("#"):
            script, *ids = name.lstrip("!").split()
            found[script] = (ids, words.strip())
    return found


def _tests(statement):
    words = []
    if statement.scripts:
        words.append("scripts " + ", ".join(f"`{name}`" for name in statement.scripts))
    if statement.host:
        words.append("host " + ", ".join(f"`{name}`" for name in statement.host))
    if statement.guest:
        words.append("guest " + ", ".join(f"`{name}`" for name in statement.guest))
    return "; ".join(words) or "**none yet**"


def _item(indent, text):
    """Returns the lines of an item of a list."""
    return textwrap.wrap(
        text,
        _WIDTH,
        initial_indent=f"{indent}- ",
        subsequent_indent=f"{indent}  ",
        break_long_words=False,
        break_on_hyphens=False,
    )


def page():
    """Returns the page."""
    known, _ = gather()
    ended, differences = results(), rxe_differences()
    tested = [one for one in known.values() if one.layers()]
    good = [one for one in tested if "FAILS" not in (c := (_core(one, ended), _guest(one, ended))) and "passes" in c]
    measured = [one for one in known.values() if _other(one, ended, differences) != "not measured"]
    differing = [one for one in measured if _other(one, ended, differences) != "as stated"]
    lines = [
        "# Conformance",
        "",
        "Statements about a conforming RoCEv2 end point, the tests that name each, and the results of their",
        "last run: over the transport core, with rrxe in a guest, and the same scripts with rdma_rxe (Linux",
        "7.2) in a guest. Chapters are chapters of the InfiniBand Architecture Specification, volume 1.",
        "`selftests/run conformance-table` writes this page (docs/testing.md). “–” means: not run there, or",
        "not visible there.",
        "",
        "| | |",
        "|---|---|",
        f"| statements | {len(known)} |",
        f"| named by a test | {len(tested)} |",
        f"| with a test that passed, and none that failed | {len(good)} |",
        f"| measured with rdma_rxe | {len(measured)} |",
        f"| with a deviation of rdma_rxe | {len(differing)} |",
    ]
    group = None
    for one in known.values():
        if one.group != group:
            group = one.group
            lines += ["", f"## {group}", ""]
        lines += _item("", f"**{one.name}** {one.text} ({one.chapter})")
        lines += _item(
            "  ",
            f"core: {_core(one, ended)}; rrxe: {_guest(one, ended)}; rdma_rxe: {_other(one, ended, differences)}",
        )
        lines += _item("  ", f"tests: {_tests(one)}")
    return "\n".join(lines) + "\n"


def check():
    """Returns the errors: unknown ids, and statements whose item is out of date."""
    known, wrong = gather()
    found = _read(PAGE) if os.path.exists(PAGE) else ""
    items = {name: " ".join(text.split()) for name, text in _ITEM.findall(found)}
    for name in items:
        if name not in known:
            wrong.append(f"docs/conformance.md has {name}, which is no statement")
    for one in known.values():
        item = items.get(one.name, "")
        if not item.startswith(" ".join(one.text.split())) or ("**none yet**" in item) != (not one.layers()):
            wrong.append(f"docs/conformance.md is out of date for {one.name}: run selftests/run conformance-table")
    for name in rxe_differences():
        if name not in script_ids():
            wrong.append(f"selftests/conformance/rdma_rxe names {name}, which is no script")
    return wrong + list(_check_capabilities())


def parse(arguments):
    """Parses the command line."""
    words = "Writes docs/conformance.md: the statements, the tests that name each, and how those ended."
    parser = argparse.ArgumentParser(prog="selftests/run conformance-table", description=words)
    parser.add_argument("files", nargs="*", metavar="junit.xml", help="takes the results of these runs first")
    other = parser.add_mutually_exclusive_group()
    other.add_argument("--check", action="store_true", help="only fails if a test names an unknown statement or the page is out of date")
    other.add_argument("--untested", action="store_true", help="only lists the statements that no test names")
    return parser.parse_args(arguments)


def main(arguments):
    """Runs the command line. Returns the exit status."""
    args = parse(arguments)
    if args.check:
        wrong = check()
        for text in wrong:
            print(text, file=sys.stderr)
        return 1 if wrong else 0
    if args.untested:
        for one in gather()[0].values():
            if not one.layers():
                print(f"{one.name} {one.text}")
        return 0
    if args.files:
        take_results(args.files)
    with open(PAGE, "w", encoding="utf-8") as file:
        file.write(page())
    return 0
