"""Products of a few tokens, whose values are signed bytes in shared memory, by weights whose codes are bytes."""
