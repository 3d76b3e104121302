"""One launch on this host: arguments, memory, native state, and the threads that run it."""
