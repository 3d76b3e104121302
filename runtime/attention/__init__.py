"""`Executor`: cached attention of a model's layers, and the kernels and staging that it uses."""
