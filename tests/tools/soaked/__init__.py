"""Lives of random caches, which `tests.tools.soak` runs."""

from tests.tools.soaked.batch import Batch
from tests.tools.soaked.sequence import Sequence

LIVES = (Sequence, Batch)
