"""The CUDA backend, on the driver API alone. Imported when a CUDA device is opened."""
