"""A decode step in one launch: `step` makes it of a Program, `refusals` says why it cannot."""
