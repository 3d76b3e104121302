"""What several test files share: devices, small kernels, fakes; models and attention have a folder each."""
