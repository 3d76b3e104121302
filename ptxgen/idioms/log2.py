"""The unit that exponentials are taken in: ex2 and lg2 are instructions, exp and ln are not."""

from __future__ import annotations

import math

LOG2E = math.log2(math.e)
