"""What the shape of a sum says: how many samples it holds, how many channels."""

from __future__ import annotations

from skipscope.records import Site


def samples(site: Site) -> int:
    """Length of the batch axis at discovery."""
    return site.shape[0] if site.shape else 1


def channels(site: Site) -> int:
    """Length of the axis that holds one number a feature: the last for tokens, else the second."""
    if len(site.shape) < 2:
        return 1
    return site.shape[-1] if site.rows == "token" else site.shape[1]
