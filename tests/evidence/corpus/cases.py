"""All cases of the corpus, by name: `CASES`."""

from tests.evidence.corpus import cases_control, cases_hopper, cases_numeric, cases_warp  # noqa: F401
from tests.evidence.corpus.case import CASES

__all__ = ["CASES"]
