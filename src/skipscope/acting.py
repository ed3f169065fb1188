"""Which models run with other sums than their own, and with which.

An intervention enters itself here; a monitor writes down what it finds. Neither knows the other.
"""

from __future__ import annotations

from weakref import WeakKeyDictionary

from torch import nn

#: model -> what its sums are, in words
ACTING: WeakKeyDictionary[nn.Module, str] = WeakKeyDictionary()
