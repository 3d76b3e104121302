"""One launch on this host: arguments, memory, native state, the threads that run it, and what a finding says."""
