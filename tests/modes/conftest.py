"""What the checks assert is told in full."""

import pytest

pytest.register_assert_rewrite("tests.modes.checks")
