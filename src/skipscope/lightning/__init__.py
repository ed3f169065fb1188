"""The callbacks for Lightning; the only room that names it."""

from skipscope.lightning.callback import ResidualMonitor
from skipscope.lightning.intervention import Intervention

__all__ = ["Intervention", "ResidualMonitor"]
