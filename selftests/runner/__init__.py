# SPDX-License-Identifier: GPL-2.0
"""The test runner: what runs where (boots, lanes), and what became of it (report)."""
