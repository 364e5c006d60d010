"""The look inside: one self-contained HTML page about a namespace.

`write_report` is what the command ``rsm-fast inspect`` calls. The page holds stored texts in the
clear: keep it like the store itself.
"""

from rsm_fast.inspect.findings import Findings, examine
from rsm_fast.inspect.page import render
from rsm_fast.inspect.report import write_report

__all__ = ["Findings", "examine", "render", "write_report"]
