"""The links of the chain, in the order in which a reader goes along it; one file each.

To add a link, write its file and add its line to `LINKS`.
"""

from __future__ import annotations

from skipscope.evidence.link import Kind
from skipscope.evidence.links.ablation import ABLATION
from skipscope.evidence.links.controlled import CONTROLLED
from skipscope.evidence.links.degrades import DEGRADES
from skipscope.evidence.links.holds import HOLDS
from skipscope.evidence.links.rates import RATES
from skipscope.evidence.links.scales import SCALES
from skipscope.evidence.links.signal import SIGNAL

#: A link's number is its place.
LINKS: tuple[Kind, ...] = (CONTROLLED, DEGRADES, HOLDS, SIGNAL, SCALES, ABLATION, RATES)
