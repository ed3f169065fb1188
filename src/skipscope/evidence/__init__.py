"""Evidence: what the cells of a controlled study came to, and what that shows.

Numbers and text only, without torch: a study that was run is judged and printed again later.
"""

from __future__ import annotations

from skipscope.evidence.judge import judge
from skipscope.evidence.reports import console, write_reports

__all__ = ["console", "judge", "write_reports"]
