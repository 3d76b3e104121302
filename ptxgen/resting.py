"""Rest for the collector of garbage while many objects are made that are all kept."""

from __future__ import annotations

import gc


class CollectorRests:
    """A context in which the collector of garbage does not run, if it ran before.

    It would look at every object of the process again and again and find nothing to free. What was garbage before, and
    what is afterwards, it finds at its next run.
    """

    def __enter__(self) -> None:
        self._ran = gc.isenabled()
        gc.disable()

    def __exit__(self, *raised: object) -> None:
        if self._ran:
            gc.enable()
