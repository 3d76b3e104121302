"""Who is measured: our kernels, other libraries, and the read of the same bytes alone."""
