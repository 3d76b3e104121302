"""Evidence from elsewhere: other compilers, a GPU's results, another interpreter, random programs, known bugs."""
