# SPDX-License-Identifier: GPL-2.0
"""The test runner: boots and lanes, and the report of their results."""
